"""Tasks of probabilistic robustness: outputs that count noisy copies, and their entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.evaluation import sampling
from rbtools.evaluation.base import EvalTask, Outcome, Output
from rbtools.evaluation.tasks import CleanOutput
from rbtools.lazy import np, torch
from rbtools.probabilistic import estimate, sequential
from rbtools.probabilistic.estimate import Estimator
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.base import Batch
    from rbtools.evaluation.sampling import Copies
    from rbtools.probabilistic.distributions import Noise


@dataclass(frozen=True)
class NoisyCopiesOutput(Output):
    """The number of correct noisy copies of an example; -1 for an excluded example."""

    noise: Noise
    gamma: float
    samples: int
    read: Estimator
    allow_fast_model = True

    def key_fields(self) -> dict[str, Any]:
        return {
            "kind": "pr",
            "noise": self.noise.name,
            "version": self.noise.version,
            "config": registry.config(self.noise),
            "gamma": self.gamma,
            "samples": self.samples,
            **({"counted": "all"} if self.read.denominator == "all" else {}),
        }

    def postprocess_key(self) -> dict[str, Any]:
        return {**asdict(self.read), "intervals": estimate.INTERVALS}

    def entry_template(self) -> list[dict[str, Any]]:
        return _templates(self)

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        findings = estimate.findings(outcomes, self.read, self.samples)
        return [
            template | own | _confirmed(totals)
            for template, own in zip(self.entry_template(), findings, strict=True)
        ]

    def correct(self, outcomes: np.ndarray) -> np.ndarray:
        """Which examples are classified correctly in every copy."""
        correct: np.ndarray = outcomes == self.samples
        return correct

    def outcome(self, copies: Copies) -> Outcome:
        """The outcomes of a batch."""
        return Outcome(copies.right, copies.totals)


@dataclass(frozen=True)
class SequentialOutput(Output):
    """Whether an example passes at each tolerated failure rate; sampling stops when that is decided.

    adaptive: by the sequential test, else as soon as the remaining draws cannot change the decision. A row is
    correct copies (-1: excluded), draws, and for each rate 1, 0 or -1 (undecided).
    """

    noise: Noise
    gamma: float
    samples: int
    read: Estimator
    adaptive: bool
    allow_fast_model = True

    def rule(self) -> dict[str, Any]:
        """The stopping rule, for key and record."""
        if not self.adaptive:
            return {"stopping": "exact: when no further draw can change the verdict"}
        error = round(1 - self.read.confidence, 12)
        return {"stopping": "sequential: anytime-valid bet against PR = 1 - rho", "error": error}

    def key_fields(self) -> dict[str, Any]:
        copied = NoisyCopiesOutput(self.noise, self.gamma, self.samples, self.read).key_fields()
        rows = {"rho": list(self.read.rho), "passes": self.read.passes, **self.rule()}
        return {**copied, "kind": "pr-decided", **rows}

    def postprocess_key(self) -> dict[str, Any]:
        return {**asdict(self.read), "intervals": estimate.INTERVALS}

    def rules(self) -> list[sequential.Rule]:
        if self.adaptive:
            return [sequential.anytime(self.samples, rho, self.read.confidence) for rho in self.read.rho]
        above = self.read.passes == "above"
        return [sequential.fixed(self.samples, rho, above) for rho in self.read.rho]

    def entry_template(self) -> list[dict[str, Any]]:
        return _templates(self, **self.rule())[1:]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        findings = estimate.stopped_findings(outcomes, self.read, self.samples, self.adaptive)
        return [
            template | own | _confirmed(totals)
            for template, own in zip(self.entry_template(), findings, strict=True)
        ]

    def outcome(self, copies: Copies) -> Outcome:
        """The rows of a batch."""
        rows = torch.cat([copies.right[:, None], copies.drawn[:, None], copies.decisions], dim=1)
        return Outcome(rows.float(), copies.totals)


@dataclass(frozen=True)
class NoiseTask(EvalTask):
    """Probabilistic robustness at some radii, from draws that the radii share.

    only_passing: only ProbAcc, so that sampling may stop early; adaptive: by the sequential test. The
    estimator's denominator "both" adds PR_D over all images to the entries over the images classified
    correctly without noise, from the same draws; with only_passing it adds nothing.
    """

    noise: Noise
    gammas: tuple[float, ...]
    read: Estimator
    samples: int
    only_passing: bool = False
    adaptive: bool = False

    @property
    def title(self) -> str:
        return f"{self.noise.name} noise"

    def outputs(self) -> Sequence[Output]:
        both = self.read.denominator == "both"
        read = replace(self.read, denominator="correct") if both else self.read
        if self.only_passing or self.adaptive:
            decided = [
                SequentialOutput(self.noise, gamma, self.samples, read, self.adaptive)
                for gamma in self.gammas
            ]
            return [CleanOutput(), *decided]
        reads = [read, replace(read, denominator="all", rho=())] if both else [read]
        counts = [
            NoisyCopiesOutput(self.noise, gamma, self.samples, r) for r in reads for gamma in self.gammas
        ]
        return [CleanOutput(), *counts]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor | Outcome]:
        noisy: list[Any] = [output for output in wanted if not isinstance(output, CleanOutput)]
        gammas = list(dict.fromkeys(output.gamma for output in noisy))
        rules = noisy[0].rules() if noisy and isinstance(noisy[0], SequentialOutput) else ()
        everyone = any(output.read.denominator == "all" for output in noisy)
        counted = sampling.copies(batch, self.noise, gammas, self.samples, rules, everyone)
        copies = dict(zip(gammas, counted, strict=True))

        def outcome(output: Output) -> Tensor | Outcome:
            if not isinstance(output, NoisyCopiesOutput | SequentialOutput):
                return batch.clean.int()
            own = copies[output.gamma]
            if everyone and output.read.denominator == "correct":
                own = own._replace(right=own.right.where(batch.clean, -1))
            return output.outcome(own)

        return [outcome(output) for output in wanted]


def _templates(output: NoisyCopiesOutput | SequentialOutput, **more: object) -> list[dict[str, Any]]:
    """The entries of a radius without results: PR_D, then ProbAcc for each rho."""
    read, stem, gamma = output.read, output.noise.stem, output.gamma
    settings = {"gamma": gamma, "samples": output.samples, **output.noise.settings, **more}
    settings["denominator"] = read.denominator
    entries = [{"metric": metric_name.pr_name(stem, gamma, read.denominator), **settings}]
    for rho in read.rho:
        name = metric_name.prob_acc_name(stem, gamma, rho, read.denominator)
        entries.append({"metric": name, **settings, "rho": rho, "criterion": read.criterion})
    return entries


def _confirmed(totals: Mapping[str, float]) -> dict[str, Any]:
    """The share of the copies that the float32 model decided because they were near a tie."""
    if not totals.get("copies") or "confirmed" not in totals:
        return {}
    return {"confirmed": round(totals["confirmed"] / totals["copies"], 4)}
