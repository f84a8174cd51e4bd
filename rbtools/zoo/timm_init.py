"""Loads timm's weights as the start of a training run, for other patch and image sizes if needed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools import models
from rbtools.errors import RbError
from rbtools.inputs import published_weights
from rbtools.models import read_checkpoint
from rbtools.trainer.init import seeded
from rbtools.zoo import libraries

if TYPE_CHECKING:
    from rbtools.datasets.base import Description
    from rbtools.execution.run import Run
    from rbtools.trainer.recipe import Recipe

KERNEL, POSITIONS = "patch_embed.proj.weight", "pos_embed"


def network(arch: dict[str, Any], about: Description, recipe: Recipe, run: Run) -> nn.Module:
    """Builds timm's network with published weights or those in a file, and with a new classifier."""
    try:
        path = recipe.init_file or published_weights.find(f"timm:{arch['name']}", run).path
    except RbError as error:
        raise RbError(f"{error} Or name a file of its weights with --init timm --init-file FILE.") from None
    state = read_checkpoint.read(path).state
    if recipe.resample == "prbench":
        with seeded(run.settings.seed):
            sized = models.build(arch, classes=about.classes, shape=about.shape)
        state = as_prbench(state, sized)
    with seeded(run.settings.seed):
        return libraries.pretrained_timm(arch, state, classes=about.classes, shape=about.shape)


def as_prbench(state: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Returns timm's weights with the patch kernel and the positions resized for `network`.

    The kernel (D, C, P, P) is summed over blocks, and the grid of positions is interpolated bilinearly
    without antialiasing (wellzline/PRBenchmark, vit_model_for_cifar, checkpoint_filter_fn). The positions of
    tokens before the patches stay the same. In contrast, timm inverts the resizing of patches and
    interpolates bicubically. Raises RbError if the network has no patches and positions, or if the patch size
    of the weights is not a multiple of the network's.
    """
    embed, own = getattr(network, "patch_embed", None), getattr(network, POSITIONS, None)
    proj = getattr(embed, "proj", None)
    if not (isinstance(proj, nn.Conv2d) and isinstance(own, Tensor) and {KERNEL, POSITIONS} <= state.keys()):
        raise RbError(
            "--resample prbench needs a vision transformer with the tensors patch_embed.proj and pos_embed,"
            " but this network or its weights lack them. Use resample=timm."
        )
    prefix = getattr(network, "num_prefix_tokens", 1)
    rows, columns = embed.grid_size  # type: ignore[union-attr]
    return {
        **state,
        KERNEL: summed(state[KERNEL], proj.weight.shape[-1]),
        POSITIONS: interpolated(state[POSITIONS], (rows, columns), prefix),
    }


def summed(kernel: Tensor, side: int) -> Tensor:
    """Sums a kernel (D, C, P, P) over blocks: (D, C, side, side).

    The result maps an image to the values to which `kernel` maps the image enlarged by repeated pixels.
    Raises RbError if P is not a multiple of `side`.
    """
    old = kernel.shape[-1]
    if kernel.ndim != 4 or kernel.shape[-2] != old or old % side:
        raise RbError(
            f"--resample prbench sums blocks of the patch kernel of shape {tuple(kernel.shape)}, but"
            f" {old} is not a multiple of {side}. Choose another patch, or resample=timm."
        )
    factor = old // side
    return kernel.reshape(*kernel.shape[:2], side, factor, side, factor).sum(dim=(3, 5))


def interpolated(positions: Tensor, grid: tuple[int, int], prefix: int = 1) -> Tensor:
    """Interpolates positions (1, prefix + n^2, D) bilinearly for patches in a grid (rows, columns)."""
    first, rest = positions[:, :prefix], positions[:, prefix:]
    old = math.isqrt(rest.shape[1])
    if old * old != rest.shape[1]:
        raise RbError(
            f"The weights have {rest.shape[1]} positions of patches, which do not form a square."
            " Use resample=timm."
        )
    if grid == (old, old):
        return positions
    square = rest.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    square = F.interpolate(square, grid, mode="bilinear", align_corners=False)
    return torch.cat([first, square.flatten(2).transpose(1, 2)], dim=1)
