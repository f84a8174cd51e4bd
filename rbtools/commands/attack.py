"""rb-attack: accuracy of each model under adversarial attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rbtools import parse_units
from rbtools.attacks import ATTACKS
from rbtools.cli import shared
from rbtools.cli.python_call import given_file, one_record
from rbtools.cli.source import file_path
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps

if TYPE_CHECKING:
    from rbtools.execution.context import RunContext


@shared.command(choose=ATTACKS)
@shared.eps_option
@click.option(
    "--ladder", is_flag=True, help="Count an image that is fooled at one --eps as fooled at all larger ones."
)
@click.option(
    "--detail", is_flag=True, help="Keep confidence and confusion in the record, logits in the store."
)
@click.option(
    "--save-adv",
    metavar="DIR",
    default=None,
    help="Write the adversarial images to DIR, one .npz file per model and distance.",
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
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> int:
    """Measure each model's accuracy under an attack.

    Reads records, adds the accuracy at every distance to "metrics" and how it was measured to "evals", and
    writes the records on; every other field passes through. Clean accuracy ("acc") is added too. An image
    that is misclassified without an attack counts as fooled. The search may run in lower precision; success
    is decided by the unchanged model in float32. Other subcommands: preset runs the attacks of a paper, check
    tests for gradient masking, transfer evaluates on the adversarial examples of another model.

    \b
    Examples:
      rb-arch --sample 1 --cells 1 | rb-train --method trades --epochs 1 | rb-attack pgd --eps 8,16 --n 100
      rb-attack pgd --eps 8 --checkpoint model.pt --arch resnet18 --dataset imagefolder:photos
    """
    from rbtools.evaluation.tasks import AttackTask

    method, distances = parse_units.attack(ATTACKS, attack, params, eps, work.screen.warn)
    if ladder and len(distances) < 2:
        raise UsageError("--ladder needs several distances: --eps 1,2,4,8.")
    return shared.evaluate(source, work, AttackTask(method, distances, ladder, detail, save_adv))


@shared.command()
@click.argument("preset", metavar="NAME")
@click.option(
    "--eps",
    default=None,
    metavar="LIST",
    help="Distances for all attacks, in place of the paper's: 76.5 for MNIST.",
)
@shared.source_options
@shared.search_options
def preset(preset: str, eps: str | None, source: shared.RecordSource, work: shared.CommandContext) -> int:
    """Run the attacks of a paper at its distances: jung2023, nasrobbench201, prbench, rice2020.

    jung2023: FGSM, PGD-40, APGD-CE and Square on the grid of the robustness dataset. nasrobbench201: FGSM
    and PGD-20 at 3 and 8, AutoAttack at 8. prbench: PGD-10, PGD-20, CW-20 and AutoAttack at 8; prbench-code:
    the same, with the margin 2 of its code in CW. rice2020: PGD-10 at 8. PGD and CW count the last iterate,
    as the papers do.

    \b
    Examples:
      rb-attack --preset rice2020 --n 100 trained.jsonl
    """
    from rbtools.attacks import presets
    from rbtools.evaluation.tasks import AttackTask
    from rbtools.jobs import EvaluateAllJob

    given = None if eps is None else parse_units.distances(eps, "linf", work.screen.warn)
    try:
        parts = presets.preset(preset, given)
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    questions = tuple(AttackTask(ATTACKS.build(part.attack, **part.params), part.eps) for part in parts)
    return shared.filter_models(source, work, EvaluateAllJob(questions, work.run))


@shared.command()
@click.option("--eps", default="8", metavar="DISTANCE", help="The distance to check at, in 1/255.")
@click.option("--steps", default=20, type=click.IntRange(1), help="Gradient steps of PGD.")
@click.option("--queries", default=1000, type=click.IntRange(1), help="Queries of Square.")
@click.option("--samples", default=100, type=click.IntRange(1), help="Random points of each ball.")
@shared.source_options
@shared.search_options
def check(
    eps: str, steps: int, queries: int, samples: int, source: shared.RecordSource, work: shared.CommandContext
) -> int:
    """Check that a model's robustness is not due to gradient masking.

    Five tests: (a) FGSM is no stronger than PGD; (b) nor is Square, which needs no gradients; (c) PGD without
    a bound reaches accuracy 0; (d) accuracy never rises with the distance; (e) random points fool the model
    on no image that PGD left correct. Reports which tests fail and by how much; "obfuscation.failed" counts
    them.

    \b
    Examples:
      rb-attack check --eps 8 --n 100 trained.jsonl
    """
    from rbtools.evaluation.gradient_masking import GradientMaskingTask
    from rbtools.jobs import GradientMaskingJob

    distances = parse_units.distances(eps, "linf", work.screen.warn)
    if len(distances) != 1 or distances[0] == 0:
        raise UsageError(f"--eps is {eps}. The check is at one distance above 0, such as 8.")
    question = GradientMaskingTask(
        distances[0],
        pgd=ATTACKS.build("pgd", steps=steps),
        fgsm=ATTACKS.build("fgsm"),
        square=ATTACKS.build("square", queries=queries),
        noise=ATTACKS.build("noise", samples=samples),
    )
    return shared.filter_models(source, work, GradientMaskingJob(question, work.run))


@shared.command(choose=ATTACKS, option="--attack", default="pgd")
@click.option("--attack", default="pgd", metavar="NAME", help="The attack: " + ", ".join(ATTACKS) + ".")
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="FILE",
    help="The model that is attacked: a file with one record, or a checkpoint.",
)
@shared.eps_option
@shared.source_options
@shared.run_options
def transfer(
    attack: str,
    params: dict[str, Any],
    origin: str,
    eps: str,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> int:
    """Measure accuracy on the adversarial examples of another model.

    Each image that the record's model classifies correctly is attacked on the model of --from, and the result
    is classified by the record's model. Adds transfer.NAME to "metrics".

    \b
    Examples:
      rb-attack transfer --from trained.jsonl --eps 8 --steps 10 --n 100 trained.jsonl
    """
    from rbtools.evaluation.transfer import TransferTask

    method, distances = parse_units.attack(ATTACKS, attack, params, eps, work.screen.warn)
    record = dumps(_model_of(origin, work.run)).decode()
    return shared.evaluate(source, work, TransferTask(method, distances, record, work.run))


def _model_of(path: str, run: RunContext) -> dict[str, Any]:
    """The record of a model: the only one in a file of records, or one made for a checkpoint."""
    from rbtools.inputs import checkpoints, resolve

    try:
        if given_file(path) is None:
            path = file_path(path)
            with open(path, "rb") as stream:
                if stream.read(1) != b"{":
                    return checkpoints.record_of(path, checkpoints.CheckpointHints(None, None), run)
        record = one_record(path, "attack")
        resolve.checkpoint_name(record, run)
        return record
    except RbError as wrong:
        raise UsageError(f"--from: {wrong}") from None


for _command, _name in ((preset, "preset"), (check, "check"), (transfer, "transfer")):
    main.add_command(_command, _name)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
