"""rb-attack: accuracy of each model under one adversarial attack."""

from __future__ import annotations

from typing import Any

from rbtools.attacks import ATTACKS
from rbtools.cli import shared


@shared.command(choose=ATTACKS)
@shared.eps_option
@shared.source_options
@shared.run_options
def main(attack: str, params: dict[str, Any], eps: str, source: shared.Source, work: Any) -> int:
    """Measure each model's accuracy under an attack.

    Reads records, adds the accuracy at every distance to "metrics" and how it was measured to
    "evals", and writes the records on; every other field passes through. Clean accuracy ("acc")
    comes along. An image that is misclassified without attack counts as broken.

    \b
    Examples:
      rb-arch --sample 1 --cells 1 | rb-train --method trades --epochs 1 | rb-attack pgd --eps 8,16 --n 100
      rb-attack pgd --eps 8 --checkpoint model.pt --arch resnet18 --dataset imagefolder:photos
    """
    from rbtools.engine.questions import Attacked

    method = shared.build(ATTACKS, attack, params, work.screen.warn)
    distances = shared.distances(eps, getattr(method, "norm", "linf"), work.screen)
    return shared.evaluate(source, work, Attacked(method, distances))


if __name__ == "__main__":
    main()
