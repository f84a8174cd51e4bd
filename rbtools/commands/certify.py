"""rb-certify: measures the certified accuracy of each model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rbtools.certification import CERTIFIERS
from rbtools.cli import options, parse_units, shared
from rbtools.registry import param, rare_param


@dataclass(frozen=True, kw_only=True)
class CertificateOptions:
    eps: str | None = param(
        None, "L2 radii to certify, for pixels in [0, 1].  [default: 0,0.25,0.5,0.75,1]", metavar="LIST"
    )
    detail: bool = rare_param(
        False, "Keep the certified radius of each image in the record.", flags=("--detail",)
    )


@shared.command(choose=CERTIFIERS)
@shared.takes("typed", CertificateOptions)
@options.source_options
@options.takes_run(without=("defend", "backward", "precision", "prepare", *options.NO_GRADIENTS))
def main(
    certifier: str,
    params: dict[str, Any],
    typed: CertificateOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure each model's certified accuracy: the share of images that are provably robust.

    The tool adds the certified accuracy at every distance to "metrics" of each record
    (cert.smooth.SIGMA.RADIUS, with L2 radii), and a description of the certificate to "evals". An attack
    measures an upper bound of robust accuracy. A certificate proves a lower bound for the smoothed
    classifier, which returns the network's most frequent class under noise. Each certificate is correct with
    probability 1 - alpha. In evals, "abstained" is the number of images without a certificate, and
    "mean_radius" is the mean certified radius, where a misclassified image counts with radius 0. With
    --adaptive, the radius of an image is the largest distance in --eps that can be certified.

    With --detail, an entry lists "radii" (null if there is no certificate) and "correct", in the order of the
    images.

    \b
    Examples:
      rb-certify smooth --sigma 0.25 --eps 0,0.25 --adaptive --samples 1000 --n 4 trained.jsonl
    """
    from rbtools.evaluation.certified import certified

    eps = CERTIFIERS.load(certifier).default_eps if typed.eps is None else typed.eps
    method, distances = parse_units.attack(CERTIFIERS, certifier, params, eps, work.screen.warn)
    return shared.evaluate(
        source, work, certified(method, distances, work.screen.warn, each_image=typed.detail)
    )


if __name__ == "__main__":
    main()
