"""Checkpoints that are programs: TorchScript and torch.export files contain the code of their network."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.models import Shape
from rbtools.plain_files import opened, plain

TORCHSCRIPT, EXPORT = "torchscript", "torch.export"


class Program(nn.Module):
    """A loaded program, which has only one mode: torch.export does not support `train` and `eval`."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> Program:
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.program(images)


def kind_of_file(path: Path) -> str | None:
    """Returns `TORCHSCRIPT` or `EXPORT`, and None for other files."""
    try:
        with zipfile.ZipFile(plain(path)) as archive:
            return kind_of_archive(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None


def kind_of_archive(names: Sequence[str]) -> str | None:
    if any(name.endswith(("archive_format", "serialized_exported_program.json")) for name in names):
        return EXPORT
    if any("/code/" in name or name.endswith("/constants.pkl") for name in names):
        return TORCHSCRIPT
    return None


def refusal(path: Path, kind: str) -> RbError:
    what = "a TorchScript program" if kind == TORCHSCRIPT else "a program from torch.export"
    return RbError(
        f"The checkpoint {path} is {what}, and loading it could run code. If you trust it, add --allow-code;"
        " else save the weights alone: torch.save(model.state_dict(), FILE)."
    )


def load(path: Path, kind: str) -> Program:
    """Load a program, which may run code that the user must allow first. Raises RbError if this fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but its files are still in use
            if kind == TORCHSCRIPT:
                return Program(torch.jit.load(str(plain(path)), map_location="cpu").eval())
            with opened(path) as file:  # given a path, torch warns of other file extensions
                return Program(torch.export.load(file).module())
    except Exception as error:  # the program's loader may raise anything
        first, *_ = str(error).split("\n")
        raise RbError(
            f"The checkpoint {path} looks like a {kind} program and does not load"
            f" ({type(error).__name__}: {first[:160]}). Was it saved by another version of torch?"
        ) from None


def classes_of(program: Program, shape: Shape, path: Path) -> int:
    """Returns the number of logits. Raises RbError if the program fails or returns something else."""
    try:
        with torch.no_grad():
            logits = program(torch.zeros(2, *shape))
    except Exception as error:
        *_, cause = str(error).strip().split("\n")  # the lines before it are TorchScript's traceback
        raise RbError(
            f"The program {path} fails on two images of {'x'.join(map(str, shape))}"
            f" ({type(error).__name__}: {cause.strip()[:160]}). Was it saved for another size, number of"
            " channels or number of images at a time? torch.export keeps the latter open with"
            " dynamic_shapes."
        ) from None
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 2:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise RbError(f"The program {path} gives {what} for two images. Expected logits (2, classes).")
    return logits.shape[1]


def from_arch(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> nn.Module:
    """Raises RbError in every case, because the network exists only in the file."""
    raise RbError(
        f"The architecture checkpoint:{arch.get('name')} is a program inside its checkpoint: it can be"
        " evaluated, but not trained."
    )
