"""One function a tool, for notebooks: a record in, the record that the tool would write out.

    import rbtools
    record = rbtools.train({"arch": {"space": "nasbench201", "index": 13714, "cells": 1}}, "trades", epochs=2)
    record = rbtools.attack(record, "pgd", eps=[8])
    record["metrics"]["pgd20.8"]

Numbers are those of the command line: L-infinity distances in 1/255 (`8`, `"8/255"`), L2 distances and
radii on [0, 1]. Further options of a run (`store`, `seed`, `n`, `split`, `batch`, `device`, `threads`,
`precision`, `dataset`, `data_dir`, `force`) are keyword arguments; the others are the method's own. Every
function raises rbtools.errors.RbError where the tool would fail.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools import parse_units
from rbtools.errors import RbError, near, unknown
from rbtools.records import dumps
from rbtools.records.lines import check_shape

if TYPE_CHECKING:
    from torch import nn

    from rbtools.execution.context import RunContext

Record = dict[str, Any]
Numbers = float | str | Iterable[float | str]


def arch(
    which: int | str | Iterable[int | str] | None = None,
    space: str = "nasbench201",
    *,
    unique: bool = False,
    where: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    dataset: str | None = None,
    data_dir: str | None = None,
    **sizes: int | None,
) -> list[Record]:
    """Architectures of a space as records, all or `which` (their numbers or names there); see rb-arch.

    Costs are for images and classes of `dataset`, by default ten classes of 32x32 pixels in three channels.
    sizes: channels and cells, or width and depth.
    """
    from rbtools import datasets
    from rbtools.spaces import choose, sized

    kept = sized(space, **sizes)
    about: dict[str, Any] = {"classes": choose.CLASSES, "shape": choose.SHAPE}
    extra = {}
    if dataset is not None:
        found = datasets.describe(dataset, data_dir)
        about, extra = {"classes": found.classes, "shape": found.shape}, {"dataset": found.name}
    named = [which] if isinstance(which, (int, str)) else which
    numbers = None if named is None else [kept.find(str(one)) for one in named]
    how: dict[str, Any] = {"unique": unique, "where": where, "sample": sample, "seed": seed, "warn": _warn}
    return list(choose.records(kept, numbers, about, extra, **how))


def attack(
    record: Record,
    attack: str,
    eps: Numbers = 8,
    *,
    ladder: bool = False,
    detail: bool = False,
    save_adv: str | None = None,
    **options: Any,
) -> Record:
    """The record with its accuracy under an attack at every distance; see rb-attack."""
    from rbtools.evaluation.evaluate import run_task
    from rbtools.evaluation.tasks import AttackTask

    run, params = _run("rb-attack", options, record)
    return run_task(record, AttackTask(*_attack(attack, eps, params), ladder, detail, save_adv), run)


def convert(
    format: str,
    path: str | os.PathLike[str],
    records: Iterable[Record] | None = None,
    **options: Any,
) -> list[Record]:
    """The records in a published file or folder; with `records`, write these there instead.

    Returns all records of the file, or those given, as the file has them: see rb-convert. Raises RbError
    for the first that cannot be converted.
    """
    from rbtools.formats import FORMATS, Bad, ConversionReport, Published, Unit
    from rbtools.store.files import write_all

    chosen = parse_units.build(FORMATS, format, _checked(FORMATS, format, options))
    told, found = ConversionReport(ours=records is not None), []
    if records is None:
        units = chosen.units(Published(Path(path), str(path)), told)
    else:
        units = [Unit(f"record {n}", chosen.unit(record)) for n, record in enumerate(records, start=1)]
        write_all(Path(path), chosen.documents(units, told))
    for unit in units:
        if isinstance(unit, Bad):
            raise RbError(f"{unit.where}: {unit.problem}")
        found.append(chosen.record(unit.content, told, unit.where))
    for problem in told.errors():
        raise RbError(problem)
    return found


def corrupt(
    record: Record,
    corruptions: str | Iterable[str],
    severity: Numbers = "1-5",
    archive: str | None = None,
    reference: Record | None = None,
    **options: Any,
) -> Record:
    """The record with its accuracy under corruptions; see rb-corrupt.

    archive: the folder of `--from`. reference: the record of `--reference`.
    """
    from rbtools.corruptions import CORRUPTIONS
    from rbtools.evaluation.tasks import CorruptionTask
    from rbtools.jobs import ArchiveJob, EvaluateJob
    from rbtools.scoring import corruptions as sums

    run, params = _run("rb-corrupt", options, record)
    chosen, severities = _corruptions(corruptions, severity, params)
    base = None if reference is None else sums.reference(reference, CORRUPTIONS.all)
    if archive is None:
        return EvaluateJob(CorruptionTask(chosen, severities, base), run)(record)
    run.archive = os.path.abspath(archive)
    names = tuple(one.name for one in chosen)
    return ArchiveJob(Path(run.archive), names, severities, base, run)(record)


def ge(
    record: Record, evaluation: str, chosen: str = "", *, n_train: int | None = None, **options: Any
) -> Record:
    """The record with an evaluation's value on train minus that on test; see rb-ge.

    evaluation: "acc"; "attack" or "loss", of the attack `chosen`; "corrupt", of the corruptions `chosen`;
    "pr", of the noise `chosen`. The options are those of `attack`, `corrupt` and `pr`. Raises RbError for
    another evaluation, and TypeError for an option that it has not.
    """
    from rbtools.evaluation.robust_loss import RobustLossTask
    from rbtools.evaluation.tasks import AccuracyTask, AttackTask, CorruptionTask
    from rbtools.jobs import TrainTestGapJob

    run, rest = _run("rb-ge", options, record)
    question: Any
    if evaluation == "acc":
        question = AccuracyTask()
        if rest:
            raise TypeError(f"ge() got unknown options for acc: {', '.join(rest)}")
    elif evaluation == "attack":
        question = AttackTask(*_attack(chosen or "pgd", rest.pop("eps", 8), rest))
    elif evaluation == "loss":
        name = chosen or "pgd"
        if any(field.name == "iterate" for field in fields(_attacks().load(name))):
            rest = {"iterate": "last", **rest}
        question = RobustLossTask(*_attack(name, rest.pop("eps", 8), rest))
    elif evaluation == "corrupt":
        question = CorruptionTask(*_corruptions(chosen or "all", rest.pop("severity", "1-5"), rest))
    elif evaluation == "pr":
        question = _probabilistic(chosen or "uniform", **{"denominator": "both", **rest})
    else:
        known = ("acc", "attack", "corrupt", "loss", "pr")
        raise RbError(
            f"There is no evaluation '{evaluation}'.{near(evaluation, known)} There are: {', '.join(known)}."
        )
    return TrainTestGapJob(question, n_train, run)(record)


def plot(records: Iterable[Record], kind: str, **options: Any) -> Any:
    """A matplotlib Figure of records, or the text of a page; see rb-plot. Options are the kind's own.

    `rbtools.plots.base.encode(figure, "svg")` makes the bytes that rb-plot writes.
    """
    from rbtools.plots import PLOTS
    from rbtools.scoring import plotted, ranking

    return parse_units.build(PLOTS, kind, _checked(PLOTS, kind, options)).draw(
        ranking.models(records, weights=True), plotted
    )


def pr(
    record: Record, gamma: Numbers = "8/255,0.08,0.1,0.12", noise: str = "uniform", **options: Any
) -> Record:
    """The record with its probabilistic robustness at every radius; see rb-pr.

    Options: `rho`, `samples`, `denominator`, `passes`, `confidence`, `only_passing` (`--only probacc`) and
    `adaptive`; or `rare=True` with `particles`, `moves`, `runs` and `floor`; and the noise's own.
    """
    from rbtools.evaluation.evaluate import run_task

    run, rest = _run("rb-pr", options, record)
    return run_task(record, _probabilistic(noise, gamma, **rest), run)


def measure(
    record: Record,
    measures: str | Iterable[str],
    eps: Numbers = 8,
    *,
    attack: str | Iterable[str] = "pgd",
    attack_steps: int = 10,
    step_size: float | str | None = None,
    on: str = "auto",
    split: str | Iterable[str] | None = None,
    batches: int | None = None,
    batch_size: int | None = None,
    init_seed: int = 0,
    batchnorm: str | None = None,
    **options: Any,
) -> Record:
    """The record with measures of its network; see rb-measure."""
    from rbtools.evaluation.measurement import MeasureRequest, perturbing
    from rbtools.evaluation.measurement import measure as work
    from rbtools.measures import MEASURES

    run, params = _run("rb-measure", options, record)
    _among(("auto", "init", "trained", "both"), on=on)
    if batchnorm is not None:
        _among(("batch", "image", "running"), batchnorm=batchnorm)
    _whole(1, attack_steps=attack_steps, batches=batches, batch_size=batch_size)
    _whole(0, init_seed=init_seed)
    names = list(MEASURES.all) if measures == "all" else _text(measures).split(",")
    fields_of = {field.name for name in names for field in fields(MEASURES.load(name))}
    for name in params.keys() - fields_of:
        _checked(MEASURES, names[0], {name: params[name]})  # raises: none of them has it
    distances = parse_units.distances(_text(eps), "linf")
    step = parse_units.distance(step_size, "step_size")
    asked = MeasureRequest(
        measures=tuple(parse_units.build(MEASURES, name, params) for name in names),
        attacks=perturbing(_text(attack).split(","), distances, attack_steps, step),
        eps=distances,
        on=on,
        splits=None if split is None else tuple(_text(split).split(",")),
        batches=batches,
        batch_size=batch_size,
        init_seed=init_seed,
        batchnorm=batchnorm,
    )
    return work(record, asked, run)


def train(record: Record, method: str = "erm", **options: Any) -> Record:
    """The record with a trained checkpoint; see rb-train. Recipe and method options are keywords."""
    from rbtools.trainer import presets
    from rbtools.trainer.recipe import VALIDATED, Recipe
    from rbtools.trainer.train_model import train as work
    from rbtools.training import METHODS

    run, params = _run("rb-train", options, record)
    recipe = {field.name: params.pop(field.name) for field in fields(Recipe) if field.name in params}
    how = presets.recipe({"val": VALIDATED, **recipe}, params, recipe)
    params = _checked(METHODS, method, params)
    if how.preset is not None:
        params = presets.params(presets.named(how.preset), METHODS.load(method), params)
    return work(record, parse_units.build(METHODS, method, params), how, run)


def score(
    records: Iterable[Record],
    metrics: str | Iterable[str] = (),
    *,
    preset: str | None = None,
    weights: Mapping[str, Any] | None = None,
    within: str | Iterable[str] = (),
    missing: str = "refuse",
) -> list[Record]:
    """The records with their composite score; see rb-score. weights: metric -> weight, or "2:lower"."""
    from rbtools.records import expr, results
    from rbtools.scoring import plan, ranking
    from rbtools.scoring.composite import Composite

    asked = plan.together(
        plan.weighted(weights, "weights") if weights else [], plan.asked(_text(metrics)) if metrics else []
    )
    whole = ranking.models(records, weights=True)
    made = Composite(asked, preset=preset, within=expr.items(_text(within)), missing=missing)
    for record in whole:
        made.add(record)
    if not whole:
        return []
    made.settle(_warn)
    return [
        results.add(record, entry, replace=True) for record, entry in zip(whole, made.entries(), strict=True)
    ]


def rank(
    records: Iterable[Record],
    by: str | Iterable[str] = (),
    *,
    top: int | None = None,
    where: str | None = None,
    within: str | Iterable[str] = (),
    aggregate: str | Iterable[str] = (),
    group: str | Iterable[str] = (),
) -> list[Record]:
    """The records in their order, each with its "rank"; see rb-rank."""
    from rbtools.records import expr, metric_name
    from rbtools.scoring import rank_order as ranks
    from rbtools.scoring import ranking

    holds = None if where is None else expr.compile(where).holds
    whole = [record for record in records if holds is None or holds(record)]
    if not whole:
        return []
    merged = ranking.merged(whole, expr.items(_text(aggregate)), expr.items(_text(group)))
    keys = [ranks.key(item) for item in expr.items(_text(by))]
    keys = keys or [ranks.key(metric_name.default_rank_key(merged))]
    found = ranking.ranked(merged, keys, expr.items(_text(within)), top)
    return [{**record, "rank": place} for place, record in found]


def corr(
    records: Iterable[Record] | Mapping[str, Iterable[Record]],
    metrics: str | Iterable[str] = "*",
    kind: str = "spearman",
    *,
    rows: str | Iterable[str] | None = None,
    cols: str | Iterable[str] | None = None,
    on: str | Iterable[str] = (),
    bootstrap: int = 0,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rank correlations, one object a pair as rb-corr writes them.

    records: a stream, or result sets by their names, which are joined by the fields `on`. Raises RbError for
    another kind, and for several sets without fields to join them by.
    """
    from rbtools.records import expr
    from rbtools.scoring import correlate, ranking
    from rbtools.scoring.join import Beside

    if kind not in correlate.KINDS:
        raise unknown("kind of correlation", kind, correlate.KINDS)
    asked = [expr.items(_text(metrics if some is None else some)) for some in (rows, cols)]
    sets = records if isinstance(records, Mapping) else {"": records}
    beside = Beside([item for some in asked for item in some], expr.items(_text(on)))
    if (len(sets) > 1) != bool(beside.on):
        raise RbError("Several result sets are joined by fields, and one is not. Say on='arch.index', say.")
    for label, some in sets.items():
        for record in ranking.models(some):
            beside.add(label, record)
    left, right = (beside.resolve(items) for items in asked)
    numbers = beside.numbers(list(dict.fromkeys([*left, *right])))
    found = correlate.matrix(kind, *numbers, left, right, bootstrap=bootstrap, seed=seed)
    return list(correlate.lines(found, bootstrap, seed))


def search(
    records: Iterable[Record],
    algorithm: str,
    objective: str | Iterable[str],
    *,
    budget: int = 150,
    runs: int = 100,
    charge_repeats: bool = False,
    share: bool = True,
    each: bool = False,
    seed: int = 0,
    jobs: int = 1,
    report: Mapping[str, Iterable[Record]] | None = None,
    **params: Any,
) -> list[Record]:
    """What searching the records as a table finds, as rb-search writes it.

    It is `rbtools.api.search`: `rbtools.search` is the room of the algorithms. objective: a metric or an
    expression, with ":lower" or ":higher" where its own direction is not meant; several for nsga2. report:
    further tables by name to look the findings up in. params: the algorithm's own.
    """
    from rbtools.search import SEARCHES, outcome, parallel_runs
    from rbtools.search.driver import Rules
    from rbtools.search.objective import asked_of
    from rbtools.search.result_table import ResultTable

    method = parse_units.build(SEARCHES, algorithm, params)
    if getattr(method, "supernet", False):
        raise RbError(f"{algorithm} asks for no values: it searches a data set. Use rb-search {algorithm}.")
    wanted = asked_of(method, [objective] if isinstance(objective, str) else list(objective))
    _whole(1, budget=budget, runs=runs, jobs=jobs)

    def table(some: Iterable[Record], asked: tuple[Any, ...]) -> ResultTable:
        made = ResultTable(asked, share=share)
        for record in some:
            made.add(record, dumps(record))
        made.check()
        return made

    searched = table(records, wanted)
    if not searched.results:
        return []
    run, _ = _run("rb-search", {"store": None, "seed": seed, "jobs": jobs})
    tables = {"table": searched, **{name: table(some, ()) for name, some in (report or {}).items()}}
    done = parallel_runs.in_table(method, wanted, tables, Rules(budget, charge_repeats), runs, run)
    return outcome.each(done) if each else outcome.summed_up(done)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


def load(record: Record, **options: Any) -> nn.Module:
    """The record's network with its weights and normalisation, in eval mode: images in [0, 1] -> logits.

    A record of a file (rb-arch --from-checkpoint) that names no data set is loaded as the file was
    recognised: without `dataset=` no images settle what that left open, of which a warning tells.
    """
    from rbtools.execution import device
    from rbtools.inputs import checkpoints, recognition, resolve

    run, params = _run("rbtools.load", options, record)
    if params:
        raise TypeError(f"load() got unknown options: {', '.join(params)}")
    if "checkpoint_file" in record and "dataset" not in record and run.dataset is None:
        left = recognition.left_open(record)
        if left:
            _warn(f"The record leaves open its {left}. Name the data set (dataset=), whose images settle it.")
        return resolve.load_model(record, None, run, device.choose(run))
    return checkpoints.resolve_inputs(record, run).load_model(device.choose(run))


def _attacks() -> Any:
    from rbtools.attacks import ATTACKS

    return ATTACKS


def _attack(name: str, eps: Numbers, params: dict[str, Any]) -> tuple[Any, tuple[float, ...]]:
    """An attack and its distances in pixel units."""
    return parse_units.attack(_attacks(), name, _checked(_attacks(), name, params), _text(eps))


def _corruptions(
    wanted: str | Iterable[str], severity: Numbers, params: dict[str, Any]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Corruptions and severities."""
    from rbtools.corruptions import CORRUPTIONS

    names = list(CORRUPTIONS.all) if wanted == "all" else _text(wanted).split(",")
    fields_of = {field.name for name in names for field in fields(CORRUPTIONS.load(name))}
    for name in params.keys() - fields_of:
        _checked(CORRUPTIONS, names[0], {name: params[name]})  # raises: none of them has it
    return tuple(parse_units.build(CORRUPTIONS, name, params) for name in names), parse_units.severities(
        _text(severity)
    )


def _probabilistic(
    noise: str,
    gamma: Numbers = "8/255,0.08,0.1,0.12",
    rho: Numbers = "0.1,0.05,0.01",
    samples: int = 100,
    denominator: str = "correct",
    passes: str = "at-least",
    confidence: float = 0.95,
    only_passing: bool = False,
    adaptive: bool = False,
    rare: bool = False,
    particles: int = 200,
    moves: int = 10,
    runs: int = 10,
    floor: float = 1e-12,
    **params: Any,
) -> Any:
    """The question of rb-pr with these options."""
    from rbtools.evaluation.probabilistic import NoiseTask
    from rbtools.evaluation.rare_failures import RareFailureTask
    from rbtools.probabilistic import NOISES
    from rbtools.probabilistic.estimate import Estimator
    from rbtools.probabilistic.splitting import Splitting

    _whole(1, samples=samples, moves=moves)
    _whole(20, particles=particles)
    _whole(2, runs=runs)
    _among(("correct", "all", "both"), denominator=denominator)
    _among(("at-least", "above"), passes=passes)
    chosen = parse_units.build(NOISES, noise, _checked(NOISES, noise, params))
    radii = parse_units.radii(_text(gamma), chosen.norm)
    sure = parse_units.confidence(confidence)
    if rare:
        split = Splitting(particles=particles, moves=moves, runs=runs, floor=floor)
        return RareFailureTask(chosen, radii, split, sure)
    read = Estimator(
        rho=parse_units.tolerances(_text(rho)), denominator=denominator, passes=passes, confidence=sure
    )
    return NoiseTask(chosen, radii, read, samples, only_passing, adaptive)


def _run(tool: str, options: dict[str, Any], *records: Any) -> tuple[RunContext, dict[str, Any]]:
    """The run that these options mean, and the options that are not the run's.

    Raises RbError for numbers and devices that no run can have, as the command line does, and for what is
    given in the place of a record.
    """
    for record in records:
        _is_record(record)
    from rbtools.execution import precision, resources
    from rbtools.execution.context import RunContext
    from rbtools.store import Store

    rest = dict(options)
    folder = rest.pop("store", os.environ.get("RB_STORE", "rb-store"))
    store = folder if isinstance(folder, Store) else Store(folder, force=bool(rest.pop("force", False)))
    known = {field.name for field in fields(RunContext)} - {"tool", "store", "archive"}
    own = {name: rest.pop(name) for name in list(rest) if name in known}
    run = RunContext(tool=tool, store=store, **{"precision": "auto", **own})
    _whole(1, n=run.n, batch=run.batch, threads=run.threads)
    _whole(0, seed=run.seed)
    _among(precision.CHOICES, precision=run.precision)
    resources.check(run.threads, run.device)
    return run, rest


def _is_record(given: Any) -> None:
    """Raise RbError, with what to do instead, for what is no record, such as a network."""
    if isinstance(given, dict):
        try:
            check_shape(given)
        except RbError as wrong:
            raise RbError(f"The record {wrong}") from None
        return
    what = f"a {type(given).__name__}"
    if callable(getattr(given, "state_dict", None)):
        what += (
            ", a network of torch. Save its weights with torch.save(network.state_dict(), 'model.pt'), and"
            " make the record with rb-arch --from-checkpoint model.pt (where its architecture is not"
            " recognised, with --arch python:MODULE:CLASS --allow-code)"
        )
    elif isinstance(given, (list, tuple)):
        what += " of several things: call the function once for each record"
    raise RbError(
        'A record was expected: a dict that describes one model, with its "arch" and, once it is trained,'
        f' its "checkpoint", such as rbtools.arch(13714)[0] or a line of rb-train. Found {what}.'
    )


def _whole(least: int, **given: Any) -> None:
    """Raise RbError where one of these is no whole number from `least` on; None is left to others."""
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or value < least):
            raise RbError(f"{name} is {value!r}. Expected a whole number from {least} on.")


def _among(choices: Iterable[str], **given: str) -> None:
    """Raise RbError where one of these is not among the choices."""
    for name, value in given.items():
        if value not in choices:
            raise unknown(name, str(value), choices)


def _checked(methods: Any, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as the command line would hand them on; an unknown one is an error, not left out."""
    cls = methods.load(name)
    units = {field.name: field.metadata.get("unit") for field in fields(cls)}
    unknown = [key for key in params if key not in units]
    if unknown:
        methods.build(name, **{unknown[0]: None})  # raises, naming the near misses
    return {key: str(value) if units[key] == "eps" else value for key, value in params.items()}


def _text(numbers: Numbers | str | Iterable[str]) -> str:
    """Numbers as the command line takes them."""
    if isinstance(numbers, (str, int, float)):
        return str(numbers)
    return ",".join(str(number) for number in numbers)
