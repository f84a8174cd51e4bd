"""Adversarial examples of one model, shown to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.engine import subject
from rbtools.engine.questions import Clean, Column, Survived
from rbtools.engine.run import Run

if TYPE_CHECKING:
    from torch import Tensor, device, nn

    from rbtools.engine.tiles import Found, Tile


@dataclass(frozen=True)
class Withstood(Survived):
    """Which examples stay classified right when the attack ran on the model of another checkpoint."""

    source: str = ""

    @property
    def searches(self) -> bool:
        """The attack runs on the source as it is: what it finds there is all there is to judge."""
        return False

    @property
    def metric(self) -> str:
        return f"transfer.{super().metric}"

    def what(self) -> dict[str, Any]:
        return {**super().what(), "source": self.source}

    def entries(self, outcomes: Any, totals: Any) -> list[dict[str, Any]]:
        return [{**entry, "source": self.source} for entry in super().entries(outcomes, totals)]


@dataclass(frozen=True)
class Transferred:
    """Accuracy on the adversarial examples of a source: another record's model.

    source: the record, as JSON. Every example that the model under study classifies right is attacked on
    the source, at each distance.
    """

    method: Any
    eps: tuple[float, ...]
    source: str
    run: Run

    @property
    def title(self) -> str:
        return f"transfer of {self.method.stem}"

    def columns(self) -> Sequence[Column]:
        name = subject.checkpoint_name(orjson.loads(self.source), self.run)
        made = [Withstood(replace(self.method, eps=eps), source=name) for eps in self.eps]
        return [Clean(), *made]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> Sequence[Tensor | Found]:
        from rbtools.engine import verdict
        from rbtools.engine.tiles import Found

        found: list[Any] = []
        for column in wanted:
            if isinstance(column, Withstood):
                source = _loaded(self.source, self.run.split, _Held(self.run), tile.images.device)
                seen = verdict.attacked(tile, column.method, on=source)
                found.append(Found(seen.survived, seen.totals))
            else:
                found.append(tile.clean)
        return found


class _Held:
    """A run as part of a cache's key: by what it is, since its callbacks come and go."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __hash__(self) -> int:
        return hash((self.run.dataset, str(self.run.store.folder)))

    def __eq__(self, other: object) -> bool:
        mine = (self.run.dataset, self.run.data_dir, self.run.store.folder)
        return isinstance(other, _Held) and mine == (
            other.run.dataset,
            other.run.data_dir,
            other.run.store.folder,
        )


@lru_cache(maxsize=1)
def _loaded(source: str, split: str, held: _Held, where: device) -> nn.Module:
    """The source's model, ready: eval mode, frozen."""
    record = orjson.loads(source)
    data = subject.data_of(record, held.run, split)
    return subject.load_model(record, data, held.run, where)
