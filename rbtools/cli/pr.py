"""rb-pr: probabilistic robustness of each model under random noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rbtools import edge
from rbtools.cli import shared
from rbtools.probabilistic import NOISES


def question(noise: str, params: dict[str, Any], gamma: str, rho: str, samples: int) -> Any:
    """What these options ask."""
    from rbtools.engine.questions import Probabilistic

    return Probabilistic(
        shared.build(NOISES, noise, params), edge.radii(gamma), edge.tolerances(rho), samples
    )


def pr_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--gamma, --rho, --samples, --noise."""
    for option in (
        click.option("--noise", default="uniform", type=click.Choice(list(NOISES)), help="Kind of noise."),
        click.option("--samples", default=100, type=click.IntRange(1), help="Noisy copies of each image."),
        click.option("--rho", default="0.1,0.05,0.01", metavar="LIST", help="Tolerated failure rates."),
        click.option(
            "--gamma",
            default="8/255,0.08,0.1,0.12",
            metavar="LIST",
            help="Radii of the noise on [0, 1]; also start:stop:count.",
        ),
    ):
        command = option(command)
    return command


@shared.command(choose=NOISES, option="--noise", default="uniform")
@pr_options
@shared.source_options
@shared.run_options
def main(
    noise: str, params: dict[str, Any], gamma: str, rho: str, samples: int, source: shared.Source, work: Any
) -> int:
    """Measure each model's probabilistic robustness.

    Adds PR_D(gamma), the mean share of noisy copies that stay classified right
    (pr.NOISE.GAMMA), and ProbAcc(rho, gamma), the share of images for which at most rho of the
    copies are not (probacc.NOISE.GAMMA.RHO). Both count images that are classified right without noise.

    \b
    Examples:
      rb-pr --gamma 8/255,0.08 --rho 0.05 --samples 50 trained.jsonl
      rb-pr --gamma 0.1 --samples 20 --checkpoint model.pt --arch resnet18 --dataset imagefolder:photos
    """
    return shared.evaluate(source, work, question(noise, params, gamma, rho, samples))


if __name__ == "__main__":
    main()
