"""The fastest number of CPU threads for a network, measured once for each network and processor, and stored.

Threads that wait for each other at every layer make a small network slower; a large one takes all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rbtools.execution import cores, device
from rbtools.execution.run import Run
from rbtools.lazy import nn, torch
from rbtools.store import digest

VERSION = 1
GAIN = 1.2  # the least speedup by twice the threads, large enough that chance hardly ever decides
_BATCHES = (2, 8, 64)  # batch sizes; the first ones show whether the last would take long
_LARGE = 0.25  # seconds of a batch on one thread, above which layers are large enough for all threads
_TIMES = 3
_known: dict[str, int] = {}  # results of this process, used without a store


class Trial(NamedTuple):
    """A network to measure: the fields that say which it is, its images' shape (C, H, W), and what makes it,
    on the CPU."""

    identity: Mapping[str, Any]
    shape: tuple[int, int, int]
    network: Callable[[], nn.Module]


def of(run: Run, trial: Trial, most: int) -> int:
    """The fastest number of threads for a network on the CPU, at most `most`. On a GPU it is `most`, and also
    if the network cannot be built or run: the work itself then reports the error.

    From the store; else measured, while this process holds `most` cores.
    """
    if device.choose(run).type != "cpu":
        return most
    where = {"most": most, "processor": device.environment(torch.device("cpu"))}
    key = f"threads:{digest({'version': VERSION, **where, 'shape': trial.shape, 'of': trial.identity})}"
    if (threads := _look(run, key, most)) is not None:
        return threads
    with cores.held(run.store.folder, most, run.report.check_cancelled), run.report.clock.stage("threads"):
        if (threads := _look(run, key, most)) is not None:  # another process measured it meanwhile
            return threads
        try:
            threads = _measured(trial, most)
        except Exception:  # a network may raise anything, and raises it again in the work itself
            return most
    _known[key] = threads
    run.store.put(key, str(threads))
    return threads


def _look(run: Run, key: str, most: int) -> int | None:
    """The stored number for that key."""
    text = run.store.get(key) or ""
    kept = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else _known.get(key)
    return kept if kept is not None and 1 <= kept <= most else None


def fastest(seconds: Callable[[int], float], most: int) -> int:
    """The threads, doubled from one while this is `GAIN` times as fast, `most` at most.

    `seconds` measures a batch with so many threads. Both numbers are measured in turn, and the shortest time
    of each counts: what else the machine does only adds to it.
    """
    threads = 1
    while threads < most:
        more = min(2 * threads, most)
        turns = [(seconds(threads), seconds(more)) for _ in range(_TIMES)]
        before, after = (min(times) for times in zip(*turns, strict=True))
        if before < GAIN * after:
            break
        threads = more
    return threads


def _measured(trial: Trial, most: int) -> int:
    """Measure a network forward and backward; torch's threads and random numbers are afterwards as they were
    before.
    """
    before = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            network = trial.network()
            images = torch.rand(_BATCHES[-1], *trial.shape).requires_grad_()

            def seconds(threads: int, count: int = _BATCHES[-1]) -> float:
                torch.set_num_threads(threads)
                network(images[:count]).sum().backward()  # starts the threads
                start = time.perf_counter()
                network(images[:count]).sum().backward()
                return time.perf_counter() - start

            if any(seconds(1, count) > _LARGE for count in _BATCHES):
                return most
            return fastest(seconds, most)
    finally:
        torch.set_num_threads(before)
