"""Results from the store or computed once: look up, claim, compute, store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rbtools.execution.run import Run

Results = list[Any]
Help = Callable[[Results], Any] | None


@contextlib.contextmanager
def memoized(
    run: Run,
    leases: Sequence[str],
    look_up: Callable[[], Results],
    *,
    title: str,
    anew: bool = False,
    help: Help = None,
) -> Iterator[tuple[Results, bool]]:
    """The results of some units of work, one per lease, and whether the caller is to compute those that are
    None, to put them into the list and to store them, before it leaves the block.

    `look_up` gives what the store has, None for what it lacks. Missing units are claimed together, so that
    two processes do not do the same work: while another holds a lease, this one waits for its results.
    `title` names the work in a dry run, which then raises Pending. `anew` ignores what the store has.
    `help` computes what it can of the gaps while another process holds the leases (`run.placement.divide`).
    Counts one result as found, or as computed, by whichever process.
    """
    nothing: Results = [None] * len(leases)
    results = nothing if anew else look_up()
    if None not in results:
        run.store.found += 1
        yield results, False
        return
    if run.plan is not None:
        run.plan.missing[tuple(leases)] = title
    missing = [lease for lease, result in zip(leases, results, strict=True) if result is None]
    waiting = run.report.check_cancelled
    if help is not None and run.placement.divide:
        waiting = _helping_once(run, look_up, help)
    with run.store.claimed(missing, lambda: not anew and None not in look_up(), waiting) as ours:
        yield nothing if anew else look_up(), ours
    run.store.computed += 1


def _helping_once(
    run: Run, look_up: Callable[[], Results], help: Callable[[Results], None]
) -> Callable[[], None]:
    """A callback for while another process holds the leases: it helps on its first call."""
    helped = False

    def waiting() -> None:
        nonlocal helped
        run.report.check_cancelled()
        if not helped:
            helped = True
            help(look_up())

    return waiting
