"""One evaluation divided over processes that share a store.

Every process takes the next tile (consecutive examples) that is neither done nor leased and stores what it
computes as parts. When all parts exist, the process that holds the lease of the whole evaluation joins them
in the order of the examples: the outcomes equal those of a single process. Tiles that a killed process had
finished are not computed again; one that it had begun is free once its lease expires.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rbtools.evaluation.base import Outcomes, TilePart
from rbtools.evaluation.evaluate import cut
from rbtools.evaluation.spec import Spec
from rbtools.execution.run import Run
from rbtools.store import Store, digest

if TYPE_CHECKING:
    import torch

Tile = TypeVar("Tile")
Parts = dict[int, TilePart]  # parts of a tile, by the position of their spec
# Seconds between checks of tiles that other processes compute: the first and the longest pause.
_PAUSES = 0.02, 0.2


def free_tiles(
    parts: Mapping[Tile, Collection[str]],
    is_joined: Callable[[Tile], bool],
    store: Store,
    progress: Callable[[Tile, Sequence[Tile]], None],
    *,
    helping: bool,
) -> Iterator[Tile]:
    """The tiles that this process is to compute, one after another, until the store has the parts of all.

    `parts`: the keys of the parts of each tile, which the caller stores before it asks for the next tile; the
    tile is leased meanwhile. `is_joined`: whether the result has the tile by now, so that its parts are gone.
    `progress` takes the next tile and those that are left, and raises when the work should stop. `helping`:
    end as soon as all tiles are done or leased.
    """
    left, pause = list(parts), _PAUSES[0]
    while left:
        before = len(left)
        for tile in list(left):
            progress(tile, left)
            with store.try_claim(next(iter(parts[tile]))) as ours:
                done = all(map(store.has_state, parts[tile]))
                # In this order: the result is stored before its parts are dropped.
                if ours and not done and not is_joined(tile):
                    yield tile
            if ours or done:
                left.remove(tile)
        if len(left) == before:
            if helping:
                return
            time.sleep(pause)
        pause = _PAUSES[0] if len(left) < before else min(2 * pause, _PAUSES[1])


def is_divided(specs: Sequence[Spec], n: int, device: torch.device, shape: Sequence[int], run: Run) -> bool:
    """Whether several processes share the batches: not where one has to compute all."""
    if not run.placement.divide or any(spec.batch_dependent for spec in specs):
        return False
    return len(cut(specs, n, device, shape, run.placement.workers)) > 1


class Shared:
    """An evaluation that processes with the same store share; see `rbtools.evaluation.evaluate.Share`.

    workers: the number of workers that it is cut for. helping: append nothing, and end as soon as all tiles
    are done or leased.
    """

    def __init__(self, store: Store, workers: int, *, helping: bool) -> None:
        self.store, self.workers, self.helping = store, workers, helping
        self.keys: dict[range, dict[int, str]] = {}
        self.own: dict[range, Mapping[int, TilePart]] = {}  # parts that this process computed

    def tiles(
        self, tiles: Sequence[range], outcomes: Sequence[Outcomes], progress: Callable[[int], None]
    ) -> Iterator[range]:
        """The tiles to compute. Then the parts of all are appended in order; one that is lost or damaged is
        computed again."""
        store = self.store
        self.keys = {tile: missing for tile in tiles if (missing := _part_keys(tile, outcomes))}

        def is_joined(tile: range) -> bool:
            joined = (Outcomes(store, outcomes[i].key) for i in self.keys[tile])
            return self.helping and all(len(stored) >= tile.stop for stored in joined)

        yield from free_tiles(
            {tile: parts.values() for tile, parts in self.keys.items()},
            is_joined,
            store,
            lambda tile, left: progress(tiles[-1].stop - sum(map(len, left))),
            helping=self.helping,
        )
        if self.helping:
            return
        for tile, keys in self.keys.items():
            known = self.own.get(tile) or _stored(store, keys)
            if known is None:
                yield tile
                known = self.own[tile]
            for i, part in known.items():
                outcomes[i].extend(*part)
        for kept in outcomes:
            kept.keep()
        for keys in self.keys.values():
            for key in keys.values():
                store.drop_state(key)

    def add(self, tile: range, parts: Mapping[int, TilePart]) -> None:
        """Store the outcomes of a tile."""
        self.own[tile] = parts
        for i, part in parts.items():
            self.store.keep_part(self.keys[tile][i], part.encoded())


def _part_keys(tile: range, outcomes: Sequence[Outcomes]) -> dict[int, str]:
    """The store keys of the parts that a tile lacks, by the position of their spec."""
    return {
        i: digest({"part of": stored.key, "begin": max(len(stored), tile.start), "end": tile.stop})
        for i, stored in enumerate(outcomes)
        if len(stored) < tile.stop
    }


def _stored(store: Store, keys: dict[int, str]) -> Parts | None:
    """The parts of a tile; None where one is lost or damaged."""
    parts: Parts = {}
    for i, key in keys.items():
        data = store.state(key)
        part = None if data is None else TilePart.decoded(data)
        if part is None:
            return None
        parts[i] = part
    return parts
