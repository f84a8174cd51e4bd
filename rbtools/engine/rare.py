"""The question of rare failures: for each example the probability that noise breaks it, by splitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.engine.questions import Clean, Column
from rbtools.probabilistic import splitting

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from rbtools.engine.tiles import Found, Tile


@dataclass(frozen=True)
class Rare(Column):
    """A row for each example: its number, and the logarithm of its failure probability in each run."""

    noise: Any
    gamma: float
    split: splitting.Splitting
    confidence: float

    def what(self) -> dict[str, Any]:
        return {
            "kind": "pr-rare",
            "noise": self.noise.name,
            "version": self.noise.version,
            "config": registry.config(self.noise),
            "gamma": self.gamma,
            "splitting_version": self.split.version,
            **self.split.config(),
        }

    def reading(self) -> dict[str, Any]:
        return {"confidence": self.confidence}

    def asked(self) -> list[dict[str, Any]]:
        told = {**self.noise.settings, **self.split.config(), "denominator": "correct"}
        return [{"metric": f"pfail.{self.noise.stem}.{self.gamma:g}", "gamma": self.gamma, **told}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return [asked | splitting.findings(outcomes, self.confidence) for asked in self.asked()]


@dataclass(frozen=True)
class RareFailures:
    """How improbable failure is at some radii, one example after the other."""

    noise: Any
    gammas: tuple[float, ...]
    split: splitting.Splitting
    confidence: float = 0.95

    @property
    def title(self) -> str:
        return f"rare failures under {self.noise.name} noise"

    def columns(self) -> Sequence[Column]:
        return [Clean(), *(Rare(self.noise, gamma, self.split, self.confidence) for gamma in self.gammas)]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> list[Tensor | Found]:
        return [
            self._rows(tile, column) if isinstance(column, Rare) else tile.clean.int() for column in wanted
        ]

    def _rows(self, tile: Tile, column: Rare) -> Found:
        import torch

        from rbtools.engine.tiles import Found

        rows = torch.full((len(tile.ids), 1 + self.split.runs), float("nan"), device=tile.ids.device)
        rows[:, 0] = tile.ids
        passes = 0.0
        for place in tile.clean.nonzero()[:, 0]:
            rows[place, 1:], seen = self._example(tile.take(place[None]), column.gamma)
            passes += seen
        return Found(rows, {"forward": passes + len(tile.ids), "backward": 0.0})

    def _example(self, tile: Tile, gamma: float) -> tuple[Tensor, int]:
        """The logarithms of one example's failure probability (runs,), and the images that took."""
        import torch

        shape, label = tuple(tile.images.shape[1:]), int(tile.labels[0])
        seen = 0

        def score(normals: Tensor) -> Tensor:
            """How far another class is ahead of the label's: float32 (M,)."""
            nonlocal seen
            seen += len(normals)
            found = []
            for part in normals.split(tile.batch):
                noisy = self.noise.apply(tile.images, self.noise.shaped(part, shape), gamma)
                with torch.no_grad():
                    logits = tile.model(noisy).float()
                own = logits[:, label].clone()
                logits[:, label] = float("-inf")
                found.append(logits.max(1).values - own)
            return torch.cat(found)

        draws = tile.draws(f"rare.{self.noise.stem}")
        found = self.split.log_probabilities(score, self.noise.width(shape), draws)
        return found.float(), seen
