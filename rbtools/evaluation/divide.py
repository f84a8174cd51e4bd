"""The batches of one evaluation divided over processes that share a store.

Every process takes the next batch that is neither done nor leased and keeps its outcomes in the store as a
part. The process that holds the lease of the whole evaluation appends the parts in the order of the examples
when all are there: outcomes are those of one process. What a killed process had finished is not computed
again; a batch that it had begun is free once its lease belongs to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rbtools.evaluation.outcomes import Outcomes, Part
from rbtools.execution.context import RunContext
from rbtools.store import Store, digest

Compute = Callable[[range], dict[int, Part]]
_PAUSES = (0.02, 0.5)  # seconds between looks at batches that others compute: at first, and at most


def fill(
    batches: Sequence[range],
    outcomes: Sequence[Outcomes],
    compute: Compute,
    run: RunContext,
    progress: Callable[[int], None],
    *,
    helping: bool,
) -> None:
    """Compute the parts that are missing, together with other processes, and append them to the outcomes.

    batches: consecutive ranges of examples. `compute` gives the missing outcomes of a batch, by the position
    of the output. `progress` takes how many examples are done, and raises where the run should stop.
    `helping`: append nothing, and return as soon as all batches are done or leased.
    """
    store = run.store
    keys = {batch: _part_keys(batch, outcomes) for batch in batches}
    lacking = [batch for batch in batches if keys[batch]]
    left, pause = list(lacking), _PAUSES[0]
    while left:
        before = len(left)
        for batch in list(left):
            progress(batches[-1].stop - sum(map(len, left)))
            if _is_done(store, keys[batch]) or _compute_part(batch, keys[batch], compute, store):
                left.remove(batch)
        if len(left) == before:
            if helping:
                return
            time.sleep(pause)
        pause = _PAUSES[0] if len(left) < before else min(2 * pause, _PAUSES[1])
    if not helping:
        _append(lacking, keys, outcomes, compute, store)


def _part_keys(batch: range, outcomes: Sequence[Outcomes]) -> dict[int, str]:
    """The store keys of the parts that a batch lacks, by the position of their output."""
    return {
        i: digest({"part of": known.key, "begin": max(len(known), batch.start), "end": batch.stop})
        for i, known in enumerate(outcomes)
        if len(known) < batch.stop
    }


def _is_done(store: Store, keys: dict[int, str]) -> bool:
    return all(map(store.has_state, keys.values()))


def _compute_part(batch: range, keys: dict[int, str], compute: Compute, store: Store) -> bool:
    """Compute a batch and keep its parts; False where another process has its lease."""
    lease = store.try_claim(next(iter(keys.values())))
    if lease is None:
        return False
    try:
        if not _is_done(store, keys):
            for i, part in compute(batch).items():
                store.keep_state(keys[i], part.encoded())
        return True
    finally:
        lease.release()


def _append(
    batches: Sequence[range],
    keys: dict[range, dict[int, str]],
    outcomes: Sequence[Outcomes],
    compute: Compute,
    store: Store,
) -> None:
    """Append the parts to the outcomes in order; a part that is lost or damaged is computed again."""
    for batch in batches:
        parts = {i: _stored(store, key) for i, key in keys[batch].items()}
        if None in parts.values():
            parts = dict(compute(batch))
        for i, part in parts.items():
            assert part is not None
            outcomes[i].extend(*part)
    for known in outcomes:
        known.keep()
    for batch in batches:
        for key in keys[batch].values():
            store.drop_state(key)


def _stored(store: Store, key: str) -> Part | None:
    data = store.state(key)
    return None if data is None else Part.decoded(data)
