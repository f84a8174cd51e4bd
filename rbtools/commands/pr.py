"""rb-pr: probabilistic robustness of each model under random noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from rbtools import parse_units
from rbtools.cli import shared
from rbtools.errors import UsageError
from rbtools.probabilistic import NOISES, sequential
from rbtools.probabilistic.estimate import Estimator


@dataclass(frozen=True)
class PROptions:
    """The options of probabilistic robustness, as typed."""

    gamma: str
    rho: str
    samples: int
    noise: str
    denominator: str
    passes: str
    confidence: float
    only: str
    adaptive: bool
    require_decided: bool
    rare: bool = False
    particles: int = 200
    moves: int = 10
    runs: int = 10
    floor: float = 1e-12

    def read(self) -> Estimator:
        """How the counts are read."""
        return Estimator(
            rho=parse_units.tolerances(self.rho),
            denominator=self.denominator,
            passes=self.passes,
            confidence=parse_units.confidence(self.confidence),
        )

    def question(self, params: dict[str, Any]) -> Any:
        """What these options ask. Raises UsageError where they do not go together."""
        from rbtools.evaluation.probabilistic import NoiseTask

        noise, read = shared.build(NOISES, self.noise, params), self.read()
        gammas = parse_units.radii(self.gamma, noise.norm)
        if self.rare:
            return self._rare(noise, gammas, read)
        if self.passes == "above" and 0 in read.rho:
            raise UsageError("--rho 0 with --passes above: no PR is above 1. Use --passes at-least.")
        short = sequential.too_few(read.rho, self.samples, read.confidence)
        if short and (self.adaptive or self.require_decided):
            raise UsageError(f"{short} Use more --samples, a larger --rho, or a lower --confidence.")
        return NoiseTask(noise, gammas, read, self.samples, self.only == "probacc", self.adaptive)

    def _rare(self, noise: Any, gammas: tuple[float, ...], read: Estimator) -> Any:
        from rbtools.evaluation.rare_failures import RareFailureTask
        from rbtools.probabilistic.splitting import Splitting

        others = {"--adaptive": self.adaptive, "--require-decided": self.require_decided}
        others |= {"--only probacc": self.only != "both"}
        others |= {f"--denominator {self.denominator}": self.denominator != "correct"}
        for option in (name for name, given in others.items() if given):
            raise UsageError(f"--rare finds failure probabilities: {option} does not go with it.")
        if not 0 < self.floor < 1:
            raise UsageError(f"--floor is {self.floor:g}. Expected a probability in (0, 1), such as 1e-12.")
        if 0 in gammas:
            raise UsageError("--rare needs a --gamma above 0: without noise there is nothing to fail.")
        split = Splitting(particles=self.particles, moves=self.moves, runs=self.runs, floor=self.floor)
        return RareFailureTask(noise, gammas, split, read.confidence)

    def tell(self, work: Any) -> None:
        """Say, where something was evaluated, that the samples are too few to decide on single images."""
        if self.rare:
            return
        read = self.read()
        short = sequential.too_few(read.rho, self.samples, read.confidence)
        if short and work.run.store.computed + work.run.store.found:
            work.screen.say(
                f'note: {short} "undecided" in evals counts the images that stay open. ProbAcc is'
                " biased by that; its interval is of the images' true PR."
            )


_options = (
    click.option(
        "--gamma",
        default="8/255,0.08,0.1,0.12",
        metavar="LIST",
        help="Radii of the noise on [0, 1]; a curve is start:stop:count, such as 0:0.15:31.",
    ),
    click.option("--rho", default="0.1,0.05,0.01", metavar="LIST", help="Tolerated failure rates."),
    click.option(
        "--samples",
        default=100,
        type=click.IntRange(1, 1 << 23),
        help="Noisy copies of each image; with --adaptive at most so many.",
    ),
    click.option("--noise", default="uniform", type=click.Choice(list(NOISES)), help="Kind of noise."),
    click.option(
        "--passes",
        default="at-least",
        type=click.Choice(("at-least", "above")),
        help="An image passes with a PR of at least 1 - rho (PRBench's text), or above it (its code,"
        " advbench).",
    ),
    click.option(
        "--confidence", default=0.95, metavar="SHARE", help="Of intervals, and of what counts as decided."
    ),
    click.option(
        "--only",
        default="both",
        type=click.Choice(("both", "probacc")),
        help="probacc: leave PR_D out, and an image as soon as its remaining copies cannot change whether it"
        " passes.",
    ),
    click.option(
        "--adaptive",
        is_flag=True,
        help="ProbAcc alone, by a sequential test: an image leaves as soon as the evidence suffices.",
    ),
    click.option(
        "--require-decided",
        is_flag=True,
        help="Refuse --samples too few to show any --rho at that --confidence.",
    ),
)

_rare_options = (
    click.option(
        "--rare",
        is_flag=True,
        help="Instead find failure probabilities too small for samples, image by image, by adaptive"
        " multilevel splitting.",
    ),
    click.option("--particles", default=200, type=click.IntRange(20), help="With --rare: of a population."),
    click.option("--moves", default=10, type=click.IntRange(1), help="With --rare: between two levels."),
    click.option("--runs", default=10, type=click.IntRange(2), help="With --rare: independent repetitions."),
    click.option(
        "--floor", default=1e-12, metavar="SHARE", help="With --rare: a probability below this counts as 0."
    ),
)


def _denominator_option(default: str) -> Any:
    return click.option(
        "--denominator",
        default=default,
        type=click.Choice(("correct", "all", "both")),
        help="Count images that are right without noise (pr.NOISE.GAMMA, PRBench), or all"
        " (pr-all.NOISE.GAMMA, advbench); both: pr-all beside the others.",
    )


# PRBench's text averages PR over the images that are right without noise; the generalisation error that its
# tables print is over all.
pr_options = shared.bundle("asked", PROptions, _denominator_option("both"), *_options)


@shared.command(choose=NOISES, option="--noise", default="uniform")
@shared.bundle("asked", PROptions, _denominator_option("correct"), *_options, *_rare_options)
@shared.source_options
@shared.search_options
def main(params: dict[str, Any], asked: PROptions, source: shared.RecordSource, work: Any) -> int:
    """Measure each model's probabilistic robustness.

    Adds PR_D(gamma), the mean share of noisy copies that stay classified right
    (pr.NOISE.GAMMA), and ProbAcc(rho, gamma), the share of images for which at most rho of the
    copies are not (probacc.NOISE.GAMMA.RHO). Both count images that are classified right without noise;
    over all images (--denominator all) they are pr-all.NOISE.GAMMA and probacc-all.NOISE.GAMMA.RHO.
    PRBench's code: --gamma 0.03,0.08,0.1,0.12 --truncate --passes above.
    Copies are judged in lower precision where that is faster; what is near a tie, in float32.

    Intervals take images as the sampling unit. ProbAcc is a plug-in: of few copies it is biased, since an
    image whose PR is near 1 - rho passes by chance. Its interval is of the images whose true PR passes,
    whatever the distribution of PR: where many images are near 1 - rho it stays wide, and more copies
    narrow it, not more images. "estimate" in evals is the likely share of these images, "undecided" counts
    those whose own copies leave open whether they pass, and "quantiles" has single images' PR with exact
    intervals.

    With --rare it adds the mean failure probability 1 - PR_D (pfail.NOISE.GAMMA), down to 1e-9 and less;
    "images" in evals has each image's logarithm of it and its spread over the runs.

    \b
    Examples:
      rb-pr --gamma 8/255,0.08 --rho 0.05 --samples 50 trained.jsonl
      rb-pr --gamma 0:0.15:31 --noise gaussian --samples 10 --n 20 trained.jsonl
      rb-pr --adaptive --gamma 0.08 --rho 0.01 --samples 10000 --n 20 trained.jsonl
      rb-pr --rare --gamma 0.15 --runs 2 --n 2 trained.jsonl
      rb-pr --gamma 0.1 --samples 20 --checkpoint model.pt --arch resnet18 --dataset imagefolder:photos
    """
    status = shared.evaluate(source, work, asked.question(params))
    asked.tell(work)
    return status


if __name__ == "__main__":
    main()
