"""How a training runs, apart from its method: optimiser, schedule, batches, augmentation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rbtools.errors import RbError

SCHEDULES = ("onecycle", "step", "cosine", "constant")
AUGMENTATIONS = ("crop", "flip")
CYCLED_MOMENTUM = (0.95, 0.85, 0.95)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD with momentum and one of four schedules.

    `onecycle` is torch's OneCycleLR per step with maximum `lr`, which moves the momentum too (from 0.95
    to 0.85 where the rate is highest, and back) and leaves `momentum` unused; `step` multiplies by
    `decay` at each of `milestones` (epochs); `cosine` anneals to 0, set per epoch. `augment` names what
    is done to the uint8 batch on the device: `crop` (zero padding of an eighth of the side, 4 pixels for
    32) and `flip` (left-right, half of the examples); None is what suits the data set. `micro_batch`
    sends a batch through the network in pieces of at most that size and sums their gradients: memory of a
    piece, the step of the batch. Where there is BatchNorm each piece has statistics of its own.
    """

    epochs: int = 10
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "onecycle"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    augment: tuple[str, ...] | None = None
    micro_batch: int | None = None

    def config(self) -> dict[str, Any]:
        """The recipe as it stands in the record; what the schedule does not use is left out."""
        found = asdict(self)
        if self.schedule == "onecycle":
            found["momentum"] = list(CYCLED_MOMENTUM)
        found["milestones"], found["augment"] = list(self.milestones), list(self.augment or ())
        if self.schedule != "step":
            del found["milestones"], found["decay"]
        if self.micro_batch is None:
            del found["micro_batch"]
        return found


def check(recipe: Recipe, training_images: int | None = None) -> None:
    """Raise RbError where a recipe cannot work: each message says which value, and what would do.

    Without the number of images, what can be told before the data are known.
    """
    if recipe.schedule not in SCHEDULES:
        raise RbError(f"The schedule is '{recipe.schedule}'. Choose from: {', '.join(SCHEDULES)}.")
    if recipe.epochs < 0:
        raise RbError(f"The number of epochs is {recipe.epochs}. It must be 0 (the initial model) or more.")
    if recipe.batch_size < 1:
        raise RbError(f"The batch size is {recipe.batch_size}. It must be 1 or more.")
    if recipe.micro_batch is not None and not 1 <= recipe.micro_batch <= recipe.batch_size:
        raise RbError(
            f"The micro-batch is {recipe.micro_batch}. It is a piece of the batch: expected 1 to"
            f" {recipe.batch_size} (--batch-size)."
        )
    if training_images is not None and recipe.batch_size > training_images:
        raise RbError(
            f"The batch size is {recipe.batch_size}, but there are only {training_images} training images."
            f" Use --batch-size {training_images} or less."
        )
    if recipe.lr <= 0:
        raise RbError(f"The learning rate is {recipe.lr:g}. It must be above 0.")
    if recipe.schedule == "step" and not recipe.milestones:
        raise RbError("The step schedule has no milestones. Give the epochs, such as --milestones 75,90.")
