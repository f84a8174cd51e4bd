"""Probabilistic robustness, from the number of correctly classified noisy copies of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rbtools.evaluation import noise_names
from rbtools.evaluation.accuracy import Clean
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.noisy_copies import Copies, sample_copies
from rbtools.evaluation.spec import Entry, Evaluation, Spec, confidence_of, method_key, rebuilt
from rbtools.lazy import np, torch
from rbtools.probabilistic import NOISES, estimate, sequential
from rbtools.probabilistic.estimate import Estimator
from rbtools.records import metric_name
from rbtools.records.results import is_number
from rbtools.registry import param

if TYPE_CHECKING:
    from typing_extensions import Self

    from rbtools.probabilistic.distributions import Noise


@dataclass(frozen=True, kw_only=True)
class Noisy(Spec):
    """PR_D at one radius or, with `rho`, ProbAcc at this tolerated failure rate; both use the same rows.

    A row is the number of correctly classified noisy copies of an example, or -1 for an excluded example.
    """

    names = (noise_names.PR, noise_names.PROB_ACC)

    noise: Noise
    gamma: float = param(0.1, "The radius, for pixels in [0, 1].", check="non-negative")
    samples: int = param(100, "Number of noisy copies of each image.", check="positive")
    rho: float | None = param(None, "The tolerated failure rate.", check="fraction")
    denominator: str = param("correct", "Which images count.", choices=("correct", "all"))
    passes: str = param(
        "at-least",
        "An image passes if PR >= 1 - rho (at-least) or if PR > 1 - rho (above).",
        choices=("at-least", "above"),
    )
    confidence: float = param(0.95, "The confidence of the interval.", bounds="(0, 1)")
    searches = True

    @property
    def read(self) -> Estimator:
        return _estimator([self])

    @property
    def most_passes(self) -> int:
        return 1 + self.samples

    def name(self) -> str:
        if self.rho is None:
            return metric_name.pr_name(self.noise.stem, self.gamma, self.denominator)
        return metric_name.prob_acc_name(self.noise.stem, self.gamma, self.rho, self.denominator)

    def column(self) -> Entry:
        return {
            **method_key("pr", "noise", self.noise),
            "gamma": self.gamma,
            "samples": self.samples,
            **({"counted": "all"} if self.denominator == "all" else {}),
        }

    @classmethod
    def reading(cls, specs: Sequence[Self]) -> Entry:
        return {**asdict(_estimator(specs)), "intervals": estimate.INTERVALS}

    def rule(self) -> Entry:
        """The stopping rule, as fields for the store key and the record."""
        return {}

    def rules(self) -> list[sequential.Rule]:
        """The rules that decide when to stop sampling an example, one for each tolerated rate."""
        return []

    def settings(self) -> Entry:
        settings = {"gamma": self.gamma, "samples": self.samples, **self.noise.settings, **self.rule()}
        settings["denominator"] = self.denominator
        return settings | ({} if self.rho is None else {"rho": self.rho, "criterion": self.read.criterion})

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        exact = {}
        if totals.get("copies") and "confirmed" in totals:
            # The share of the copies that the float32 model decided because they were nearly tied.
            exact["confirmed"] = round(totals["confirmed"] / totals["copies"], 4)
        return self.estimates(rows) | exact

    def estimates(self, rows: np.ndarray) -> Entry:
        """The value and interval, computed from the rows."""
        return estimate.findings(rows, self.read, self.samples, self.rho)

    def correct(self, rows: np.ndarray) -> np.ndarray:
        return rows == self.samples

    def counts(self, rows: np.ndarray) -> np.ndarray | None:
        if self.rho is None:
            return None  # PR_D is a mean over copies
        return (rows >= 0) & (self.samples - rows <= self.read.allowed(self.samples, self.rho))

    def by_draws(self, draws: int) -> Self:
        return self  # each noisy copy already has its own random pass

    def of_copies(self, copies: Copies) -> Outcome:
        return Outcome(copies.right, copies.totals)

    @classmethod
    def rows_together(cls, specs: Sequence[Self], batch: Batch) -> list[Outcome]:
        """The specs of one noise use the same noise samples at all radii."""
        groups: dict[Any, list[Self]] = {}
        for spec in specs:
            groups.setdefault((spec.noise, spec.samples, repr(spec.rule())), []).append(spec)
        found: dict[Self, Outcome] = {}
        for first, *more in groups.values():
            every = [first, *more]
            gammas = list(dict.fromkeys(spec.gamma for spec in every))
            everyone = any(spec.denominator == "all" for spec in every)
            counted = sample_copies(batch, first.noise, gammas, first.samples, first.rules(), everyone)
            copies = dict(zip(gammas, counted, strict=True))
            for spec in every:
                counts = copies[spec.gamma]
                if everyone and spec.denominator == "correct":
                    counts = counts._replace(right=counts.right.where(batch.clean, -1))
                found[spec] = spec.of_copies(counts)
        return [found[spec] for spec in specs]

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        if "gamma" not in entry or "particles" in entry or ("stopping" in entry) != issubclass(cls, Decided):
            return None
        noise = rebuilt(NOISES, entry.get("noise"), entry)
        named: Entry = {name: entry[name] for name in ("samples", "denominator") if name in entry}
        if noise is None or len(named) < 2:
            return None
        above = str(entry.get("criterion", "")).startswith("PR > ")
        named |= {"rho": entry.get("rho"), "passes": "above" if above else "at-least"}
        named["confidence"] = confidence_of(entry)
        return cls(noise=noise, gamma=entry["gamma"], **named | cls.rule_of(entry))

    @classmethod
    def rule_of(cls, entry: Mapping[str, Any]) -> Entry:
        return {}


def _estimator(specs: Sequence[Noisy]) -> Estimator:
    """The settings of the estimate, which are the same for all these specs except for the tolerated rate."""
    last, rates = specs[-1], tuple(spec.rho for spec in specs if spec.rho is not None)
    rated = next((spec for spec in specs if spec.rho is not None), last)  # entries of PR_D lack `passes`
    return Estimator(rho=rates, denominator=last.denominator, passes=rated.passes, confidence=last.confidence)


@dataclass(frozen=True, kw_only=True)
class Decided(Noisy):
    """ProbAcc with early stopping, which stops sampling when it is decided whether an example passes.

    With `adaptive`, the sequential test decides. Without `adaptive`, sampling stops when the remaining
    samples cannot change the decision. `rates` are the rates that are decided together; a decision does not
    depend on the other rates. A row contains the number of correctly classified copies (-1 for an excluded
    image), the number of samples and, for each rate, a verdict: 1 (passes), 0 (fails) or -1 (undecided).
    """

    rho: float = param(0.1, "The tolerated failure rate.", check="fraction")
    adaptive: bool = False
    rates: tuple[float, ...] = field(default=(), compare=False)

    @property
    def decided(self) -> tuple[float, ...]:
        return self.rates or (self.rho,)

    @classmethod
    def joined(cls, specs: Sequence[Self]) -> list[Self]:
        alike: dict[Any, list[Self]] = {}
        for spec in specs:
            alike.setdefault(replace(spec, rho=0.0), []).append(spec)
        rates = {key: tuple(dict.fromkeys(spec.rho for spec in some)) for key, some in alike.items()}
        return [replace(spec, rates=rates[replace(spec, rho=0.0)]) for spec in specs]

    def rule(self) -> Entry:
        if not self.adaptive:
            return {"stopping": "exact: when no further draw can change the verdict"}
        error = round(1 - self.confidence, 12)
        return {"stopping": "sequential: anytime-valid bet against PR = 1 - rho", "error": error}

    def column(self) -> Entry:
        rows = {"rho": list(self.decided), "passes": self.passes, **self.rule()}
        return {**super().column(), "kind": "pr-decided", **rows}

    def rules(self) -> list[sequential.Rule]:
        if self.adaptive:
            return [sequential.anytime(self.samples, rho, self.confidence) for rho in self.decided]
        above = self.passes == "above"
        return [sequential.fixed(self.samples, rho, above) for rho in self.decided]

    def estimates(self, rows: np.ndarray) -> Entry:
        read = replace(self.read, rho=self.decided)
        found = estimate.stopped_findings(rows, read, self.samples, self.adaptive)
        return found[self.decided.index(self.rho)]

    def counts(self, rows: np.ndarray) -> np.ndarray | None:
        right, drawn, decision = rows[:, 0], rows[:, 1], rows[:, 2 + self.decided.index(self.rho)]
        most = [self.read.allowed(int(draws), self.rho) for draws in drawn]
        return (right >= 0) & np.where(decision < 0, drawn - right <= most, decision == 1)

    def of_copies(self, copies: Copies) -> Outcome:
        rows = torch.cat([copies.right[:, None], copies.drawn[:, None], copies.decisions], dim=1)
        return Outcome(rows.float(), copies.totals)

    @classmethod
    def rule_of(cls, entry: Mapping[str, Any]) -> Entry:
        adaptive, error = str(entry["stopping"]).startswith("sequential"), entry.get("error")
        sure = {"confidence": round(1 - error, 12)} if adaptive and is_number(error) else {}
        return {"adaptive": adaptive, **sure}


def noisy(
    noise: Noise,
    gammas: Sequence[float],
    read: Estimator,
    samples: int,
    only_passing: bool = False,
    adaptive: bool = False,
) -> Evaluation:
    """Probabilistic robustness at some radii, which use the same noise samples, and clean accuracy.

    With `only_passing`, only ProbAcc is computed, so sampling may stop early; with `adaptive`, the sequential
    test decides when it stops. Otherwise, if the estimator's denominator is "both", PR_D over all images is
    added to the entries over the images classified correctly without noise.
    """
    given: dict[str, Any] = {"noise": noise, "samples": samples, "passes": read.passes}
    given["confidence"] = read.confidence
    both = read.denominator == "both"
    of_rates = {**given, "denominator": "correct" if both else read.denominator}
    specs: list[Noisy] = []
    if only_passing or adaptive:
        of_rates |= {"rates": read.rho, "adaptive": adaptive}
        for gamma in gammas:
            specs += [Decided(gamma=gamma, rho=rho, **of_rates) for rho in read.rho]
    else:
        for gamma in gammas:
            specs += [Noisy(gamma=gamma, rho=rho, **of_rates) for rho in (None, *read.rho)]
        specs += [Noisy(gamma=gamma, denominator="all", **given) for gamma in gammas if both]
    return Evaluation(title=f"{noise.name} noise", specs=tuple(specs), along=(Clean(),))
