"""rb-attack: measures the accuracy of each model under adversarial attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rbtools import units
from rbtools.attacks import ATTACKS
from rbtools.attacks.lattice import grid_param
from rbtools.cli import options, origin_models, parse_units, shared
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps
from rbtools.registry import REQUIRED, param, rare_param

if TYPE_CHECKING:
    from rbtools.attacks.base import Attack

_SMALLEST_SAMPLE = 10  # images of --two-phase N
_FEWEST_QUERIES = 20  # of a curve
_CURVE = {"linf": "0:16:33", "l2": "0:2:33", "l1": "0:24:33"}


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    eps: str = options.eps_param()
    ladder: bool = rare_param(
        False,
        "Count an image that is fooled at one distance as fooled at all larger distances.",
        flags=("--ladder",),
    )
    detail: bool = options.detail_param()
    save_adv: str | None = rare_param(
        None,
        "Write the adversarial images to DIR, one .npz file for each model and distance. rb-verify --adv"
        " checks these files.",
        metavar="DIR",
    )
    save_png: bool = rare_param(
        False, "With --save-adv and --grid 8bit, also write each image as a PNG file.", flags=("--save-png",)
    )
    two_phase: str | None = param(
        None,
        "Run the attack only on images that PGD does not break, either on a random sample of N or on all such"
        " images.",
        metavar="N|all",
    )
    precision_goal: float | None = rare_param(
        None,
        "Like --two-phase, but enlarge the sample until the interval of the accuracy is at most +- X, such as"
        " 0.01.",
        bounds="(0, 0.5]",
    )
    screen_steps: int | None = rare_param(
        None,
        "Number of gradient steps of the two PGD attacks (in L1: APGD) on all images.  [default: 20]",
        bounds="[1, inf)",
    )


@shared.command(choose=ATTACKS, of_eps=("two_phase", "precision_goal", "screen_steps"))
@shared.takes("typed", AttackOptions)
@options.source_options
@options.takes_run()
def main(
    attack: str,
    params: dict[str, Any],
    typed: AttackOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure each model's accuracy under an attack.

    The tool adds the accuracy at every distance to "metrics" of each record, and a description of the
    measurement to "evals". All other fields of the record are kept. The clean accuracy ("acc") is added, too.
    An image that is misclassified without an attack counts as fooled. The search may run in lower precision,
    but success is decided in float32. With --two-phase N, cheap PGD attacks run on all images, and the attack
    itself (such as aa) runs only on N of the images that PGD does not break. The accuracy under PGD and the
    attack together is estimated from these images, with an interval. --two-phase all computes this accuracy
    exactly.

    The files of --save-adv contain the adversarial images (float32, or uint8 with --grid 8bit), the labels,
    the ids of the images and the claimed result. rb-verify --adv checks the claim.

    If a model returns different logits for the same image, the accuracy is the mean over --draws evaluations,
    and gradients are means over --eot evaluations. With --defend, defence stages such as jpeg:75 are put in
    front of the network, and the attack passes through them.

    There are further subcommands: none measures only the clean accuracy, preset runs the attacks of a paper,
    curve measures the accuracy at all distances at once, check tests for gradient masking, and transfer uses
    the adversarial examples of other models. With --allow-code, python:MODULE:CLASS runs your own attack.

    \b
    Examples:
      rb-arch --sample 1 --cells 1 | rb-train --method trades --epochs 1 | rb-attack pgd --eps 8,16 --n 100
      rb-attack pgd --eps 8 --checkpoint model.pt --normalize cifar10 --dataset imagefolder:photos
      rb-attack aa --eps 32 --precision-goal 0.1 trained.jsonl
    """
    from rbtools.evaluation.accuracy import attacked

    method, distances = parse_units.attack(ATTACKS, attack, params, typed.eps, work.screen.warn)
    if typed.ladder and len(distances) < 2:
        option = method.within.strength.replace("_", "-")
        raise UsageError(f"--ladder needs several distances: --{option} 1,2,4,8.")
    if typed.save_png and (typed.save_adv is None or method.grid == "none"):
        raise UsageError(
            "--save-png needs --save-adv DIR and --grid 8bit: the pixels of a PNG are k/255, and images that"
            " are rounded to k/255 may be outside the ball, or no longer fool the model."
        )
    if typed.two_phase is not None or typed.precision_goal is not None:
        return _two_phase(source, work, method, distances, typed)
    if typed.screen_steps is not None:
        raise UsageError("--screen-steps belongs to --two-phase. Add --two-phase N, or --precision-goal X.")
    task = attacked(
        method, distances, ladder=typed.ladder, detail=typed.detail, save=typed.save_adv, png=typed.save_png
    )
    return shared.evaluate(source, work, task)


def _two_phase(
    source: shared.RecordSource,
    work: shared.CommandContext,
    method: Attack,
    distances: tuple[float, ...],
    typed: AttackOptions,
) -> shared.Status:
    """Estimate the accuracy from a sample of the images that cheap attacks do not break."""
    from rbtools.jobs.screened_attack import TwoPhaseJob, screen_of

    size, goal = typed.two_phase, typed.precision_goal
    if typed.ladder or typed.detail or typed.save_adv is not None:
        raise UsageError("--two-phase attacks only some images: leave out --ladder, --detail, --save-adv.")
    if method.grid != "none":
        raise UsageError(
            "--two-phase does not work with --grid: its PGD runs use real-valued images. To attack all"
            " images, leave out --two-phase."
        )
    if size is not None and goal is not None:
        raise UsageError("Both --two-phase and --precision-goal are given. Give one of them.")
    if size not in (None, "all") and not (size.isdecimal() and int(size) >= _SMALLEST_SAMPLE):
        raise UsageError(
            f"--two-phase is {size}. Expected a number of images, {_SMALLEST_SAMPLE} or more, or all."
        )
    if method.batch_dependent and size != "all":
        raise UsageError(
            f"{method.name} with this --backend draws random numbers for whole batches, so the sample cannot"
            " be enlarged. Use --two-phase all."
        )
    number = int(size) if size not in (None, "all") else None
    job = TwoPhaseJob(method, distances, screen_of(method, typed.screen_steps or 20), number, goal)
    return shared.filter_models(source, work, job)


@shared.command()
@shared.takes("typed", AttackOptions, "detail")
@options.source_options
@options.takes_run()
def none(typed: AttackOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Measure clean accuracy, without an attack.

    Adds "acc". All other subcommands also add the clean accuracy.

    \b
    Examples:
      rb-attack none --checkpoint model.pt --normalize cifar10 --dataset imagefolder:photos
    """
    from rbtools.evaluation.accuracy import clean

    return shared.evaluate(source, work, clean(typed.detail))


@dataclass(frozen=True, kw_only=True)
class PresetOptions:
    preset: str = param(REQUIRED, "", metavar="NAME", positional=True)
    eps: str | None = param(
        None, "Distances instead of the distances in the paper, such as 76.5 for MNIST.", metavar="LIST"
    )
    grid: str = grid_param()


@shared.command()
@shared.takes("typed", PresetOptions)
@options.source_options
@options.takes_run()
def preset(typed: PresetOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Run the attacks of a paper at its distances, or attacks in all threats.

    jung2023: FGSM, PGD-40, APGD-CE and Square on the grid of the robustness dataset. nasrobbench201: FGSM and
    PGD-20 at 3 and 8, AutoAttack at 8. prbench: PGD-10, PGD-20, CW-20 and AutoAttack at 8. prbench-code: the
    same attacks, but CW with margin 2, as in the code of PRBench. rice2020: PGD-10 at 8. As in the papers,
    the last iterate of PGD and CW is evaluated. robust-all: AutoAttack in L-infinity at 8, in L2 at 0.5 and
    in L1 at 12; spatial up to 30 degrees and 3 pixels; a patch on 5 % of the image; color with all quantities
    up to 0.1; and 10 pixels. The tool adds robust-all, the share of images that withstand all of them.

    With --checkpoint, the values that the paper reports are shown on stderr, next to those of this network.

    \b
    Examples:
      rb-attack --preset rice2020 --n 100 trained.jsonl
      rb-attack --preset rice2020 --checkpoint model.pt --normalize cifar10 --dataset imagefolder:photos
    """
    from rbtools.attacks import presets
    from rbtools.evaluation.accuracy import attacked
    from rbtools.jobs.evaluate_record import EvaluateJob, UnionJob

    given = None if typed.eps is None else parse_units.distances(typed.eps, "linf", work.screen.warn)
    try:
        parts = presets.preset(typed.preset, given)
        methods = [ATTACKS.build(part.attack, grid=typed.grid, **part.params) for part in parts]
        for method, part in zip(methods, parts, strict=True):
            method.at(min(filter(None, part.eps), default=0.0)).check_distance()
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    questions = tuple(attacked(method, part.eps) for method, part in zip(methods, parts, strict=True))
    several = len({(method.within, method.norm) for method in methods}) > 1
    job: Any = UnionJob(questions, typed.preset) if several else EvaluateJob(questions)
    return shared.filter_models(source, work, shared.beside_paper(source, job, typed.preset))


@dataclass(frozen=True, kw_only=True)
class ChecklistOptions:
    eps: str = param("8", "Distance of the tests, in 1/255.", metavar="DISTANCE")
    steps: int = param(20, "Number of gradient steps of PGD.", bounds="[1, inf)")
    queries: int = rare_param(1000, "Queries of Square.", bounds="[1, inf)")
    samples: int = param(100, "Number of random points in the ball around each image.", bounds="[1, inf)")


@shared.command()
@shared.takes("typed", ChecklistOptions)
@options.source_options
@options.takes_run()
def check(typed: ChecklistOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Check that a model's robustness is not due to gradient masking.

    There are five tests: (a) FGSM is not stronger than PGD; (b) Square, which needs no gradients, is not
    stronger than PGD; (c) PGD without a bound reaches accuracy 0; (d) accuracy never rises with the distance;
    (e) random points do not fool the model on any image that PGD left correct. The report lists which tests
    fail and by how much. The metric "obfuscation.failed" is the number of failed tests. For a model that can
    only be queried, Square replaces PGD, and (a) and (b) are left out.

    \b
    Examples:
      rb-attack check --eps 8 --n 100 trained.jsonl
    """
    from rbtools.jobs.attack_tasks import MaskingChecklist

    distances = parse_units.distances(typed.eps, "linf", work.screen.warn)
    if len(distances) != 1 or distances[0] == 0:
        raise UsageError(f"--eps is {typed.eps}. Expected one distance above 0, such as 8.")
    question = MaskingChecklist(
        eps=distances[0],
        pgd=ATTACKS.build("pgd", steps=typed.steps),
        fgsm=ATTACKS.build("fgsm"),
        square=ATTACKS.build("square", queries=typed.queries),
        noise=ATTACKS.build("noise", samples=typed.samples),
    )
    return shared.filter_models(source, work, question)


@dataclass(frozen=True, kw_only=True)
class CurveOptions:
    norm: str = param("linf", "Norm of the distances.", choices=("linf", "l2", "l1"))
    queries: str = rare_param(
        "2000",
        "Number of forward and backward passes of each search, per image. Checks in float32 are not"
        " counted. With several numbers, such as 500,2000, each has its own metrics, whose names contain"
        " the number.",
        metavar="LIST",
    )
    attacks: str = param(
        "curve",
        "Searches, each with --queries passes: curve, fmn; in L2 also ddn, cw-l2; with labels only,"
        " hopskipjump, in L-infinity also rays, in L2 also surfree, boundary. Or an attack in another threat,"
        " whose strengths are given with --eps.",
        metavar="LIST",
    )
    eps: str | None = param(
        None, "Distances of the curve.  [default: 0:16:33, in L2 0:2:33, in L1 0:24:33]", metavar="LIST"
    )
    grid: str = grid_param()


@shared.command()
@shared.takes("typed", CurveOptions)
@options.source_options
@options.takes_run()
def curve(typed: CurveOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Measure robust accuracy at every distance with one search for the nearest adversarial examples.

    The search runs FMN (in L2 also DDN), and then refines the result to the nearest image that the model
    misclassifies in float32. The accuracy at a distance is the share of images for which no adversarial
    example is found within this distance. The tool adds curve.8 and so on, and curve.distance, the median
    distance; "evals" contains quantiles of the distance and the area under the curve. If a later run asks for
    other distances, the accuracies are computed from the store. With several searches in --attacks,
    optimality.fmn and so on compare the searches; 1 means that the search is as good as all searches together
    (AttackBench).

    Attacks by labels alone find the distances at several numbers of --queries in one search. The metrics are
    then called hopskipjump500.8 and so on, and rb-plot curves --over queries draws them, a panel for each
    distance of --eps.

    \b
    Examples:
      rb-attack curve --queries 500 --n 200 trained.jsonl | rb-plot curves --over eps -o curve.png
      rb-attack curve --norm l2 --eps 0.25,0.5,1 --queries 500 --n 200 trained.jsonl
      rb-attack curve --norm l2 --attacks fmn,ddn,cw-l2 --queries 200 --n 200 trained.jsonl
      rb-attack curve --norm l2 --attacks hopskipjump --queries 500,2000 --n 20 trained.jsonl
    """
    from rbtools.attacks.curve import SEARCHES, search_named
    from rbtools.evaluation.distances import nearest

    names = list(dict.fromkeys(name.strip() for name in typed.attacks.split(",") if name.strip()))
    listed = {*ATTACKS, *ATTACKS.plugins} - {*SEARCHES}
    known = [ATTACKS.load(name) for name in names if name in listed]
    if others := [cls for cls in known if cls.within.strength != "eps"]:
        return _curve_of(source, work, others[0], names, typed)
    distances = parse_units.distances(typed.eps or _CURVE[typed.norm], typed.norm, work.screen.warn)
    counts = _counts(typed.queries)
    try:
        searches: list[Any] = [search_named(name, typed.norm, count) for name in names for count in counts]
        searches = [replace(one, grid=typed.grid) for one in searches]
        task = nearest(searches, distances)
    except RbError as wrong:
        raise UsageError(f"--attacks: {wrong}") from None
    if not searches:
        raise UsageError("--attacks is empty. Expected a list such as curve or fmn,ddn.")
    return shared.evaluate(source, work, task)


def _counts(text: str) -> list[int]:
    """Parse the numbers of --queries."""
    numbers = list(dict.fromkeys(units.number_list(text, "--queries")))
    if wrong := [one for one in numbers if one < _FEWEST_QUERIES or one != int(one)]:
        raise UsageError(
            f"--queries contains {wrong[0]:g}. Expected integers from {_FEWEST_QUERIES}, such as 500,2000."
        )
    return [int(one) for one in numbers]


def _curve_of(
    source: shared.RecordSource,
    work: shared.CommandContext,
    cls: type[Attack],
    names: Sequence[str],
    typed: CurveOptions,
) -> shared.Status:
    """The curve of an attack in another threat than a ball, over the strength of this threat."""
    from rbtools.evaluation.distances import nearest

    if typed.norm != "linf" or typed.queries != CurveOptions.queries:
        raise UsageError(f"--norm and --queries do not apply to {cls.name}. Leave them out.")
    if len(names) > 1:
        raise UsageError(
            f"--attacks is {typed.attacks}. {names[0]} has its own threat, so it cannot be combined with"
            " other attacks."
        )
    if not cls.minimal:
        raise UsageError(
            f"--attacks: {cls.name} does not declare that it finds the smallest strength (minimal = True)."
        )
    if typed.eps is None:
        raise UsageError(f"--eps is missing. Expected values of {cls.within.strength}, such as 1,2 or 0:2:5.")
    params = {cls.within.strength: typed.eps, "grid": typed.grid, **cls.for_nearest}
    method, strengths = parse_units.attack(ATTACKS, names[0], params, "", work.screen.warn)
    return shared.evaluate(source, work, nearest([method.at(max(strengths))], strengths))


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    attack: str = param("pgd", "The attack: " + ", ".join(ATTACKS) + ".", metavar="NAME")
    origin: str = param(
        REQUIRED,
        "Models to attack, separated by commas; each is a file with one record, or a checkpoint.",
        metavar="LIST",
        flags=("--from",),
    )
    eps: str = options.eps_param()


@shared.command(choose=ATTACKS, by="--attack", default="pgd")
@shared.takes("typed", TransferOptions)
@options.source_options
@options.takes_run()
def transfer(
    params: dict[str, Any], typed: TransferOptions, source: shared.RecordSource, work: shared.CommandContext
) -> shared.Status:
    """Measure accuracy on the adversarial examples of other models.

    Each image that the record's model classifies correctly is attacked on the model in --from, and the
    record's model classifies the adversarial example. The tool adds transfer.NAME to "metrics".

    With several models in --from, the image is attacked on their ensemble (the mean of their logits), and
    then on each model separately. The image is broken if any of these adversarial examples fools the record's
    model. For each attacked model and for the ensemble, "broken_by_source" in "evals" is the number of images
    that this model or the ensemble broke first. The order of the models in --from does not affect the result.

    PGD stops at the first point that fools the attacked model. With --iterate last, PGD continues after this
    point; mi-fgsm always continues. Adversarial examples from the last iterate fool other models more often.

    \b
    Examples:
      rb-attack transfer --from trained.jsonl --eps 8 --steps 10 --n 100 trained.jsonl
      rb-attack transfer --from first.jsonl,second.jsonl --attack mi-fgsm --eps 32 --n 100 trained.jsonl
    """
    from rbtools.jobs.transfer import transferred

    method, distances = parse_units.attack(ATTACKS, typed.attack, params, typed.eps, work.screen.warn)
    records = origin_models.models_of(typed.origin, work.run)
    names = [record.get("checkpoint") for record in records]
    twice = [name for name in names if name is not None and names.count(name) > 1]
    if twice:
        raise UsageError(f"--from contains the checkpoint {twice[0][:19]}... twice. Leave one of them out.")
    sources = tuple(dumps(record).decode() for record in records)
    return shared.evaluate(source, work, transferred(method, distances, sources, work.run))


main.commands.update(none=none, preset=preset, check=check, curve=curve, transfer=transfer)


if __name__ == "__main__":
    main()
