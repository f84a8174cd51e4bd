"""Tiles of an evaluation, which are consecutive examples that any free worker measures together.

Tiles are fixed batches, so neither the number of workers nor an interruption changes a result. Outcomes are
appended in order. A tile that is finished before its predecessors is stored in parts until it can be
appended. A run that was killed therefore repeats only the unfinished tiles, and continues these from their
partial results in the store; its outcomes are equal to those of an uninterrupted run.
"""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rbtools import __version__
from rbtools.attacks.partial_results import PartialResults, Remembers
from rbtools.evaluation.base import OutcomeRows, Outcomes
from rbtools.lazy import np, torch
from rbtools.store import Store, digest

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = dict[str, Tensor]
    Path = tuple[int, ...]  # the numbers of a part and of the parts that contain it
    Parts = Mapping[int, OutcomeRows]  # by the position of their spec


T = TypeVar("T")
# Partial results are not stored for a tile that takes less time.
_SECONDS_BEFORE_KEEPING = 5.0
# The minimum interval between writes in seconds, and as a multiple of the duration of the last write.
_SECONDS_BETWEEN_WRITES, _TIMES_OF_A_WRITE = 10.0, 20.0
_LOOP, _MEMORY, _SECONDS = -1, "memory:", "seconds:"


class Tile(NamedTuple):
    """Consecutive examples, given by their positions in the order of the evaluation.

    `lacks` pairs each first missing example with the positions of the specs that lack this example and all
    later ones. The most complete specs are first, since other specs may need their rows. `known` maps
    the position of each spec that has stored outcomes to its outcomes from the tile's first example on.
    `keys` are the store keys of the tile's parts, by the position of their spec.
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
    """All units in the order in which shard (i, N) computes them: first its own units, then the units of the
    other shards, starting with the last one. The caller skips finished units."""
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
    """Request the missing tiles of the first n examples, and append their outcomes in order.

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


class _Part(NamedTuple):
    """A part that is being computed. `begin` is the time of the tile's clock at its start."""

    owner: Remembers | None
    begin: float


class TileState(PartialResults):
    """The partial results of one tile, which are named by their position in the sequence of all parts.

    `keys` are the keys of the tile's outcomes, and `place` describes the processor and its libraries. Partial
    results from other code or from another kind of processor are not used. Without a store, nothing is kept.
    """

    def __init__(self, store: Store, keys: Mapping[int, str], device: torch.device, place: str) -> None:
        self._store, self._keys, self._device = store, keys, device
        self._name = {"unfinished": sorted(keys.values()), "place": place, "code": __version__}
        self._known: dict[Path, bytes] = {}  # of this process, and not written yet
        self._stored: set[Path] = set()
        self._written, self._pause = time.monotonic(), _SECONDS_BETWEEN_WRITES
        self._started, self._earlier = self._written, 0.0
        self.begin(0)

    def begin(self, example: int) -> None:
        """Begin to compute outcomes from this example on, for the first time or after a failure."""
        self._path, self._open = [example, 0], list[_Part]()

    def clock(self) -> float:
        return time.perf_counter() + self._earlier

    def open(self, owner: Remembers | None = None) -> Tensors | None:
        if self._store.folder is None:
            return None
        part = _Part(owner, self.clock())
        found = self._loaded(tuple(self._path), part)
        if found is None:
            self._path.append(0)
            self._open.append(part)
        else:
            self._path[-1] += 1
        return found

    def close(self, found: Tensors) -> Tensors:
        if self._store.folder is None:
            return found
        self._path.pop()
        part, path = self._open.pop(), tuple(self._path)
        if time.monotonic() - self._started > _SECONDS_BEFORE_KEEPING:
            self._known[path] = self._encoded(found, part)
            self._write_if_due(self._inner(path) & self._stored)
        self._drop(path)
        self._path[-1] += 1
        return found

    def loop(self) -> Tensors | None:
        return self._loaded((*self._path, _LOOP), self._open[-1]) if self._open else None

    def keep_loop(self, state: Callable[[], Tensors]) -> None:
        if self._open and self._is_due():
            path = (*self._path, _LOOP)
            self._known[path] = self._encoded(state(), self._open[-1])
            self._write_if_due()

    def finished(self, outcomes: Mapping[int, OutcomeRows]) -> None:
        """Replace all partial results in the store with the outcomes of the tile."""
        if self._stored:
            for i, key in self._keys.items():
                self._store.keep_state(key, outcomes[i].encoded(), sync=False)
            self._drop(())

    def _is_due(self) -> bool:
        return time.monotonic() - self._written > self._pause

    def _write_if_due(self, replaced: Collection[Path] = ()) -> None:
        """Write the new results if it is time, or at once if they replace results in the store."""
        if not (replaced or self._is_due()):
            return
        begin = time.monotonic()
        for path, data in self._known.items():
            self._store.keep_state(self._key(path), data, sync=False)
        self._stored |= self._known.keys()
        self._known.clear()
        self._written = time.monotonic()
        self._pause = max(_SECONDS_BETWEEN_WRITES, _TIMES_OF_A_WRITE * (self._written - begin))

    def _inner(self, path: Path) -> set[Path]:
        """The parts of a part that are kept, written to the store or not."""
        return {one for one in {*self._known, *self._stored} if one[: len(path)] == path and one != path}

    def _drop(self, path: Path) -> None:
        """Remove the parts of a part."""
        for one in self._inner(path):
            self._known.pop(one, None)
            if one in self._stored:
                self._store.drop_state(self._key(one))
                self._stored.remove(one)

    def _key(self, path: Path) -> str:
        return digest({**self._name, "part": list(path)})

    def _encoded(self, found: Tensors, part: _Part) -> bytes:
        memory = {} if part.owner is None else part.owner.memory()
        kept = {**found, **{_MEMORY + name: value for name, value in memory.items()}}
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: value.detach().cpu().numpy() for name, value in kept.items()}
        arrays[_SECONDS] = self.clock() - part.begin
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    def _loaded(self, path: Path, part: _Part) -> Tensors | None:
        """The stored results, or None. Also restores the memory to its state after the part."""
        data = self._known.get(path)
        if data is None and (data := self._store.state(self._key(path))) is not None:
            self._stored.add(path)
        if data is None:
            return None
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                found = {name: torch.from_numpy(np.array(arrays[name])).to(self._device) for name in arrays}
            seconds = found.pop(_SECONDS).item()
            names = [name for name in found if name.startswith(_MEMORY)]
            memory = {name.removeprefix(_MEMORY): found.pop(name) for name in names}
            if part.owner is not None:
                part.owner.recall(memory)
        except Exception:  # damaged: numpy and its parser of headers raise nearly any error
            return None
        self._earlier += seconds
        return found
