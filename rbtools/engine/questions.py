"""What an evaluation asks: columns of whole numbers per example, and what they add up to.

Nothing here imports torch before a tile is measured, so that a question whose answers are all in
the store costs no more than reading them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rbtools import registry
from rbtools.corruptions import CORRUPTIONS
from rbtools.engine import textures, told
from rbtools.probabilistic import estimate, intervals
from rbtools.records import metrics
from rbtools.scoring import corruptions as sums

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from rbtools.engine.tiles import Found, Tile

    # Which images (N,) are right under a corruption at a severity: 1 or 0.
    Right = Mapping[tuple[str, int], np.ndarray]


class Column:
    """One outcome per example: a whole number, and the entries that follow from all of them."""

    @property
    def random(self) -> bool:
        """Whether the outcomes depend on the seed."""
        return True

    @property
    def byproduct(self) -> bool:
        """Whether this is found on the way to what was asked."""
        return False

    @property
    def searches(self) -> bool:
        """Whether it may run on a prepared model, since float32 has the last word."""
        return False

    @property
    def whole_tiles(self) -> bool:
        """Whether the outcome of an example depends on which examples are worked on with it."""
        return False

    @property
    def leans(self) -> bool:
        """Whether outcomes of other columns are needed to measure it."""
        return False

    def what(self) -> dict[str, Any]:
        """Everything that determines the outcomes, apart from model, data and seed."""
        raise NotImplementedError

    def reading(self) -> dict[str, Any]:
        """What the entries depend on besides the outcomes."""
        return {}

    def asked(self) -> list[dict[str, Any]]:
        """What each entry says before there is any outcome: its metric and its own settings."""
        raise NotImplementedError

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        """Those entries with value and interval: of these outcomes, and the sums over them."""
        raise NotImplementedError


class Question(Protocol):
    """Columns that share work."""

    @property
    def title(self) -> str:
        """A few words for the progress line."""

    def columns(self) -> Sequence[Column]:
        """All columns, in the order of their entries."""

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> Sequence[Tensor | Found]:
        """Outcomes (N,) of the wanted columns for the examples of the tile, or what `Found` has besides."""


def accuracy_entry(asked: dict[str, Any], outcomes: np.ndarray) -> dict[str, Any]:
    """The entry of an accuracy: outcomes are 1 where the example is still classified right."""
    n, right = len(outcomes), int(outcomes.sum())
    return {**asked, "n": n, "value": right / n, "ci95": list(intervals.wilson(right, n))}


@dataclass(frozen=True)
class Clean(Column):
    """Accuracy on the unchanged images."""

    random = False
    byproduct: bool = True

    def what(self) -> dict[str, Any]:
        return {"kind": "clean"}

    def asked(self) -> list[dict[str, Any]]:
        return [{"metric": "acc"}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return [accuracy_entry(asked, outcomes) for asked in self.asked()]


@dataclass(frozen=True)
class Accuracy:
    """The question `rb-ge acc` asks."""

    title = "clean accuracy"

    def columns(self) -> Sequence[Column]:
        return [Clean(byproduct=False)]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor]:
        return [tile.clean.int() for _ in wanted]


def attack_settings(method: Any, **more: Any) -> dict[str, Any]:
    """What an entry says of the attack: its name and configuration, with the norm and the step in use."""
    settings = registry.config(method)
    settings.setdefault("norm", method.norm)
    if "step_size" in settings:
        settings["step_size"] = method.effective_step_size
    return {"attack": method.name, **more, **settings}


@dataclass(frozen=True)
class Survived(Column):
    """Which examples an attack leaves classified right, at one distance.

    ladder: smaller distances at which it ran before; what broke there counts as broken here. detail: a
    row of each example keeps its label and its logits under the attack, in place of a bit.
    """

    method: Any
    ladder: tuple[float, ...] = ()
    detail: bool = False

    @property
    def random(self) -> bool:
        return bool(self.method.random)

    @property
    def whole_tiles(self) -> bool:
        return bool(self.method.whole_tiles)

    @property
    def leans(self) -> bool:
        return bool(self.ladder)

    @property
    def searches(self) -> bool:
        """AutoAttack's own code gets the model as it is."""
        return not self.whole_tiles

    def what(self) -> dict[str, Any]:
        return {
            "kind": "attack",
            "attack": self.method.name,
            "version": self.method.version,
            "config": registry.config(self.method),
            **({"ladder": list(self.ladder)} if self.ladder else {}),
            **({"rows": "label, logits"} if self.detail else {}),
        }

    @property
    def metric(self) -> str:
        """The name of its result."""
        return metrics.attack_name(self.method.stem, self.method.eps, self.method.norm)

    def standing(self, outcomes: Tensor) -> Tensor:
        """Which examples survived (N,), from their outcomes or rows."""
        return outcomes[:, 1:].argmax(1) == outcomes[:, 0] if self.detail else outcomes.bool()

    def asked(self) -> list[dict[str, Any]]:
        loss = getattr(self.method, "loss", None)
        ladder = {"ladder": list(self.ladder)} if self.ladder else {}
        return [{"metric": self.metric, **attack_settings(self.method, loss=loss), **ladder}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        found: dict[str, Any] = {}
        bits = outcomes
        if self.detail:
            bits = outcomes[:, 1:].argmax(1) == outcomes[:, 0]
            from rbtools.engine import detail

            found["detail"] = detail.of_rows(outcomes)
        found |= told.of_attack(self.method, totals, len(outcomes))
        return [accuracy_entry(asked, bits) | found for asked in self.asked()]


@dataclass(frozen=True)
class Attacked:
    """Accuracy under one attack, for any number of distances.

    `ladder`: smaller distances come first, and what breaks there is not attacked further out. `detail`
    keeps logits for each example; `save` names a folder for the adversarial images.
    """

    method: Any
    eps: tuple[float, ...]
    ladder: bool = False
    detail: bool = False
    save: str | None = None

    @property
    def title(self) -> str:
        return str(self.method.stem)

    def columns(self) -> Sequence[Column]:
        smaller = {eps: tuple(one for one in sorted(self.eps) if one < eps) for eps in self.eps}
        found = [
            Survived(replace(self.method, eps=eps), smaller[eps] if self.ladder else (), self.detail)
            for eps in self.eps
        ]
        return [Clean(), *found]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor | Found]:
        found: dict[Any, Any] = {}
        before: dict[float, Any] = {}
        for column in sorted(wanted, key=_distance):
            if isinstance(column, Survived):
                found[column] = self._attacked(tile, column, before)
            else:
                found[column] = tile.clean.int()
        return [found[column] for column in wanted]

    def _attacked(self, tile: Tile, column: Survived, before: dict[float, Any]) -> Found:
        """Attack at one distance; `before` has the verdicts at smaller ones, and gets this one."""
        import torch

        from rbtools.engine import verdict
        from rbtools.engine.tiles import Found

        last = before.get(column.ladder[-1]) if column.ladder else None
        standing = None if last is None else last.survived
        if column.ladder and last is None:  # the store knew it already
            smaller = replace(column, method=replace(column.method, eps=column.ladder[-1]))
            smaller = replace(smaller, ladder=column.ladder[:-1])
            standing = smaller.standing(tile.known[smaller])
        seen = verdict.attacked(tile, column.method, last, standing)
        before[column.method.eps] = seen
        values = seen.survived.int()
        if self.detail:
            values = torch.cat([tile.labels[:, None].float(), seen.logits], dim=1)
        return Found(values, seen.totals, seen.images if self.save else None)


def _distance(column: Column) -> float:
    """Clean accuracy first, then distance by distance."""
    return float(column.method.eps) if isinstance(column, Survived) else -1.0


@dataclass(frozen=True)
class Corrupted(Column):
    """Which examples stay classified right under one corruption at one severity."""

    corruption: Any
    severity: int

    @property
    def random(self) -> bool:
        return bool(self.corruption.random)

    def what(self) -> dict[str, Any]:
        return {
            "kind": "corruption",
            "corruption": self.corruption.name,
            "version": self.corruption.version,
            "config": registry.config(self.corruption),
            "severity": self.severity,
        }

    def asked(self) -> list[dict[str, Any]]:
        name, severity = self.corruption.name, self.severity
        named = {"metric": metrics.corrupt_name(name, severity), "corruption": name, "severity": severity}
        return [named | registry.config(self.corruption)]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return [accuracy_entry(asked, outcomes) for asked in self.asked()]


def mean_over(right: Right, parts: Sequence[Mapping[str, Any]]) -> intervals.Interval | None:
    """The interval of the mean of accuracies under corruptions; None where `right` lacks one of them.

    The images are the sampling unit: each one's share of the corruptions that leave it right is one
    observation, so that it does not matter how alike the corruptions are.
    """
    known = [right.get((part["corruption"], part["severity"])) for part in parts]
    rows = [row for row in known if row is not None]
    if len(rows) < len(known) or any(len(row) != part["n"] for row, part in zip(rows, parts, strict=True)):
        return None
    counts = [sum(image) for image in zip(*(row.tolist() for row in rows), strict=True)]
    return estimate.pr_d(counts, len(rows)).interval


@dataclass(frozen=True)
class Corruptions:
    """Accuracy under corruptions, each at each severity, and what these add up to.

    One corrupted batch is there at a time, whatever their number.
    """

    corruptions: tuple[Any, ...]
    severities: tuple[int, ...]
    reference: sums.Reference | None = None
    title = "corruptions"

    def __post_init__(self) -> None:
        object.__setattr__(self, "corruptions", tuple(map(textures.decided, self.corruptions)))

    def columns(self) -> Sequence[Column]:
        pairs = [Corrupted(one, severity) for one in self.corruptions for severity in self.severities]
        return [Clean(), *pairs]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor]:
        found = []
        for column in wanted:
            if isinstance(column, Corrupted):
                corrupt = textures.given(column.corruption)
                draws = tile.draws(f"corruption.{column.corruption.name}")
                found.append(tile.correct(corrupt(tile.images, column.severity, draws)).int())
            else:
                found.append(tile.clean.int())
        return found

    def summary(
        self, asked: Sequence[dict[str, Any]], byproducts: Sequence[dict[str, Any]], right: Right
    ) -> list[Any]:
        """Means over severities and corruptions, and mCE where there is a reference."""
        clean = next((entry for entry in byproducts if entry["metric"] == "acc"), None)
        return sums.summary(asked, clean, CORRUPTIONS.all, self.reference, partial(mean_over, right))
