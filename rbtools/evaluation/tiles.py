"""Tiles of an evaluation: consecutive examples that are measured together, by any worker that is free.

Tiles are the fixed batches, so neither the number of workers nor an interruption changes a result. Outcomes
are appended in order. A tile that is finished before the tiles in front of it is kept in the store as parts
until it can be appended. A run that was killed therefore repeats only the unfinished tiles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rbtools.evaluation.base import OutcomeRows, Outcomes
from rbtools.lazy import np
from rbtools.store import Store, digest

if TYPE_CHECKING:
    Parts = Mapping[int, OutcomeRows]  # by the position of their spec


T = TypeVar("T")


class Tile(NamedTuple):
    """Some consecutive examples, given by their places in the order of the evaluation.

    `lacks` contains, for each first missing example, the positions of the specs that lack this example and
    all later ones. The most complete specs are first, since other specs may need their rows. `known` maps the
    position of each spec that has stored outcomes to its outcomes from the tile's first example on. `keys`
    are the store keys of the tile's parts, by the position of their spec.
    """

    examples: range
    lacks: tuple[tuple[int, tuple[int, ...]], ...]
    known: Mapping[int, np.ndarray]
    keys: Mapping[int, str]


def part_key(key: str, begin: int, end: int) -> str:  # of the examples from `begin` to `end` of a result
    return digest({"part of": key, "begin": begin, "end": end})


def missing_tiles(outcomes: Sequence[Outcomes], n: int, size: int) -> list[Tile]:
    """The tiles among the first n examples for which some outcomes are missing."""
    tiles = (_tile(outcomes, range(start, min(start + size, n))) for start in range(0, n, size))
    return [tile for tile in tiles if tile.lacks]


def _tile(outcomes: Sequence[Outcomes], examples: range) -> Tile:
    groups: dict[int, list[int]] = {}
    for i, one in enumerate(outcomes):
        if len(one) < examples.stop:
            groups.setdefault(max(len(one), examples.start), []).append(i)
    lacks = tuple((begin, tuple(missing)) for begin, missing in sorted(groups.items(), reverse=True))
    known = {
        i: one.values(examples.stop)[examples.start :]
        for i, one in enumerate(outcomes)
        if len(one) > examples.start
    }
    keys = {i: part_key(outcomes[i].key, begin, examples.stop) for begin, missing in lacks for i in missing}
    return Tile(examples, lacks, known, keys)


def in_turn(units: Sequence[T], shard: tuple[int, int]) -> list[T]:
    """All units in the order in which shard (i, N) computes them: first the shard's own units, then the units
    of the other shards, starting with the last one. The caller skips finished units."""
    number, of = shard
    others = [unit for place, unit in enumerate(units) if place % of != number - 1]
    return [*units[number - 1 :: of], *reversed(others)]


def complete(
    outcomes: list[Outcomes],
    n: int,
    size: int,
    measured: Callable[[Iterator[Tile]], Iterable[tuple[Tile, Parts]]],
    progress: Callable[[int], None],
    *,
    store: Store,
    shard: tuple[int, int] = (1, 1),
) -> None:
    """Have the missing tiles of the first n examples measured, and append their outcomes in order.

    `size` is the number of examples in a tile. `measured` requests tiles one by one when a worker is free,
    and yields each tile with its parts when it is finished. Before a tile is requested, `progress` is called
    with the number of examples whose outcomes have been appended; it raises an exception if the work should
    stop. `shard` is (i, N) if N processes share this store (`in_turn`). At the end, also after an
    interruption, the outcomes are written to the store.
    """
    tiles, divided = missing_tiles(outcomes, n, size), shard[1] > 1
    left = deque(tiles)  # those that are not appended yet
    done: dict[range, Parts] = {}
    # A killed run may have left parts whose outcomes it had already appended.
    appended = range(0, tiles[0].examples.start if tiles else 0, size)
    stored = [part_key(one.key, begin, begin + size) for begin in appended for one in outcomes]

    def missing() -> Iterator[Tile]:
        for tile in in_turn(tiles, shard):
            if (parts := stored_parts(store, tile.keys)) is not None:
                take(tile, parts, kept=True)
            elif divided and (joined := _finished(store, outcomes, tiles)) is not None:
                outcomes[:] = joined
                left.clear()
                return
            else:
                progress(left[0].examples.start)
                yield tile

    def take(tile: Tile, parts: Parts, *, kept: bool = False) -> None:
        keys = tile.keys
        if not kept and (divided or tile is not left[0]):
            for i, key in keys.items():
                store.keep_state(key, parts[i].encoded(), sync=False)
        stored.extend(keys.values())
        done[tile.examples] = parts
        while left and left[0].examples in done:
            for i, part in done.pop(left.popleft().examples).items():
                outcomes[i].extend(part)

    try:
        for tile, parts in measured(missing()):
            if left:
                take(tile, parts)
    finally:
        for unsaved in outcomes:
            unsaved.keep()
        if not left and store.trouble is None:
            for key in stored:
                store.drop_state(key)


def stored_parts(store: Store, keys: Mapping[int, str]) -> Parts | None:
    """The parts of a tile, or None if a part is missing or damaged."""
    parts: dict[int, OutcomeRows] = {}
    for i, key in keys.items():
        data = store.state(key)
        part = None if data is None else OutcomeRows.decoded(data)
        if part is None:
            return None
        parts[i] = part
    return parts


def _finished(store: Store, outcomes: Sequence[Outcomes], tiles: Sequence[Tile]) -> list[Outcomes] | None:
    """The outcomes that other shards have computed in the meantime, or None if these are incomplete."""
    found = [Outcomes(store, one.key) for one in outcomes]
    return found if all(len(one) >= tiles[-1].examples.stop for one in found) else None
