"""rb-pr: measures the probabilistic robustness of each model under random noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.cli import options, parse_units, shared
from rbtools.errors import UsageError
from rbtools.probabilistic import NOISES, sequential
from rbtools.probabilistic.estimate import Estimator
from rbtools.records import expr
from rbtools.registry import gathered, param, rare_param

if TYPE_CHECKING:
    from rbtools.evaluation.spec import Evaluation
    from rbtools.probabilistic.distributions import Noise


@dataclass(frozen=True)
class PROptions:
    preset: str | None = param(
        None, "The settings of a paper: " + ", ".join(gathered("pr-presets")) + ".", metavar="NAME"
    )
    denominator: str = rare_param(
        "correct",
        "Images to average over: those that are classified correctly without noise (correct, as in"
        " PRBench), all images (all, as in advbench), or both. With all, the metrics are called"
        " pr-all.NOISE.GAMMA.",
        choices=("correct", "all", "both"),
    )
    gamma: str | None = rare_param(
        None,
        "Radii of the noise, for pixels in [0, 1], or strengths of a transformation (rotation: degrees);"
        " start:stop:count for a curve, such as 0:0.15:31. PRBench's first radius is 8/255 (text) or 0.03"
        " (code).  [default: 8/255,0.08,0.1,0.12; each transformation has its own]",
        metavar="LIST",
    )
    rho: str = rare_param("0.1,0.05,0.01", "Tolerated failure rates.", metavar="LIST")
    samples: int = param(
        100, "Noisy copies of each image (with --sampling adaptive, at most).", bounds=f"[1, {1 << 23}]"
    )
    noise: str = param("uniform", f"Kinds of noise: {', '.join(NOISES)}.", metavar="LIST")
    passes: str = rare_param(
        "at-least",
        "When an image passes: if its PR is 1 - rho or more (at-least), as in PRBench's paper, or only if"
        " it is above 1 - rho (above), as in its code and advbench.",
        choices=("at-least", "above"),
    )
    confidence: float = rare_param(
        0.95, "Confidence of intervals and of decisions on single images.", metavar="SHARE"
    )
    only: str = rare_param(
        "both",
        "With probacc, do not compute PR_D, and stop sampling an image as soon as its remaining copies cannot"
        " change whether it passes.",
        choices=("both", "probacc"),
    )
    sampling: str = param(
        "fixed",
        "fixed evaluates --samples copies of each image; adaptive measures only ProbAcc, with a sequential"
        " test that stops sampling an image as soon as it is decided.",
        choices=("fixed", "adaptive"),
    )
    require_decided: bool = rare_param(
        False,
        "Stop with an error if --samples is too small to decide on any --rho at this --confidence.",
        flags=("--require-decided",),
    )

    @property
    def adaptive(self) -> bool:
        return self.sampling == "adaptive"

    def estimator(self) -> Estimator:
        return Estimator(
            rho=parse_units.tolerances(self.rho),
            denominator=self.denominator,
            passes=self.passes,
            confidence=parse_units.confidence(self.confidence),
        )

    def tasks(self, params: dict[str, Any]) -> tuple[Evaluation, ...]:
        """One evaluation for each kind of noise. Raises UsageError if options contradict each other."""
        kinds = expr.items(self.noise)
        if not kinds:
            raise UsageError(f"--noise is empty. Known noises: {', '.join(NOISES)}.")
        return tuple(self._task(shared.build(NOISES, kind, params)) for kind in dict.fromkeys(kinds))

    def _task(self, noise: Noise) -> Evaluation:
        from rbtools.evaluation.probabilistic import noisy

        estimator = self.estimator()
        gammas = parse_units.radii(self.gamma or noise.radii, noise.largest)
        if self.passes == "above" and 0 in estimator.rho:
            raise UsageError(
                "With --rho 0 and --passes above no image could pass, because no PR is above 1. Use"
                " --passes at-least."
            )
        short = sequential.too_few(estimator.rho, self.samples, estimator.confidence)
        if short and (self.adaptive or self.require_decided):
            raise UsageError(f"{short} Use more --samples, a larger --rho, or a lower --confidence.")
        return noisy(noise, gammas, estimator, self.samples, self.only == "probacc", self.adaptive)

    def say_undecided(self, work: shared.CommandContext) -> None:
        """Print a note if the evaluated samples are too few to decide on single images."""
        estimator = self.estimator()
        short = sequential.too_few(estimator.rho, self.samples, estimator.confidence)
        if short and work.run.store.computed + work.run.store.found:
            work.screen.say(
                f"note: {short} Use more --samples or a larger --rho. Undecided images bias the value of"
                " ProbAcc, but not its interval; evals has their number."
            )


@dataclass(frozen=True)
class RareOptions(PROptions):
    sampling: str = param(
        "fixed",
        "fixed evaluates --samples copies of each image; adaptive measures only ProbAcc, with a sequential"
        " test that stops sampling an image as soon as it is decided; rare measures failure probabilities"
        " that are too small for plain sampling, with adaptive multilevel splitting.",
        choices=("fixed", "adaptive", "rare"),
    )
    particles: int = rare_param(200, "Number of particles (with --sampling rare).", bounds="[20, inf)")
    moves: int = rare_param(
        10, "Number of moves of a particle between two levels (with --sampling rare).", bounds="[1, inf)"
    )
    runs: int = rare_param(10, "Number of independent repetitions (with --sampling rare).", bounds="[2, inf)")
    floor: float = rare_param(
        1e-12, "Count probabilities below SHARE as 0 (with --sampling rare).", metavar="SHARE"
    )

    @property
    def rare(self) -> bool:
        return self.sampling == "rare"

    def _task(self, noise: Noise) -> Evaluation:
        from rbtools.evaluation.rare_failures import rare_failures
        from rbtools.probabilistic.splitting import Splitting

        if not self.rare:
            return super()._task(noise)
        estimator = self.estimator()
        gammas = parse_units.radii(self.gamma or noise.radii, noise.largest)
        for option, given in (
            ("--require-decided", self.require_decided),
            ("--only probacc", self.only != "both"),
            (f"--denominator {self.denominator}", self.denominator != "correct"),
        ):
            if given:
                raise UsageError(
                    f"--sampling rare estimates failure probabilities and does not support {option}."
                )
        if not 0 < self.floor < 1:
            raise UsageError(f"--floor is {self.floor:g}. Expected a probability in (0, 1), such as 1e-12.")
        if 0 in gammas:
            raise UsageError(
                "--sampling rare needs a --gamma above 0: without noise there are no failures to estimate."
            )
        split = Splitting(particles=self.particles, moves=self.moves, runs=self.runs, floor=self.floor)
        return rare_failures(noise, gammas, split, estimator.confidence)

    def say_undecided(self, work: shared.CommandContext) -> None:
        if not self.rare:
            super().say_undecided(work)


# PRBench's paper averages PR over the images that are classified correctly without noise; the generalisation
# error in its tables is over all images.
pr_options = shared.takes("options", PROptions, denominator="both")


@shared.command(choose=NOISES, by="--noise", default="uniform")
@shared.takes("options", RareOptions)
@options.source_options
@options.takes_run(without=options.NO_GRADIENTS)
def main(
    params: dict[str, Any], options: RareOptions, source: shared.RecordSource, work: shared.CommandContext
) -> int:
    """Measure each model's probabilistic robustness.

    The tool adds PR_D(gamma), the mean share of noisy copies that are classified correctly (pr.NOISE.GAMMA),
    and ProbAcc(rho, gamma), the share of images with at most a share rho of misclassified copies
    (probacc.NOISE.GAMMA.RHO). PR_D and ProbAcc only count images that are classified correctly without noise.
    With --denominator all, they count all images, and are called pr-all.NOISE.GAMMA and
    probacc-all.NOISE.GAMMA.RHO. --preset prbench-code uses the settings of PRBench's code: --gamma
    0.03,0.08,0.1,0.12 --truncate --passes above. Copies are classified in lower precision if that is faster,
    and again in float32 if the decision is close.

    For the intervals, the images are a random sample; an interval is for the distribution from which the
    images were drawn. ProbAcc is a plug-in estimate, which is biased for few copies, because an image whose
    PR is near 1 - rho passes by chance. The interval of ProbAcc is for the share of images whose true PR
    passes, for any distribution of PR. If many images have a PR near 1 - rho, this interval stays wide, and
    only more copies make it narrower. In evals, "estimate" is an estimate of the share of images whose true
    PR passes, "undecided" is the number of images for which the copies are too few to decide, and "quantiles"
    are quantiles of PR with exact intervals.

    With --sampling rare, the tool adds the mean failure probability 1 - PR_D (pfail.NOISE.GAMMA), which may
    be 1e-9 or less. "images" in evals contains the logarithm of each image's probability and its spread over
    the repetitions.

    \b
    Examples:
      rb-pr --gamma 8/255,0.08 --rho 0.05 --samples 50 trained.jsonl
      rb-pr --preset prbench-code --samples 20 --n 20 trained.jsonl
      rb-pr --gamma 0:0.15:31 --noise uniform,gaussian --samples 10 --n 20 trained.jsonl
      rb-pr --sampling adaptive --gamma 0.08 --rho 0.01 --samples 10000 --n 20 trained.jsonl
      rb-pr --sampling rare --runs 2 --gamma 0.15 --n 2 trained.jsonl
      rb-pr --gamma 0.1 --samples 20 --checkpoint model.pt --normalize cifar10 --dataset imagefolder:photos
    """
    from rbtools.jobs.evaluate_record import EvaluateJob

    options, params = shared.with_preset("pr-presets", options, params)
    tasks = options.tasks(params)
    status = shared.done(shared.filter_models(source, work, EvaluateJob(tasks)))
    options.say_undecided(work)
    return status


if __name__ == "__main__":
    main()
