"""What an evaluation asks: columns of whole numbers per example, and what they add up to.

Nothing here imports torch before a tile is measured, so that a question whose answers are all in
the store costs no more than reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from rbtools import registry
from rbtools.corruptions import CORRUPTIONS
from rbtools.engine import textures
from rbtools.probabilistic import estimate, intervals
from rbtools.records import metrics
from rbtools.scoring import corruptions as sums

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from rbtools.engine.tiles import Tile


class Column(Protocol):
    """One outcome per example: a whole number, and the entries that follow from all of them."""

    @property
    def random(self) -> bool:
        """Whether the outcomes depend on the seed."""

    @property
    def byproduct(self) -> bool:
        """Whether this is found on the way to what was asked."""

    def what(self) -> dict[str, Any]:
        """Everything that determines the outcomes, apart from model, data and seed."""

    def reading(self) -> dict[str, Any]:
        """What the entries depend on besides the outcomes."""

    def entries(self, outcomes: np.ndarray) -> list[dict[str, Any]]:
        """Entries (metric, protocol, value, interval) for these outcomes."""


class Question(Protocol):
    """Columns that share work."""

    @property
    def title(self) -> str:
        """A few words for the progress line."""

    def columns(self) -> Sequence[Column]:
        """All columns, in the order of their entries."""

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor]:
        """Outcomes (N,) of the wanted columns for the examples of the tile."""


def accuracy_entry(metric: str, outcomes: np.ndarray, **protocol: Any) -> dict[str, Any]:
    """The entry of an accuracy: outcomes are 1 where the example is still classified right."""
    n, right = len(outcomes), int(outcomes.sum())
    return {
        "metric": metric,
        **protocol,
        "n": n,
        "value": right / n,
        "ci95": list(intervals.wilson(right, n)),
    }


@dataclass(frozen=True)
class Clean:
    """Accuracy on the unchanged images."""

    random = False
    byproduct: bool = True

    def what(self) -> dict[str, Any]:
        return {"kind": "clean"}

    def reading(self) -> dict[str, Any]:
        return {}

    def entries(self, outcomes: np.ndarray) -> list[dict[str, Any]]:
        return [accuracy_entry("acc", outcomes)]


@dataclass(frozen=True)
class Accuracy:
    """The question `rb-ge acc` asks."""

    title = "clean accuracy"

    def columns(self) -> Sequence[Column]:
        return [Clean(byproduct=False)]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor]:
        return [tile.clean for _ in wanted]


@dataclass(frozen=True)
class Survived:
    """Which examples an attack leaves classified right, at one distance."""

    method: Any
    byproduct = False

    @property
    def random(self) -> bool:
        return bool(getattr(self.method, "random", True))

    @property
    def whole_tiles(self) -> bool:
        """Whether the outcome of an example depends on which examples are attacked with it."""
        return bool(getattr(self.method, "whole_tiles", False))

    def what(self) -> dict[str, Any]:
        return {
            "kind": "attack",
            "attack": self.method.name,
            "version": self.method.version,
            "config": registry.config(self.method),
        }

    def reading(self) -> dict[str, Any]:
        return {}

    def entries(self, outcomes: np.ndarray) -> list[dict[str, Any]]:
        settings = registry.config(self.method)
        norm = settings.setdefault("norm", "linf")
        if "step_size" in settings:
            settings["step_size"] = self.method.effective_step_size
        name = metrics.attack_name(self.method.stem, self.method.eps, norm)
        return [accuracy_entry(name, outcomes, attack=self.method.name, **settings)]


@dataclass(frozen=True)
class Attacked:
    """Accuracy under one attack, for any number of distances."""

    method: Any
    eps: tuple[float, ...]

    @property
    def title(self) -> str:
        return str(self.method.stem)

    def columns(self) -> Sequence[Column]:
        return [Clean(), *(Survived(replace(self.method, eps=eps)) for eps in self.eps)]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor]:
        from rbtools.engine import verdict

        found = []
        for column in wanted:
            if isinstance(column, Survived):
                found.append(verdict.survivors(tile, column.method))
            else:
                found.append(tile.clean)
        return found


@dataclass(frozen=True)
class Corrupted:
    """Which examples stay classified right under one corruption at one severity."""

    corruption: Any
    severity: int
    byproduct = False

    @property
    def random(self) -> bool:
        return bool(getattr(self.corruption, "random", True))

    def what(self) -> dict[str, Any]:
        return {
            "kind": "corruption",
            "corruption": self.corruption.name,
            "version": self.corruption.version,
            "config": registry.config(self.corruption),
            "severity": self.severity,
        }

    def reading(self) -> dict[str, Any]:
        return {}

    def entries(self, outcomes: np.ndarray) -> list[dict[str, Any]]:
        name = self.corruption.name
        settings = {"corruption": name, "severity": self.severity, **registry.config(self.corruption)}
        return [accuracy_entry(metrics.corrupt_name(name, self.severity), outcomes, **settings)]


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
                found.append(tile.correct(corrupt(tile.images, column.severity, draws)))
            else:
                found.append(tile.clean)
        return found

    def summary(self, asked: Sequence[dict[str, Any]], byproducts: Sequence[dict[str, Any]]) -> list[Any]:
        """Means over severities and corruptions, and mCE where there is a reference."""
        clean = next((entry for entry in byproducts if entry["metric"] == "acc"), None)
        return sums.summary(asked, clean, CORRUPTIONS.all, self.reference)


@dataclass(frozen=True)
class NoisyCopies:
    """How many of an example's noisy copies are classified right; -1 where the clean one is not."""

    noise: Any
    gamma: float
    samples: int
    rho: tuple[float, ...]
    random = True
    byproduct = False

    def what(self) -> dict[str, Any]:
        return {
            "kind": "pr",
            "noise": self.noise.name,
            "version": self.noise.version,
            "config": registry.config(self.noise),
            "gamma": self.gamma,
            "samples": self.samples,
        }

    def reading(self) -> dict[str, Any]:
        return {"rho": list(self.rho)}

    def entries(self, outcomes: np.ndarray) -> list[dict[str, Any]]:
        settings = {
            "noise": self.noise.name,
            "gamma": self.gamma,
            "samples": self.samples,
            **registry.config(self.noise),
        }
        return estimate.entries(outcomes, self.rho, **settings)


@dataclass(frozen=True)
class Probabilistic:
    """Probabilistic robustness at some radii, from draws that the radii share."""

    noise: Any
    gammas: tuple[float, ...]
    rho: tuple[float, ...]
    samples: int

    @property
    def title(self) -> str:
        return f"{self.noise.name} noise"

    def columns(self) -> Sequence[Column]:
        copies = [NoisyCopies(self.noise, gamma, self.samples, self.rho) for gamma in self.gammas]
        return [Clean(), *copies]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor]:
        from rbtools.engine import sampling

        noisy = [column for column in wanted if isinstance(column, NoisyCopies)]
        counts = iter(sampling.counts(tile, self.noise, [one.gamma for one in noisy], self.samples))
        return [next(counts) if isinstance(column, NoisyCopies) else tile.clean for column in wanted]
