"""Attacks that need a record, or several attacks: transfer from another model, tests for masked gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.errors import RbError
from rbtools.evaluation import tasks
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output
from rbtools.evaluation.tasks import AttackOutput, CleanOutput
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import data_of
from rbtools.jobs import evaluate_record
from rbtools.records import metric_name, results

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, device, nn

    from rbtools.attacks.base import Attack
    from rbtools.probabilistic.distributions import Noise

# the fields that loading a model needs besides the checkpoint
DESCRIBES = ("arch", "dataset", "checkpoint_file")
BEYOND = (16.0, 32.0, 64.0, 128.0, 255.0)
METRIC = "obfuscation.failed"


# --- transfer attacks: adversarial examples of one model, evaluated on another ----------------------


@dataclass(frozen=True)
class TransferOutput(AttackOutput):
    """Which examples stay correctly classified when the attack runs on another checkpoint's model."""

    source: str = ""
    source_model: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def allow_fast_model(self) -> bool:
        """The attack runs on the source in float32; the fast model would have nothing to do."""
        return False

    @property
    def metric(self) -> str:
        return f"transfer.{super().metric}"

    def key_fields(self) -> dict[str, Any]:
        return {**super().key_fields(), "source": self.source}

    def entry_template(self) -> list[dict[str, Any]]:
        about = {"source": self.source, "source_model": dict(self.source_model)}
        return [{**entry, **about} for entry in super().entry_template()]


@dataclass(frozen=True)
class TransferTask(EvalTask):
    """Accuracy on the adversarial examples of a source: another record's model.

    source: the record, as JSON. Every example that the evaluated model classifies correctly is attacked on
    the source, at each eps.
    """

    method: Any
    eps: tuple[float, ...]
    source: str
    context: Run

    @property
    def title(self) -> str:
        return f"transfer of {self.method.stem}"

    def outputs(self) -> Sequence[Output]:
        record = orjson.loads(self.source)
        name = resolve.checkpoint_name(record, self.context)
        model = {key: record[key] for key in DESCRIBES if key in record}
        attacked = [
            TransferOutput(replace(self.method, eps=eps), source=name, source_model=model) for eps in self.eps
        ]
        return [CleanOutput(), *attacked]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> Sequence[Tensor | Outcome]:
        outcomes: list[Any] = []
        for output in wanted:
            if isinstance(output, TransferOutput):
                source = _loaded(self.source, self.context, batch.images.device)
                result = tasks.run_attack(batch, output.method, on=source)
                outcomes.append(Outcome(result.survived, result.totals))
            else:
                outcomes.append(batch.clean)
        return outcomes


# The last source model and its key: the model is loaded once for all records and batches.
_last: list[tuple[Any, nn.Module]] = []


def _loaded(source: str, run: Run, where: device) -> nn.Module:
    """The source's model in eval mode, its parameters frozen."""
    key = (
        source,
        run.selection.dataset,
        run.selection.split,
        run.selection.data_dir,
        run.selection.class_map,
        run.store.folder,
        where,
    )
    if not _last or _last[0][0] != key:
        record = orjson.loads(source)
        try:
            bare = run.changed(defend=None)
            model = resolve.load_model(record, data_of(record, run), bare, where)
        except RbError as wrong:
            raise RbError(f"The model of --from cannot be attacked. {wrong}") from None
        _last[:] = [(key, model)]
    return _last[0][1]


# --- five tests for masked gradients (NAS-RobBench-201, tables 4 and 5) ------------------------------


@dataclass(frozen=True)
class MaskingOutput(Output):
    """Which examples random points break although PGD does not."""

    noise: AttackOutput
    pgd: AttackOutput
    implicit = True
    needs_other_outputs = True

    def key_fields(self) -> dict[str, Any]:
        return {"kind": "missed", "noise": self.noise.key_fields(), "pgd": self.pgd.key_fields()}

    @property
    def allow_fast_model(self) -> bool:
        return True

    def entry_template(self) -> list[dict[str, Any]]:
        return [{"metric": "obfuscation.missed"}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        n = len(outcomes)
        return [entry | {"n": n, "value": int(outcomes.sum()) / n} for entry in self.entry_template()]


@dataclass(frozen=True)
class GradientMaskingTask(EvalTask):
    """FGSM, PGD from this eps up to the whole range, Square and random points, on the same images."""

    eps: float
    pgd: Any
    fgsm: Any
    square: Any
    noise: Noise
    title = "obfuscation checklist"

    @property
    def distances(self) -> tuple[float, ...]:
        """The eps of PGD: this one, and those of 16, 32, 64, 128 and 255 /255 that are larger."""
        return (self.eps, *(level / 255 for level in BEYOND if level / 255 > self.eps))

    def outputs(self) -> Sequence[Output]:
        pgd = [AttackOutput(replace(self.pgd, eps=eps)) for eps in self.distances]
        single = [
            AttackOutput(replace(method, eps=self.eps)) for method in (self.fgsm, self.square, self.noise)
        ]
        return [CleanOutput(), *pgd, *single, MaskingOutput(single[-1], pgd[0])]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> Sequence[Tensor | Outcome]:
        outcomes: dict[Any, Any] = dict(batch.precomputed)
        for output in wanted:
            if isinstance(output, AttackOutput):
                result = tasks.run_attack(batch, output.method)
                outcomes[output] = Outcome(result.survived, result.totals)
            elif isinstance(output, MaskingOutput):
                parts = (outcomes[part] for part in (output.noise, output.pgd))
                noise, pgd = (part.values if isinstance(part, Outcome) else part for part in parts)
                outcomes[output] = pgd.bool() & ~noise.bool()
            else:
                outcomes[output] = batch.clean
        return [outcomes[output] for output in wanted]


def run_gradient_masking(record: dict[str, Any], task: GradientMaskingTask, run: Run) -> dict[str, Any]:
    """The record with the accuracies that the tests compare, and `obfuscation.failed`: how many fail."""
    inputs = resolve_inputs(record, run)
    expected = evaluate_record.expected_entries(inputs, task)
    evaluate_record.check_entries(inputs.record, [*expected, _checklist_entry(task, expected[0], run)], run)
    record, requested, implicit_entries = evaluate_record.measured_entries(inputs, task)
    for entry in implicit_entries:
        if entry["metric"] == "acc":
            record = results.add_implicit(record, entry)
    record = evaluate_record.add_entries(record, requested, run)
    missed = next(entry for entry in implicit_entries if entry["metric"].endswith("obfuscation.missed"))
    values = {entry["metric"]: entry["value"] for entry in requested}
    tests = list(_tests(task, values, missed["value"], run.selection.split))
    failed = [test for test in tests if not test["holds"]]
    for test in failed:
        run.report.notify(f"obfuscation check {test['test']} fails: {test['says']}.")
    entry = _checklist_entry(task, requested[0], run) | {"value": len(failed), "tests": tests}
    return results.add(record, entry, replace=run.replace)


def _checklist_entry(task: GradientMaskingTask, first: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The checklist's own entry without its results; shared fields come from the `first` of the others."""
    shared = ("n", "split", "seed", "draws", "defend", "backward")
    shared_costs = ("device", "precision", "environment", "prepared")
    return {
        **run.labels,
        "metric": metric_name.split_name(METRIC, run.selection.split),
        **{key: first[key] for key in (*shared, *shared_costs) if key in first},
        "eps": task.eps,
    }


def _tests(
    task: GradientMaskingTask, value: Mapping[str, float], missed: float, split: str
) -> list[dict[str, Any]]:
    """Each test, whether it holds, and its margin (positive if it holds)."""

    def named(method: Attack, eps: float) -> str:
        return metric_name.split_name(metric_name.attack_name(method.stem, eps), split)

    pgd = named(task.pgd, task.eps)
    fgsm, square = named(task.fgsm, task.eps), named(task.square, task.eps)
    ladder = [named(task.pgd, eps) for eps in task.distances]
    rises = [value[later] - value[sooner] for sooner, later in itertools.pairwise(ladder)]
    steepest = max(rises, default=0.0)
    end = ladder[-1]
    return [
        _test("a", f"{fgsm} >= {pgd}", value[fgsm] - value[pgd]),
        _test("b", f"{square} >= {pgd}", value[square] - value[pgd]),
        _test("c", f"{end} is 0", -value[end]),
        _test("d", f"PGD's accuracy never rises with the distance ({', '.join(ladder)})", -steepest),
        _test("e", "random points break nothing that PGD leaves", -missed),
    ]


def _test(name: str, says: str, margin: float) -> dict[str, Any]:
    holds = margin >= 0
    short = "" if holds else f", but it is not so by {-margin:.4g}"
    return {"test": name, "says": f"{says}{short}", "holds": holds, "by": round(margin, 6) + 0.0}
