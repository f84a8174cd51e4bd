"""rb-measure: what can be said of each model without attacking it, or with little more."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from rbtools import parse_units
from rbtools.cli import shared
from rbtools.measures import MEASURES, presets


@dataclass(frozen=True)
class Options:
    """Where to measure and what perturbs the images, as typed."""

    preset: str | None
    eps: str
    attack: str
    attack_steps: int
    step_size: str | None
    on: str
    split: str | None
    batches: int | None
    batch_size: int | None
    init_seed: int
    batchnorm: str | None


_options = (
    click.option(
        "--preset", metavar="NAME", help="The settings of a paper: " + ", ".join(presets.PRESETS) + "."
    ),
    click.option("--eps", default="8", metavar="LIST", help="Distances of perturbed images, in 1/255."),
    click.option(
        "--attack",
        default="pgd",
        metavar="LIST",
        help="What perturbs images: pgd, fgsm, or both.",
    ),
    click.option("--attack-steps", default=10, type=click.IntRange(1), help="Gradient steps of PGD."),
    click.option(
        "--step-size", default=None, metavar="DISTANCE", help="Of PGD, in 1/255.  [default: 2.5*eps/steps]"
    ),
    click.option(
        "--on",
        default="auto",
        type=click.Choice(("auto", "init", "trained", "both")),
        help="Fresh weights, the record's checkpoint, or both; auto: what the measure is about, and fresh"
        " weights where a record has no checkpoint.",
    ),
    click.option(
        "--split", default=None, metavar="LIST", help="train, test or both.  [default: the measure's own]"
    ),
    click.option(
        "--batches",
        default=None,
        type=click.IntRange(1),
        help="How many batches.  [default: the measure's own]",
    ),
    click.option(
        "--batch-size",
        default=None,
        type=click.IntRange(1),
        help="Images in each.  [default: the measure's own]",
    ),
    click.option(
        "--init-seed",
        default=0,
        type=click.IntRange(0),
        help="Fresh weights are those rb-train --seed starts from.",
    ),
    click.option(
        "--batchnorm",
        default=None,
        type=click.Choice(("batch", "image", "running")),
        help="Statistics that BatchNorm takes in ntk, naswot, nasi, snip, grad_norm and jacobian: of the"
        " batch, of each image alone (as KNAS' code), or running ones.  [default: batch on fresh weights,"
        " running on trained ones and in jacobian]",
    ),
)


@shared.command(choose=MEASURES, many=True)
@shared.bundle("options", Options, *_options)
@shared.source_options
@shared.both_splits_options
def main(
    measures: list[str], params: dict[str, Any], options: Options, source: shared.RecordSource, work: Any
) -> int:
    """Measure what is said to predict robustness: Jacobian, Hessian, tangent kernel, Weight-Curvature Index.

    One measure, several with commas, or all. Adds numbers to "metrics" under names that say which:
    hessian.weight.trace, ntk.robust.fro.pgd.8. A measure is made where it belongs: ntk, naswot, nasi,
    synflow, snip and grad_norm on fresh weights and training images; hessian and wci on the checkpoint and
    training images; margin, sharpness and nu on the checkpoint. What is made elsewhere has the place in its
    name (hessian.init.test.weight.trace), and jacobian always has. Every number comes with its standard error
    over batches, probes or images, where there are several.

    \b
    Examples:
      rb-arch --sample 2 --cells 1 | rb-measure ntk,naswot --eps 8
      rb-measure jacobian,hessian --on both --split train,test --batch-size 20 --probes 2 trained.jsonl
      rb-measure wci --preset rice2020 --batch-size 50 --probes 2 trained.jsonl
    """
    from rbtools.jobs import MeasureJob

    return shared.filter_models(
        source, work, MeasureJob(_asked(measures, params, options, work.screen.warn), work.run)
    )


def _asked(names: list[str], params: dict[str, Any], options: Options, warn: Any) -> Any:
    """What these options ask. Raises UsageError."""
    from rbtools.evaluation.measurement import MeasureRequest, perturbing

    if options.preset is not None:
        options, params = _preset(options, params)
    distances = parse_units.distances(options.eps, "linf", warn)
    step = parse_units.distance(options.step_size, "--step-size", warn)
    return MeasureRequest(
        measures=tuple(shared.build(MEASURES, name, params, warn) for name in names),
        attacks=perturbing(options.attack.split(","), distances, options.attack_steps, step),
        eps=distances,
        on=options.on,
        splits=None if options.split is None else tuple(options.split.split(",")),
        batches=options.batches,
        batch_size=options.batch_size,
        init_seed=options.init_seed,
        batchnorm=options.batchnorm,
    )


def _preset(options: Options, params: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
    """The preset's settings; what was typed stands."""
    found = presets.named(str(options.preset))
    context = click.get_current_context()
    fresh = {
        name: value
        for name, value in found.options.items()
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE
    }
    return dataclasses.replace(options, **fresh), {**found.params, **params}


if __name__ == "__main__":
    main()
