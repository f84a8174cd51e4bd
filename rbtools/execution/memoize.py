"""Results from the store, or computed once: look up, claim, compute, keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rbtools.execution.context import RunContext

Results = list[Any]


def memoize(
    run: RunContext,
    leases: Sequence[str],
    look_up: Callable[[], Results],
    compute: Callable[[Results], None],
    *,
    plan: Callable[[Results], None],
    anew: bool = False,
) -> Results:
    """The results of some units of work, one of each lease; None in `look_up()` says that one is missing.

    The missing units are claimed together, so that two processes do not do the same work: while another
    holds a lease, this one waits for its results. `compute` fills the gaps of the list it is given, and keeps
    them in the store. `plan` hears of the gaps in a dry run, which then raises Pending. `anew`: what the
    store has does not count. Counts one result as computed or as found.
    """
    nothing: Results = [None] * len(leases)
    results = nothing if anew else look_up()
    if None not in results:
        run.store.found += 1
        return results
    if run.plan is not None:
        plan(results)
    missing = [lease for lease, result in zip(leases, results, strict=True) if result is None]
    with run.store.claimed(missing, lambda: not anew and None not in look_up(), run.check_cancelled) as ours:
        results = nothing if anew else look_up()
        if ours:
            compute(results)
    run.store.computed += ours
    run.store.found += not ours
    return results
