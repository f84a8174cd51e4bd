"""How attacks search, apart from their algorithms."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.attacks.lattice import grid_param
from rbtools.attacks.mean_over_draws import eot_param


@dataclass(frozen=True, kw_only=True)
class AttackSearch:
    """The options of every attack. The oracle follows them: an attack does not know the grid of the images
    or the samples of a randomised model."""

    grid: str = grid_param()
    eot: int | None = eot_param()
