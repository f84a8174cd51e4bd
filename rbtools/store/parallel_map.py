"""Reading shared between the cores."""

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
    """What `work` makes of each item, in their order; in several processes where that is possible.

    The processes are copies of this one, so that starting them costs nothing and `work` may be anything
    that uses no thread. Each works ahead as far as a pipe holds, and ends when nobody reads from it.
    Errors of `work` are raised here.
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
    """The life of a helper. Ctrl-C is for the process that it works for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # only the reader may hold these open, else its end would go unnoticed
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
