"""The recipe of a training on the command line: its options, the preset behind them, what has no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from rbtools import registry
from rbtools.cli import shared
from rbtools.cli.effective_config import as_typed
from rbtools.errors import UsageError
from rbtools.trainer import presets
from rbtools.trainer.recipe import LR_RULES, OUTPUTS
from rbtools.training import METHODS

recipe_options = shared.bundle(
    "recipe",
    dict,
    click.option(
        "--preset",
        metavar="NAME",
        default=None,
        help="A paper's whole recipe, which single options override: nasbench201, nasrobbench201 (weight"
        " decay 5e-4 as in its code; its text has 1e-4), nasrobbench201-algorithm1 (one sample a step),"
        " prbench (its text), prbench-code (its code), rice2020 (or wci).",
    ),
    click.option("--epochs", default=10, type=click.IntRange(0), help="Passes over the training images."),
    click.option("--batch-size", default=128, type=click.IntRange(1), help="Images a step."),
    click.option("--lr", default=0.1, type=float, help="Learning rate, or its maximum with onecycle."),
    click.option(
        "--lr-rule",
        default="fixed",
        type=click.Choice(LR_RULES),
        help="fixed: --lr is the rate. theorem1, for fcnn and rescnn: --lr is the constant c in the step size"
        " c sqrt(min y'K^-1 y) / (width sqrt(N)) of NAS-RobBench-201's theorem 1, by kernels at the start.",
    ),
    click.option(
        "--micro-batch",
        default=None,
        type=click.IntRange(1),
        help="Send each batch through in pieces of this size, to save memory.",
    ),
    click.option(
        "--momentum",
        default=0.9,
        type=click.FloatRange(0, 1, max_open=True),
        help="Of SGD; onecycle sets it.",
    ),
    click.option("--nesterov/--no-nesterov", default=False, help="Nesterov's form of momentum."),
    click.option("--weight-decay", default=5e-4, type=click.FloatRange(0), help="L2 penalty of SGD."),
    click.option(
        "--schedule",
        default="onecycle",
        type=click.Choice(("onecycle", "step", "piecewise", "cosine", "constant")),
        help="How the learning rate moves. piecewise: as step, one batch earlier (Rice et al.).",
    ),
    click.option(
        "--milestones",
        default="",
        metavar="LIST",
        help="Epochs at which --schedule step or piecewise lowers it.",
    ),
    click.option("--decay", default=0.1, type=float, help="Factor at each milestone."),
    click.option(
        "--augment",
        default="auto",
        metavar="LIST",
        help="crop or crop-reflect, flip, a list of both, none, or auto: what suits the data set.",
    ),
    click.option(
        "--normalize",
        default="auto",
        metavar="MEAN STD|none|NAME",
        help="The network's first layer: numbers, none, cifar10, rice ..., or auto: what suits the data set.",
    ),
    click.option(
        "--regularize",
        default="",
        metavar="LIST",
        help="cutout, mixup, awp (adversarial weight perturbation), l2 (weight decay on weights alone).",
    ),
    click.option(
        "--cutout-length",
        default=None,
        type=int,
        help="Side of cutout's square in pixels.  [default: 14 of 32, in proportion]",
    ),
    click.option("--mixup-alpha", default=1.4, type=float, help="mixup's lambda is from Beta(a, a)."),
    click.option(
        "--awp-gamma",
        default=None,
        type=float,
        help="Size of awp's perturbation, as a share of each weight's norm."
        "  [default: 0.005 with trades, else 0.01]",
    ),
    click.option("--awp-warmup", default=0, type=int, help="Epochs before awp sets in."),
    click.option("--l2", default=5e-3, type=float, help="Weight decay of --regularize l2."),
    click.option(
        "--label-smoothing", default=0.0, type=float, help="Share of each label that all classes get."
    ),
    click.option(
        "--filter",
        default=None,
        metavar="NAME",
        help="chen-lee: where the attack has not raised the loss after --warm-steps, train on clean images.",
    ),
    click.option(
        "--filter-rule",
        default="batch",
        type=click.Choice(("batch", "example")),
        help="What the filter judges: the batch as a whole (PRBench's code), or each example for itself.",
    ),
    click.option(
        "--warm-steps",
        default=1,
        type=int,
        help="Steps of the attack before the filter looks (1 is m = 0 of PRBench's code).",
    ),
    click.option(
        "--ema",
        default=None,
        type=float,
        metavar="DECAY",
        help="Average the weights, such as with 0.995 a step; these are validated and kept.",
    ),
    click.option(
        "--val",
        default=0.02,
        type=float,
        metavar="SHARE",
        help="Share of the training images held out to find the best epoch, by PGD; 0 for none.",
    ),
    click.option(
        "--patience", default=None, type=int, help="Stop after so many epochs without a better validation."
    ),
    click.option(
        "--select",
        default="last",
        type=click.Choice(("last", "best")),
        help="Which weights the record goes on with; it names both.",
    ),
    click.option(
        "--output",
        default="last",
        type=click.Choice(OUTPUTS),
        help="What a training ends with: its last weights, or those before a step drawn uniformly from all.",
    ),
    click.option(
        "--track",
        default="",
        metavar="LIST",
        help="Measure along the training, into train.history: robust (losses and errors on train and test,"
        " their gaps), wci, or another measure of rb-measure.",
    ),
    click.option(
        "--every", default=5, type=int, help="After so many epochs, and after the last, for --track."
    ),
    click.option(
        "--track-n", default=1000, type=int, help="Images of train and of test for --track robust, at most."
    ),
    click.option(
        "--clean-pass/--no-clean-pass",
        default=False,
        help="One more pass of the clean images after each step, for BatchNorm (Rice et al.).",
    ),
    click.option(
        "--init",
        default="random",
        type=click.Choice(("random", "checkpoint", "timm")),
        help="Start anew, from the record's checkpoint (fine-tuning), or from timm's published weights.",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="On a GPU, only algorithms that give the same bits every time; the CPU's do.",
    ),
)


def default_method(arguments: Sequence[str]) -> str:
    """The method where none is named: the preset's, else erm."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == "--preset" and (equals or place + 1 < len(arguments)):
            return presets.named(value if equals else arguments[place + 1]).method
    return "erm"


def set_by_preset(context: click.Context) -> dict[str, tuple[Any, str]]:
    """What the preset in force sets, as it is typed, and that it does."""
    name = context.params.get("preset")
    if name is None:
        return {}
    preset = presets.named(name)
    eps = context.params.get("eps")
    given = {} if eps is None else {"eps": eps}
    norm = context.params.get("norm") or preset.params.get("norm", "linf")
    own: dict[str, Any] = {}
    for cls in reversed(context.meta["rbtools.classes"]):  # of several methods the first one's stand there
        fields = {field.name: field for field in registry.options(cls)}
        params = presets.params(preset, cls, given)
        own |= {key: as_typed(fields[key], params[key], norm) for key in params if key not in given}
    return {
        key: (value, f"preset {name}")
        for key, value in {"method": preset.method, **preset.recipe, **own}.items()
    }


def recipe(options: dict[str, Any], given_params: frozenset[str]) -> Any:
    """The recipe that options and preset make. Raises UsageError for what has no effect."""
    given = frozenset(name for name in options if _is_given(name))
    in_file = frozenset(name for name in options if _is_given(name, in_file=True))
    how = presets.recipe(options, given_params, in_file)
    _refuse_unused(how, given)
    return how


def _is_given(name: str, in_file: bool = False) -> bool:
    """Whether the command line has that option (or a configuration, where that counts)."""
    source = click.get_current_context().get_parameter_source(name)
    sources = click.core.ParameterSource
    return source is sources.COMMANDLINE or (in_file and source is sources.DEFAULT_MAP)


def params(name: str, given: dict[str, Any], how: Any) -> dict[str, Any]:
    """The method's own options, those of the preset under those that were given."""
    if how.preset is None:
        return given
    return presets.params(presets.named(how.preset), METHODS.load(name), given)


def _refuse_unused(how: Any, given: frozenset[str]) -> None:
    """Raise UsageError for an option that was given and that another one makes useless; both are named."""
    stepped = how.schedule in ("step", "piecewise")
    schedule = f"--schedule {how.schedule}"
    for name, used, against in (
        ("momentum", how.schedule != "onecycle", f"{schedule}, which sets the momentum itself"),
        ("milestones", stepped, f"{schedule}, which has none"),
        ("decay", stepped, f"{schedule}, which has no milestones"),
        ("weight_decay", "l2" not in how.regularize, "--regularize l2, which has a decay of its own (--l2)"),
        ("l2", "l2" in how.regularize, None),
        ("cutout_length", "cutout" in how.regularize, None),
        ("mixup_alpha", "mixup" in how.regularize, None),
        ("awp_gamma", "awp" in how.regularize, None),
        ("awp_warmup", "awp" in how.regularize, None),
        ("filter_rule", how.filter is not None, "no --filter"),
        ("warm_steps", how.filter is not None, "no --filter"),
        ("every", bool(how.track), "no --track"),
        ("track_n", "robust" in how.track, "no --track robust"),
        ("normalize", how.init != "checkpoint", "--init checkpoint, which keeps that of the file"),
    ):
        if name in given and not used:
            option = "--" + name.replace("_", "-")
            against = against or f"no --regularize {name.partition('_')[0]}"
            raise UsageError(f"{option} has no effect with {against}. Leave out one, or change the other.")
