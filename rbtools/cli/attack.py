"""rb-attack: accuracy of each model under adversarial attacks."""

from __future__ import annotations

from typing import Any

import click

from rbtools.attacks import ATTACKS
from rbtools.cli import shared
from rbtools.errors import UsageError


@shared.command(choose=ATTACKS)
@shared.eps_option
@click.option(
    "--ladder", is_flag=True, help="What breaks at one of the --eps counts as broken at the larger ones."
)
@click.option(
    "--detail", is_flag=True, help="Keep confidence and confusion in the record, logits in the store."
)
@click.option(
    "--save-adv",
    metavar="DIR",
    default=None,
    help="Write the adversarial images there, one .npz a model and distance.",
)
@shared.source_options
@shared.search_options
def main(
    attack: str,
    params: dict[str, Any],
    eps: str,
    ladder: bool,
    detail: bool,
    save_adv: str | None,
    source: shared.Source,
    work: Any,
) -> int:
    """Measure each model's accuracy under an attack.

    Reads records, adds the accuracy at every distance to "metrics" and how it was measured to
    "evals", and writes the records on; every other field passes through. Clean accuracy ("acc")
    comes along. An image that is misclassified without attack counts as broken. A search may run in
    lower precision, but what counts is the model as it is, in float32.

    \b
    Examples:
      rb-arch --sample 1 --cells 1 | rb-train --method trades --epochs 1 | rb-attack pgd --eps 8,16 --n 100
      rb-attack pgd --eps 8 --checkpoint model.pt --arch resnet18 --dataset imagefolder:photos
    """
    from rbtools.engine.questions import Attacked

    method = shared.build(ATTACKS, attack, params, work.screen.warn)
    distances = shared.distances(eps, getattr(method, "norm", "linf"), work.screen)
    if ladder and len(distances) < 2:
        raise UsageError("--ladder climbs from one distance to the next. Give several: --eps 1,2,4,8.")
    return shared.evaluate(source, work, Attacked(method, distances, ladder, detail, save_adv))


if __name__ == "__main__":
    main()
