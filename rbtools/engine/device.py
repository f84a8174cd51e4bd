"""Where the arithmetic happens, and how much of the machine it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from rbtools.engine import cores
from rbtools.engine.run import Run
from rbtools.errors import RbError


@contextlib.contextmanager
def taken(run: Run, threads: int) -> Iterator[torch.device]:
    """The device that `--device` names ("auto": the first GPU, else the CPU), with that many threads set.

    CPU threads are shared by all stages of a pipe: a stage holds one core for each while it computes,
    and waits for them. Raises RbError for a device that torch does not know or that is not there.
    """
    device = choose(run)
    if device.type != "cpu":
        yield device
        return
    with cores.held(run.store.folder, threads, run.pulse):
        torch.set_num_threads(threads)
        yield device


def choose(run: Run) -> torch.device:
    """The device that the run names; workers take the GPUs in turn. RbError where it cannot be used."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if run.device == "auto" and not cards:
        return torch.device("cpu")
    if run.device in ("auto", "cuda") and cards:
        return torch.device("cuda", run.worker % cards)
    try:
        device = torch.device(run.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RbError(
            f"The device '{run.device}' cannot be used: {reason}. Use --device cpu or auto."
        ) from error
    return device
