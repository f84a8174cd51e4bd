"""rb-train: trains the architecture of each record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.cli import calls, options, parse_units, shared
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL
from rbtools.registry import param, rare_param
from rbtools.trainer import distributed, presets
from rbtools.trainer.recipe import Recipe, check, check_method
from rbtools.training import METHODS
from rbtools.units import whole_numbers

if TYPE_CHECKING:
    from rbtools.execution.run import Run


def _default_method(arguments: Sequence[str]) -> str:
    """The training method if --method is not given: that of the preset, or else erm."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == "--preset" and (equals or place + 1 < len(arguments)):
            return presets.named(value if equals else arguments[place + 1]).method
    return "erm"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    method: str | None = param(
        None, "Training methods: " + ", ".join(METHODS) + ".  [default: erm, or the preset's]", metavar="LIST"
    )
    tensorboard: str | None = rare_param(
        None,
        "Write training curves to DIR (needs pip install 'rbtools[tensorboard]').",
        metavar="DIR",
        group="Validation, tracking and initial weights",
    )
    seed: str = param(
        "0",
        "Seeds, separated by commas; each seed yields one trained record.",
        metavar="LIST",
        group="Running",
    )


@shared.command(choose=METHODS, by="--method", default=_default_method, covers="--preset")
@shared.takes("typed", TrainingOptions)
@shared.takes("recipe", Recipe, make=dict)
@options.stream_options
@options.train_options
def main(
    params: dict[str, Any],
    typed: TrainingOptions,
    recipe: dict[str, Any],
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Train the architecture of each record and add its checkpoint to the record.

    If several methods or seeds are given, each combination yields one record. Finished training runs are read
    from the store, and an interrupted run continues after its last stored epoch. rb-train --method NAME
    --help lists the options of a method.

    \b
    Examples:
      rb-arch --sample 1 --cells 1 | rb-train --method erm,trades --eps 32 --epochs 1
      rb-train --method pgd --dataset imagefolder:photos --batch-size 16 --seed 0,1 --epochs 1 models.jsonl
      rb-arch --sample 1 --cells 1 | rb-train --preset prbench --method mart --epochs 1
    """
    from rbtools.trainer.train_model import TrainJob

    if work.run.store.folder is None:
        raise UsageError(
            "--store is none, but rb-train keeps its checkpoints in the store. Leave --store out, or name a"
            " folder."
        )
    preset = [] if recipe["preset"] is None else ["--preset", recipe["preset"]]
    names = _names(_default_method(preset) if typed.method is None else typed.method)
    whole_recipe = _recipe(recipe, frozenset(params))
    slips: dict[str, None] = {}  # methods share options: report each option once
    methods = [
        shared.build(METHODS, name, _params(name, params, whole_recipe), slips.setdefault) for name in names
    ]
    for training_method in methods:
        for name, why in training_method.unused.items():
            if name in params:
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} has no effect with {why}. Leave one of them out.")
        if training_method.reach_options is not None:
            step, count = training_method.reach_options
            parse_units.tell_reach(training_method, step, count, slips.setdefault)
    if whole_recipe.optimizer == "adam" and whole_recipe.lr > 0.02:
        usual = "seldom learns; 0.0005 to 0.005 is usual."
        slips.setdefault(f"--optimizer adam with --lr {whole_recipe.lr:g} {usual}")
    for slip in slips:
        work.screen.warn(slip)
    try:
        check(whole_recipe)
        for training_method in methods:
            check_method(whole_recipe, training_method)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None

    work = work.changed(worker=distributed.local_rank())
    seeds = whole_numbers(typed.seed, "--seed")
    tasks = [TrainJob(built, whole_recipe, number) for built in methods for number in seeds]
    _refuse_together(work.run)
    return partial(_train, source, tasks, work, typed.tensorboard)


def _train(
    source: shared.RecordSource, tasks: Sequence[Any], work: shared.CommandContext, board: str | None
) -> int:
    with distributed.process_group(work.run) as leads:
        if leads:
            with _board(board, work.screen):
                status = shared.filter_records(source, tasks, work)
                return status() if callable(status) else status
        from rbtools.trainer.train_model import worker_loop

        worker_loop(work.run)
        return shared.DONE


def _recipe(typed: dict[str, Any], given_params: frozenset[str]) -> Recipe:
    """The recipe of the options and the preset. Raises UsageError if an option has no effect."""
    call = calls.current()
    given, in_file = frozenset(call.given) & set(typed), frozenset(call.in_file) & set(typed)
    result = presets.recipe(typed, given_params, given | in_file)
    fields = {field.name: field for field in registry.options(Recipe)}
    for name, reason in result.without_effect().items():
        if name in given:
            option = registry.option_name(fields[name])
            raise UsageError(f"{option} has no effect with {reason}. Leave one out, or change the other.")
    return result


def _params(name: str, given: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    if recipe.preset is None:
        return given
    return presets.params(presets.named(recipe.preset), METHODS.load(name), given)


@contextlib.contextmanager
def _board(folder: str | None, screen: shared.Terminal) -> Iterator[None]:
    if folder is None:
        yield
        return
    from rbtools.cli.events import Board

    with contextlib.closing(Board(folder)) as board:
        screen.listeners.append(board.hear)
        yield


def _refuse_together(run: Run) -> None:
    if distributed.count() == 1:
        return
    for option, wrong in (
        (f"--engine {run.placement.engine}", run.placement.engine != LOCAL),
        ("--jobs", run.placement.jobs != 1),
    ):
        if wrong:
            raise UsageError(
                f"torchrun's {distributed.count()} processes train one network together, which {option} does"
                " not support. Leave out one of the two."
            )


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))
    if not names:
        raise UsageError(f"--method is empty. Known methods: {', '.join(METHODS)}.")
    return names


if __name__ == "__main__":
    main()
