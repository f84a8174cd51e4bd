"""The parts of a card: each is an evaluation of one of the tools, at planned numbers of images.

A part runs the tool's own job on the first images of the data set, so that its outcomes are those of the
tool, under the same keys: a later look, another run, or the tool itself goes on from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from rbtools import units
from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import search_named
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError, near
from rbtools.evaluation.distances import DistanceOutput, DistanceTask
from rbtools.evaluation.probabilistic import NoiseTask
from rbtools.evaluation.tasks import AccuracyTask, AttackTask, CorruptionTask
from rbtools.execution.executor import JobFunction
from rbtools.execution.run import Run
from rbtools.jobs import EvaluateAllJob, EvaluateJob, GradientMaskingJob, TrainTestGapJob, TwoPhaseJob
from rbtools.jobs.attack_tasks import GradientMaskingTask
from rbtools.jobs.screened_attack import TwoPhaseRequest, screen_of
from rbtools.probabilistic import NOISES, looks
from rbtools.probabilistic.estimate import Estimator

if TYPE_CHECKING:
    from rbtools.evaluation.base import EvalTask

FIRST = 16  # images of the first look
# Up to so many images AutoAttack runs on all, so that each look goes on from the one before. Beyond, it runs
# on at least _SAMPLE of those that its screen leaves, or on one of _SHARE images, if that is more.
_ALL_ATTACKED, _SAMPLE, _SHARE = 64, 48, 6
_WIDER, _MORE = 4.0, 1.5  # factors of the numbers of images, and of the sample of all images
_SCREEN_STEPS, _STEPS, _QUERIES, _CURVE_QUERIES, _SAMPLES, _NORM_STEPS = 20, 20, 200, 200, 100, 30
_PASSES = 4000  # of an image that AutoAttack does not break: as costly as 2,800 to 9,800 of the screen
_NORMS = (("linf", None), ("l2", 0.5), ("l1", 12.0))
_RADII = (8 / 255, 0.08, 0.1, 0.12)
_TOLERATED = (0.1, 0.05, 0.01)
_QUARTERS = 4


class PlannedLook(NamedTuple):
    """One planned look: the number of images, and of those of them that an expensive attack runs on, None
    for all, 0 for its screen alone."""

    n: int
    attacked: int | None = None

    def sampled(self, left: float) -> float:
        """About how many images the expensive attack does not break soon. left: the share that its screen
        leaves."""
        return self.n * left if self.attacked is None else min(self.attacked, self.n * left)


Jobs = Callable[[Run, PlannedLook, float], JobFunction]


@dataclass(frozen=True)
class CardPart:
    """One part of a card.

    headlines: the metrics whose intervals decide how much time the part gets. job: for a run, a look and the
    confidence of this look. first: the images of the first look. on_all: of an attack that `job` runs on a
    sample, the job that attacks every image; bounded_by: the metric of its screen, which the accuracy under
    the attack does not exceed. paired: the metrics with a value for each image by which two models are
    compared, where they are not the headlines. union: the expression of the part's own metric. every_image:
    no sample is attacked.
    """

    name: str
    title: str
    headlines: tuple[str, ...]
    job: Jobs
    first: int = FIRST
    on_all: Jobs | None = None
    bounded_by: str | None = None
    paired: tuple[str, ...] = ()
    union: str | None = None
    every_image: bool = False

    def work(self, look: PlannedLook, left: float) -> float:
        """What a look takes, in passes of an image. left: the share of the images that the screen leaves."""
        return look.n if self.on_all is None else 2 * _SCREEN_STEPS * look.n + _PASSES * look.sampled(left)

    def looks(self, n: int) -> list[PlannedLook]:
        """The planned looks at a data set of n images."""
        first = min(self.first, n)
        if self.on_all is None:
            return [PlannedLook(size) for size in looks.sizes(first, n)]
        if self.every_image:
            return [PlannedLook(first, 0), *(PlannedLook(size) for size in looks.sizes(first, n))]
        few = min(_ALL_ATTACKED, n)
        sizes = [size for size in looks.sizes(first, few) if size == n or size <= looks.NEARLY_ALL * n]
        small = [PlannedLook(first, 0), *map(PlannedLook, sizes)]
        if n == few:
            return small
        wide = looks.sizes(few, n, _WIDER)[1:-1]
        last = looks.sizes(max(_SAMPLE, n // _SHARE), n, _MORE)[:-1]
        sampled = [PlannedLook(size, max(_SAMPLE, size // _SHARE)) for size in wide]
        return [*small, *sampled, *(PlannedLook(n, size) for size in last), PlannedLook(n)]

    def of_pairs(self) -> CardPart:
        """The part for two models: every image has a value, which an attack on a sample does not give."""
        if self.on_all is None:
            return replace(self, headlines=self.paired or self.headlines)
        screen, on_all = self.job, self.on_all

        def job(run: Run, look: PlannedLook, sure: float) -> JobFunction:
            return (screen if look.attacked == 0 else on_all)(run, look, sure)

        return replace(self, job=job, every_image=True)


def parts(eps: float) -> dict[str, CardPart]:
    """All parts by name. eps: of the attacks in L-infinity, on [0, 1]."""
    aa, pgd = ATTACKS.build("aa"), ATTACKS.build("pgd", steps=_STEPS)
    norms = tuple(
        AttackTask(ATTACKS.build("apgd-ce", norm=norm, steps=_NORM_STEPS), (distance or eps,))
        for norm, distance in _NORMS
    )
    worst = f"union({', '.join(name for task in norms for name in _metrics(task))})"
    curve = DistanceTask((DistanceOutput(search_named("curve", "linf", _CURVE_QUERIES), _distances(eps)),))
    corruptions = CorruptionTask(tuple(CORRUPTIONS.build(name) for name in CORRUPTIONS.all), units.SEVERITIES)
    square, noise = ATTACKS.build("square", queries=_QUERIES), ATTACKS.build("noise", samples=_SAMPLES)
    masking = GradientMaskingTask(eps, pgd=pgd, fgsm=ATTACKS.build("fgsm"), square=square, noise=noise)
    of_noise = _metrics(_noise(0.95))
    (of_aa,), (of_pgd,) = _metrics(AttackTask(aa, (eps,))), _metrics(AttackTask(pgd, (eps,)))
    cheap, on_all = screen_of(aa, _SCREEN_STEPS), _evaluate(AttackTask(aa, (eps,)))

    def two_phase(run: Run, look: PlannedLook, sure: float) -> JobFunction:
        if look.attacked == 0:
            return EvaluateAllJob(tuple(AttackTask(method, (eps,)) for method in cheap), run)
        if look.attacked is None and look.n <= _ALL_ATTACKED:
            return on_all(run, look, sure)
        return TwoPhaseJob(TwoPhaseRequest(aa, (eps,), cheap, look.attacked), run)

    known = (
        CardPart("clean", "clean accuracy", ("acc",), _evaluate(AccuracyTask())),
        CardPart(
            "attack",
            "AutoAttack",
            (of_aa,),
            two_phase,
            bounded_by=_metrics(AttackTask(cheap[-1], (eps,)))[0],
            on_all=on_all,
        ),
        CardPart(
            "norms",
            "worst case over norms",
            (worst,),
            lambda run, look, sure: EvaluateAllJob(norms, run),
            union=worst,
        ),
        CardPart("curve", "curve over eps", (_metrics(curve)[_QUARTERS],), _evaluate(curve)),
        CardPart("corruptions", "15 corruptions", ("corrupt.mean",), _evaluate(corruptions)),
        CardPart(
            "pr",
            "probabilistic robustness",
            tuple(name for name in of_noise if not name.startswith("pr-all.")),
            lambda run, look, sure: EvaluateJob(_noise(sure), run),
            paired=tuple(name for name in of_noise if name.startswith("pr-all.")),
        ),
        CardPart(
            "gap",
            "generalisation gap",
            ("ge.acc", f"ge.{of_pgd}"),
            lambda run, look, sure: TrainTestGapJob(AccuracyTask(), None, run, (AttackTask(pgd, (eps,)),)),
        ),
        CardPart(
            "masking",
            "masked gradients",
            tuple(_metrics(AttackTask(square, (eps,)))),
            lambda run, look, sure: GradientMaskingJob(masking, run),
        ),
    )
    return {part.name: part for part in known}


def _evaluate(task: EvalTask) -> Jobs:
    return lambda run, look, sure: EvaluateJob(task, run)


def _noise(sure: float) -> NoiseTask:
    read = Estimator(rho=_TOLERATED, denominator="both", confidence=sure)
    return NoiseTask(NOISES.build("uniform"), _RADII, read, _SAMPLES)


def _metrics(task: EvalTask) -> list[str]:
    """The metrics of a task, without clean accuracy."""
    outputs = [output for output in task.outputs() if not output.implicit]
    return [str(entry["metric"]) for output in outputs for entry in output.entry_template()]


def _distances(eps: float) -> tuple[float, ...]:
    """The distances of the curve: quarters of eps up to twice it."""
    return tuple(eps * number / _QUARTERS for number in range(2 * _QUARTERS + 1))


_EVERY = "clean attack norms curve corruptions pr gap masking".split()
CHOICES: dict[str, dict[str, float]] = {
    "all": dict.fromkeys(_EVERY, 1.0),
    "l-inf": {"clean": 1, "attack": 3, "curve": 1, "gap": 1, "masking": 1},
    "corruptions": {"clean": 1, "corruptions": 3},
    "pr": {"clean": 1, "pr": 3, "gap": 1},
}
"""Parts and weights by the name that --for has for them."""


def weights_of(mapping: object) -> dict[str, float]:
    """Parts and weights of a file. Raises RbError where it is no mapping of parts to numbers above 0."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise RbError(f"expected parts and their weights, such as 'attack: 3', of {', '.join(_EVERY)}.")
    for name, weight in mapping.items():
        if name not in _EVERY:
            raise RbError(f"there is no part '{name}'.{near(str(name), _EVERY)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e6:
            raise RbError(f"the weight of {name} is {weight!r}. Expected a number above 0.")
    return {name: float(mapping[name]) for name in _EVERY if name in mapping}
