"""The partial results of an unfinished tile, in the store. A run that was killed continues from them, and its
outcomes are equal to those of an uninterrupted run."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import __version__
from rbtools.attacks.partial_results import PartialResults, Remembers
from rbtools.evaluation.base import OutcomeRows
from rbtools.lazy import np, torch
from rbtools.store import Store, digest

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = dict[str, Tensor]
    Path = tuple[int, ...]  # the numbers of a part and of the parts that contain it

# A tile that takes less time keeps nothing.
_SECONDS_BEFORE_KEEPING = 5.0
# At least, and so many times the duration of the last write.
_SECONDS_BETWEEN_WRITES, _TIMES_OF_A_WRITE = 10.0, 20.0
_LOOP, _MEMORY, _SECONDS = -1, "memory:", "seconds:"


class _Part(NamedTuple):
    """A part that is being computed. `begin` is the time of the tile's clock at its start."""

    owner: Remembers | None
    begin: float


class TileState(PartialResults):
    """The partial results of one tile, which are named by their place in the sequence of all parts.

    `keys` are the keys of the tile's outcomes, and `place` describes the processor and its libraries. The
    partial results of other code or of another kind of processor are not used. Without a store, nothing is
    kept.
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
        """Compute outcomes from this example of the evaluation on, for the first time or after a failure."""
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
        """Replace all partial results in the store by the outcomes of the tile."""
        if self._stored:
            for i, key in self._keys.items():
                self._store.keep_state(key, outcomes[i].encoded(), sync=False)
            self._drop(())

    def _is_due(self) -> bool:
        return time.monotonic() - self._written > self._pause

    def _write_if_due(self, replaced: Collection[Path] = ()) -> None:
        """Write the new results. If they replace results in the store, this is always due."""
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
        """The parts of a part that are kept."""
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
        """The results as they were kept, or None. The memory is then as it was after the part."""
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
