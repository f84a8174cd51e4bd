"""The recipe of a training run: optimiser, schedule, batches, augmentation and all other options."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.check_field import check_number, plain
from rbtools.errors import RbError
from rbtools.measures import MEASURES
from rbtools.registry import option_name, options, param

if TYPE_CHECKING:
    from rbtools.training.base import Method


CYCLED_MOMENTUM = (0.95, 0.85, 0.95)
STOPPING = ("wci", "sharpness")
"""Measures on the training images that can stop a training run when they rise."""
VALIDATED = 0.02
"""The default share of the training images that rb-train holds out."""

_optimisation = functools.partial(param, group="Optimisation")
_rare_optimisation = functools.partial(_optimisation, rare=True)
_regularisation = functools.partial(param, group="Regularisation")
_rare_regularisation = functools.partial(_regularisation, rare=True)
_tracking = functools.partial(param, group="Validation, tracking and initial weights")
_rare_tracking = functools.partial(_tracking, rare=True)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of a training run, except those of the method. Each option has a help text at its field.

    `onecycle` is torch's OneCycleLR per step with maximum `lr`. `onecycle` also changes the momentum (from
    0.95 to 0.85 at the highest rate, and back) and ignores `momentum`. Adam's second beta is 0.999. `cosine`
    anneals the rate to 0 and is updated per epoch. `piecewise` is updated per batch, with the rate for the
    time at which the batch ends. `crop` pads with zeros by an eighth of the side, and `crop-reflect` pads by
    reflection. BatchNorm uses the statistics of each piece of `micro_batch` images. `mixup` uses one random
    lambda per batch. `wci` uses one random vector (`of_batch` in measures/wci.py). `filter` is described in
    training/chen_lee.py. With `label_smoothing` s, the targets are (1 - s) * one-hot + s / K. `output`
    "random" is algorithm 1 of Wu et al. 2024. `lr_rule` is described in trainer/optim.py. `track` is
    described in trainer/tracking.py. If `augment`, `normalize`, `cutout_length` or `awp_gamma` is None, the
    usual value for the data set or the method is used. `given` contains the options set by the user in
    addition to a preset.
    """

    preset: str | None = param(
        None,
        "Recipe of a paper: nasbench201, nasrobbench201 (weight decay 5e-4 as in its code; its paper has"
        " 1e-4), nasrobbench201-algorithm1 (one sample per step), prbench (as in the paper), prbench-code (as"
        " in the code), fgsm-pgi, or rice2020 (also called wci). Single options override it.",
        metavar="NAME",
    )
    epochs: int = _optimisation(
        10, "Number of epochs, which are passes over the training images.", bounds="[0, inf)"
    )
    batch_size: int = _optimisation(
        128, "Number of images per step. PRBench: 128 (not in the paper), 256 (code).", bounds="[1, inf)"
    )
    lr: float = _optimisation(
        0.1,
        "Learning rate; with onecycle, the maximum. PRBench: 0.01 (paper), 0.1 (code); NAS-RobBench-201:"
        " 0.05 (paper), 0.1 (code).",
        metavar="X",
    )
    lr_rule: str = _rare_optimisation(
        "fixed",
        "The meaning of --lr: the learning rate, or, with theorem1 (for fcnn and rescnn), the constant C in"
        " NAS-RobBench-201's rate C sqrt(min y'K^-1 y) / (width sqrt(N)), with kernels at initialisation."
        " For rescnn, corollary 1 leaves out the first root and also divides by sqrt(pixels * filter).",
        choices=("fixed", "theorem1"),
        optional=True,
    )
    micro_batch: int | None = _rare_optimisation(
        None, "Split each batch into parts of this size, to save memory.", bounds="[1, inf)", optional=True
    )
    optimizer: str = _optimisation("sgd", "Optimiser: sgd or adam.", choices=("sgd", "adam"), optional=True)
    momentum: float = _rare_optimisation(
        0.9, "Momentum of SGD, or Adam's beta1. onecycle does not use it.", bounds="[0, 1)"
    )
    nesterov: bool = _rare_optimisation(False, "Use Nesterov momentum in SGD.")
    weight_decay: float = _optimisation(
        5e-4,
        "Weight of the L2 penalty. PRBench: 0.0035 (paper), 0.0005 (code); NAS-RobBench-201: 0.0001"
        " (paper), 0.0005 (code).",
        bounds="[0, inf)",
    )
    schedule: str = _optimisation(
        "onecycle",
        "Schedule of the learning rate. piecewise is like step, but one batch earlier (Rice et al.).",
        choices=("onecycle", "step", "piecewise", "cosine", "constant"),
    )
    milestones: tuple[int, ...] = _rare_optimisation(
        (),
        "Epochs at which step and piecewise reduce the learning rate, such as 75,90.",
        metavar="LIST",
        typed="",
    )
    decay: float = _rare_optimisation(
        0.1, "Factor by which the learning rate is multiplied at each milestone."
    )
    augment: tuple[str, ...] | None = _regularisation(
        None,
        "crop or crop-reflect, flip, a list of both, none, or auto (usual for the data set). PRBench: auto"
        " (not in the paper), crop-reflect,flip (code; none on svhn and mnist, crop,flip on tinyimagenet).",
        choices=("crop", "crop-reflect", "flip"),
        metavar="LIST",
        typed="auto",
    )
    normalize: str | tuple[tuple[float, ...], tuple[float, ...]] | None = param(
        None,
        "Normalisation of the inputs: numbers, none, a name (cifar10, rice ...), or auto (usual for the"
        " data set).",
        metavar="MEAN STD|none|NAME",
        typed="auto",
        group="Model",
    )
    regularize: tuple[str, ...] = _regularisation(
        (),
        "Regularisation: cutout, mixup, awp (adversarial weight perturbation), l2 (weight decay on weights"
        " only), or wci (the Weight-Curvature Index as a term of the loss).",
        choices=("cutout", "mixup", "awp", "l2", "wci"),
        metavar="LIST",
        typed="",
        optional=True,
    )
    cutout_length: int | None = _rare_regularisation(
        None, "Side length of cutout's square in pixels.  [default: 14/32 of the image's side]", check="count"
    )
    mixup_alpha: float = _rare_regularisation(1.4, "mixup draws lambda from Beta(X, X).", check="positive")
    awp_gamma: float | None = _rare_regularisation(
        None,
        "Size of awp's perturbation, as a fraction of the norm of each weight tensor.  [default: 0.005 with"
        " trades, else 0.01]",
        check="non-negative",
    )
    awp_warmup: int = _rare_regularisation(0, "Number of epochs before awp starts.", check="non-negative")
    l2: float = _rare_regularisation(5e-3, "Weight decay of --regularize l2.", check="non-negative")
    wci_weight: float = _rare_regularisation(0.001, "Weight of wci in the loss.", check="non-negative")
    label_smoothing: float = _rare_regularisation(
        0.0, "Fraction of each label that is spread over all classes.", check="below one", optional=True
    )
    filter: str | None = _rare_regularisation(
        None,
        "chen-lee: train on clean images if the first steps of the attack lower the loss.",
        choices=("chen-lee",),
        metavar="NAME",
        optional=True,
    )
    filter_rule: str = _rare_regularisation(
        "batch",
        "Filter whole batches by their mean loss (PRBench's code), or each example by its loss.",
        choices=("batch", "example"),
    )
    warm_steps: int = _rare_regularisation(
        1,
        "Number of attack steps before the filter decides (1 corresponds to m = 0 in PRBench's code).",
        check="non-negative",
    )
    ema: float | None = _rare_optimisation(
        None,
        "Average the weights with this decay per step, such as 0.995. The averaged network is validated"
        " and stored.",
        check="below one",
        metavar="DECAY",
        optional=True,
    )
    train_n: int | None = param(
        None,
        "Number of training images, chosen in proportion to the classes; --val holds out a fraction of these."
        "  [default: all]",
        check="count",
        optional=True,
        group="Data",
    )
    val: float = _tracking(
        0.0,
        "Fraction of the training images that are held out to find the best epoch by accuracy under PGD;"
        " 0 holds out none.",
        check="share",
        metavar="SHARE",
        typed=VALIDATED,
    )
    patience: int | None = _rare_tracking(
        None,
        "Stop after this number of epochs without a better validation result.",
        check="count",
        optional=True,
    )
    select: str = _tracking(
        "last",
        "Weights in the record's checkpoint: those of the last epoch, or of the epoch that is best on the"
        " validation images. The record contains the names of both checkpoints.",
        choices=("last", "best"),
    )
    output: str = _rare_tracking(
        "last",
        "The weights that a training run returns: those after the last step, or (random) those before a"
        " random step.",
        choices=("last", "random"),
        optional=True,
    )
    keep: str = _rare_tracking(
        "all",
        "The weights to store: all (the last and the best), or selected (only those of the record).",
        choices=("all", "selected"),
    )
    track: tuple[str, ...] = _tracking(
        (),
        "Measure during the training run, and write to train.history: robust (losses and errors on train and"
        " test, and their gaps), wci, or another measure of rb-measure.",
        choices=("robust", *MEASURES.all),
        metavar="LIST",
        typed="",
    )
    every: int = _rare_tracking(
        5, "Number of epochs between measurements. The last epoch is always measured.", check="count"
    )
    track_n: int = _rare_tracking(
        1000, "Maximal number of images per split for --track robust.", check="count"
    )
    stop_on: str | None = _rare_tracking(
        None,
        "Stop when this measure of --track has risen: wci or sharpness.",
        choices=STOPPING,
        metavar="MEASURE",
        optional=True,
    )
    stop_patience: int = _rare_tracking(3, "Stop after this number of rises in a row.", check="count")
    clean_pass: bool = _rare_regularisation(
        False,
        "After each step, pass the clean images through the network once more, for BatchNorm (Rice et al.).",
        optional=True,
    )
    init: str = _tracking(
        "random",
        "Start from random weights, the record's checkpoint (fine-tuning), or timm's published weights.",
        choices=("random", "checkpoint", "timm"),
        optional=True,
    )
    init_file: str | None = _rare_tracking(
        None,
        "A file of weights with timm's tensor names.  [default: the published weights, from the cache of the"
        " Hub or with --download]",
        metavar="FILE",
    )
    resample: str = _rare_tracking(
        "timm",
        "How timm's weights are adapted to other sizes of images and patches: as the library timm does it"
        " (timm), or as PRBench's code does it (prbench). PRBench's code sums kernels over blocks, and"
        " interpolates positions bilinearly. Its paper does not say.",
        choices=("timm", "prbench"),
        optional=True,
    )
    deterministic: bool = _rare_optimisation(
        False,
        "Use only deterministic algorithms on a GPU, as on the CPU.",
        flags=("--deterministic",),
        optional=True,
    )
    given: frozenset[str] = frozenset()

    def without_effect(self) -> dict[str, str]:
        """Maps each field that has no effect to the option that is the reason."""
        stepped, schedule = self.schedule in ("step", "piecewise"), f"--schedule {self.schedule}"
        rows = (
            ("momentum", self.schedule != "onecycle", f"{schedule}, which sets the momentum itself"),
            ("nesterov", self.optimizer == "sgd", "--optimizer adam, which has no Nesterov momentum"),
            ("milestones", stepped, f"{schedule}, which has no milestones"),
            ("decay", stepped, f"{schedule}, which has no milestones"),
            ("weight_decay", "l2" not in self.regularize, "--regularize l2, which has its own decay"),
            *(
                (name, name.partition("_")[0] in self.regularize, f"no --regularize {name.partition('_')[0]}")
                for name in ("l2", "cutout_length", "mixup_alpha", "awp_gamma", "awp_warmup", "wci_weight")
            ),
            ("filter_rule", self.filter is not None, "no --filter"),
            ("warm_steps", self.filter is not None, "no --filter"),
            ("every", bool(self.track), "no --track"),
            ("track_n", "robust" in self.track, "no --track robust"),
            ("stop_patience", self.stop_on is not None, "no --stop-on"),
            ("train_n", self.train_n is not None, "all training images"),
            ("keep", self.val > 0, "--val 0, with which only the last weights exist"),
            ("normalize", self.init != "checkpoint", "--init checkpoint, which keeps its own normalisation"),
            ("init_file", self.init == "timm", "no --init timm"),
            ("resample", self.init == "timm", "no --init timm"),
        )
        return {name: reason for name, used, reason in rows if not used}

    def selected(self, names: Mapping[str, Any]) -> str:
        """Return the name of the record's checkpoint, among the `names` of a training run."""
        last = str(names["checkpoint"])
        return last if self.select == "last" else str(names.get("best") or last)

    def stored(self, names: Mapping[str, Any]) -> set[str]:
        """Return the names of the weights to store, among the `names` of a training run."""
        if self.keep == "selected":
            return {self.selected(names)}
        return {str(names[which]) for which in ("checkpoint", "best") if names.get(which)}

    def config(self) -> dict[str, Any]:
        """Return the recipe as the record contains it, without unused fields."""
        config = registry.config(self)
        # These options are in other fields of the record, or do not affect the weights.
        for key in "normalize given select keep preset track every track_n init_file".split():
            del config[key]
        if self.schedule == "onecycle":
            config["momentum"] = list(CYCLED_MOMENTUM)
        unused = self.without_effect().keys() - {"momentum"}
        return {
            key: list(value or ()) if key in ("milestones", "augment", "regularize") else value
            for key, value in config.items()
            if key not in unused
        }


def check(recipe: Recipe, training_images: int | None = None) -> None:
    """Raise RbError for an invalid value. The batch size is checked only if `training_images` is given."""
    for field in options(Recipe):
        value, label, known = getattr(recipe, field.name), option_name(field), field.metadata["choices"]
        names = value if isinstance(value, tuple) else (value,)
        wrong = None if known is None or value is None else next((n for n in names if n not in known), None)
        if wrong is not None:
            raise RbError(f"{label} is '{wrong}'. Choose from: {', '.join(known)}.")
        if value is not None or field.default is not None:
            check_number(field, plain(field, value, label), label)
    if recipe.micro_batch is not None and recipe.micro_batch > recipe.batch_size:
        raise RbError(
            f"--micro-batch is {recipe.micro_batch}, but a batch has only {recipe.batch_size} images"
            " (--batch-size). Expected at most the size of a batch."
        )
    if recipe.lr <= 0:
        raise RbError(f"The learning rate is {recipe.lr:g}. It must be above 0.")
    if recipe.schedule in ("step", "piecewise") and not recipe.milestones:
        raise RbError(
            f"The {recipe.schedule} schedule needs milestones. Give the epochs, such as --milestones 75,90."
        )
    _check_together(recipe)
    if training_images is not None:
        if training_images < (recipe.train_n or 0):
            raise RbError(
                f"--train-n is {recipe.train_n}, but there are only {training_images} training images."
            )
        training_images = used(recipe, training_images)
        left = training_images - held_out(recipe, training_images)
        if recipe.batch_size > left:
            held = f" ({training_images} without those that --val {recipe.val:g} holds out)"
            raise RbError(
                f"The batch size is {recipe.batch_size}, but there are only {left} training images"
                f"{held if left < training_images else ''}. Use --batch-size {left} or less."
            )


def used(recipe: Recipe, training_images: int) -> int:
    """Return the number of images that --train-n selects, including those that --val holds out."""
    return min(recipe.train_n or training_images, training_images)


def held_out(recipe: Recipe, training_images: int) -> int:
    return round(recipe.val * used(recipe, training_images))


def _check_together(recipe: Recipe) -> None:
    """Raise RbError if options contradict each other; the message names the contradicting options."""
    if recipe.patience is not None and recipe.val == 0:
        raise RbError(
            f"--patience {recipe.patience} needs validation results, but --val 0 holds out no images."
            " Leave out --patience, or set --val to a share such as 0.02."
        )
    if recipe.select == "best" and recipe.val == 0:
        raise RbError(
            "--select best needs validation results, but --val 0 holds out no images. Use --select last, or"
            " set --val to a share such as 0.02."
        )
    if recipe.stop_on is not None and recipe.stop_on not in recipe.track:
        raise RbError(
            f"--stop-on {recipe.stop_on} stops when this tracked measure rises, but --track does not include"
            f" it. Add it: --track {','.join((*recipe.track, recipe.stop_on))}."
        )
    other_choices = {
        "--select best": recipe.select == "best",
        "--patience": recipe.patience is not None,
        "--ema": recipe.ema is not None,
        "--stop-on": recipe.stop_on is not None,
    }
    if recipe.output == "random" and any(other_choices.values()):
        option = next(option for option, given in other_choices.items() if given)
        raise RbError(
            f"--output random keeps the weights before a random step, but {option} selects weights in another"
            " way. Leave out one of the two."
        )
    if "awp" in recipe.regularize and recipe.micro_batch is not None:
        raise RbError(
            f"--regularize awp perturbs the weights for a complete batch, but --micro-batch"
            f" {recipe.micro_batch} splits it into pieces. Leave out one of the two."
        )
    if {"crop", "crop-reflect"} <= set(recipe.augment or ()):
        raise RbError("--augment has both crop and crop-reflect, which pad differently. Choose one of them.")


def check_method(recipe: Recipe, method: Method) -> None:
    """Raise RbError if a method cannot be used with the recipe."""
    awp = "awp" in recipe.regularize
    if method.weight_radius is not None and (awp or recipe.micro_batch is not None):
        raise RbError(
            f"--method {method.name} perturbs the weights for a complete batch, so it cannot be combined with"
            f" {'--regularize awp' if awp else '--micro-batch'}. Leave out one of the two."
        )
    if recipe.lr_rule == "theorem1" and not hasattr(method, "beta"):
        raise RbError(
            f"--lr-rule theorem1 needs a method with a parameter beta, which --method {method.name} lacks."
            " Use --method mixed, or leave out --lr-rule."
        )
    if recipe.filter is None:
        return
    if method.inner not in ("ce", "kl"):
        raise RbError(
            f"--filter {recipe.filter} needs an attack with steps, but --method {method.name} has none."
            " Leave out the filter, or choose a method such as pgd or trades."
        )
    if method.inner_mode == "train" and recipe.filter_rule == "example":
        raise RbError(
            "--filter-rule example sends parts of a batch through the network, and with --inner-mode train"
            " BatchNorm would use only these parts. Use --inner-mode eval, or --filter-rule batch."
        )
    if recipe.warm_steps > method.attack_steps:
        raise RbError(
            f"--warm-steps is {recipe.warm_steps}, but --attack-steps is only {method.attack_steps}. Expected"
            f" {method.attack_steps} or less for --warm-steps."
        )
