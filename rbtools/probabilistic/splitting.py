"""Adaptive multilevel splitting estimates the probability of an event that is too rare for plain sampling.

The method is that of Webb, Rainforth, Teh and Kumar, "A Statistical Approach to Assessing Neural Network
Robustness" (2019, arXiv:1811.07209). The event, score >= 0, is reached through a sequence of levels. At each
level, the fraction `keep` of a population of particles with the highest scores survives. The survivors are
copied up to the size of the population and moved by a Markov chain that stays above the level. The estimate
is the product of the surviving fractions.

The level is the highest score of a killed particle, and survivors have strictly higher scores. If the level
were the lowest score of a survivor, the estimate would be too high (by half at 1e-9), because this survivor
would count as being above its own score. With levels as defined here, the mean over runs is unbiased if moved
particles are independent of their start: Brehier, Gazeau, Goudenege, Lelievre and Rousset, "Unbiasedness of
some generalized adaptive multilevel splitting algorithms" (Ann. Appl. Probab. 26, 2016).
tests/probabilistic/test_splitting.py tests this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.lazy import Tensor, torch
from rbtools.probabilistic.estimate import Estimate, interval_name
from rbtools.probabilistic.intervals import mean_interval
from rbtools.rng.draws import Draws

# The step is adapted until this share of the moves stays above the level.
_ACCEPTED = 0.3
_MOST_LEVELS = 500


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """Settings of splitting: the number of independent `runs`, `particles` per run, and `moves` per level.

    Particles are independent standard normal numbers that a noise maps to its distribution, so splitting and
    plain sampling have the same distribution. Webb's distribution is uniform on the ball within [0, 1],
    without the probability mass that clipping puts on the border. The move is preconditioned Crank-Nicolson,
    z' = sqrt(1 - b^2) z + b w with standard normal w, which preserves the normal distribution, and is
    accepted if z' is above the level. All populations use the same b, which is tuned.
    """

    version: ClassVar[int] = 2

    particles: int = 200
    moves: int = 10
    runs: int = 10
    keep: float = 0.1
    floor: float = 1e-12

    def config(self) -> dict[str, Any]:
        law = "standard normal latent, Crank-Nicolson moves, survivors strictly above the level"
        names = ("particles", "moves", "runs", "keep", "floor")
        return {"splitting": law, **{name: getattr(self, name) for name in names}}

    def log_probabilities(self, score: Callable[[Tensor], Tensor], width: int, draws: Draws) -> Tensor:
        """Return the logarithm of each run's estimate of P[score(z) >= 0]: float64 (runs,), or -inf below
        `floor`. `score` maps standard normal numbers (M, width) to scores (M,)."""
        shape = (self.runs, self.particles)

        def scored(points: Tensor) -> Tensor:
            return score(points.flatten(0, 1)).view(shape)

        z = draws.normal((*shape, width))[0]
        scores = scored(z)
        runs = torch.zeros(self.runs, dtype=torch.float64, device=z.device)
        open_ = torch.ones(self.runs, dtype=torch.bool, device=z.device)
        step = torch.ones((), device=z.device)
        draw = 0
        for _ in range(_MOST_LEVELS):
            level, survived = self._split(scores)
            runs = torch.where(open_, runs + (survived.sum(1).double() / self.particles).log(), runs)
            open_ = open_ & (level < 0) & (runs > math.log(self.floor))
            if not bool(open_.any()):
                break
            draw += 1
            chosen = _refilled(survived, draws.uniform(shape, draw=draw)[0])
            z = z.gather(1, chosen[..., None].expand_as(z))
            scores = scores.gather(1, chosen)
            for _ in range(self.moves):
                draw += 1
                noise = draws.normal((*shape, width), draw=draw)[0]
                moved = (1 - step**2).sqrt() * z + step * noise
                there = scored(moved)
                accepted = there > level[:, None]
                z = torch.where(accepted[..., None], moved, z)
                scores = torch.where(accepted, there, scores)
                # A step adapted for each population alone would bias the probability by +.7 %.
                rate = accepted[open_].float().mean()
                step = (step * (rate - _ACCEPTED).exp()).clamp(max=1)
        low = runs <= math.log(self.floor)
        return torch.where(low | open_, torch.full_like(runs, -math.inf), runs)

    def _split(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The level (R,) of each run's scores (R, P), and a mask (R, P) of the particles above the level.

        Particles with the same score as a killed particle are also killed, so fewer than the fraction `keep`
        or none may survive. If the level is inside the event, it is the last level, and the survivors are the
        particles in the event (score >= 0).
        """
        killed = int((1 - self.keep) * self.particles + 1e-9)  # (1 - .9) * 200 is 19.999999999999996
        level = scores.kthvalue(max(killed, 1), dim=1).values
        last = level >= 0
        return level, (scores > level[:, None]).where(~last[:, None], scores >= 0)


def _refilled(survived: Tensor, uniform: Tensor) -> Tensor:
    """The index of the next particle in each place (R, P): the same particle or, if killed, a survivor."""
    survivors = torch.argsort(survived.int(), dim=1, descending=True, stable=True)
    count = survived.sum(1, keepdim=True)
    drawn = survivors.gather(1, (uniform * count).long().clamp(max=survived.shape[1] - 1))
    itself = torch.arange(survived.shape[1], device=survived.device).expand_as(drawn)
    return torch.where(survived, itself, drawn)


def findings(rows: Iterable[Sequence[float]], confidence: float = 0.95) -> dict[str, Any]:
    """Return the results in an `evals` entry: the mean failure probability 1 - PR over images, with the
    interval of the mean over the distribution from which the images are drawn (`mean_interval`).

    A row contains the example's id and the logarithm of its failure probability in each run (-inf below the
    floor), or NaN if the example is excluded because it is misclassified without noise. `images` contains for
    each image the logarithm of the mean over runs and the standard deviation of the runs' logarithms.
    """
    rows = [list(map(float, row)) for row in rows]
    included = [row for row in rows if not math.isnan(row[1])]
    if not included:
        reason = "no image is classified correctly without noise, so there is nothing to average over"
        return Estimate(None, None, 0, confidence, reason).entry()
    shares = [sum(map(math.exp, row[1:])) / (len(row) - 1) for row in included]
    n = len(shares)
    mean = math.fsum(shares) / n
    interval = mean_interval(shares, None, confidence)
    images = [_of_image(row, share) for row, share in zip(included, shares, strict=True)]
    below = sum(share == 0 for share in shares)
    fields = {"value": mean, "n": n, interval_name(confidence): list(interval)}
    return {**fields, "below_floor": below, "images": images}


def _of_image(row: Sequence[float], share: float) -> dict[str, Any]:
    """The fields of an image. `log_p` is None if no run is above the floor, `spread` if only one or none
    is."""
    logs = [value for value in row[1:] if value > -math.inf]
    spread = None
    if len(logs) > 1:
        mean = math.fsum(logs) / len(logs)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    return {
        "id": int(row[0]),
        "log_p": math.log(share) if share else None,
        "spread": spread,
        "runs": len(logs),
    }
