"""rb-certify: certified accuracy of each model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rbtools import parse_units
from rbtools.certification import CERTIFIERS
from rbtools.cli import options, shared
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class CertificateOptions:
    """The options of certificates, as typed."""

    eps: str | None = param(
        None, "L2 radii to certify, for pixels in [0, 1].  [default: 0,0.25,0.5,0.75,1]", metavar="LIST"
    )
    detail: bool = param(False, "Keep the certified radius of each image in the record.", flags=("--detail",))


@shared.command(choose=CERTIFIERS)
@shared.takes("typed", CertificateOptions)
@options.source_options
@options.bare_run_options
def main(
    certifier: str,
    params: dict[str, Any],
    typed: CertificateOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure each model's certified accuracy: the share of images that no perturbation can break.

    Reads records and writes them out with the certified accuracy at every distance in "metrics"
    (cert.smooth.SIGMA.RADIUS, radii in L2) and a description of the certificate in "evals". An attack gives
    an upper bound of robust accuracy; a certificate gives a lower bound for the smoothed classifier, which
    returns the network's most frequent class under noise. Each certificate holds with probability 1 - alpha.
    "abstained" in evals is the number of images without a certificate. "mean_radius" is the mean certified
    radius, with 0 for a misclassified image. With --adaptive, the radius of an image is the largest distance
    in --eps that is certified for it.

    With --detail an entry lists "radii" (null: abstained) and "correct" in the order of the images.

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
