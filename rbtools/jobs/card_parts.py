"""The parts of a card. Each part is an evaluation by one of the tools.

A part runs the tool's own job on the first images of the data set. Its outcomes are stored under the tool's
keys, so that a later look, another run or the tool itself can use them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtools import units
from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import search_named
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError, near
from rbtools.evaluation.accuracy import attacked, clean
from rbtools.evaluation.distances import nearest
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.spec import Evaluation, by_column
from rbtools.evaluation.under_corruption import corrupted
from rbtools.execution.engine import JobFunction
from rbtools.jobs.attack_tasks import MaskingChecklist
from rbtools.jobs.evaluate_record import EvaluateJob
from rbtools.jobs.train_test_gap import GapJob
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator

_STEPS, _QUERIES, _CURVE_QUERIES, _SAMPLES, _NORM_STEPS = 20, 200, 200, 100, 30
_NORMS = (("linf", None), ("l2", 0.5), ("l1", 12.0))
_RADII = (8 / 255, 0.08, 0.1, 0.12)
_TOLERATED = (0.1, 0.05, 0.01)
_QUARTERS = 4


@dataclass(frozen=True)
class CardPart:
    """One part of a card.

    `headlines` contains the metrics, or an expression of metrics, that summarise the part. `paired` contains
    the metrics in which two models are compared, if these differ from the headlines. `leaves_out` is true if
    the part leaves out images that it has broken, and therefore makes fewer passes than it may make at most.
    """

    name: str
    title: str
    headlines: tuple[str, ...]
    job: JobFunction
    paired: tuple[str, ...] = ()
    leaves_out: bool = False

    @property
    def most_passes(self) -> int:
        """The largest number of passes for an image."""
        evaluations = getattr(self.job, "evaluations", ())
        splits = 2 if isinstance(self.job, GapJob) else 1
        if isinstance(self.job, MaskingChecklist):
            job = self.job
            methods = [*[job.pgd] * len(job.distances), job.fgsm, job.square, job.noise]
            return sum(int(method.most_passes) for method in methods)
        return splits * sum(
            max(spec.most_passes for spec in column)
            for evaluation in evaluations
            for column in by_column(evaluation.every)
        )


def parts(eps: float, sure: float) -> dict[str, CardPart]:
    """Maps the names of parts to the parts. `eps` is the L-infinity distance of the attacks for pixels in [0,
    1]. `sure` is the confidence of the intervals of a look."""
    pgd = ATTACKS.build("pgd", steps=_STEPS)
    norms = tuple(
        attacked(ATTACKS.build("apgd-ce", norm=norm, steps=_NORM_STEPS), (distance or eps,))
        for norm, distance in _NORMS
    )
    worst = f"union({', '.join(name for task in norms for name in _metrics(task))})"
    curve = nearest([search_named("curve", "linf", _CURVE_QUERIES)], _distances(eps))
    corruptions = corrupted([CORRUPTIONS.build(name) for name in CORRUPTIONS.all], units.SEVERITIES)
    square, noise = ATTACKS.build("square", queries=_QUERIES), ATTACKS.build("noise", samples=_SAMPLES)
    masking = MaskingChecklist(eps=eps, pgd=pgd, fgsm=ATTACKS.build("fgsm"), square=square, noise=noise)
    read = Estimator(rho=_TOLERATED, denominator="both", confidence=sure)
    noisy_images = noisy(NOISES.build("uniform"), _RADII, read, _SAMPLES)
    of_all = tuple(name for name in _metrics(noisy_images) if name.startswith("pr-all."))
    of_correct = tuple(name for name in _metrics(noisy_images) if name not in of_all)
    attack, by_pgd = attacked(ATTACKS.build("aa"), (eps,)), attacked(pgd, (eps,))
    gaps = ("ge.acc", f"ge.{_metrics(by_pgd)[0]}")

    def evaluated(name: str, title: str, headlines: Sequence[str], task: Evaluation) -> CardPart:
        return CardPart(name, title, tuple(headlines), EvaluateJob((task,)))

    known = (
        evaluated("clean", "clean accuracy", ["acc"], clean()),
        CardPart("attack", "AutoAttack", tuple(_metrics(attack)), EvaluateJob((attack,)), leaves_out=True),
        CardPart("norms", "worst case over norms", (worst,), EvaluateJob(norms), leaves_out=True),
        evaluated("curve", "curve over eps", [_metrics(curve)[_QUARTERS]], curve),
        evaluated("corruptions", "15 corruptions", ["corrupt.mean"], corruptions),
        CardPart("pr", "probabilistic robustness", of_correct, EvaluateJob((noisy_images,)), of_all),
        CardPart("gap", "generalisation gap", gaps, GapJob((clean(), by_pgd)), leaves_out=True),
        CardPart("masking", "masked gradients", tuple(_metrics(attacked(square, (eps,)))), masking),
    )
    return {part.name: part for part in known}


def _metrics(task: Evaluation) -> list[str]:
    """The metrics of an evaluation, except the clean accuracy that is measured together with them."""
    return [spec.name() for spec in task.specs]


def _distances(eps: float) -> tuple[float, ...]:
    """The distances of the curve, which are the multiples of eps / 4 from 0 to 2 eps."""
    return tuple(eps * number / _QUARTERS for number in range(2 * _QUARTERS + 1))


_EVERY = "clean attack norms curve corruptions pr gap masking".split()
# Maps the names that --for accepts to their parts.
CHOICES = {
    "all": _EVERY,
    "l-inf": "clean attack curve gap masking".split(),
    "corruptions": ["clean", "corruptions"],
    "pr": ["clean", "pr", "gap"],
}


def chosen(text: str) -> list[str]:
    """The parts that --for selects, by a name in CHOICES or by a comma-separated list. Raises RbError."""
    names = CHOICES.get(text) or [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _EVERY:
            known = f"{', '.join(CHOICES)}, or a list of {', '.join(_EVERY)}"
            raise RbError(f"--for is '{text}'.{near(name, [*CHOICES, *_EVERY])} Expected {known}.")
    return [name for name in _EVERY if name in names]
