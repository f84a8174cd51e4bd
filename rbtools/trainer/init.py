"""The network that a training starts from: fresh, the record's checkpoint, or timm's published weights."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rbtools import models
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs import named_weights, resolve
from rbtools.lazy import nn, torch
from rbtools.models import checkpoint, read_checkpoint
from rbtools.models.normalize import PER_IMAGE, Normalized, PerImageStandardization

if TYPE_CHECKING:
    from rbtools.datasets.base import Description
    from rbtools.trainer.recipe import Recipe
    from rbtools.trainer.train_model import TrainingTask


def mixed_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose."""
    return (seed * 0x9E3779B1 + zlib.crc32(purpose.encode())) % (1 << 63)


def network(task: TrainingTask, run: Run) -> nn.Module:
    """The network on the CPU, with its normalisation, if any, as its first layer. A checkpoint keeps its own
    normalisation. Raises RbError if it has another architecture, or is for other data.
    """
    arch, about, recipe = task.record["arch"], task.data.about, task.recipe
    if recipe.init == "checkpoint":
        _, file = resolve.checkpoint_of(task.former, run)
        of_file = {**arch, **task.former["arch"]}
        model, _, _ = checkpoint.load(
            file, of_file, classes=about.classes, shape=about.shape, allow_code=run.selection.allow_code
        )
        return model.requires_grad_(True)
    if recipe.init == "timm":
        return _behind(_of_timm(task, run), about)
    return fresh(arch, about, run.settings.seed, allow_code=run.selection.allow_code)


def fresh(arch: dict[str, Any], about: Description, seed: int, *, allow_code: bool = False) -> nn.Module:
    """The network that a training with this seed starts from, on the CPU, with its normalisation, if any, as
    its first layer.
    """
    with _seeded(seed):
        built = models.build(arch, classes=about.classes, shape=about.shape, allow_code=allow_code)
    return _behind(built, about)


def normalization(model: nn.Module, recipe: Recipe, about: Description) -> list[list[float]] | str | None:
    """Mean and standard deviation a channel that a trained model normalises with, "per-image", or None."""
    if isinstance(model, PerImageStandardization):
        return PER_IMAGE
    if not isinstance(model, Normalized):
        return None
    if recipe.init != "checkpoint" and about.mean is not None and about.std is not None:
        return [list(about.mean), list(about.std)]
    return [[float(f"{x:.7g}") for x in v.flatten().tolist()] for v in (model.mean, model.std)]


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(mixed_seed(seed, "init"))
        yield


def _behind(network: nn.Module, about: Description) -> nn.Module:
    if about.mean is None or about.std is None:
        return network
    return Normalized(network, about.mean, about.std)


def _of_timm(task: TrainingTask, run: Run) -> nn.Module:
    """timm's network with its published weights, or those of --init-file; the classifier is fresh."""
    from rbtools.models import libraries, vit_resample

    arch, about, recipe = task.record["arch"], task.data.about, task.recipe
    try:
        path = recipe.init_file or named_weights.find(f"timm:{arch['name']}", run).path
    except RbError as error:
        raise RbError(f"{error} Or name a file of its weights with --init-file.") from None
    state = read_checkpoint.read(path).state
    if recipe.resample == "prbench":
        with _seeded(run.settings.seed):
            sized = models.build(arch, classes=about.classes, shape=about.shape)
        state = vit_resample.as_prbench(state, sized)
    with _seeded(run.settings.seed):
        return libraries.pretrained_timm(arch, state, classes=about.classes, shape=about.shape)
