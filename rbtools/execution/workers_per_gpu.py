"""How many workers share a GPU, and how: twice as many while together they do more, by what the first minute
shows.

Several workers are processes, or jobs of one process in turn, each with a CUDA stream of its own
(`turns`). Whether either gains anything depends on the network and the card, so it is measured. NVIDIA's
Multi-Process Service lets kernels of several processes run at the same time; it is noticed, never started.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 8.0
"""Each worker is measured for so long at least, from its first report after all of them have reported."""
GAIN = 1.05
"""More workers stay where together they are faster by this factor."""


class Sharing(NamedTuple):
    """A number of workers on each GPU; `in_turn`: in one process."""

    workers: int
    in_turn: bool = False

    def __str__(self) -> str:
        if self.workers == 1:
            return "1"
        return f"{self.workers} in turn" if self.in_turn else f"{self.workers} processes"


@dataclass
class _Pace:
    """What one worker did between two of its reports, and its job if it was one alone."""

    start: float | None = None
    job: int | None = None
    end: float = 0.0
    images: int = 0

    @property
    def seconds(self) -> float:
        return 0.0 if self.start is None else self.end - self.start

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


_Paces = dict[int, _Pace]


@dataclass
class WorkersPerGPU:
    """Decides, from reports of all workers, how those of each of some GPUs share it.

    `most`: as many workers as memory and cores allow, which may be learnt later. `can_take_turns`: their jobs
    can be those of one process. `fixed`: so many workers, of which only the way is measured. `now`: how they
    share it now. `rates`: images a second of all workers together. `settled`: it is decided.
    """

    gpus: int = 1
    most: int = 1
    can_take_turns: bool = False
    fixed: int | None = None
    now: Sharing = field(default_factory=lambda: Sharing(1))
    rates: dict[Sharing, float] = field(default_factory=dict)
    settled: bool = False
    _paces: _Paces = field(default_factory=dict)
    _measured: dict[Sharing, _Paces] = field(default_factory=dict)
    _before: Sharing | None = None  # with fewer workers
    _untried: list[Sharing] = field(default_factory=list)  # with as many as now

    def __post_init__(self) -> None:
        if self.fixed is not None:
            self._try(self.fixed)
            self.settled = not self._untried

    @property
    def count(self) -> int:
        return self.now.workers

    @property
    def in_turn(self) -> bool:
        return self.now.in_turn

    def report(self, worker: int, job: int, images: int, now: float) -> bool:
        """A worker has done so many images of a job since its last report; `now` in seconds. Returns whether
        `now` or `settled` has changed.
        """
        if self.settled or worker >= self.count * self.gpus:
            return False
        pace = self._paces.setdefault(worker, _Pace())
        if len(self._paces) < self.count * self.gpus:
            return False  # what others do while one starts does not count
        if pace.start is None:
            pace.start, pace.job = now, job  # what it did before its first report, such as to start, neither
            return False
        pace.images, pace.end = pace.images + images, now
        pace.job = pace.job if pace.job == job else None
        if any(pace.seconds < SECONDS or not pace.seconds for pace in self._paces.values()):
            return False
        self._decide()
        return True

    def _decide(self) -> None:
        self.rates[self.now] = sum(pace.rate for pace in self._paces.values())
        self._measured[self.now], self._paces = self._paces, {}
        if self._untried:
            self.now = self._untried.pop()
            return
        gains = self._gains()
        best = max(gains, key=lambda way: gains[way])
        if self._before is not None and gains[best] <= GAIN:
            self.now, self.settled = self._before, True
            return
        more = self.count if self.fixed else min(2 * self.count, self.most)
        if more <= self.count:
            self.now, self.settled = best, True
            return
        self._before = best
        self._try(more, None if best.workers == 1 else best.in_turn)

    def _try(self, count: int, in_turn: bool | None = None) -> None:
        """Measure so many workers next, in the way that is decided, or in both."""
        both = [Sharing(count)] + (
            [Sharing(count, in_turn=True)] if self.can_take_turns and count > 1 else []
        )
        self._untried = both if in_turn is None else [Sharing(count, in_turn)]
        self.now = self._untried.pop()

    def _gains(self) -> dict[Sharing, float]:
        """How many times as fast all workers are as fewer were before, in each way that was measured.

        Processes have equal shares of a GPU's time, so their rates count against those of before, and what
        they do in turn against theirs.
        """
        ways = [way for way in self._measured if way.workers == self.count]
        first = next((way for way in ways if not way.in_turn), ways[0])
        before = self._before
        gain = 1.0 if before is None else first.workers / before.workers * self._ratio(first, before)
        return {way: gain * (1.0 if way == first else self._ratio(way, first)) for way in ways}

    def _ratio(self, way: Sharing, other: Sharing) -> float:
        """How many times as fast a worker is as in another way, the mean. Jobs differ in what an image takes,
        so the workers decide that do the same job in both, where there are any.
        """
        paces, others = self._measured[way], self._measured[other]
        same = [
            pace.rate / others[worker].rate
            for worker, pace in paces.items()
            if worker in others and pace.job is not None and pace.job == others[worker].job
        ]
        if same:
            return sum(same) / len(same)
        return self.rates[way] / way.workers / (self.rates[other] / other.workers)

    def facts(self) -> dict[str, Any]:
        """What was measured and decided, for programs."""
        rates = {str(way): rate for way, rate in self.rates.items()}
        facts = {"per_gpu": self.count, "in_turn": self.in_turn}
        return {**facts, "images_per_second": rates, "mps": mps_runs()}

    def words(self) -> str:
        """What was measured and decided, in a sentence."""
        rates = ", ".join(f"{way}: {rate:.4g} images/s" for way, rate in sorted(self.rates.items()))
        workers = f"{self.count} worker{'s' * (self.count > 1)}"
        way = ", in turn in one process," if self.in_turn else ""
        service = "with" if mps_runs() else "without"
        return f"{workers} on each GPU{way} {service} MPS, by what was measured ({rates})."


def mps_runs() -> bool:
    """Whether NVIDIA's Multi-Process Service runs on this machine, by the process that its folder names."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp") / "nvidia-mps"  # NVIDIA's default
    with contextlib.suppress(OSError, ValueError):
        number = int((Path(folder) / "nvidia-cuda-mps-control.pid").read_text("ascii"))
        return number > 0 and Path(f"/proc/{number}").exists()
    return False
