"""One evaluation divided over processes that share a store.

Every process takes the next tile (consecutive examples) that is neither done nor leased and stores what it
computes as parts. When all parts exist, the process that holds the lease of the whole evaluation joins them
in the order of the examples: the outcomes equal those of a single process. Tiles that a killed process had
finished are not computed again; one that it had begun is free once its lease expires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from rbtools.evaluation.outcomes import Outcomes, Part
from rbtools.execution import turns
from rbtools.execution.run import Run
from rbtools.store import Store, digest

Tile = TypeVar("Tile")
Parts = dict[int, Part]  # by the position of the output
Compute = Callable[[range], Parts]
# Seconds between looks at tiles that others compute: the first and the longest pause.
_PAUSES = 0.02, 0.2


def work_off(
    parts: Mapping[Tile, Collection[str]],
    compute: Callable[[Tile], None],
    is_joined: Callable[[Tile], bool],
    run: Run,
    progress: Callable[[Tile, Sequence[Tile]], None],
    *,
    helping: bool,
) -> None:
    """Compute tiles together with other processes until the store has their parts.

    `parts`: the keys of the parts of each tile, which `compute` stores. `is_joined`: whether the result has
    the tile by now, so that its parts are gone. `progress` takes the next tile and those that are left, and
    raises when the run should stop. `helping`: return as soon as all tiles are done or leased.
    """
    left, pause = list(parts), _PAUSES[0]
    while left:
        before = len(left)
        for tile in list(left):
            progress(tile, left)
            with run.store.try_claim(next(iter(parts[tile]))) as ours:
                done = all(map(run.store.has_state, parts[tile]))
                # In this order: the result is stored before its parts are dropped.
                if ours and not done and not is_joined(tile):
                    compute(tile)
            if ours or done:
                left.remove(tile)
        if len(left) == before:
            if helping:
                return
            turns.pause(pause)
        pause = _PAUSES[0] if len(left) < before else min(2 * pause, _PAUSES[1])


def fill(
    tiles: Sequence[range],
    outcomes: Sequence[Outcomes],
    compute: Compute,
    run: Run,
    progress: Callable[[int], None],
    *,
    helping: bool,
) -> None:
    """Compute the parts that are missing, together with other processes, and append them to the outcomes.

    tiles: consecutive ranges of examples. `compute` gives the missing outcomes of a tile, by the position
    of the output. `progress` takes the number of finished examples. `helping`: append nothing, and return as
    soon as all tiles are done or leased.
    """
    store = run.store
    keys = {tile: missing for tile in tiles if (missing := _part_keys(tile, outcomes))}
    own: dict[range, Parts] = {}  # what this process computed

    def compute_and_store(tile: range) -> None:
        own[tile] = compute(tile)
        for i, part in own[tile].items():
            store.keep_part(keys[tile][i], part.encoded())

    def is_joined(tile: range) -> bool:
        return helping and all(len(Outcomes(store, outcomes[i].key)) >= tile.stop for i in keys[tile])

    work_off(
        {tile: parts.values() for tile, parts in keys.items()},
        compute_and_store,
        is_joined,
        run,
        lambda tile, left: progress(tiles[-1].stop - sum(map(len, left))),
        helping=helping,
    )
    if not helping:
        _append({tile: own.get(tile) or _stored(store, keys[tile]) for tile in keys}, outcomes, compute)
        for tile in keys:
            for key in keys[tile].values():
                store.drop_state(key)


def _part_keys(tile: range, outcomes: Sequence[Outcomes]) -> dict[int, str]:
    """The store keys of the parts that a tile lacks, by the position of their output."""
    return {
        i: digest({"part of": known.key, "begin": max(len(known), tile.start), "end": tile.stop})
        for i, known in enumerate(outcomes)
        if len(known) < tile.stop
    }


def _append(parts: dict[range, Parts | None], outcomes: Sequence[Outcomes], compute: Compute) -> None:
    """Append the parts of the tiles in order; one that is lost or damaged is computed again."""
    for tile, known in parts.items():
        for i, part in (known or compute(tile)).items():
            outcomes[i].extend(*part)
    for kept in outcomes:
        kept.keep()


def _stored(store: Store, keys: dict[int, str]) -> Parts | None:
    """The parts of a tile; None where one is lost or damaged."""
    parts: Parts = {}
    for i, key in keys.items():
        data = store.state(key)
        part = None if data is None else Part.decoded(data)
        if part is None:
            return None
        parts[i] = part
    return parts
