"""The batches of one evaluation divided over processes that share a store.

Every process takes the next batch that is neither done nor leased and stores its outcomes as a part. When all
parts exist, the process that holds the lease of the whole evaluation appends them in the order of the
examples: the outcomes equal those of a single process. Batches that a killed process had finished are not
computed again; one that it had begun is free once its lease expires.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rbtools.evaluation.outcomes import Outcomes, Part
from rbtools.execution.context import RunContext
from rbtools.store import Store, digest

Parts = dict[int, Part]  # by the position of the output
Compute = Callable[[range], Parts]
_PAUSES = (
    0.02,
    0.2,
)  # seconds between checks of batches that others compute: the first and the longest pause


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
    of the output. `progress` takes the number of finished examples, and raises when the run should stop.
    `helping`: append nothing, and return as soon as all batches are done or leased.
    """
    store = run.store
    keys = {batch: _part_keys(batch, outcomes) for batch in batches}
    lacking = [batch for batch in batches if keys[batch]]
    own: dict[range, Parts] = {}  # what this process computed
    left, pause = list(lacking), _PAUSES[0]
    while left:
        before = len(left)
        for batch in list(left):
            progress(batches[-1].stop - sum(map(len, left)))
            with store.try_claim(next(iter(keys[batch].values()))) as ours:
                done = _is_done(store, keys[batch])
                if ours and not done:
                    own[batch] = compute(batch)
                    for i, part in own[batch].items():
                        store.keep_part(keys[batch][i], part.encoded())
            if ours or done:
                left.remove(batch)
        if len(left) == before:
            if helping:
                return
            time.sleep(pause)
        pause = _PAUSES[0] if len(left) < before else min(2 * pause, _PAUSES[1])
    if not helping:
        _append(
            {batch: own.get(batch) or _stored(store, keys[batch]) for batch in lacking}, outcomes, compute
        )
        for batch in lacking:
            for key in keys[batch].values():
                store.drop_state(key)


def _part_keys(batch: range, outcomes: Sequence[Outcomes]) -> dict[int, str]:
    """The store keys of the parts that a batch lacks, by the position of their output."""
    return {
        i: digest({"part of": known.key, "begin": max(len(known), batch.start), "end": batch.stop})
        for i, known in enumerate(outcomes)
        if len(known) < batch.stop
    }


def _is_done(store: Store, keys: dict[int, str]) -> bool:
    return all(map(store.has_state, keys.values()))


def _append(parts: dict[range, Parts | None], outcomes: Sequence[Outcomes], compute: Compute) -> None:
    """Append the parts of the batches in order; one that is lost or damaged is computed again."""
    for batch, known in parts.items():
        for i, part in (known or compute(batch)).items():
            outcomes[i].extend(*part)
    for kept in outcomes:
        kept.keep()


def _stored(store: Store, keys: dict[int, str]) -> Parts | None:
    """The parts of a batch; None where one is lost or damaged."""
    parts: Parts = {}
    for i, key in keys.items():
        data = store.state(key)
        part = None if data is None else Part.decoded(data)
        if part is None:
            return None
        parts[i] = part
    return parts
