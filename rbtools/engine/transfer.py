"""Adversarial examples of one model, shown to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    def asked(self) -> list[dict[str, Any]]:
        return [{**entry, "source": self.source} for entry in super().asked()]


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
                source = _loaded(self.source, self.run, tile.images.device)
                seen = verdict.attacked(tile, column.method, on=source)
                found.append(Found(seen.survived, seen.totals))
            else:
                found.append(tile.clean)
        return found


# The source last used, and what it depends on: the model is loaded once for all records and tiles.
_last: list[tuple[Any, nn.Module]] = []


def _loaded(source: str, run: Run, where: device) -> nn.Module:
    """The source's model, ready: eval mode, frozen."""
    key = (source, run.dataset, run.split, run.data_dir, run.class_map, run.store.folder, where)
    if not _last or _last[0][0] != key:
        record = orjson.loads(source)
        _last[:] = [(key, subject.load_model(record, subject.data_of(record, run), run, where))]
    return _last[0][1]
