"""Measures of a record's network: what is asked, where it is kept, and the entries that it makes.

A measure is made at a place: on freshly initialised weights or on the record's checkpoint, on one split.
What is kept under a key is all that a measure says at one place under one attack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rbtools import registry, spaces
from rbtools.attacks import ATTACKS
from rbtools.errors import RbError, UsageError
from rbtools.evaluation.evaluate import add_entries
from rbtools.execution.context import RunContext
from rbtools.execution.memoize import memoize
from rbtools.inputs import resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.probabilistic import intervals
from rbtools.records import metric_name, results, schema
from rbtools.rng import GENERATOR
from rbtools.spaces.identity import identity
from rbtools.store import digest
from rbtools.trainer.training_indices import trained_on

VERSION = 1
BY_GRADIENT = ("fgsm", "pgd")  # the attacks that perturb batches


@dataclass(frozen=True)
class MeasureRequest:
    """What is to be measured, and where.

    attacks: those that make perturbed batches, each with its eps; `eps`: for measures that search a ball
    themselves. `on`: "auto" is where a measure belongs, "both" fresh weights and, where there is one, the
    checkpoint. `splits`, `batches` and `batch_size` are the measure's own where None. `batchnorm`: the
    statistics that BatchNorm takes, "batch", "image" or "running", in measures that know more than running
    ones; None is the measure's own on fresh weights, and running ones on trained weights.
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
        if self.batchnorm in (None, "running") or any(one.batchnorm for one in self.measures):
            return
        names = ", ".join(one.name for one in self.measures)
        raise UsageError(
            f"--batchnorm {self.batchnorm} has no effect on {names}: defined with running statistics, or"
            " without any. Leave it out, or measure ntk, naswot, nasi, snip, grad_norm or jacobian."
        )


def perturbing(
    names: Sequence[str], distances: Sequence[float], steps: int, step_size: float | None
) -> tuple[Any, ...]:
    """The attacks that perturb batches, each at every distance (in pixel units).

    No image leaves its batch when it is broken: every one is wanted at the end of its path. Raises
    UsageError.
    """
    made = []
    for name in names:
        if name not in BY_GRADIENT:
            raise UsageError(
                f"--attack is '{name}'. Images are perturbed by one of: {', '.join(BY_GRADIENT)}."
            )
        own = {"steps": steps, "step_size": step_size, "iterate": "last"} if name == "pgd" else {}
        made += [ATTACKS.build(name, eps=eps, **own) for eps in distances]
    return tuple(made)


class MeasureItem(NamedTuple):
    """One measure at one place, perhaps under one attack."""

    measure: Any
    attack: Any
    on: str
    data: resolve.Data
    size: tuple[int, int]
    batchnorm: str = "running"

    @property
    def n(self) -> int:
        """Images that are looked at."""
        return min(self.data.size, self.size[0] * self.size[1]) if self.measure.data else 0

    @property
    def statistics(self) -> dict[str, str]:
        """Those of BatchNorm where there is a choice: the usual ones of trained weights are not said."""
        usual = self.measure.batchnorm is None or (self.on, self.batchnorm) == ("trained", "running")
        return {} if usual else {"batchnorm": self.batchnorm}

    @property
    def random(self) -> bool:
        return bool(self.measure.random or getattr(self.attack, "random", False))


def measure(record: dict[str, Any], asked: MeasureRequest, run: RunContext) -> dict[str, Any]:
    """The record with all that is asked for.

    Raises RbError where a measure needs a checkpoint and there is none, a model cannot be built, or a
    measure is not defined for it.
    """
    inputs = resolve_inputs(record, replace(run, split=_first_split(asked)))
    record = inputs.record
    jobs = _jobs(record, asked, run)
    _check(record, jobs, asked, run)
    keys = [_what(record, job, asked, run) for job in jobs]
    names = [digest(what) for what in keys]
    found = memoize(
        run,
        names,
        lambda: [run.store.result(name) for name in names],
        lambda results: _compute(record, asked, run, [*zip(jobs, keys, names, strict=True)], results),
        plan=lambda results: run.plan.other(
            "measures", [name for name, one in zip(names, results, strict=True) if one is None]
        ),
    )
    entries: dict[str, dict[str, Any]] = {}
    for job, made in zip(jobs, found, strict=True):
        for entry in made:  # what does not depend on the attack is the same under each
            entries.setdefault(entry["metric"], _shown(entry, record, job, run))
    first = resolve.Inputs(record, jobs[0].data, run)
    return add_entries(first.record_with_data(), list(entries.values()), run)


def _check(
    record: dict[str, Any], jobs: Sequence[MeasureItem], asked: MeasureRequest, run: RunContext
) -> None:
    """Raise RbError before the work where the record has a number of these, made in another way.

    What numbers a measure gives is known after the work, so it is asked of those that are there.
    """
    if run.replace or run.name_as is not None:
        return
    for old in record.get("evals", []):
        clean = "attack" not in old
        for job in jobs:
            before, after = (".".join(parts) for parts in _around(job, clean))
            name = str(old.get("metric")).removeprefix(before).removesuffix(after).strip(".")
            made = _made(job, name, clean, asked, run)
            if all(old.get(key) == made.get(key) for key in _SAME):
                # What else a measure says of a number is not known yet; what says which data it is on is.
                open_ = {key: results.LATER for key in old.keys() - made.keys() - schema.of_images()}
                known = {"metric": old["metric"], "precision": "fp32", **made}
                results.refuse(record, _shown(open_ | known, record, job, run))


_SAME = ("measure", "on", "split", "attack", "eps", "paper")  # what a metric's name tells


def _first_split(asked: MeasureRequest) -> str:
    return asked.splits[0] if asked.splits else str(asked.measures[0].split)


def _shown(
    entry: dict[str, Any], record: dict[str, Any], job: MeasureItem, run: RunContext
) -> dict[str, Any]:
    shown = {"tool": run.tool, **entry}
    if job.measure.data and resolve.named_data(record, job.data.name) != job.data.name:
        shown["dataset"] = job.data.name
    return shown


# --- what is to be done ----------------------------------------------------------------------------


def _jobs(record: dict[str, Any], asked: MeasureRequest, run: RunContext) -> list[MeasureItem]:
    """Every measure at every place under every attack. RbError where a checkpoint is missing."""
    jobs = []
    for one in asked.measures:
        size = (asked.batches or one.size[0], asked.batch_size or one.size[1])
        for on in _weights(record, one, asked, run):
            norm = _statistics(one, on, asked)
            for split in (asked.splits or (one.split,)) if one.data else (one.split,):
                data = _data(record, run, split, on)
                if hasattr(one, "filled"):
                    known = {**record, "arch": arch_of(record, data)}
                    one = one.filled(known, _data(record, replace(run, n=None), split, on).size)
                if one.attacks:
                    jobs += [MeasureItem(one, attack, on, data, size, norm) for attack in asked.attacks]
                elif hasattr(one, "eps"):
                    jobs += [
                        MeasureItem(replace(one, eps=eps), None, on, data, size, norm) for eps in asked.eps
                    ]
                else:
                    jobs.append(MeasureItem(one, None, on, data, size, norm))
    return jobs


def _statistics(one: Any, on: str, asked: MeasureRequest) -> str:
    """Which statistics BatchNorm takes in a measure on these weights."""
    if one.batchnorm is None:
        return "running"
    return str(asked.batchnorm or (one.batchnorm if on == "init" else "running"))


def _weights(record: dict[str, Any], one: Any, asked: MeasureRequest, run: RunContext) -> tuple[str, ...]:
    """On which weights a measure is made."""
    if one.weights == "none":
        return ("init",)
    there = bool(record.get("checkpoint"))
    usual = "init" if one.weights == "init" or (one.weights == "any" and not there) else "trained"
    wanted: tuple[str, ...] = (usual if asked.on == "auto" else asked.on,)
    if asked.on == "both":
        wanted = ("trained",) if one.weights == "trained" else ("init", "trained") if there else ("init",)
    if "trained" in wanted and not there:
        advice = (
            " or measure fresh weights with --on init" if asked.on == "auto" else " or leave out --on trained"
        )
        raise RbError(
            f"The measure {one.name} needs trained weights, and the record has no checkpoint. Train it first"
            f" (rb-train --method trades),{advice}."
        )
    if "trained" in wanted:
        resolve.checkpoint_name(record, run)
    return wanted


def _data(record: dict[str, Any], run: RunContext, split: str, on: str) -> resolve.Data:
    """The split; of a training split that a training held images out of, the others."""
    if on == "trained" and split == "train" and run.indices is None:
        run = replace(run, indices=trained_on(record, run))
    data = resolve.data_of(record, run, split)
    return data if run.n is None or run.n >= data.size else replace(data, size=run.n)


def arch_of(record: dict[str, Any], data: resolve.Data) -> dict[str, Any]:
    """The architecture as a training would have it: without what it says of a file of weights."""
    arch = {key: value for key, value in record["arch"].items() if key not in ("member", "normalize")}
    return spaces.describe(arch, data.about.classes, data.about.shape)


def _what(record: dict[str, Any], job: MeasureItem, asked: MeasureRequest, run: RunContext) -> dict[str, Any]:
    """Everything that determines the result."""
    about = job.data.about
    what: dict[str, Any] = {
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
        what |= {"checkpoint": resolve.checkpoint_name(record, run), "arch": identity(record["arch"])}
    else:
        what |= {"arch": identity(arch_of(record, job.data)), "normalize": [about.mean, about.std]}
        what |= {"init_seed": asked.init_seed, "classes": about.classes, "shape": about.shape}
    if job.measure.data:
        what |= {"data": job.data.fingerprint, "split": job.data.split, "size": job.size, "n": job.n}
    if job.attack is not None:
        what |= {"attack": _attack(job.attack)}
    if job.random:
        what |= {"seed": run.seed, "draws": GENERATOR}
    return what


def _attack(attack: Any) -> dict[str, Any]:
    return {"attack": attack.name, "version": attack.version, "config": registry.config(attack)}


# --- what it makes ---------------------------------------------------------------------------------


def _compute(
    record: dict[str, Any],
    asked: MeasureRequest,
    run: RunContext,
    jobs: Sequence[tuple[MeasureItem, dict[str, Any], str]],
    found: list[Any],
) -> None:
    """Put what is missing into `found`, and keep it."""
    from rbtools.evaluation import measure_batches
    from rbtools.execution import device, resources

    missing = [place for place, one in enumerate(found) if one is None]
    with device.taken(run, resources.threads_for(run, record["arch"])) as chosen:
        made = measure_batches.Measuring(record, asked.init_seed, run, chosen)
        for place, values, seconds in made.all([(place, jobs[place][0]) for place in missing]):
            job, what, name = jobs[place]
            cost = {"seconds": round(seconds, 3), "device": chosen.type, "precision": "fp32"}
            found[place] = [_entry(job, value, asked, run) | cost for value in values]
            about = {"kind": "evaluation", "of": what, **resolve.names(record, job.data)}
            run.store.keep_result(name, what, found[place], about)


def _entry(job: MeasureItem, value: Any, asked: MeasureRequest, run: RunContext) -> dict[str, Any]:
    """The entry of one number: its name, how it was made, itself, and its standard error."""
    entry = {"metric": _name(job, value), **_made(job, value.name, value.clean, asked, run)}
    more: dict[str, Any] = _finite(value.more)
    return entry | more | _number(value, job)


def _finite(value: Any) -> Any:
    """The same with null for numbers that are not finite, such as the trace of one layer."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _made(
    job: MeasureItem, value: str, clean: bool, asked: MeasureRequest, run: RunContext
) -> dict[str, Any]:
    """How the number of this name is made; `clean`: without the attack."""
    entry: dict[str, Any] = {"measure": job.measure.name, **job.measure.settings(value)}
    if job.measure.weights != "none":
        entry |= {"on": job.on, **job.statistics}
        entry |= {"init_seed": asked.init_seed} if job.on == "init" else {}
    if job.measure.data:
        batches = -(-job.n // job.size[1])
        entry |= {
            "split": job.data.split,
            **job.data.protocol(),
            "batches": batches,
            "batch_size": job.size[1],
        }
        entry["n"] = job.n
    if job.attack is not None and not clean:
        entry |= {"attack": job.attack.name, **registry.config(job.attack)}
    if job.random:
        entry |= {"seed": run.seed, "draws": GENERATOR}
    return entry


def _number(value: Any, job: MeasureItem) -> dict[str, Any]:
    if value.value is None:
        return {"value": None}
    if not math.isfinite(value.value):
        return {"value": None, "reason": f"it is not finite ({value.value}): the network's values overflow"}
    if value.se is None or not math.isfinite(value.se):
        return {"value": value.value}
    counts = {
        "batches": -(-job.n // job.size[1]),
        "probes": getattr(job.measure, "probes", 2),
        "examples": job.n,
    }
    half = intervals.student_quantile(0.95, counts[value.over] - 1) * value.se
    error = {"se": value.se, "se_over": value.over, "ci95": [value.value - half, value.value + half]}
    return {"value": value.value, **error}


def _name(job: MeasureItem, value: Any) -> str:
    """`jacobian.init.train`, `hessian.weight.lmax`, `ntk.robust.fro.pgd.8`."""
    before, after = _around(job, value.clean)
    return ".".join([*before, *([value.name] if value.name else []), *after])


def _around(job: MeasureItem, clean: bool) -> tuple[list[str], list[str]]:
    """What stands before and after the name of a number in that of its metric.

    Weights and split stand behind the measure where they are not those that it is meant for.
    """
    one = job.measure
    usual = ("init" if one.weights == "init" else "trained", one.split)
    placed = one.data and (one.placed or (job.on, job.data.split) != usual)
    if not one.data and job.on == "trained":
        before = [one.name, "trained"]
    else:
        before = [one.name, *((job.on, job.data.split) if placed else ())]
    if job.attack is not None and not clean:
        attack = [job.attack.name, metric_name.eps_name(job.attack.eps)]
        return before, [] if one.plain and attack == ["pgd", "8"] else attack
    return before, [metric_name.eps_name(one.eps)] if hasattr(one, "eps") else []
