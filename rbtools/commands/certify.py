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
        None, "L2 radii to certify, on [0, 1].  [default: 0,0.25,0.5,0.75,1]", metavar="LIST"
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

    Reads records, adds the certified accuracy at every distance to "metrics" (cert.smooth.SIGMA.RADIUS, radii
    in L2) and how it was certified to "evals", and writes the records out. An attack gives an upper bound of
    robust accuracy, a certificate a lower one, of the smoothed classifier: the network's most frequent class
    under noise. Its certificates hold with probability 1 - alpha for each image. "abstained" in evals counts
    the images without a certificate, "mean_radius" is the mean certified radius, with 0 for an image whose
    class is wrong; with --adaptive each image counts with the largest radius of its list.

    With --detail an entry has, in the order of the images: "radii" (null is abstained) and "correct", whether
    the class is the label.

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
