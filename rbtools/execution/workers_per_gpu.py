"""How many workers share a GPU: twice as many while together they do more, by what the first minute shows.

Whether several processes on a GPU gain anything depends on the network and the card, so it is measured.
NVIDIA's Multi-Process Service lets their kernels run at the same time; it is noticed, never started.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 8.0
"""A number of workers is measured for so long at least, from when all of them have finished a batch."""
GAIN = 1.05
"""More workers stay where together they are faster by this factor."""


@dataclass
class _Pace:
    """What one worker did in a stretch: images since all had reported, and its job if it was one alone."""

    start: float
    job: int | None
    end: float = 0.0
    images: int = 0

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / (self.end - self.start)


@dataclass
class WorkersPerGPU:
    """Decides, from reports of all workers, how many of them each of some GPUs has.

    `most`: as many as memory and cores allow, which may be learnt later. `count`: how many there are now.
    `rates`: images a second of all workers together, by their number on each GPU. `settled`: it is decided.
    """

    gpus: int = 1
    most: int = 1
    count: int = 1
    rates: dict[int, float] = field(default_factory=dict)
    settled: bool = False
    _paces: dict[int, _Pace] = field(default_factory=dict)
    _before: dict[int, _Pace] = field(default_factory=dict)
    _fewer: int = 0

    def report(self, worker: int, job: int, images: int, now: float) -> bool:
        """A worker has done so many images of a job since its last report; `now` in seconds. Returns whether
        `count` or `settled` has changed.
        """
        if self.settled or worker >= self.count * self.gpus:
            return False
        pace = self._paces.get(worker)
        if pace is None:
            self._paces[worker] = _Pace(now, job)  # what was before it, such as the start, does not count,
            if len(self._paces) == self.count * self.gpus:  # nor what others did while the last one started
                self._paces = {one: _Pace(now, known.job) for one, known in self._paces.items()}
            return False
        pace.images, pace.end = pace.images + images, now
        pace.job = pace.job if pace.job == job else None
        return self._measured(now) and self._decide()

    def _measured(self, now: float) -> bool:
        paces = list(self._paces.values())
        complete = len(paces) == self.count * self.gpus and all(pace.end > pace.start for pace in paces)
        return complete and now - max(pace.start for pace in paces) >= SECONDS

    def _decide(self) -> bool:
        self.rates[self.count] = sum(pace.rate for pace in self._paces.values())
        if self._fewer and self._gain() <= GAIN:
            self.count, self.settled = self._fewer, True
            return True
        more = min(2 * self.count, self.most)
        if more <= self.count:
            self.settled = True
            return True
        self._fewer, self.count = self.count, more
        self._before, self._paces = self._paces, {}
        return True

    def _gain(self) -> float:
        """How many times as fast all workers are as the fewer before. Jobs differ in what an image takes, so
        the workers decide that do the same job as then, where there are any.
        """
        same = [
            pace.rate / self._before[worker].rate
            for worker, pace in self._paces.items()
            if worker in self._before and pace.job is not None and pace.job == self._before[worker].job
        ]
        if same:
            return self.count / self._fewer * sum(same) / len(same)
        return self.rates[self.count] / self.rates[self._fewer]

    def facts(self) -> dict[str, Any]:
        """What was measured and decided, for programs."""
        rates = {str(count): rate for count, rate in self.rates.items()}
        return {"per_gpu": self.count, "images_per_second": rates, "mps": mps_runs()}

    def words(self) -> str:
        """What was measured and decided, in a sentence."""
        rates = ", ".join(f"{count}: {rate:.4g} images/s" for count, rate in sorted(self.rates.items()))
        workers = f"{self.count} worker{'s' * (self.count > 1)}"
        service = "with" if mps_runs() else "without"
        return f"{workers} on each GPU, {service} MPS, by what was measured ({rates})."


def mps_runs() -> bool:
    """Whether NVIDIA's Multi-Process Service runs on this machine, by the process that its folder names."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp") / "nvidia-mps"  # NVIDIA's default
    with contextlib.suppress(OSError, ValueError):
        number = int((Path(folder) / "nvidia-cuda-mps-control.pid").read_text("ascii"))
        return number > 0 and Path(f"/proc/{number}").exists()
    return False
