"""How many workers share a GPU, decided on pretend reports with a pretend clock."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rbtools.execution.workers_per_gpu import SECONDS, Sharing, WorkersPerGPU, mps_runs


def run(
    decision: WorkersPerGPU, rate: Callable[[int, int], float], jobs: Callable[[int, float], int], end: float
) -> list[int]:
    """Let workers report every second up to `end`: `rate(workers, job)` images a second each; the counts."""
    counts, now = [decision.count], 0.0
    while now < end and not decision.settled:
        now += 1
        for worker in range(decision.count * decision.gpus):
            job, count = jobs(worker, now), decision.count
            decision.report(worker, job, round(rate(count, job)), now)
            if decision.count != count:
                counts.append(decision.count)
                break
    return counts


def one_job_each(worker: int, now: float) -> int:
    return worker


@pytest.mark.parametrize(
    ("together", "most", "counts"),
    [
        ([1.0, 1.8, 3.0, 3.1], 8, [1, 2, 4, 8, 4]),  # images a second of 1, 2, 4 and 8 workers, in thousands
        ([1.0, 1.04, 3.0, 3.1], 8, [1, 2, 1]),
        ([1.0, 0.7, 0.5, 0.1], 8, [1, 2, 1]),
        ([1.0, 2.0, 4.0, 8.0], 8, [1, 2, 4, 8]),
        ([1.0, 2.0, 3.0, 8.0], 3, [1, 2, 3]),
        ([1.0, 2.0, 4.0, 8.0], 1, [1]),
    ],
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_workers_double_while_they_are_faster_together(
    together: list[float], most: int, counts: list[int], gpus: int
) -> None:
    decision = WorkersPerGPU(gpus, most)
    by_count = dict(zip((1, 2, 3, 4, 8), (*together[:2], together[2], *together[2:]), strict=True))
    found = run(decision, lambda count, job: 1000 * by_count[count] / count, one_job_each, 90)
    assert found == counts and decision.settled
    assert decision.rates[Sharing(1)] == pytest.approx(1000 * gpus, rel=0.01)
    assert f"{decision.count} worker" in decision.words() and "1: " in decision.words()
    assert decision.facts()["per_gpu"] == counts[-1]
    assert not decision.report(0, 0, 100, 1e6), "what is decided stays"


@pytest.mark.parametrize("start", [0, 3, 10, 20])
def test_what_others_do_while_new_workers_start_does_not_count(start: int) -> None:
    """A GPU that does 1000 images/s however many workers share it, which take `start` seconds to come."""
    decision, begins = WorkersPerGPU(1, 8), {0: 0}
    for now in range(1, 400):
        there = [worker for worker, at in begins.items() if at <= now and worker < decision.count]
        for worker in there:
            count = decision.count
            decision.report(worker, worker, round(1000 / len(there)), now)
            if decision.count > count:
                begins |= {new: now + start for new in range(count, decision.count)}
            if decision.count != count:
                break
    assert decision.settled and decision.count == 1
    assert decision.rates[Sharing(2)] == pytest.approx(1000, rel=0.02)


def test_jobs_of_other_sizes_do_not_decide() -> None:
    """The second worker has a job whose images take a tenth of the time: together they are not faster."""
    decision = WorkersPerGPU(1, 2)
    found = run(decision, lambda count, job: (100, 1000)[job] / count, one_job_each, 60)
    assert found == [1, 2, 1] and decision.rates[Sharing(2)] > decision.rates[Sharing(1)]


def test_where_every_job_is_new_all_images_decide() -> None:
    decision = WorkersPerGPU(1, 2)
    assert run(decision, lambda count, job: 100, lambda worker, now: int(100 * now) + worker, 60) == [1, 2]
    assert decision.settled


def test_a_number_of_workers_is_measured_for_some_seconds_of_all() -> None:
    decision = WorkersPerGPU(1, 2)
    assert run(decision, lambda count, job: 100, one_job_each, SECONDS) == [1]
    assert run(decision, lambda count, job: 100, lambda worker, now: 0, SECONDS + 2) == [1, 2]
    for now in range(100, 200):  # the second worker has nothing to do
        assert not decision.report(0, 0, 100, now)
    assert not decision.settled


def shared(
    decision: WorkersPerGPU, steps: dict[int, float], processes: float, in_turn: float, end: float = 400
) -> Sharing:
    """Decide with workers that have equal shares of a GPU's time, of which `processes` or `in_turn` make that
    much more. Worker and job `n` needs `steps[n]` seconds of the GPU alone for 100 images, and then reports.
    """
    now, left = 0.0, dict(steps)
    before = decision.now
    while now < end and not decision.settled:
        count = decision.count
        speed = 1.0 if count == 1 else (in_turn if decision.in_turn else processes) / count
        worker = min(range(count), key=lambda one: left[one])
        now, passed = now + left[worker] / speed, left[worker]
        left = {one: value - passed if one < count else value for one, value in left.items()}
        left[worker] = steps[worker]
        decision.report(worker, worker, 100, now)
        if decision.now != before:  # the others begin
            before = decision.now
            left |= {one: steps[one] for one in steps if one >= count}
    return decision.now


@pytest.mark.parametrize("steps", [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0), (3.0, 3.0), (6.0, 2.5), (9.0, 0.5)])
@pytest.mark.parametrize(
    ("processes", "in_turn", "best", "of_two"),
    [
        (1.0, 1.0, Sharing(1), None),  # nothing gains
        (1.0, 1.5, Sharing(2, True), Sharing(2, True)),
        (1.5, 1.0, Sharing(2), Sharing(2)),
        (1.3, 1.6, Sharing(2, True), Sharing(2, True)),
        (0.7, 0.9, Sharing(1), Sharing(2, True)),
    ],
)
def test_the_faster_way_is_chosen_whatever_the_jobs_take(
    steps: tuple[float, float], processes: float, in_turn: float, best: Sharing, of_two: Sharing | None
) -> None:
    by_worker = dict(enumerate(steps))
    auto = WorkersPerGPU(1, 2, can_take_turns=True)
    assert shared(auto, by_worker, processes, in_turn) == best and auto.settled, auto
    fixed = WorkersPerGPU(1, 2, can_take_turns=True, fixed=2)
    assert shared(fixed, by_worker, processes, in_turn) == (of_two or fixed.now) and fixed.settled, fixed


def test_the_service_is_noticed_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "mps")
    assert not mps_runs()
    Path("mps").mkdir()
    for number, runs in ((os.getpid(), True), (2**22 + 1, False), ("no number", False)):
        Path("mps/nvidia-cuda-mps-control.pid").write_text(f"{number}\n")
        assert mps_runs() is runs
