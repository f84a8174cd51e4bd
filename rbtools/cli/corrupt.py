"""rb-corrupt: accuracy of each model under common corruptions."""

from __future__ import annotations

from typing import Any

import click

from rbtools import edge
from rbtools.cli import shared
from rbtools.corruptions import CORRUPTIONS

severity_option = click.option(
    "--severity", default="1-5", metavar="LIST", help="Severities from 1 to 5: 3, 1-5 or 1,3,5."
)


@shared.command(choose=CORRUPTIONS, many=True)
@severity_option
@shared.source_options
@shared.run_options
def main(
    corruptions: list[str], params: dict[str, Any], severity: str, source: shared.Source, work: Any
) -> int:
    """Measure each model's accuracy under common corruptions.

    One corruption, several with commas, or all: the fifteen of CIFAR-10-C and ImageNet-C. Four more, for
    choosing among methods, go by name. Adds corrupt.NAME.SEVERITY to "metrics" for each.

    \b
    Examples:
      rb-corrupt gaussian_noise,contrast --severity 1-5 trained.jsonl
      rb-corrupt all --severity 3 --checkpoint model.pt --arch resnet18 --dataset imagefolder:photos
    """
    from rbtools.engine.questions import Corruptions

    chosen = tuple(shared.build(CORRUPTIONS, name, params) for name in corruptions)
    return shared.evaluate(source, work, Corruptions(chosen, edge.severities(severity)))


if __name__ == "__main__":
    main()
