"""Specs: the settings in an entry are part of its key, and give the spec back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rbtools import datasets, rng
from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import search_named
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.defences import stages
from rbtools.defences.stages import Stages
from rbtools.errors import RbError
from rbtools.evaluation import in_memory, tiles
from rbtools.evaluation.accuracy import Attacked, Clean
from rbtools.evaluation.base import Batch
from rbtools.evaluation.certified import Smoothed
from rbtools.evaluation.distances import Nearest
from rbtools.evaluation.in_memory import Cache, GivenData
from rbtools.evaluation.probabilistic import Decided, Noisy
from rbtools.evaluation.rare_failures import RareFailure
from rbtools.evaluation.robust_loss import PARTS, RobustLoss
from rbtools.evaluation.spec import Spec
from rbtools.evaluation.under_corruption import Corrupted
from rbtools.execution import precision
from rbtools.execution.run import Selection
from rbtools.execution.settings import Settings
from rbtools.inputs import checkpoints
from rbtools.inputs.data import Data
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import measurement, stored_results
from rbtools.jobs.corruption_archive import Archived
from rbtools.jobs.measure_batches import MeasureItem
from rbtools.jobs.questions import Unsayable, question_of, spec_of
from rbtools.jobs.screened_attack import TwoPhaseJob, _Estimate
from rbtools.jobs.transfer import Transferred
from rbtools.measures import MEASURES
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.splitting import Splitting
from rbtools.records import dumps, metric_name
from rbtools.records.name_forms import SPECS
from rbtools.registry import imported
from rbtools.rng.draws import Draws
from rbtools.search import SEARCHES, supernet_search
from rbtools.store import Store, digest
from rbtools.trainer import train_model, validation
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS
from tests.conftest import SMALL_ARCH
from tests.runner import run_in

EPS = 8 / 255


def specs() -> dict[str, Spec]:
    """One of each kind, and of each registered attack, corruption, noise and certifier."""
    made: dict[str, Spec] = {"clean": Clean(), "clean draws": Clean(draws=5)}
    for name in ATTACKS:
        method = ATTACKS.build(name, **({"queries": 50} if name == "rays" else {}))
        made[f"attack {name}"] = Attacked(method=method.at(EPS) if method.in_ball else method)
    for name in CORRUPTIONS:
        corruption = CORRUPTIONS.build(name).resolved()
        made[f"corruption {name}"] = Corrupted(corruption=corruption, severity=3)
    for name in NOISES:
        noise = NOISES.build(name)
        made[f"noise {name}"] = Noisy(noise=noise, gamma=0.1, samples=4)
        made[f"noise {name} rho"] = Noisy(noise=noise, gamma=0.1, samples=4, rho=0.1)
        made[f"noise {name} decided"] = Decided(noise=noise, gamma=0.1, samples=4, rho=0.1, adaptive=True)
        made[f"rare {name}"] = RareFailure(noise=noise, gamma=0.1, split=Splitting())
    for name in CERTIFIERS:
        made[f"certificate {name}"] = Smoothed(method=CERTIFIERS.build(name), eps=0.25)
    curve = search_named("curve", "l2", 100)
    made |= {"distance": Nearest(method=curve), "distance eps": Nearest(method=curve, eps=EPS)}
    fmn = search_named("fmn", "linf", 100)
    made |= {"fmn": Nearest(method=search_named("fmn", "l2", 100)), "fmn eps": Nearest(method=fmn, eps=EPS)}
    jump = search_named("hopskipjump", "l2", 100)
    made |= {"by queries": Nearest(method=jump, counted=True), "queries": Nearest(method=jump)}
    made |= {"by queries eps": Nearest(method=jump, eps=EPS, counted=True)}
    made |= {what: RobustLoss(method=ATTACKS.build("pgd"), what=what) for what in PARTS}
    made["ladder"] = Attacked(method=ATTACKS.build("pgd", eps=EPS), ladder=(EPS / 2,))
    made["transfer"] = Transferred(method=ATTACKS.build("pgd"), sources=("sha256:0",), models=({"arch": {}},))
    made["archive"] = Archived(corruption="fog", severity=2, content="sha256:1")
    return made


MADE = specs()
# What a row looks like for three images.
ROWS = {Smoothed: [[1, 1, 9, 9, 1]] * 3, RareFailure: [[0, -1, -1]] * 3, Decided: [[4, 4, 1]] * 3}
ROWS |= {Nearest: [[0.1]] * 3, RobustLoss: [[0.5, 1]] * 3}


@pytest.mark.parametrize("spec", MADE.values(), ids=MADE)
def test_a_name_belongs_to_the_class_of_its_result(spec: Spec) -> None:
    parts = metric_name.parse(spec.name())
    assert parts.build() == spec.name()
    if parts.over and not parts.prefixes:
        assert parts.form in {form for cls in SPECS.values() for form in imported(cls).names}
    spec.check_name()


def test_a_name_that_reads_as_other_settings_is_refused() -> None:
    method = CERTIFIERS.build("smooth", sigma=1.0)
    with pytest.raises(RbError, match=r"cert\.smooth\.1\.5\.2 would be read as eps 2, and not as 5\.2"):
        Smoothed(method=method, eps=5.2).check_name()


def changed(value: Any, choices: tuple[Any, ...]) -> Iterator[Any]:
    """Other values of a field."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from varied(value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value + 5)
    elif isinstance(value, float):
        yield 0.75 * value if value else 0.5
    elif isinstance(value, str):
        yield from (one for one in choices if one != value)
    elif isinstance(value, tuple) and value:
        for other in changed(value[0], ()):
            yield (other, *value[1:])


def alike(keys: dict[str, Any]) -> list[list[str]]:
    """The names of equal keys."""
    names = [[name for name, key in keys.items() if key == wanted] for wanted in set(keys.values())]
    return [some for some in names if len(some) > 1]


def varied(thing: Any, *names: str) -> Iterator[Any]:
    """Copies of which one field (of these names) has another value; those that may not be are left out."""
    for field in dataclasses.fields(thing):
        if names and field.name not in names:
            continue
        choices = field.metadata.get("choices") or ()
        for value in changed(getattr(thing, field.name), choices):
            try:
                yield dataclasses.replace(thing, **{field.name: value})
            except (RbError, TypeError, ValueError):
                continue


class Asked(Exception):
    """Raised with the key under which a piece of work would be looked for."""


def data_of(**changes: Any) -> Data:
    about = datasets.describe("digits")
    given = {"split": "test", "fingerprint": "0", "size": 100, **changes}
    about = dataclasses.replace(about, **{name: given.pop(name) for name in ("mean", "std") & given.keys()})
    return Data("digits", about=about, data_dir=None, class_map=None, **given)


def inputs_of(checkpoint: str = "a", channels: int = 2, data: Data | None = None, **run: Any) -> Inputs:
    record = {"arch": {**SMALL_ARCH, "channels": channels}, "checkpoint": f"sha256:{checkpoint * 64}"}
    return Inputs(record, data or data_of(), run_in(None, **{"precision": "fp32", **run}))


MODEL = {"checkpoint": {"checkpoint": "b"}, "arch": {"channels": 3}}
DATA = {"data": {"data": data_of(fingerprint="1")}, "split": {"data": data_of(split="train")}}
STAGES = ("jpeg:75", "jpeg:50", "quantize:3")
INPUTS: dict[str, dict[str, Any]] = {
    **{**MODEL, **DATA, "seed": {"seed": 1}, "n": {"n": 50}},
    **{"precision": {"precision": "bf16"}, "prepare": {"prepare": False}},
    **{text: {"defend": Stages(stages.parse(text))} for text in STAGES},
    "backward": {"defend": Stages(stages.parse("jpeg:75"), "none")},
}
VERSIONS = {"VERSION": stored_results, "GENERATOR": rng, "PREPARED": precision}


def versioned(thing: Any) -> list[type]:
    """The classes with a version, of a spec or a measure or of their methods."""
    parts = [thing, *(getattr(thing, field.name) for field in dataclasses.fields(thing))]
    return [type(part) for part in parts if isinstance(getattr(type(part), "version", None), int)]


def with_versions(
    change: pytest.MonkeyPatch, places: dict[str, Any], thing: Any, key: Callable[[], Any]
) -> dict[str, Any]:
    """The key after each version was raised alone: constants of modules, and versions of methods."""
    keys = {}
    for name, owner in [*places.items(), *(("version", cls) for cls in versioned(thing))]:
        with change.context() as alone:
            new = 99 if isinstance(getattr(owner, name), int) else "99"
            alone.setattr(owner, name, new)
            keys[f"{name} of {owner.__name__}"] = key()
    return keys


def rows_key(spec: Spec, **changes: Any) -> str:
    return stored_results._Unit(inputs_of(**changes), (spec,)).outcomes_key


def entries_key(spec: Spec, **changes: Any) -> str:
    return stored_results._Unit(inputs_of(**changes), (spec,)).entries_key


def in_memory_key(spec: Spec, model: nn.Module, images: torch.Tensor, n: int = 2, **settings: Any) -> str:
    data = GivenData(images, torch.zeros(len(images)).long())
    return Cache(Store("rb-store"), model, data).outcomes(spec, Settings(**settings), n, anew=False).key


def has_an_effect(what: str, spec: Spec) -> bool:
    """Whether this part of the inputs decides the rows."""
    if what == "precision":
        return spec.searches and not spec.precise
    if what == "prepare" or what.startswith("PREPARED"):
        return spec.searches
    if what == "seed" or what.startswith("GENERATOR"):
        return spec.random
    return what != "n" or spec.batch_dependent


@pytest.mark.parametrize("name", MADE)
def test_each_field_of_the_inputs_decides_the_key_of_a_result(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run with another seed, network or data finds the rows of this one."""
    spec = MADE[name]
    rows, entries = rows_key(spec), entries_key(spec)
    others = {what: rows_key(spec, **change) for what, change in INPUTS.items()}
    others |= with_versions(monkeypatch, VERSIONS, spec, lambda: rows_key(spec))
    assert versioned(spec) or name.split()[0] in ("clean", "archive"), "the method has no version"
    deciding = {what for what in others if has_an_effect(what, spec)}
    assert {what for what, other in others.items() if other != rows} == deciding
    assert len({rows, *others.values()}) == 1 + len(deciding)
    after = [entries_key(spec, **change) for what, change in INPUTS.items() if what in deciding]
    after += [entries_key(spec, n=50)] * (not spec.batch_dependent)
    monkeypatch.setattr(stored_results, "POSTPROCESSING", 99)
    assert len({entries, *after, entries_key(spec)}) == 2 + len(after)


@pytest.mark.parametrize("name", MADE)
def test_each_option_decides_the_key_of_a_result(name: str) -> None:
    spec = MADE[name]
    keys = {spec: (rows_key(spec), entries_key(spec))}
    for other in varied(spec):
        # The search for the nearest example is within any distance.
        if isinstance(spec, Nearest) and dataclasses.replace(other, method=spec.method) == spec:
            other = dataclasses.replace(other, method=dataclasses.replace(other.method, eps=spec.method.eps))
        keys[other] = (rows_key(other), entries_key(other))
    assert len(set(keys.values())) == len(keys)


FIXED = [name for name, spec in MADE.items() if not spec.random and name not in ("archive", "transfer")]


@pytest.mark.parametrize("name", FIXED)
def test_rows_without_a_seed_draw_no_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("bits", "uniform", "normal", "integers"):
        monkeypatch.setattr(Draws, method, lambda *_, **__: pytest.fail("a number was drawn"))
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels, network = torch.zeros(3).long(), nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    spec: Any = MADE[name]
    batch = Batch(network.eval(), images, labels, torch.arange(3), seed=0, chunk_size=3)
    spec.rows_together([spec], batch)


@pytest.mark.parametrize("name", MADE)
def test_results_in_memory_have_keys_of_the_same_fields(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, images = MADE[name], torch.zeros(2, 1, 8, 8)
    model = nn.Linear(2, 2)
    base = partial(in_memory_key, spec, model, images, precision="fp32")
    others = {
        "checkpoint": in_memory_key(spec, nn.Linear(2, 2), images, precision="fp32"),
        "data": in_memory_key(spec, model, images + 0.5, precision="fp32"),
        "seed": base(seed=1),
        "n": base(n=1),
        "precision": in_memory_key(spec, model, images, precision="bf16"),
    }
    places = {"VERSION": in_memory, "GENERATOR": rng, "PREPARED": precision}
    others |= with_versions(monkeypatch, places, spec, base)
    assert {what for what, other in others.items() if other != base()} == {
        what for what in others if has_an_effect(what, spec)
    }


WEIGHTS = {"none": ["init"], "init": ["init"], "trained": ["trained"], "any": ["init", "trained"]}


@pytest.mark.parametrize("name", MEASURES)
def test_each_field_decides_the_key_of_a_measure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measure: Any = MEASURES.build(name)
    attack = ATTACKS.build("pgd", eps=EPS) if measure.attacks else None
    for on in WEIGHTS[measure.weights]:

        def key(measure: Any = measure, attack: Any = attack, on: str = on, **changes: Any) -> str:
            item = {name: changes.pop(name) for name in ("size", "batchnorm", "init_seed") & changes.keys()}
            inputs = inputs_of(**changes)
            job = MeasureItem(measure, attack, on, inputs.data, **{"size": (2, 8), **item})
            return digest(measurement._what(inputs.record, job, inputs.run))

        with_data = {**DATA, "batches": {"size": (3, 8)}, "batch": {"size": (1, 16)}}
        fresh = {"mean": {"data": data_of(mean=(0.5,))}, "init_seed": {"init_seed": 1}, "arch": MODEL["arch"]}
        fields = (MODEL if on == "trained" else fresh) | (with_data if measure.data else {})
        fields |= {"batchnorm": {"batchnorm": "batch"}} if measure.batchnorm else {}
        random = measure.random or (attack is not None and attack.random)
        keys = {what: key(**change) for what, change in fields.items()}
        versions = {"VERSION": measurement} | ({"GENERATOR": rng} if random else {})
        keys |= with_versions(monkeypatch, versions, measure, key)
        keys |= {str(other): key(measure=other) for other in varied(measure)}
        if attack is not None:
            keys |= {str(other): key(attack=other) for other in (None, *varied(attack))}
        assert len({key(), *keys.values()}) == 1 + len(keys)
        assert (key(seed=1) not in (key(), *keys.values())) == random


def asked(module: Any, work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> str:
    def once(run: Any, key: str, *_: Any, **__: Any) -> None:
        raise Asked(key)

    monkeypatch.setattr(module, "once", once)
    with pytest.raises(Asked) as found:
        work()
    return str(found.value)


RECORD = {"arch": SMALL_ARCH, "checkpoint": "sha256:" + "a" * 64}
PLAIN = Recipe(epochs=2, batch_size=16, lr=0.1)
# Every option has an effect in one of these.
ADDED = ("l2", "cutout", "mixup", "awp")
RICH = dataclasses.replace(PLAIN, schedule="step", milestones=(1,), regularize=ADDED)
FILTERED = dataclasses.replace(PLAIN, filter="chen-lee", init="checkpoint")
# Options that only choose among the weights, and options whose content other fields have.
ELSEWHERE = {"normalize", "given", "select", "keep", "preset", "track", "every", "track_n", "init_file"}


def training_key(
    change: pytest.MonkeyPatch, method: Any, recipe: Recipe = PLAIN, data: Any = None, **more: Any
) -> str:
    given = {"record": RECORD, "precision": "fp32", **more}
    record, run = given.pop("record"), run_in(None, **given)
    change.setattr(train_model, "data_of", lambda *_: data or data_of())
    return asked(train_model, partial(train_model.train, record, method, recipe, run), change)


@pytest.mark.parametrize("name", METHODS)
def test_each_field_decides_the_key_of_a_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method: Any = METHODS.build(name)
    key = partial(training_key, monkeypatch, method)
    fields: dict[str, dict[str, Any]] = {
        **{"seed": {"seed": 1}, "data": DATA["data"], "mean": {"data": data_of(mean=(0.5,))}},
        **{"precision": {"precision": "bf16"}, "prepare": {"prepare": False}},
        "arch": {"record": {"arch": {**SMALL_ARCH, "channels": 3}}},
        "normalize": {"recipe": dataclasses.replace(PLAIN, normalize=((0.5,), (0.3,)))},
    }
    versions: dict[str, Any] = {"VERSION": train_model, "GENERATOR": train_model, "PREPARED": precision}
    if not method.inner:  # no search runs on a fast copy
        del fields["prepare"], versions["PREPARED"]
    keys = {what: key(**change) for what, change in fields.items()}
    keys |= with_versions(monkeypatch, versions, method, key)
    keys |= {str(other): training_key(monkeypatch, other) for other in varied(method)}
    assert alike({"": key(), **keys}) == []


@pytest.mark.parametrize("recipe", [PLAIN, RICH, FILTERED], ids=["plain", "rich", "filtered"])
def test_each_option_of_a_recipe_decides_the_key(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    key = partial(training_key, monkeypatch, METHODS.build("pgd"))
    keys, unused = {"": key(recipe=recipe)}, ELSEWHERE | recipe.without_effect().keys()
    for field in {one.name for one in dataclasses.fields(recipe)} - unused:
        for other in varied(recipe, field):
            with contextlib.suppress(RbError):
                keys[f"{field} {getattr(other, field)}"] = key(recipe=other)
    if recipe.init == "checkpoint":
        keys["init"] = key(recipe=recipe, record={**RECORD, "checkpoint": "sha256:" + "b" * 64})
    assert alike(keys) == []


@pytest.mark.parametrize("name", [name for name in SEARCHES if hasattr(SEARCHES.of_name(name), "loop")])
def test_each_field_decides_the_key_of_a_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method: Any = SEARCHES.build(name)

    def key(method: Any = method, seed: int = 0, size: tuple[int, int] = (2, 1), data: Any = None) -> str:
        monkeypatch.setattr(supernet_search, "data_of", lambda *_: data or data_of())
        run = run_in(None, seed=seed)
        return asked(supernet_search, lambda: supernet_search.search(method, run, *size), monkeypatch)

    keys = {"seed": key(seed=1), "channels": key(size=(3, 1)), "cells": key(size=(2, 2))}
    keys |= {"data": key(data=data_of(fingerprint="1")), "mean": key(data=data_of(mean=(0.5,)))}
    versions = {"VERSION": supernet_search, "GENERATOR": supernet_search}
    keys |= with_versions(monkeypatch, versions, method, key)
    keys |= {str(other): key(method=other) for other in varied(method)}
    assert len({key(), *keys.values()}) == 1 + len(keys)


def two_phase_key(
    screen: str = "fgsm", steps: int = 5, size: int | None = 9, goal: Any = None, **run: Any
) -> str:
    attack = ATTACKS.build("pgd", steps=steps, eps=EPS)
    request = TwoPhaseJob(attack, (EPS,), (ATTACKS.build(screen),), size, goal)
    asking: Any = SimpleNamespace(inputs=inputs_of(**run))
    return digest(_Estimate(asking, request, EPS)._key_fields())


def recognised_key(name: str = "a", data: Data | None = None, **given: Any) -> str:
    store = SimpleNamespace(get=lambda key: (_ for _ in ()).throw(Asked(key)))
    the_run: Any = SimpleNamespace(store=store, selection=Selection())
    with pytest.raises(Asked) as found:
        checkpoints._recognised("m.pt", name, given, data or data_of(), the_run)
    return str(found.value)


def part_key(rows: str = "a", begin: int = 0, end: int = 8) -> str:
    return tiles.part_key(rows, begin, end)


OTHERS: dict[str, tuple[Callable[..., str], list[dict[str, Any]]]] = {
    "two phases": (
        two_phase_key,
        [*INPUTS.values(), {"screen": "mi-fgsm"}, {"steps": 6}, {"size": 8}, {"size": None}, {"goal": 0.1}],
    ),
    "recognised": (
        recognised_key,
        [{"name": "b"}, {"space": "zoo"}, *DATA.values(), {"data": data_of(mean=(0.5,))}],
    ),
    "part of the rows": (part_key, [{"rows": "b"}, {"begin": 4}, {"end": 9}]),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_each_field_decides_the_key_of_other_results(kind: str) -> None:
    key, changes = OTHERS[kind]
    assert alike({"": key(), **{str(change): key(**change) for change in changes}}) == []


def test_each_share_has_held_out_images_of_its_own() -> None:
    run = run_in("rb-store")
    for share, left in ((0.1, 1298), (0.2, 1154), (0.1, 1298)):
        found = validation.trained_on({"dataset": "digits", "train": {"config": {"val": share}}}, run)
        assert found is not None and len(found.numbers) == left


def entry_of(spec: Spec) -> dict[str, Any]:
    """The entry of three images, as a file has it."""
    rows = np.array(ROWS.get(type(spec), [1, 1, 0]), np.float32)
    if getattr(spec, "detail", False):
        rows = np.array([[1, 0, 2], [0, 2, 1], [1, 2, 0]], np.float32)
    return json.loads(dumps(spec.entry(rows)))


def in_an_entry(spec: Spec) -> dict[str, Any]:
    """Its fields, without those of which no entry says anything: the criterion of PR_D, which has none."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.compare}
    if isinstance(spec, Noisy) and spec.rho is None:
        del fields["passes"]
    if isinstance(spec, Nearest):  # the search is within any distance
        fields["method"] = dataclasses.replace(spec.method, eps=None)
    if isinstance(spec, Corrupted):
        fields["corruption"] = spec.corruption.resolved()
    return fields | ({"confidence": round(fields["confidence"], 9)} if "confidence" in fields else {})


@pytest.mark.parametrize("name", MADE)
def test_an_entry_gives_its_spec_back(name: str) -> None:
    spec = MADE[name]
    for other in (spec, *varied(spec)):
        try:
            entry = entry_of(other)
        except (RbError, KeyError, ValueError, IndexError, TypeError):
            continue
        found = spec_of(entry)
        assert type(found) is type(other), entry
        assert in_an_entry(found) == in_an_entry(other), entry


@pytest.mark.parametrize("name", MADE)
def test_a_damaged_setting_has_a_question_or_a_reason(name: str) -> None:
    entry = {**entry_of(MADE[name]), "seed": 0, "split": "test"}
    tool = {"tool": "rb-convert"} if name.endswith("draws") else {}
    for field in entry.keys() - {"metric"}:
        for wrong in ({}, [], [{}], "x", -1, None, True, 1.5):
            with contextlib.suppress(Unsayable):
                question = question_of({**tool, **entry, field: wrong})
                hash(getattr(question, "specs", ()))
