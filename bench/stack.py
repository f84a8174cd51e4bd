"""How far an image travels: own frames and files between the user's call and the first gradient.

    python bench/stack.py

Counted with sys.setprofile, once for `rb-attack pgd --checkpoint F` and once for `rbtools.evaluate(model,
(images, labels), PGD(...))`, each in a process of its own. One JSON line each: `frames` and `files` of this
package on the stack at the first torch.autograd.grad, `entered`: files of which any function was called until
then, `switches`: pairs of functions in two of these files of which one called the other. Bodies of modules do
not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import rbtools

OWN = str(Path(rbtools.__file__).parent)


def _own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN)


class Reached(BaseException):
    """The first gradient."""


class Counter:
    """Counts calls between own files until the first gradient, and looks at the stack there."""

    def __init__(self) -> None:
        self.entered: set[str] = set()
        self.switches: set[tuple[CodeType, CodeType]] = set()
        self.stack: list[str] = []

    def seen(self, frame: FrameType, event: str, value: Any) -> None:
        if event != "call" or not _own(frame) or frame.f_code.co_name == "<module>":
            return
        self.entered.add(frame.f_code.co_filename)
        before = frame.f_back
        if before is not None and _own(before) and before.f_code.co_filename != frame.f_code.co_filename:
            self.switches.add((before.f_code, frame.f_code))

    def gradient(self, *args: Any, **options: Any) -> Any:
        sys.setprofile(None)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _own(frame):
                self.stack.append(f"{Path(frame.f_code.co_filename).relative_to(OWN)}:{frame.f_code.co_name}")
            frame = frame.f_back
        raise Reached

    def run(self, way: str, checkpoint: str) -> dict[str, Any]:
        images, labels = torch.rand(64, 1, 8, 8), torch.arange(64) % 10
        torch.autograd.grad = self.gradient  # type: ignore[assignment]
        sys.setprofile(self.seen)
        try:
            if way == "command":
                from rbtools.commands import attack

                line = [
                    "pgd",
                    "--eps",
                    "8",
                    "--checkpoint",
                    checkpoint,
                    "--arch",
                    "nb201-13714",
                    "--store",
                    "none",
                    "--device",
                    "cpu",
                ]
                attack.main(line, standalone_mode=False)
            else:
                from rbtools.attacks.pgd import PGD

                rbtools.evaluate(network(), (images, labels), PGD(eps=8 / 255))
        except Reached:
            pass
        finally:
            sys.setprofile(None)
        files = {line.partition(":")[0] for line in self.stack}
        return {
            "way": way,
            "frames": len(self.stack),
            "files": len(files),
            "entered": len(self.entered),
            "switches": len(self.switches),
            "stack": self.stack[::-1],
        }


def network() -> nn.Module:
    """A small network for the digits."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(Counter().run(*sys.argv[1:])))
        return
    from rbtools import models

    with tempfile.TemporaryDirectory() as folder:
        arch = {"space": "nasbench201", "index": 13714, "channels": 4, "cells": 1}
        torch.manual_seed(0)
        built = models.build(arch, classes=10, shape=(1, 8, 8))
        path = str(Path(folder) / "model.pt")
        torch.save(built.state_dict(), path)
        for way in ("command", "evaluate"):
            subprocess.run([sys.executable, __file__, way, path], check=True)


if __name__ == "__main__":
    main()
