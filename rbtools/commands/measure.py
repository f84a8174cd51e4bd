"""rb-measure: computes measures of each model that need no attack, or only a short attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.cli import options, parse_units, shared
from rbtools.measures import MEASURES
from rbtools.registry import REQUIRED, gathered, param, rare_param

if TYPE_CHECKING:
    from rbtools.jobs.measurement import MeasureJob


@dataclass(frozen=True)
class MeasureOptions:
    preset: str | None = param(
        None, "The settings of a paper: " + ", ".join(gathered("measure-presets")) + ".", metavar="NAME"
    )
    eps: str = param("8", "Distances of the perturbed images, in 1/255.", metavar="LIST")
    attack: str = param("pgd", "Attacks that perturb the images: pgd, fgsm, or both.", metavar="LIST")
    attack_steps: int = param(10, "Number of gradient steps of PGD.", bounds="[1, inf)")
    step_size: str | None = rare_param(
        None, "Step size of PGD, in 1/255.  [default: 2.5*eps/steps]", metavar="DISTANCE"
    )
    attack_norm: str = rare_param(
        "linf",
        "Norm of PGD: linf, or sphere (L2 over all points with the norm of the image). With sphere, --eps and"
        " --step-size are fractions of that norm.",
        choices=("linf", "sphere"),
    )
    on: str = param(
        "auto",
        "Weights to measure: fresh weights (init), the record's checkpoint (trained), or both. auto: the"
        " default of each measure, or fresh weights if a record has no checkpoint.",
        choices=("auto", "init", "trained", "both"),
    )
    split: str | None = param(
        None,
        "Split: train, test or train,test.  [default: depends on the measure]",
        metavar="LIST",
        group="Data",
    )
    batches: int | None = param(
        None, "Number of batches.  [default: depends on the measure]", bounds="[1, inf)"
    )
    batch_size: int | None = param(
        None, "Images per batch.  [default: depends on the measure]", bounds="[1, inf)", group="Optimisation"
    )
    init_seed: int = rare_param(
        0, "Seed of the fresh weights, which are the initial weights of rb-train --seed.", bounds="[0, inf)"
    )
    batchnorm: str | None = rare_param(
        None,
        "Statistics of BatchNorm in ntk, naswot, nasi, snip, grad_norm and jacobian: batch statistics,"
        " statistics of each image separately (as in the code of KNAS), or running statistics.  [default:"
        " batch with fresh weights, running with trained weights and in jacobian]",
        choices=("batch", "image", "running"),
    )


_takes_run = options.takes_run(
    without=(
        "defend",
        "backward",
        "draws",
        "split",
        "precision",
        "prepare",
        *options.ACCESS,
        *options.NO_GRADIENTS,
    )
)


@shared.command(choose=MEASURES, many=True)
@shared.takes("options", MeasureOptions)
@options.checkpoint_options
@_takes_run
def main(
    measures: list[str],
    params: dict[str, Any],
    options: MeasureOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Compute measures that were proposed as predictors of robustness: Jacobian, Hessian, tangent kernel,
    Weight-Curvature Index.

    The argument is one measure, a list separated by commas, or all. The tool adds numbers to "metrics" under
    names such as hessian.weight.trace and ntk.robust.fro.pgd.8. By default ntk, naswot, nasi, synflow, snip
    and grad_norm use fresh weights and training images; hessian and wci use the checkpoint and training
    images; margin, sharpness and nu use the checkpoint. With other weights or another split, the name
    contains weights and split (hessian.init.test.weight.trace). Names of jacobian always contain weights and
    split. Every number has a standard error over batches, probes or images, if there are at least two of
    them.

    \b
    Examples:
      rb-arch --sample 2 --cells 1 | rb-measure ntk,naswot --eps 8
      rb-measure jacobian,hessian --on both --split train,test --batch-size 20 --probes 2 trained.jsonl
      rb-measure wci --preset rice2020 --batch-size 50 --probes 2 trained.jsonl
    """

    return shared.filter_models(source, work, _request(measures, params, options, work.screen.warn))


@shared.command()
@shared.takes("options", MeasureOptions, preset=param(REQUIRED, "", metavar="NAME", positional=True))
@options.checkpoint_options
@_takes_run
def preset(
    options: MeasureOptions, source: shared.RecordSource, work: shared.CommandContext
) -> shared.Status:
    """Compute the measures of a paper with its settings.

    jung2023: jacobian and hessian. nasrobbench201: ntk. rice2020 or wci: wci. Options that are given override
    the settings of the paper. With --checkpoint, the values that the paper reports are shown on stderr, next
    to the results of this network.

    \b
    Example:
      rb-measure --preset wci --batch-size 8 trained.jsonl
    """
    assert options.preset is not None
    names = registry.preset("measure-presets", options.preset).methods
    job = _request(list(names), {}, options, work.screen.warn)
    return shared.filter_models(source, work, shared.beside_paper(source, job, options.preset))


def _request(
    names: list[str], params: dict[str, Any], options: MeasureOptions, warn: Callable[[str], object]
) -> MeasureJob:
    from rbtools.jobs.measurement import MeasureJob, perturbing

    options, params = shared.with_preset("measure-presets", options, params)
    norm = options.attack_norm
    distances = parse_units.distances(options.eps, "l2" if norm == "sphere" else norm, warn)
    step = parse_units.distance(options.step_size, "--step-size", warn)
    return MeasureJob(
        measures=tuple(shared.build(MEASURES, name, params, warn) for name in names),
        attacks=perturbing(options.attack.split(","), distances, options.attack_steps, step, norm),
        eps=distances,
        on=options.on,
        splits=None if options.split is None else tuple(options.split.split(",")),
        batches=options.batches,
        batch_size=options.batch_size,
        init_seed=options.init_seed,
        batchnorm=options.batchnorm,
    )


main.commands = {"preset": preset}

if __name__ == "__main__":
    main()
