"""Threads that take turns: one runs at a time, in order, each with its own random state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rbtools.execution import turns
from rbtools.execution.memoize import memoized
from rbtools.execution.run import Run
from rbtools.execution.turns import Turns
from rbtools.store import Store, digest

PATIENCE = 60  # seconds for what a busy machine may delay


@pytest.fixture(autouse=True)
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.0)


def together(*works: Callable[[], None], check: Callable[[], None] = lambda: None) -> None:
    """Run some works in turn, begun in their order, and raise what one of them raises."""
    order, failed = Turns(), []

    def run(work: Callable[[], None]) -> None:
        try:
            with order.taken(check):
                started.release()
                work()
        except BaseException as wrong:
            failed.append(wrong)
            started.release()

    started, threads = threading.Semaphore(0), []
    with order.taken(lambda: None):  # nobody begins before all stand in the queue
        for count, work in enumerate(works, 1):
            threads.append(threading.Thread(target=run, args=(work,), daemon=True))
            threads[-1].start()
            while len(order._waiting) < count:
                time.sleep(0.001)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread waits for ever"
    if failed:
        raise failed[0]


def test_each_thread_does_a_step_and_lets_the_others_do_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.time, "monotonic", lambda: 0.0)  # all steps take equally long
    steps: list[tuple[str, int]] = []
    running = 0

    def work(name: str, count: int) -> Callable[[], None]:
        def run() -> None:
            nonlocal running
            for number in range(count):
                running += 1
                time.sleep(0.002)
                assert running == 1
                steps.append((name, number))
                running -= 1
                turns.pass_on()

        return run

    together(work("a", 3), work("b", 1), work("c", 2))
    assert steps == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2)]


def test_random_numbers_are_those_of_a_thread_alone() -> None:
    def draws(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        numbers = []
        for _ in range(5):
            numbers.append(torch.rand(3))
            turns.pass_on()
        return torch.stack(numbers)

    alone = [draws(seed) for seed in range(3)]
    in_turn: dict[int, torch.Tensor] = {}
    together(*(lambda seed=seed: in_turn.update({seed: draws(seed)}) for seed in range(3)))  # type: ignore[misc]
    assert all(torch.equal(in_turn[seed], alone[seed]) for seed in range(3))


def test_outside_of_turns_nothing_is_waited_for() -> None:
    turns.pass_on()
    turns.pause(0)


def test_who_pauses_lets_the_others_go_on() -> None:
    done = threading.Event()

    def waits() -> None:
        end = time.monotonic() + PATIENCE
        while not done.is_set():
            assert time.monotonic() < end
            turns.pause(0.01)

    together(waits, done.set)


def test_a_result_that_another_job_of_the_process_computes_is_waited_for(tmp_path: Path) -> None:
    results: list[object] = []
    count = 0

    def work() -> None:
        nonlocal count
        run = Run.of(tool="test", store=Store(tmp_path / "store"))

        def compute(found: list[object]) -> None:
            nonlocal count
            count += 1
            for _ in range(20):
                turns.pass_on()
            found[0] = {"value": 7}
            run.store.keep_result(key, {}, found[0])

        key = digest({})
        look_up = lambda: [run.store.result(key)]  # noqa: E731
        with memoized(run, [key], look_up, plan=lambda _: None) as (found, ours):
            if ours:
                compute(found)
        results.extend(found)

    together(work, work)
    assert results == [{"value": 7}] * 2 and count == 1


def test_what_the_check_raises_ends_a_job_and_no_other() -> None:
    steps = 0

    def check() -> None:
        if threading.current_thread().name == "ends":
            raise SystemExit

    def ends() -> None:
        threading.current_thread().name = "ends"
        turns.pass_on()
        raise AssertionError("it goes on")

    def goes_on() -> None:
        nonlocal steps
        for _ in range(5):
            turns.pass_on()
            steps += 1

    with pytest.raises(SystemExit):
        together(ends, goes_on, check=check)
    assert steps == 5


def test_jobs_have_about_the_same_time_whatever_their_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    used = {"long": 0.0, "short": 0.0}

    def work(name: str, step: float, end: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            while now < end:
                now += step
                used[name] += step
                turns.pass_on()

        return run

    monkeypatch.setattr(turns.time, "monotonic", lambda: now)
    together(work("long", 1.0, 50), work("short", 0.1, 50))
    assert used["long"] == pytest.approx(used["short"], abs=1.2)


def test_who_has_paused_has_no_more_time_than_the_others_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = 0.0, ""

    def steps(name: str, count: int) -> None:
        nonlocal now, order
        for _ in range(count):
            now, order = now + 1, order + name
            turns.pass_on()

    def pauses() -> None:
        turns.pause(0)
        while len(order) < 10:
            turns.pause(0)
        steps("p", 5)

    monkeypatch.setattr(turns.time, "monotonic", lambda: now)
    monkeypatch.setattr(turns.time, "sleep", lambda seconds: None)
    together(pauses, lambda: steps("a", 30))
    assert "ppp" not in order and order.count("p") == 5, order
