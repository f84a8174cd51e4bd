"""Whether an attack broke an example: decided here, in float32, inside the budget."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rbtools.attacks import steps
from rbtools.engine.tiles import Tile
from rbtools.errors import RbError


def survivors(tile: Tile, method: Any) -> Tensor:
    """Which examples are classified right, unchanged and under the attack: bool (N,).

    A clean error counts as broken and is not attacked. Whatever the attack returns is projected
    onto the budget and the box first, so that a wrong attack cannot report a false success.
    """
    survived = tile.clean.clone()
    if not survived.any() or method.eps == 0:
        return survived
    standing = tile.take(survived)
    # AutoAttack's own code draws for a batch as a whole: it gets the fixed tile undivided.
    pieces = [standing] if getattr(method, "whole_tiles", False) else standing.parts()
    survived[survived.clone()] = torch.cat([_unbroken(piece, method) for piece in pieces])
    return survived


def _unbroken(tile: Tile, method: Any) -> Tensor:
    perturbed = method(tile.model, tile.images, tile.labels, tile.draws(f"attack.{method.name}"))
    if perturbed.shape != tile.images.shape:
        raise RbError(
            f"The attack {method.name} returned images of shape {tuple(perturbed.shape)}; expected"
            f" {tuple(tile.images.shape)}. This is an error in the attack."
        )
    if not torch.isfinite(perturbed).all():
        first = int((~torch.isfinite(perturbed)).flatten(1).any(1).nonzero()[0])
        raise RbError(
            f"The attack {method.name} gave NaN or infinite pixels for image {int(tile.ids[first])}. Check"
            " that the gradient of the model is finite there."
        )
    perturbed = steps.project(
        perturbed.detach().float(), tile.images, method.eps, getattr(method, "norm", "linf")
    )
    return tile.correct(perturbed)
