"""Gradients through defences: one JSON line a figure.

    python bench/defences.py [memory|rounding]

memory: of the gradient through `tv`, whose iterations are stored or computed again; `mb` is the largest sum
of the live tensors that a forward and a backward pass make. rounding: a network that sees four grey levels,
under PGD through the identity (BPDA), and under PGD and AutoAttack with the true gradient, zero; minutes.
"""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any

import torch
from common import show
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """The bytes of all tensors that are made inside it and still alive: `most` is the largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.live: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if size and place not in self.live:
            self.live.add(place)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self.live.discard(place)
        self.now -= size


def memory() -> None:
    """1, 10 and 100 iterations of `tv` on 64 images of 32x32 pixels."""
    from rbtools.defences.total_variation import TotalVariation

    images = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for steps in (1, 10, 100):
        for checkpointed in (False, True):
            start = time.perf_counter()
            with PeakMemory() as peak:
                TotalVariation(steps=steps, drop=0.0)(images, checkpointed).sum().backward()
            values = {"steps": steps, "checkpointed": checkpointed, "mb": round(peak.most / 1e6, 1)}
            show("gradient through tv", **values, seconds=round(time.perf_counter() - start, 2))


def rounding() -> None:
    """Accuracies of 200 digits on either side of half a grey level (42.5/255), with passes for each image."""
    import rbtools

    (record,) = rbtools.arch(13714, cells=1, channels=8)
    record = rbtools.train(record, "erm", epochs=20)
    for eps in (40, 48):
        for attack, backward, more in (
            ("pgd", "", {}),
            ("pgd", "", {"steps": 50, "restarts": 3}),
            ("pgd", ":backward=none", {}),
            ("aa", ":backward=none", {}),
        ):
            found = rbtools.attack(record, attack, eps=[eps], n=200, defend=f"quantize:2{backward}", **more)
            entry = found["evals"][-1]
            passes = sum(entry["passes"].values())
            values = {"eps": eps, "metric": entry["metric"], "backward": entry["backward"][0]}
            show("rounding network", **values, value=entry["value"], passes=passes)


def main() -> None:
    """Print the figures that the command line names, or all."""
    chosen = sys.argv[1:] or ["memory", "rounding"]
    for name in chosen:
        {"memory": memory, "rounding": rounding}[name]()


if __name__ == "__main__":
    main()
