"""Results from the store or computed once: look up, claim, compute, store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rbtools.errors import Pending
from rbtools.execution.run import Run

Results = list[Any]
Help = Callable[[Results], None] | None
_SECONDS_FOR_OTHERS = 5.0  # seconds that a helper waits for results before it looks for other work


@contextlib.contextmanager
def memoized(
    run: Run,
    leases: Sequence[str],
    look_up: Callable[[], Results],
    *,
    plan: Callable[[Results], None],
    anew: bool = False,
    help: Help = None,
) -> Iterator[tuple[Results, bool]]:
    """The results of some units of work, one per lease, and whether the caller is to compute those that are
    None, to put them into the list and to store them, before it leaves the block.

    `look_up` gives what the store has, None for what it lacks. Missing units are claimed together, so that
    two processes do not do the same work: while another holds a lease, this one waits for its results. `plan`
    gets the gaps in a dry run, which then raises Pending. `anew` ignores what the store has. `help` computes
    what it can of the gaps while another process holds the leases (`run.placement.divide`). Counts one result
    as computed or as found.
    """
    nothing: Results = [None] * len(leases)
    results = nothing if anew else look_up()
    if None not in results:
        run.store.found += 1
        yield results, False
        return
    if run.plan is not None:
        run.plan.missing.add(tuple(leases))
        plan(results)
    if run.placement.helps:
        yield _helped(run, look_up, help), False
        return
    missing = [lease for lease, result in zip(leases, results, strict=True) if result is None]
    waiting = run.report.check_cancelled
    if help is not None and run.placement.divide:
        waiting = _helping_once(run, look_up, help)
    with run.store.claimed(missing, lambda: not anew and None not in look_up(), waiting) as ours:
        yield nothing if anew else look_up(), ours
    run.store.computed += ours
    run.store.found += not ours


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


def _helped(run: Run, look_up: Callable[[], Results], help: Callable[[Results], None] | None) -> Results:
    """Help the process that holds the leases, and wait a little for its results. Raises Pending."""
    if help is not None:
        help(look_up())
    end = time.monotonic() + _SECONDS_FOR_OTHERS
    while None in (results := look_up()):
        if time.monotonic() > end:
            raise Pending("Another process computes it.")
        run.report.check_cancelled()
        time.sleep(0.1)
    return results
