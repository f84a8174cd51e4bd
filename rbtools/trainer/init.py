"""The network with which training starts: fresh, the record's checkpoint, or timm's published weights."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rbtools import check_input, models
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.lazy import nn, torch
from rbtools.models import checkpoint
from rbtools.models.normalize import PER_IMAGE, Normalized, PerImageStandardization
from rbtools.registry import Registry

if TYPE_CHECKING:
    from rbtools.datasets.base import Description
    from rbtools.trainer.recipe import Recipe
    from rbtools.trainer.train_model import TrainingTask

WEIGHTS = Registry("initial weights", {}, group="initial-weights", closed=True)


def mixed_seed(seed: int, purpose: str) -> int:
    """Return a seed for one purpose, derived from the seed of the training run."""
    return (seed * 0x9E3779B1 + zlib.crc32(purpose.encode())) % (1 << 63)


def network(task: TrainingTask, run: Run) -> nn.Module:
    """Return the network on the CPU, with the normalisation, if there is one, as its first layer. A
    checkpoint keeps its own normalisation. Raises RbError if a checkpoint has a different architecture, or if
    its number of classes or its image shape differs from the data set."""
    arch, about, recipe = task.record["arch"], task.data.about, task.recipe
    if recipe.init == "checkpoint":
        _, file = resolve.checkpoint_of(task.former, run)
        of_file = {**arch, **task.former["arch"]}
        if of_file.get("space") == "checkpoint":  # its weights alone could not be loaded again
            return fresh(of_file, about, run.settings.seed)
        model, _, _ = checkpoint.load(
            file, of_file, classes=about.classes, shape=about.shape, allow_code=run.selection.allow_code
        )
        return model.requires_grad_(True)
    if recipe.init == "timm":
        return _behind(WEIGHTS.load("timm")(arch, about, recipe, run), about)
    return fresh(arch, about, run.settings.seed, allow_code=run.selection.allow_code)


def fresh(arch: dict[str, Any], about: Description, seed: int, *, allow_code: bool = False) -> nn.Module:
    """Return the initial network of a training run, on the CPU, with the normalisation as its first layer."""
    with seeded(seed):
        built = models.build(arch, classes=about.classes, shape=about.shape, allow_code=allow_code)
    if arch.get("space") in models.RUNS_CODE:
        check_input.keep_images(built, about.shape)
    return _behind(built, about)


def normalization(model: nn.Module, recipe: Recipe, about: Description) -> list[list[float]] | str | None:
    """Return a trained model's normalisation: mean and deviation per channel, "per-image", or None."""
    if isinstance(model, PerImageStandardization):
        return PER_IMAGE
    if not isinstance(model, Normalized):
        return None
    if recipe.init != "checkpoint" and about.mean is not None and about.std is not None:
        return [list(about.mean), list(about.std)]
    return [[float(f"{x:.7g}") for x in v.flatten().tolist()] for v in (model.mean, model.std)]


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside the block, networks are initialised with this seed. Afterwards the random state is restored."""
    with torch.random.fork_rng():
        torch.manual_seed(mixed_seed(seed, "init"))
        yield


def _behind(network: nn.Module, about: Description) -> nn.Module:
    if about.mean is None or about.std is None:
        return network
    return Normalized(network, about.mean, about.std)
