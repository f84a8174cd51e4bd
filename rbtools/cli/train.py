"""rb-train: trains each record's architecture with a method."""

from __future__ import annotations

from typing import Any

import click

from rbtools import units
from rbtools.cli import shared
from rbtools.errors import RbError, UsageError
from rbtools.training import METHODS

recipe_options = shared.bundle(
    "recipe",
    dict,
    click.option("--epochs", default=10, type=click.IntRange(0), help="Passes over the training images."),
    click.option("--batch-size", default=128, type=click.IntRange(1), help="Images a step."),
    click.option("--lr", default=0.1, type=float, help="Learning rate, or its maximum with onecycle."),
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
        type=click.Choice(("onecycle", "step", "cosine", "constant")),
        help="How the learning rate moves.",
    ),
    click.option(
        "--milestones", default="", metavar="LIST", help="Epochs at which --schedule step lowers it."
    ),
    click.option("--decay", default=0.1, type=float, help="Factor at each milestone."),
    click.option(
        "--augment",
        default="auto",
        metavar="LIST",
        help="crop, flip, crop,flip, none, or auto: what suits the data set.",
    ),
)


@shared.command(choose=METHODS, option="--method", default="erm")
@click.option("--method", default="erm", metavar="LIST", help="How to train: " + ", ".join(METHODS) + ".")
@recipe_options
@click.option("--seed", "seeds", default="0", metavar="LIST", help="Seeds; one trained record for each.")
@shared.stream_options
@shared.train_options
def main(
    method: str,
    params: dict[str, Any],
    recipe: dict[str, Any],
    seeds: str,
    source: shared.Source,
    work: Any,
) -> int:
    """Train each record's architecture and write the record on with its checkpoint.

    Several methods or seeds give one record for each. Finished trainings are found in the store;
    an interrupted one goes on from its last epoch. Options of a method: rb-train --method NAME --help.

    \b
    Examples:
      rb-arch --sample 1 --cells 1 | rb-train --method erm,trades --eps 32 --epochs 1
      rb-train --method pgd --dataset imagefolder:photos --batch-size 16 --seed 0,1 --epochs 1 models.jsonl
    """
    from rbtools.engine.recipe import Recipe, check
    from rbtools.engine.tasks import Train

    if work.run.store.folder is None:
        raise UsageError(
            "--no-store leaves no place for the checkpoints that a training makes. Leave it out, or name a"
            " folder with --store."
        )
    _refuse_unused(recipe["schedule"])
    slips: dict[str, None] = {}  # of a method each, but options are shared: each is told of once
    methods = [shared.build(METHODS, name, params, slips.setdefault) for name in _names(method)]
    for slip in slips:
        work.screen.warn(slip)
    recipe["milestones"] = tuple(int(epoch) for epoch in _numbers(recipe["milestones"], "--milestones"))
    how = Recipe(**{**recipe, "augment": _augment(recipe["augment"])})
    try:
        check(how)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None

    tasks = [Train(one, how, int(seed), work.run) for one in methods for seed in _numbers(seeds, "--seed")]
    return shared.filter_records(source, tasks, work)


def _refuse_unused(schedule: str) -> None:
    """Raise UsageError for an option that was given and that the schedule would ignore."""
    context = click.get_current_context()
    for name, used in (
        ("momentum", schedule != "onecycle"),
        ("milestones", schedule == "step"),
        ("decay", schedule == "step"),
    ):
        if not used and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            why = "which sets the momentum itself" if name == "momentum" else "which has no milestones"
            raise UsageError(
                f"--{name} has no effect with the schedule {schedule}, {why}."
                " Leave it out, or choose another with --schedule."
            )


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))
    if not names:
        raise UsageError(f"--method is empty. Known methods: {', '.join(METHODS)}.")
    return names


def _numbers(text: str, what: str) -> list[float]:
    found = units.number_list(text, what) if text else []
    wrong = [value for value in found if value != int(value) or value < 0]
    if wrong:
        raise UsageError(f"{what} has {wrong[0]:g}. Expected whole numbers from 0 on, such as 0,1,2.")
    return found


def _augment(text: str) -> tuple[str, ...] | None:
    from rbtools.engine.recipe import AUGMENTATIONS

    if text == "auto":
        return None
    kinds = () if text == "none" else tuple(filter(None, text.split(",")))
    wrong = [kind for kind in kinds if kind not in AUGMENTATIONS]
    if wrong:
        raise UsageError(f"--augment has '{wrong[0]}'. Choose from: crop, flip, none, auto.")
    return kinds


if __name__ == "__main__":
    main()
