"""rb-ge: measures the generalisation error of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rbtools.attacks import ATTACKS
from rbtools.cli import options, parse_units, shared
from rbtools.commands.corrupt import severity_param
from rbtools.commands.pr import PROptions, pr_options
from rbtools.corruptions import CORRUPTIONS
from rbtools.probabilistic import NOISES
from rbtools.registry import param

if TYPE_CHECKING:
    from rbtools.evaluation.spec import Evaluation


@dataclass(frozen=True, kw_only=True)
class GapOptions:
    eps: str = options.eps_param()
    severity: str = severity_param()
    n_train: int | None = param(None, "Number of training images.  [default: --n]", bounds="[1, inf)")


def _ge(
    source: shared.RecordSource,
    work: shared.CommandContext,
    task: Evaluation,
    n_train: int | None,
    *more: Evaluation,
) -> shared.Status:
    from rbtools.jobs.train_test_gap import GapJob

    return shared.filter_models(source, work, GapJob((task, *more), n_train))


@shared.command()
@shared.takes("typed", GapOptions, "n_train")
@options.source_options
@options.takes_run(without=("split", "precision", "prepare", *options.NO_GRADIENTS))
def acc(typed: GapOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Measure the gap in clean accuracy (train minus test)."""
    from rbtools.evaluation.accuracy import clean

    return _ge(source, work, clean(), typed.n_train)


@shared.command(choose=ATTACKS)
@shared.takes("typed", GapOptions, "eps", "n_train")
@options.source_options
@options.takes_run(without=("split",))
def attack(
    attack: str,
    params: dict[str, Any],
    typed: GapOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure the gap between training and test accuracy under an attack."""
    from rbtools.evaluation.accuracy import attacked

    method, distances = parse_units.attack(ATTACKS, attack, params, typed.eps, work.screen.warn)
    return _ge(source, work, attacked(method, distances), typed.n_train)


@shared.command(choose=CORRUPTIONS, many=True)
@shared.takes("typed", GapOptions, "severity", "n_train")
@options.source_options
@options.takes_run(without=("split", "precision", "prepare", *options.NO_GRADIENTS))
def corrupt(
    corruptions: list[str],
    params: dict[str, Any],
    typed: GapOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure the gap in accuracy under corruptions (train minus test)."""
    from rbtools.evaluation.under_corruption import corrupted

    chosen = tuple(shared.build(CORRUPTIONS, name, params) for name in corruptions)
    return _ge(source, work, corrupted(chosen, parse_units.severities(typed.severity)), typed.n_train)


@shared.command(choose=NOISES, by="--noise", default="uniform")
@pr_options
@shared.takes("typed", GapOptions, "n_train")
@options.source_options
@options.takes_run(without=("split", *options.NO_GRADIENTS))
def pr(
    params: dict[str, Any],
    options: PROptions,
    typed: GapOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure the gap in probabilistic robustness (train minus test).

    The tool adds ge.pr.NOISE.GAMMA, over the images that are classified correctly without noise, and
    ge.pr-all.NOISE.GAMMA, over all images. PRBench publishes the generalisation error over all images, and
    its code evaluates the first 1,000 images of each split (--n 0-999).
    """
    options, params = shared.with_preset("pr-presets", options, params)
    first, *more = options.tasks(params)
    status = _ge(source, work, first, typed.n_train, *more)
    options.say_undecided(work)
    return status


@shared.command(choose=ATTACKS)
@shared.takes("typed", GapOptions, "eps", "n_train")
@options.source_options
@options.takes_run(without=("split",))
def loss_attack(
    attack: str,
    params: dict[str, Any],
    typed: GapOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure gaps in cross-entropy and error at the last iterate of an attack (test minus train)."""
    from rbtools.evaluation.robust_loss import robust_loss

    if any(field.name == "iterate" for field in fields(ATTACKS.load(attack))):
        params.setdefault("iterate", "last")
    method, distances = parse_units.attack(ATTACKS, attack, params, typed.eps, work.screen.warn)
    return _ge(source, work, robust_loss(method, distances), typed.n_train)


@shared.group(attack=loss_attack)
def loss() -> None:
    """Measure the robust loss gap and the robust error gap: test minus train, under an attack.

    The tool adds test_minus_train.loss.NAME and test_minus_train.error.NAME to "metrics", as defined in the
    paper on the Weight-Curvature Index. The tool also adds loss.NAME and error.NAME on test, and
    train.loss.NAME and train.error.NAME on train. Misclassified images are attacked, too, and the last
    iterate of the attack is evaluated.

    \b
    Example:
      rb-ge loss attack pgd --steps 10 --n 50 --n-train 200 trained.jsonl
    """


@shared.group(acc=acc, attack=attack, corrupt=corrupt, loss=loss, pr=pr)
def main() -> None:
    """Measure the generalisation error of an evaluation: its value on train minus its value on test.

    The tool adds ge.NAME to "metrics", and the values on train and test as train.NAME and NAME. The
    subcommand acc measures clean accuracy. The subcommands attack, corrupt and pr have the methods and
    options of rb-attack, rb-corrupt and rb-pr. The subcommand loss attack computes gaps of loss and error as
    test minus train, because these gaps grow with overfitting. --n is the number of images from each split.
    Training images are not augmented.

    \b
    Examples:
      rb-ge acc trained.jsonl
      rb-ge attack pgd --steps 20 --eps 8 --n 1000 trained.jsonl
      rb-ge loss attack pgd --steps 10 --n 50 --n-train 200 trained.jsonl
      rb-ge pr --gamma 0.08 --samples 20 trained.jsonl
    """


if __name__ == "__main__":
    main()
