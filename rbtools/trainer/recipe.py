"""How a training runs, apart from its method: optimiser, schedule, batches, augmentation and the rest."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rbtools.errors import RbError
from rbtools.measures import MEASURES

SCHEDULES = ("onecycle", "step", "piecewise", "cosine", "constant")
AUGMENTATIONS = ("crop", "crop-reflect", "flip")
REGULARIZERS = ("cutout", "mixup", "awp", "l2")
FILTERS = ("chen-lee",)
FILTER_RULES = ("batch", "example")
INITS = ("random", "checkpoint", "timm")
OUTPUTS = ("last", "random")
LR_RULES = ("fixed", "theorem1")
TRACKED = ("robust", *MEASURES.all)
CYCLED_MOMENTUM = (0.95, 0.85, 0.95)
VALIDATED = 0.02
"""The share of the training images that rb-train holds out where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD with momentum, one of five schedules, and what may be put around it.

    `onecycle` is torch's OneCycleLR per step with maximum `lr`, which moves the momentum too (from 0.95
    to 0.85 where the rate is highest, and back) and leaves `momentum` unused; `step` multiplies by
    `decay` at each of `milestones` (epochs); `piecewise` does so for each batch by the time at its end, so
    one batch earlier (Rice et al. 2020); `cosine` anneals to 0, set per epoch. `augment` names what
    is done to the uint8 batch on the device: `crop` (zero padding of an eighth of the side, 4 pixels for
    32; `crop-reflect` pads by reflection) and `flip` (left-right, half of the examples); None is what suits
    the data set. `micro_batch` sends a batch through the network in pieces of at most that size and sums
    their gradients: memory of a piece, the step of the batch. Where there is BatchNorm each piece has
    statistics of its own.

    `regularize`: `cutout` (a black square of `cutout_length`, None is 14 for a side of 32), `mixup` (one
    lambda ~ Beta(a, a) a batch), `awp` (each step is taken at adversarially perturbed weights; gamma None is
    .005 for trades and .01 otherwise), `l2` (weight decay `l2` on weights, none on biases and BatchNorm,
    instead of `weight_decay`). `filter` with `filter_rule` and `warm_steps`: see training/chen_lee.py.
    `label_smoothing` s trains on (1 - s) * one-hot + s / K. `ema` keeps averaged weights, which are
    validated and kept instead.
    `val` is the share of the training images that is held out, to find the best epoch; `patience` stops
    after so many epochs without a better one. `clean_pass` sends the clean images through once more after
    each step.
    `normalize`: None is what is usual for the data set, "none", or (mean, std). `select` says which weights
    the record names, "last" or "best". `output`: what a training ends with, its "last" weights or "random",
    those before a step that is drawn uniformly from all (algorithm 1 of Wu et al. 2024). With `lr_rule`
    "theorem1" `lr` is the constant of trainer/theorem_lr.py's step size. `track` names what is measured
    after `every` so many epochs (see trainer/tracking.py), robust losses on at most `track_n` images of train
    and test.
    `given` names what the user chose where a preset stands beside it.
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
    normalize: Any = None
    micro_batch: int | None = None
    regularize: tuple[str, ...] = ()
    cutout_length: int | None = None
    mixup_alpha: float = 1.4
    awp_gamma: float | None = None
    awp_warmup: int = 0
    l2: float = 5e-3
    label_smoothing: float = 0.0
    ema: float | None = None
    filter: str | None = None
    filter_rule: str = "batch"
    warm_steps: int = 1
    val: float = 0.0
    patience: int | None = None
    clean_pass: bool = False
    init: str = "random"
    deterministic: bool = False
    preset: str | None = None
    given: frozenset[str] = frozenset()
    select: str = "last"
    output: str = "last"
    lr_rule: str = "fixed"
    track: tuple[str, ...] = ()
    every: int = 5
    track_n: int = 1000

    def config(self) -> dict[str, Any]:
        """The recipe as it stands in the record; what is not used is left out."""
        found = asdict(self)
        # Told elsewhere, or without effect on the weights beside what is told here.
        for key in ("normalize", "given", "select", "preset", "track", "every", "track_n"):
            del found[key]
        if self.schedule == "onecycle":
            found["momentum"] = list(CYCLED_MOMENTUM)
        for key in ("milestones", "augment", "regularize"):
            found[key] = list(found[key] or ())
        unused = {
            "cutout_length": "cutout" not in self.regularize,
            "mixup_alpha": "mixup" not in self.regularize,
            "awp_gamma": "awp" not in self.regularize,
            "awp_warmup": "awp" not in self.regularize,
            "l2": "l2" not in self.regularize,
            "weight_decay": "l2" in self.regularize,
            "milestones": self.schedule not in ("step", "piecewise"),
            "decay": self.schedule not in ("step", "piecewise"),
            "filter_rule": self.filter is None,
            "warm_steps": self.filter is None,
            "init": self.init == "random",
        }
        plain = Recipe()
        optional = (
            "micro_batch",
            "regularize",
            "label_smoothing",
            "ema",
            "filter",
            "patience",
            "output",
            "lr_rule",
        )
        for key in (*optional, "clean_pass", "deterministic"):
            unused[key] = getattr(self, key) == getattr(plain, key)
        return {key: value for key, value in found.items() if not unused.get(key, False)}


def check(recipe: Recipe, training_images: int | None = None) -> None:
    """Raise RbError where a recipe cannot work: each message says which value, and what would do.

    Without the number of images, what can be told before the data are known.
    """
    _check_names(recipe)
    if recipe.epochs < 0:
        raise RbError(f"The number of epochs is {recipe.epochs}. It must be 0 (the initial model) or more.")
    if recipe.batch_size < 1:
        raise RbError(f"The batch size is {recipe.batch_size}. It must be 1 or more.")
    if recipe.micro_batch is not None and not 1 <= recipe.micro_batch <= recipe.batch_size:
        raise RbError(
            f"The micro-batch is {recipe.micro_batch}. It is a piece of the batch: expected 1 to"
            f" {recipe.batch_size} (--batch-size)."
        )
    if recipe.lr <= 0:
        raise RbError(f"The learning rate is {recipe.lr:g}. It must be above 0.")
    if recipe.schedule in ("step", "piecewise") and not recipe.milestones:
        raise RbError(
            f"The {recipe.schedule} schedule has no milestones. Give the epochs, such as --milestones 75,90."
        )
    _check_numbers(recipe)
    _check_together(recipe)
    if training_images is not None:
        _check_size(recipe, training_images)


def held_out(recipe: Recipe, training_images: int) -> int:
    """How many of the training images are not trained on."""
    return round(recipe.val * training_images)


def _check_size(recipe: Recipe, images: int) -> None:
    left = images - held_out(recipe, images)
    if recipe.batch_size > left:
        held = f" ({images} less those that --val {recipe.val:g} holds out)" if left < images else ""
        raise RbError(
            f"The batch size is {recipe.batch_size}, but there are only {left} training images{held}."
            f" Use --batch-size {left} or less."
        )


def _check_names(recipe: Recipe) -> None:
    for what, values, known in (
        ("schedule", (recipe.schedule,), SCHEDULES),
        ("augmentation", recipe.augment or (), AUGMENTATIONS),
        ("regularizer", recipe.regularize, REGULARIZERS),
        ("filter", () if recipe.filter is None else (recipe.filter,), FILTERS),
        ("rule of the filter", (recipe.filter_rule,), FILTER_RULES),
        ("initialisation", (recipe.init,), INITS),
        ("selection of weights", (recipe.select,), ("last", "best")),
        ("output", (recipe.output,), OUTPUTS),
        ("rule of the learning rate", (recipe.lr_rule,), LR_RULES),
        ("measure to track", recipe.track, TRACKED),
    ):
        for value in values:
            if value not in known:
                raise RbError(f"The {what} is '{value}'. Choose from: {', '.join(known)}.")


def _check_numbers(recipe: Recipe) -> None:
    for option, value, good, words in (
        ("--val", recipe.val, 0 <= recipe.val < 1, "a share from 0 to below 1"),
        ("--label-smoothing", recipe.label_smoothing, 0 <= recipe.label_smoothing < 1, "from 0 to below 1"),
        ("--ema", recipe.ema, recipe.ema is None or 0 <= recipe.ema < 1, "from 0 to below 1"),
        ("--mixup-alpha", recipe.mixup_alpha, recipe.mixup_alpha > 0, "above 0"),
        ("--awp-gamma", recipe.awp_gamma, (recipe.awp_gamma or 0) >= 0, "0 or more"),
        ("--awp-warmup", recipe.awp_warmup, recipe.awp_warmup >= 0, "0 or more"),
        ("--l2", recipe.l2, recipe.l2 >= 0, "0 or more"),
        ("--warm-steps", recipe.warm_steps, recipe.warm_steps >= 0, "0 or more"),
        ("--cutout-length", recipe.cutout_length, (recipe.cutout_length or 1) >= 1, "1 or more"),
        ("--every", recipe.every, recipe.every >= 1, "1 or more"),
        ("--track-n", recipe.track_n, recipe.track_n >= 1, "1 or more"),
        ("--patience", recipe.patience, recipe.patience is None or recipe.patience >= 1, "1 or more"),
    ):
        if not good:
            raise RbError(f"{option} is {value:g}. It must be {words}.")


def _check_together(recipe: Recipe) -> None:
    """Options that contradict each other; both are named."""
    if recipe.patience is not None and recipe.val == 0:
        raise RbError(
            f"--patience {recipe.patience} waits for a better validation, but --val 0 holds nothing out."
            " Leave out --patience, or give --val a share such as 0.02."
        )
    if recipe.select == "best" and recipe.val == 0:
        raise RbError(
            "--select best needs a validation, but --val 0 holds nothing out. Use --select last, or give"
            " --val a share such as 0.02."
        )
    if recipe.output == "random":
        for option, given in (
            ("--select best", recipe.select == "best"),
            ("--patience", recipe.patience is not None),
            ("--ema", recipe.ema is not None),
        ):
            if given:
                raise RbError(
                    f"--output random keeps the weights before a step that is drawn, whatever came of them,"
                    f" and {option} chooses weights otherwise. Leave out one of the two."
                )
    if "awp" in recipe.regularize and recipe.micro_batch is not None:
        raise RbError(
            f"--regularize awp perturbs the weights for a whole batch, and --micro-batch {recipe.micro_batch}"
            " cuts it in pieces. Leave out one of the two."
        )
    both = {"crop", "crop-reflect"}
    if both <= set(recipe.augment or ()):
        raise RbError("--augment has both crop and crop-reflect, which pad in two ways. Choose one.")


def check_method(recipe: Recipe, method: Any) -> None:
    """Raise RbError where a method does not go with the recipe."""
    if recipe.lr_rule == "theorem1" and not hasattr(method, "beta"):
        raise RbError(
            f"--lr-rule theorem1 is about a share beta of adversarial loss, which --method {method.name} has"
            " not. Use --method mixed, or --lr-rule fixed."
        )
    if recipe.filter is None:
        return
    if method.inner not in ("ce", "kl"):
        raise RbError(
            f"--filter {recipe.filter} thins out an attack by steps, and --method {method.name} has none."
            " Leave out the filter, or choose a method such as pgd or trades."
        )
    if method.inner_mode == "train" and recipe.filter_rule == "example":
        raise RbError(
            f"--filter {recipe.filter} with --filter-rule example sends parts of a batch through the network,"
            " whose BatchNorm would see them with --inner-mode train. Use --inner-mode eval, or --filter-rule"
            " batch."
        )
    if recipe.warm_steps > method.attack_steps:
        raise RbError(
            f"--warm-steps is {recipe.warm_steps}, more than the {method.attack_steps} of --attack-steps."
            f" Use {method.attack_steps} or less."
        )
