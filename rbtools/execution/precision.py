"""Chooses the precision of attacks and training runs, which is part of store keys, without torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from rbtools.execution import resources
from rbtools.execution.run import Run

CHOICES = ("auto", "fp32", "bf16")
PREPARED = 2  # version of the fast model (evaluation/fast_model.py)
# Processors that multiply bfloat16 in hardware; others are slower with it than in float32.
_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
# The recipe fixes the batch size of a training run. With smaller images, the layers have so little work that
# converting numbers costs more than it saves.
_LEAST_SIDE = 16


def of_training(run: Run, shape: tuple[int, int, int]) -> str:
    """The precision of a training run, "bf16" or "fp32", on images of the shape (C, H, W)."""
    precision = resolve(run)
    if (
        run.settings.precision != "auto"
        or resources.kind(run).type == "cuda"
        or min(shape[1:]) >= _LEAST_SIDE
    ):
        return precision
    return "fp32"


def resolve(run: Run) -> str:
    """The precision of attack searches, "bf16" or "fp32", that `--precision` selects on this machine."""
    return chosen(run.settings.precision, resources.kind(run).type == "cuda")


def chosen(precision: str, on_gpu: bool) -> str:
    """The given precision or, for "auto", the one that suits the GPU or this processor."""
    if precision != "auto":
        return precision
    return "bf16" if on_gpu or _cpu_has_bf16() else "fp32"


@lru_cache(maxsize=1)
def _cpu_has_bf16() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False  # without Linux's list of features: float32, which always works
    for line in lines:
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return bool(set(_FLAGS) & set(words.split()))
    return False
