"""Probabilistic robustness: the sampling of noisy copies, the number of correct copies, and the entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.attacks.active_examples import check_schedule, uploaded
from rbtools.attacks.losses import best_other, of_class
from rbtools.evaluation import noise_names
from rbtools.evaluation.accuracy import Clean
from rbtools.evaluation.base import Batch, Outcome, batch_size
from rbtools.evaluation.spec import Entry, Evaluation, Spec, confidence_of, method_key, rebuilt
from rbtools.lazy import np, torch
from rbtools.probabilistic import NOISES, estimate, sequential
from rbtools.probabilistic.estimate import Estimator
from rbtools.records import metric_name
from rbtools.records.results import is_number
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.probabilistic.distributions import Noise

# A decision of the fast model is accepted if its margin is larger than this multiple of the largest margin
# error among the first copies, which both models evaluate: 5 or 6 standard deviations of the error. For a
# ResNet-18 in bf16, the float32 model then decides 4 % of the copies.
_SAFETY = 2.0
_COMPARED = 64


@dataclass(frozen=True, kw_only=True)
class Noisy(Spec):
    """PR_D at one radius or, with `rho`, ProbAcc at this tolerated failure rate, from the same rows.

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
        """The rules by which the sampling of an example stops, one for each tolerated rate."""
        return []

    def settings(self) -> Entry:
        settings = {"gamma": self.gamma, "samples": self.samples, **self.noise.settings, **self.rule()}
        settings["denominator"] = self.denominator
        return settings | ({} if self.rho is None else {"rho": self.rho, "criterion": self.read.criterion})

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        exact = {}
        if totals.get("copies") and "confirmed" in totals:
            # The share of the copies that the float32 model decided because they were near a tie.
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
    """The settings of the estimate that these specs share; they differ only in the tolerated rate."""
    last, rates = specs[-1], tuple(spec.rho for spec in specs if spec.rho is not None)
    rated = next((spec for spec in specs if spec.rho is not None), last)  # entries of PR_D lack `passes`
    return Estimator(rho=rates, denominator=last.denominator, passes=rated.passes, confidence=last.confidence)


@dataclass(frozen=True, kw_only=True)
class Decided(Noisy):
    """ProbAcc with early stopping: sampling stops when it is decided whether an example passes.

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


class Copies(NamedTuple):
    """The result of sampling for each example at one radius.

    `right` is the number of copies classified correctly, int64 (N,), or -1 for an example that was not
    sampled. `drawn` is the number of samples, int64 (N,). `decisions` is int64 (N, R): for each rule 1
    (passed), 0 (failed) or -1 (undecided). `totals` are sums over the examples.
    """

    right: Tensor
    drawn: Tensor
    decisions: Tensor
    totals: dict[str, float]


def sample_copies(
    batch: Batch,
    noise: Noise,
    gammas: Sequence[float],
    samples: int,
    rules: Sequence[sequential.Rule] = (),
    everyone: bool = False,
) -> list[Copies]:
    """Count at each radius the noisy copies, of `samples` for each example, that are classified correctly.

    All radii use the same unit samples, scaled by the radius. Curves over the radius are therefore smooth,
    and each unit sample is computed only once. With rules, an example is sampled at a radius until all rules
    have decided, and later samples do not count. The result therefore does not depend on the batch. Only the
    examples classified correctly without noise are sampled, or all examples if `everyone` is true. At radius
    0, a copy is the example itself, and no noise is sampled.
    """
    chosen = torch.ones_like(batch.clean) if everyone else batch.clean
    part = batch if bool(chosen.all()) else batch.take(chosen)
    radii = [_Radius(part, gamma, rules) for gamma in gammas]
    clean = batch.clean[chosen]
    for radius in radii:
        if radius.gamma == 0:
            radius.right, radius.open = clean * samples, torch.zeros_like(clean)
            radius.decisions[:] = clean[:, None].long()
    if len(part.ids):
        _sample(part, noise, radii, samples)
    return [radius.copies(chosen) for radius in radii]


def _sample(part: Batch, noise: Noise, radii: Sequence[_Radius], samples: int) -> None:
    """Sample until every radius has all its copies or is decided. Only one batch of copies is in memory."""
    draws, shape = part.draws(f"noise.{noise.stem}"), tuple(part.images.shape[1:])
    everybody = torch.arange(len(part.ids), device=part.ids.device)
    draw = 0
    while draw < samples:
        rows = everybody
        if any(radius.rules for radius in radii):
            rows = torch.stack([radius.open for radius in radii]).any(0).nonzero()[:, 0]
        elif not any(radius.gamma for radius in radii):
            return
        if not len(rows):
            return
        # with few examples, several copies of each form a batch
        block = min(samples - draw, max(1, batch_size(rows.device, shape) // len(rows)))
        mine = draws if len(rows) == len(everybody) else draws.take(rows)
        units = torch.stack([noise.unit(mine, shape, draw + i) for i in range(block)])
        for radius in radii:
            radius.see(noise, rows, units, draw)
        draw += block


class _Unsure(NamedTuple):
    """A block of copies `noisy` (N, C, H, W). `copies`, bool (N,), marks the copies that the exact model has
    to decide. `rows`, int64 (N,), are the positions of the copied examples in the batch."""

    noisy: Tensor
    copies: Tensor
    rows: Tensor


class _Radius:
    def __init__(self, batch: Batch, gamma: float, rules: Sequence[sequential.Rule]) -> None:
        self.batch, self.gamma = batch, gamma
        self.rules = [[torch.as_tensor(table, device=batch.ids.device) for table in rule] for rule in rules]
        self.right = torch.zeros_like(batch.labels)
        self.drawn = torch.zeros_like(batch.labels)
        self.decisions = torch.full((len(batch.ids), len(rules)), -1, device=batch.ids.device)
        self.open = torch.ones_like(batch.labels, dtype=torch.bool)
        self.classifier = _Classifier()
        self.unsure: list[_Unsure] = []

    def see(self, noise: Noise, rows: Tensor, units: Tensor, first: int) -> None:
        """Classify a block of noise samples, whose numbers start at `first`. `units` (B, M, C, H, W) are the
        unit samples of the examples in `rows` (M,)."""
        if self.gamma == 0:
            return
        whole = not self.rules and len(rows) == len(self.batch.ids)
        if self.rules:
            mine = self.open[rows]
            if not bool(mine.all()):
                rows, units = rows[mine], units[:, mine]
            if not len(rows):
                return
        block = len(units)
        copied = self.batch if whole and block == 1 else self.batch.take(rows.repeat(block))
        if copied.draw is not None:  # a randomised model has its own random pass for each copy
            numbers = torch.arange(first, first + block, device=rows.device)
            copied = replace(copied, draw=numbers.repeat_interleave(len(rows)))
        noisy = noise.apply(copied.images, units.flatten(0, 1), self.gamma)
        if not self.rules:
            right, unsure = self.classifier.search(copied, noisy)
            self.right[rows] += (right & ~unsure).view(block, len(rows)).sum(0)
            self.drawn[rows] += block
            self.unsure.append(_Unsure(noisy, unsure, rows.repeat(block)))
            if len(self.unsure) >= check_schedule(rows.device).every:
                self._settle()
            return
        right = self.classifier.right(copied, noisy).view(block, len(rows))
        counted = self._decide(rows, right)
        self.right[rows] += (right & counted).sum(0)
        self.drawn[rows] += counted.sum(0)

    def _decide(self, rows: Tensor, right: Tensor) -> Tensor:
        """Apply the rules to a block (B, M), one sample after the other. Returns bool (B, M): true for the
        samples up to the decision, which count."""
        block = len(right)
        number = torch.arange(1, block + 1, device=rows.device)[:, None]
        drawn = self.drawn[rows] + number
        failed = (self.drawn - self.right)[rows] + (~right).cumsum(0)
        last = torch.zeros_like(rows)  # the sample of this block at which the last rule decided
        for place, (passes, fails) in enumerate(self.rules):
            here = failed.clamp(max=len(passes) - 1)
            passed, lost = drawn >= passes[here], drawn <= fails[here]
            decided = passed | lost
            first = decided.long().argmax(0)
            decision = torch.where(decided.any(0), passed.gather(0, first[None])[0].long(), -1)
            previous = self.decisions[rows, place]
            self.decisions[rows, place] = torch.where(previous >= 0, previous, decision)
            at = torch.where(decided.any(0), first, block)
            last = torch.maximum(last, torch.where(previous >= 0, 0, at))
        self.open[rows] = last >= block
        return number <= (last + 1)

    def _settle(self) -> None:
        """Count the copies that the exact model has to decide. Data are read from the device only once."""
        left, self.unsure = self.unsure, []
        if not left:
            return
        sizes = [len(block.copies) for block in left]
        unsure = torch.cat([block.copies for block in left]).cpu()  # waits for a GPU
        places = [mine.nonzero()[:, 0] for mine in unsure.split(sizes)]
        pairs = zip(left, places, strict=True)
        chosen = [(block, uploaded(at, block.rows.device)) for block, at in pairs if len(at)]
        if chosen:
            rows = torch.cat([block.rows[at] for block, at in chosen])
            noisy = torch.cat([block.noisy[at] for block, at in chosen])
            self.right.index_add_(0, rows, self.classifier.confirm(self.batch.take(rows), noisy).long())

    def copies(self, chosen: Tensor) -> Copies:
        """The counts and decisions for all examples of the batch; -1 for examples that were not sampled."""
        self._settle()
        right = torch.full_like(chosen, -1, dtype=torch.int64)
        drawn = torch.zeros_like(right)
        decisions = right[:, None].repeat(1, self.decisions.shape[1])
        right[chosen], drawn[chosen], decisions[chosen] = self.right, self.drawn, self.decisions
        return Copies(right, drawn, decisions, self.classifier.totals())


class _Classifier:
    """Classifies copies with the fast model and, if the logits are nearly tied, with the exact model."""

    def __init__(self) -> None:
        self.error: Tensor | None = None
        self.seen = 0
        self.confirmed = 0

    def right(self, batch: Batch, noisy: Tensor) -> Tensor:
        """Whether each copy in `noisy` is classified correctly: bool (N,)."""
        right, unsure = self.search(batch, noisy)
        rows = unsure.nonzero()[:, 0]  # the only read that waits for a GPU
        if len(rows):
            right[rows] = self.confirm(batch.take(rows), noisy[rows])
        return right

    def search(self, batch: Batch, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each copy is classified correctly, and whether the exact model has to decide, because the
        fast model's margin is small or not finite: bool (N,) each."""
        self.seen += len(noisy)
        if batch.fast_model is batch.model:
            logits = batch.unchecked_logits(noisy)
            return logits.argmax(1).eq(batch.labels), ~logits.isfinite().all(1)
        margins = margin(batch.outputs(batch.fast_model, noisy), batch.labels)
        if self.error is None:  # the largest error of the first copies
            first = batch.take(slice(0, _COMPARED))
            exact = margin(first.logits(noisy[:_COMPARED]), first.labels)
            self.error = (margins[:_COMPARED] - exact).abs().max()
            self.confirmed += len(exact)
        return margins > 0, ~(margins.abs() > _SAFETY * self.error)  # true for NaN, too

    def confirm(self, batch: Batch, noisy: Tensor) -> Tensor:
        """Whether the exact model classifies each copy correctly: bool (N,)."""
        self.confirmed += len(noisy)
        return batch.correct(noisy)

    def totals(self) -> dict[str, float]:
        exact = {"confirmed": float(self.confirmed)} if self.error is not None else {}
        return {"forward": float(self.seen + self.confirmed), "backward": 0.0, "copies": self.seen, **exact}


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the label minus the largest other logit, float32 (N,)."""
    return of_class(logits.float(), labels) - best_other(logits.float(), labels)
