"""The parts of a card: each is an evaluation of one of the tools.

A part runs the tool's own job on the first images of the data set, so that its outcomes are those of the
tool, under the same keys: a later look, another run, or the tool itself goes on from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rbtools import units
from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import search_named
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError, near
from rbtools.evaluation.accuracy import attacked, clean, corrupted
from rbtools.evaluation.distances import nearest
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.spec import Evaluation
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


Jobs = Callable[[float], JobFunction]  # of the confidence


@dataclass(frozen=True)
class CardPart:
    """One part of a card.

    headlines: the metrics that stand for it. job: for the confidence of a look. paired: the metrics
    by which two models are compared, where they are not the headlines. union: the expression of the part's
    own metric.
    """

    name: str
    title: str
    headlines: tuple[str, ...]
    job: Jobs
    paired: tuple[str, ...] = ()
    union: str | None = None


def parts(eps: float) -> dict[str, CardPart]:
    """All parts by name. eps: of the attacks in L-infinity, on [0, 1]."""
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
    of_noise = _metrics(_noise(0.95))
    attack = attacked(ATTACKS.build("aa"), (eps,))
    (of_pgd,) = _metrics(attacked(pgd, (eps,)))
    known = (
        CardPart("clean", "clean accuracy", ("acc",), _evaluate(clean())),
        CardPart("attack", "AutoAttack", tuple(_metrics(attack)), _evaluate(attack)),
        CardPart(
            "norms",
            "worst case over norms",
            (worst,),
            lambda sure: EvaluateJob(norms),
            union=worst,
        ),
        CardPart("curve", "curve over eps", (_metrics(curve)[_QUARTERS],), _evaluate(curve)),
        CardPart("corruptions", "15 corruptions", ("corrupt.mean",), _evaluate(corruptions)),
        CardPart(
            "pr",
            "probabilistic robustness",
            tuple(name for name in of_noise if not name.startswith("pr-all.")),
            lambda sure: EvaluateJob((_noise(sure),)),
            paired=tuple(name for name in of_noise if name.startswith("pr-all.")),
        ),
        CardPart(
            "gap",
            "generalisation gap",
            ("ge.acc", f"ge.{of_pgd}"),
            lambda sure: GapJob((clean(), attacked(pgd, (eps,)))),
        ),
        CardPart(
            "masking",
            "masked gradients",
            tuple(_metrics(attacked(square, (eps,)))),
            lambda sure: masking,
        ),
    )
    return {part.name: part for part in known}


def _evaluate(task: Evaluation) -> Jobs:
    return lambda sure: EvaluateJob((task,))


def _noise(sure: float) -> Evaluation:
    read = Estimator(rho=_TOLERATED, denominator="both", confidence=sure)
    return noisy(NOISES.build("uniform"), _RADII, read, _SAMPLES)


def _metrics(task: Evaluation) -> list[str]:
    """The metrics of an evaluation, without clean accuracy."""
    return [spec.name() for spec in task.specs]


def _distances(eps: float) -> tuple[float, ...]:
    """The distances of the curve: quarters of eps up to twice it."""
    return tuple(eps * number / _QUARTERS for number in range(2 * _QUARTERS + 1))


_EVERY = "clean attack norms curve corruptions pr gap masking".split()
CHOICES = {
    "all": _EVERY,
    "l-inf": "clean attack curve gap masking".split(),
    "corruptions": ["clean", "corruptions"],
    "pr": ["clean", "pr", "gap"],
}
"""The parts by the name that --for has for them."""


def chosen(text: str) -> list[str]:
    """The parts of --for: of a name, or of a list with commas. Raises RbError."""
    names = CHOICES.get(text) or [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _EVERY:
            known = f"{', '.join(CHOICES)}, or a list of {', '.join(_EVERY)}"
            raise RbError(f"--for is '{text}'.{near(name, [*CHOICES, *_EVERY])} Expected {known}.")
    return [name for name in _EVERY if name in names]
