"""The network that a training starts from: fresh, the record's checkpoint, or timm's published weights."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from rbtools import models
from rbtools.errors import RbError
from rbtools.execution.context import RunContext
from rbtools.inputs import resolve
from rbtools.lazy import nn, torch
from rbtools.models import checkpoint
from rbtools.models.normalize import Normalized

if TYPE_CHECKING:
    from rbtools.datasets.base import Description
    from rbtools.trainer.train_model import TrainingTask


def mixed_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose."""
    return (seed * 0x9E3779B1 + zlib.crc32(purpose.encode())) % (1 << 63)


def network(task: TrainingTask, run: RunContext) -> nn.Module:
    """The network on the CPU, with its normalisation, if any, as its first layer. A checkpoint keeps its own
    normalisation. Raises RbError if it has another architecture, or is for other data.
    """
    arch, about, recipe = task.record["arch"], task.data.about, task.recipe
    if recipe.init == "checkpoint":
        _, file = resolve.checkpoint_of(task.former, run)
        of_file = {**arch, **task.former["arch"]}
        model, _, _ = checkpoint.load(
            file, of_file, classes=about.classes, shape=about.shape, allow_code=run.allow_code
        )
        return model.requires_grad_(True)
    return fresh(arch, about, run.seed, allow_code=run.allow_code, published=recipe.init == "timm")


def fresh(
    arch: dict[str, Any], about: Description, seed: int, *, allow_code: bool = False, published: bool = False
) -> nn.Module:
    """The network that a training with this seed starts from, on the CPU, with its normalisation, if any, as
    its first layer. `published`: with timm's weights.
    """
    with torch.random.fork_rng():
        torch.manual_seed(mixed_seed(seed, "init"))
        made = models.build(arch, classes=about.classes, shape=about.shape, allow_code=allow_code)
        if published:
            _published(made, arch, about)
    if about.mean is None or about.std is None:
        return made
    return Normalized(made, about.mean, about.std)


def _published(made: nn.Module, arch: dict[str, Any], about: Description) -> None:
    """Load timm's published weights into a network of timm; its classifier keeps its fresh weights."""
    import timm  # models.build has imported it already

    try:
        weights = timm.create_model(
            arch["name"], pretrained=True, num_classes=about.classes, in_chans=about.shape[0]
        ).state_dict()
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise RbError(
            f"timm's weights of {arch['name']} are not available: {reason}. They are downloaded once; connect"
            " this machine for that, or use --init random."
        ) from error
    made.load_state_dict(weights)
