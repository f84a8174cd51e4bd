"""Measures of a record's network: the request, the keys in the store, and the entries.

A measure is computed on one split, with freshly initialised weights or with the record's checkpoint. A key in
the store holds all values of a measure on these weights and this split under one attack.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.attacks import ATTACKS
from rbtools.datasets import indices
from rbtools.errors import RbError, UsageError
from rbtools.execution import resources
from rbtools.execution.device import choose, environment
from rbtools.execution.run import Run
from rbtools.inputs import queried, resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import Data, InMemory, data_of, named_data
from rbtools.jobs import SplitJob, measure_batches
from rbtools.jobs.evaluate_record import add_entries
from rbtools.jobs.measure_batches import MeasureItem, arch_of
from rbtools.jobs.stored_results import image_list, keep_entries, stored_entries
from rbtools.probabilistic import intervals
from rbtools.records import metric_name, results, schema
from rbtools.rng import seed_fields
from rbtools.spaces.identity import identity
from rbtools.store import digest
from rbtools.trainer.validation import trained_on

if TYPE_CHECKING:
    from rbtools.measures.base import Measure, Value


VERSION = 1
BY_GRADIENT = ("fgsm", "pgd")  # the attacks that can perturb batches


@dataclass(frozen=True)
class MeasureJob(SplitJob):
    """The measures to compute, and their weights and images.

    `attacks` are the attacks that perturb batches, each with its eps. `eps` is for measures that have their
    own eps. If `on` is "auto", each measure is computed on the weights for which it is defined. If `on` is
    "both", fresh weights and the checkpoint (if there is one) are measured. If `splits`, `batches` or
    `batch_size` is None, the value is the measure's own default. `batchnorm` selects the statistics of
    BatchNorm ("batch", "image" or "running") in measures that support more than running statistics. If
    `batchnorm` is None, fresh weights have the measure's own statistics and trained weights have running
    statistics.
    """

    measures: tuple[Any, ...]
    attacks: tuple[Any, ...] = ()
    eps: tuple[float, ...] = (8 / 255,)
    on: str = "auto"
    splits: tuple[str, ...] | None = None
    batches: int | None = None
    batch_size: int | None = None
    init_seed: int = 0
    batchnorm: str | None = None

    def __post_init__(self) -> None:
        if self.batchnorm in (None, "running") or any(measure.batchnorm for measure in self.measures):
            return
        names = ", ".join(measure.name for measure in self.measures)
        raise UsageError(
            f"--batchnorm {self.batchnorm} has no effect on {names}, which use running statistics or none."
            " Leave it out, or measure ntk, naswot, nasi, snip, grad_norm or jacobian."
        )

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        """The record with the measures. Raises RbError if a measure needs a checkpoint and the record has
        none, if a model cannot be built, or if a measure is not defined for the model."""
        inputs = resolve_inputs(record, run.changed(split=(self.splits or [str(self.measures[0].split)])[0]))
        record = inputs.record
        jobs = _jobs(record, self, run)
        _check(record, jobs, run)
        first = resolve.Inputs(record, jobs[0].data, run)
        described = [(job, _what(record, job, run)) for job in jobs]
        keyed = {digest(what): (job, what) for job, what in described}
        computed: dict[str, Any] = {key: stored_entries(run, what) for key, (_, what) in keyed.items()}
        if None not in computed.values():
            run.store.found += 1
        else:
            _compute(first, keyed, computed)
            run.store.computed += 1
        entries: dict[str, dict[str, Any]] = {}
        for key, (job, _) in keyed.items():
            for entry in computed[key]:  # an entry that does not depend on the attack occurs once per attack
                entries.setdefault(entry["metric"], _shown(entry, record, job, run))
        return add_entries(first.record_with_data(), list(entries.values()), run)


def perturbing(
    names: Sequence[str], distances: Sequence[float], steps: int, step_size: float | None, norm: str = "linf"
) -> tuple[Any, ...]:
    """The attacks that perturb batches, each at every distance in `distances`, for pixels in [0, 1]. For the
    norm "sphere", which only PGD supports, a distance is a share of the image's norm.

    An attack does not stop early: every image in a batch is perturbed in all steps, even after it is
    misclassified. Raises UsageError.
    """
    attacks = []
    for name in names:
        if name not in BY_GRADIENT:
            raise UsageError(
                f"--attack is '{name}'. Images are perturbed by one of: {', '.join(BY_GRADIENT)}."
            )
        if norm == "sphere" and (name != "pgd" or max(distances) > 2):
            raise UsageError(
                "--attack-norm sphere only works with pgd, and its --eps is a share of the image's norm."
                " Expected --attack pgd and --eps up to 2, such as 0.1."
            )
        settings: dict[str, Any] = {}
        if name == "pgd":
            settings = {"steps": steps, "step_size": step_size, "iterate": "last", "norm": norm}
        attacks += [ATTACKS.load(name)(eps=eps, **settings) for eps in distances]
    return tuple(attacks)


def _check(record: dict[str, Any], jobs: Sequence[MeasureItem], run: Run) -> None:
    """Raise RbError before the computation if the record has a requested number that was computed
    differently.

    The names of a measure's numbers are known only after the computation. Therefore, each entry of the record
    is compared.
    """
    if run.replace or run.name_as is not None:
        return
    for old in record.get("evals", []):
        clean = "attack" not in old
        for job in jobs:
            before, after = (".".join(parts) for parts in _around(job, clean))
            name = str(old.get("metric")).removeprefix(before).removesuffix(after).strip(".")
            settings = _made(job, name, clean, run)
            if all(old.get(key) == settings.get(key) for key in _SAME):
                # Other fields of the entry are not known yet, except those that identify the data.
                open_ = {key: results.LATER for key in old.keys() - settings.keys() - schema.of_images()}
                expected = {"metric": old["metric"], "precision": "fp32", **settings}
                results.refuse(record, _shown(open_ | expected, record, job, run))


_SAME = ("measure", "on", "split", "attack", "eps", "paper")  # the fields that the name of a metric contains


def _shown(entry: dict[str, Any], record: dict[str, Any], job: MeasureItem, run: Run) -> dict[str, Any]:
    shown = {**run.labels, **entry}
    if job.measure.data and named_data(record, job.data.name) != job.data.name:
        shown["dataset"] = job.data.name
    return shown


# --- the jobs of a request -------------------------------------------------------------------------


def _jobs(record: dict[str, Any], request: MeasureJob, run: Run) -> list[MeasureItem]:
    """The items to measure: every measure on its weights and splits under each attack. Raises RbError."""
    jobs = []
    for measure in request.measures:
        size = (request.batches or measure.size[0], request.batch_size or measure.size[1])
        for on in _weights(record, measure, request, run):
            norm = "running"
            if measure.batchnorm is not None:
                norm = request.batchnorm or (measure.batchnorm if on == "init" else "running")
            for split in (request.splits or (measure.split,)) if measure.data else (measure.split,):
                data = _data(record, run, split, on)
                if measure.needs_record:
                    described = {**record, "arch": arch_of(record, data)}
                    measure = measure.filled(described, _data(record, run.changed(n=None), split, on).size)
                forms: list[tuple[Any, Any]] = [(measure, None)]
                if measure.attacks:
                    forms = [(measure, attack) for attack in request.attacks]
                elif measure.own_eps:
                    forms = [(replace(measure, eps=eps), None) for eps in request.eps]
                jobs += [MeasureItem(*form, on, data, size, norm, request.init_seed) for form in forms]
    fresh = dict.fromkeys(
        job.measure.name for job in jobs if job.on == "init" and job.measure.weights != "none"
    )
    if fresh and request.on == "auto" and record.get("checkpoint"):
        run.report.notify(
            f"{', '.join(fresh)}: measured on fresh weights, so that all checkpoints of an architecture get"
            " the same values. --on trained measures the checkpoint."
        )
    return jobs


def _weights(record: dict[str, Any], measure: Measure, request: MeasureJob, run: Run) -> tuple[str, ...]:
    """The weights that are measured: "init", "trained", or both."""
    if isinstance(record, InMemory):
        return ("trained",)
    if measure.weights == "none":
        return ("init",)
    there = bool(record.get("checkpoint"))
    usual = "init" if measure.weights == "init" or (measure.weights == "any" and not there) else "trained"
    wanted: tuple[str, ...] = (usual if request.on == "auto" else request.on,)
    if request.on == "both":
        wanted = ("trained",) if measure.weights == "trained" else ("init", "trained") if there else ("init",)
    if "trained" in wanted and not there and run.plan is None:
        fresh = " or measure fresh weights with --on init"
        advice = fresh if request.on == "auto" else " or leave out --on trained"
        raise RbError(
            f"The measure {measure.name} needs trained weights, but the record has no checkpoint. Train it"
            f" first (rb-train --method trades),{advice}."
        )
    if queried.answers_of(record, run) is not None:
        raise RbError(
            f"The measure {measure.name} needs the weights or the gradients of a network, but this model can"
            " only be queried. For such a model, use rb-attack, rb-corrupt, rb-pr, rb-ge or rb-certify."
        )
    if "trained" in wanted:
        resolve.checkpoint_name(record, run)
    return wanted


def _data(record: dict[str, Any], run: Run, split: str, on: str) -> Data:
    """The data of the split, without training images that the training run held out."""
    if on == "trained" and split == "train" and run.selection.indices is None:
        run = run.changed(indices=trained_on(record, run))
    data = data_of(record, run, split)
    n = run.selection.n
    return data if n is None or n >= data.size else replace(data, size=n)


def _what(record: dict[str, Any], job: MeasureItem, run: Run) -> dict[str, Any]:
    """The fields of the key: everything that determines the result."""
    about = job.data.about
    fields: dict[str, Any] = {
        "kind": "measure",
        "version": VERSION,
        "measure": job.measure.name,
        "measure_version": job.measure.version,
        "config": registry.config(job.measure),
        "on": job.on,
        **job.statistics,
        "precision": "fp32",
    }
    if job.on == "trained":
        fields |= {"checkpoint": resolve.checkpoint_name(record, run), "arch": identity(record["arch"])}
    else:
        fields |= {"arch": identity(arch_of(record, job.data)), "normalize": [about.mean, about.std]}
        fields |= {"init_seed": job.init_seed, "classes": about.classes, "shape": about.shape}
    if job.measure.data:
        fields |= {"data": job.data.fingerprint, "split": job.data.split, "size": job.size, "n": job.n}
        fields["order"] = indices.ORDER
    if job.attack is not None:
        attack = job.attack
        config = registry.config(attack)
        fields |= {"attack": {"attack": attack.name, "version": attack.version, "config": config}}
    if job.random:
        fields |= seed_fields(run.settings.seed)
    return fields


# --- entries ---------------------------------------------------------------------------------------


def _compute(
    inputs: resolve.Inputs,
    keyed: Mapping[str, tuple[MeasureItem, dict[str, Any]]],
    computed: dict[str, Any],
) -> None:
    """Compute the entries that are None in `computed`, and store them. Raises Pending in a dry run."""
    run = inputs.run
    missing = {key: keyed[key][0] for key, entries in computed.items() if entries is None}
    work = measure_batches.MeasureWork(inputs, missing)
    if run.plan is not None:
        run.plan.lacks(digest({"measures": [*missing]}), "measures", sum(map(len, work.tiles())))
    for key, values, seconds in measure_batches.measured(work):
        job, fields = keyed[key]
        cost: dict[str, Any] = {"seconds": round(seconds, 3), "device": resources.kind(run).type}
        cost |= {"precision": "fp32", "versions": {"measures": VERSION, "version": job.measure.version}}
        with contextlib.suppress(RbError):  # only workers on other machines have the device
            cost["environment"] = environment(choose(run))
        computed[key] = [_entry(job, value, run) | cost for value in values]
        keep_entries(replace(inputs, data=job.data), fields, computed[key])
    for key in missing:  # another shard has computed them
        computed[key] = computed[key] or stored_entries(run, keyed[key][1])


def _entry(job: MeasureItem, value: Value, run: Run) -> dict[str, Any]:
    """The entry of one number, with the number's name, settings, value and standard error."""
    before, after = _around(job, value.clean)
    name = ".".join([*before, *([value.name] if value.name else []), *after])
    entry = {"metric": name, **_made(job, value.name, value.clean, run)}
    return entry | _finite(value.more) | _number(value, job)


def _finite(value: object) -> Any:
    """The value with None instead of numbers that are not finite, such as the trace of one layer."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _made(job: MeasureItem, value: str, clean: bool, run: Run) -> dict[str, Any]:
    """The settings of the number called `value`. If `clean` is true, it does not depend on the attack."""
    entry: dict[str, Any] = {"measure": job.measure.name, **job.measure.settings(value)}
    if job.measure.weights != "none":
        entry |= {"on": job.on, **job.statistics}
        entry |= {"init_seed": job.init_seed} if job.on == "init" else {}
    if job.measure.data:
        sizes = {"batches": job.batches, "batch_size": job.size[1], "n": job.n}
        entry |= {"split": job.data.split, **job.data.protocol(), **sizes}
        entry |= image_list(job.data, job.n)
    if job.attack is not None and not clean:
        entry |= {"attack": job.attack.name, **registry.config(job.attack)}
    if job.random:
        entry |= seed_fields(run.settings.seed)
    return entry


def _number(value: Value, job: MeasureItem) -> dict[str, Any]:
    if value.value is None:
        return {"value": None}
    if not math.isfinite(value.value):
        return {"value": None, "reason": f"it is not finite ({value.value}): the network's values overflow"}
    if value.se is None or value.over is None or not math.isfinite(value.se):
        return {"value": value.value}
    if value.over == "probes":
        count = job.measure.probes
    else:
        count = {"batches": job.batches, "examples": job.n}[value.over]
    if value.numbers:
        ends = list(intervals.of_images(value.numbers))
    else:
        half = intervals.student_quantile(0.95, count - 1) * value.se
        ends = [value.value - half, value.value + half]
    error = {"se": value.se, "se_over": value.over, "ci95": ends}
    return {"value": value.value, **error, **({"interval_of": intervals.OF_IMAGES} if value.numbers else {})}


def _around(job: MeasureItem, clean: bool) -> tuple[list[str], list[str]]:
    """The parts of a metric's name before and after the name of the number, such as `hessian.weight.lmax`.
    Weights and split follow the measure's name if they differ from the measure's defaults."""
    measure = job.measure
    usual = ("init" if measure.weights == "init" else "trained", measure.split)
    placed = measure.data and (measure.placed or (job.on, job.data.split) != usual)
    if not measure.data and job.on == "trained":
        before = [measure.name, "trained"]
    else:
        before = [measure.name, *((job.on, job.data.split) if placed else ())]
    if job.attack is not None and not clean:
        attack = [job.attack.name + job.attack.threat_suffix]
        attack += [metric_name.eps_name(job.attack.eps, job.attack.norm)]
        return before, [] if measure.plain and attack == ["pgd", "8"] else attack
    if not measure.own_eps:
        return before, []
    ball = [] if measure.norm == "linf" else [measure.norm]
    return before, [*ball, metric_name.eps_name(measure.eps, measure.norm)]
