"""Parallel reading on several cores."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def parallel_map(work: Callable[[Item], Answer], items: Sequence[Item], processes: int) -> Iterator[Answer]:
    """The result of `work` for each item, in order; in several processes if possible.

    The processes are forks of this one, so that they start fast and `work` may be any function that uses no
    threads. Each works ahead as far as its pipe buffers, and ends when nobody reads from it. Errors of `work`
    are raised here.
    """
    if processes < 2 or len(items) < 2 or sys.platform != "linux":
        yield from map(work, items)
        return
    context = multiprocessing.get_context("fork")
    ends: list[Connection] = []
    helpers = []
    try:
        for number in range(processes):
            ours, theirs = context.Pipe(duplex=False)
            ends.append(ours)
            args = (work, items[number::processes], theirs, list(ends))
            helpers.append(context.Process(target=_help, args=args, daemon=True))
            helpers[-1].start()
            theirs.close()
        for place in range(len(items)):
            answer, error = ends[place % processes].recv()
            if error is not None:
                raise error
            yield answer
    finally:
        for end in ends:
            end.close()
        for helper in helpers:
            helper.terminate()
            helper.join()


def _help(
    work: Callable[[Any], Any], items: Sequence[Any], answers: Connection, others: Sequence[Connection]
) -> None:
    """The main function of a helper process. Only the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # only the reader may hold these open, else we would not notice its end
        other.close()
    try:
        for item in items:
            try:
                answer: tuple[Any, Exception | None] = work(item), None
            except Exception as error:
                answer = None, error
            answers.send(answer)
    except BrokenPipeError:
        return
