"""rb-certify: certified accuracy of each model."""

from __future__ import annotations

from typing import Any

import click

from rbtools import parse_units
from rbtools.certification import CERTIFIERS
from rbtools.cli import options, shared


@shared.command(choose=CERTIFIERS)
@click.option(
    "--eps",
    default=None,
    metavar="LIST",
    help="Distances to certify: in 1/255 for L-infinity (8, 8/255, 1-4, 1,2,8), on [0, 1] for L2.  [default:"
    " 8, or 0,0.25,0.5,0.75,1 for smooth]",
)
@click.option(
    "--detail",
    is_flag=True,
    help="Keep the bound of each image's smallest margin in the record, with smooth each certified radius.",
)
@options.source_options
@options.bare_run_options
def main(
    certifier: str,
    params: dict[str, Any],
    eps: str | None,
    detail: bool,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure each model's certified accuracy: the share of images that no perturbation can break.

    Reads records, adds the certified accuracy at every distance to "metrics" (cert.linf.8, cert.l2.0.5) and
    how it was proved to "evals", and writes the records on. An attack gives an upper bound of robust
    accuracy, a certificate a lower one. An image is certified if the bounds of its margins are above 0 for
    all images within the distance whose pixels are in [0, 1]. They cover the rounding of the network in
    float32, for sums in any order.

    Networks may have convolutions, BatchNorm, linear layers, ReLU, average and max pooling, addition,
    concatenation and flatten; one with another operation becomes an error record that names it. A result of
    another method under the same name is refused: --force puts the new one in its place, --as gives one a
    name of its own.

    smooth takes any network, but it certifies the smoothed classifier: the network's most frequent class
    under noise (cert.smooth.SIGMA.RADIUS, radii in L2). Its certificates hold with probability 1 - alpha for
    each image. "abstained" in evals counts the images without a certificate, "mean_radius" is the mean
    certified radius, 0 where the class is wrong; with --adaptive each image counts with the largest radius of
    its list.

    With --detail an entry has, in the order of the images: "margins" (above 0 is certified, null is
    misclassified), or with smooth "radii" (null is abstained) and "correct", whether the class is the label.

    \b
    Examples:
      rb-arch --sample 1 --cells 1 --channels 4 | rb-train --epochs 1 | rb-certify ibp --eps 1 --n 20
      rb-certify crown --eps 0.5,1 --n 4 trained.jsonl
      rb-certify crown --norm l2 --eps 0.1 --n 4 trained.jsonl
      rb-certify smooth --sigma 0.25 --eps 0,0.25 --adaptive --samples 1000 --n 4 trained.jsonl
    """
    from rbtools.evaluation.certified import certification_task

    if eps is None:
        eps = CERTIFIERS.load(certifier).default_eps
    method, distances = parse_units.attack(CERTIFIERS, certifier, params, eps, work.screen.warn)
    return shared.evaluate(
        source, work, certification_task(method, distances, work.screen.warn, each_image=detail)
    )


if __name__ == "__main__":
    main()
