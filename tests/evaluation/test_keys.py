"""Specs: the settings in an entry are part of its key, and give the spec back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import UNBOUNDED, search_named
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation.accuracy import Attacked, Clean, Corrupted
from rbtools.evaluation.certified import Smoothed
from rbtools.evaluation.distances import Nearest
from rbtools.evaluation.probabilistic import Decided, Noisy
from rbtools.evaluation.rare_failures import RareFailure
from rbtools.evaluation.robust_loss import PARTS, RobustLoss
from rbtools.evaluation.spec import Spec
from rbtools.jobs.corrupted_images import Archived
from rbtools.jobs.questions import Unsayable, question_of, spec_of
from rbtools.jobs.transfer import Transferred
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.splitting import Splitting
from rbtools.records import consistency, dumps, schema

EPS = 8 / 255


def specs() -> dict[str, Spec]:
    """One of each kind, and of each registered attack, corruption, noise and certifier."""
    made: dict[str, Spec] = {"clean": Clean(), "clean draws": Clean(draws=5)}
    for name in ATTACKS:
        made[f"attack {name}"] = Attacked(method=ATTACKS.build(name, eps=EPS))
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
    made |= {"fmn": Nearest(method=search_named("fmn", "l2", 100))}
    made |= {what: RobustLoss(method=ATTACKS.build("pgd"), what=what) for what in PARTS}
    made["ladder"] = Attacked(method=ATTACKS.build("pgd", eps=EPS), ladder=(EPS / 2,))
    made["transfer"] = Transferred(method=ATTACKS.build("pgd"), sources=("sha256:0",), models=({"arch": {}},))
    made["archive"] = Archived(corruption="fog", severity=2, content="sha256:1")
    return made


MADE = specs()
# What a row looks like for three images.
ROWS = {Smoothed: [[1, 1, 9, 9, 1]] * 3, RareFailure: [[0, -1, -1]] * 3, Decided: [[4, 4, 1]] * 3}
ROWS |= {Nearest: [[0.1]] * 3, RobustLoss: [[0.5, 1]] * 3}


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


def varied(thing: Any) -> Iterator[Any]:
    """Copies of which one field has another value; those that may not be are left out."""
    for field in dataclasses.fields(thing):
        choices = field.metadata.get("choices") or ()
        for value in changed(getattr(thing, field.name), choices):
            try:
                yield dataclasses.replace(thing, **{field.name: value})
            except (RbError, TypeError, ValueError):
                continue


def key(spec: Spec) -> tuple[dict[str, Any], dict[str, Any]]:
    return spec.column(), spec.reading([spec])


@pytest.mark.parametrize("name", MADE)
def test_what_shows_in_an_entry_decides_its_key(name: str) -> None:
    spec = MADE[name]
    for other in varied(spec):
        try:
            shown = {"metric": other.name(), **other.settings()}
        except (RbError, KeyError, ValueError):
            continue
        if shown != {"metric": spec.name(), **spec.settings()}:
            assert key(other) != key(spec), shown


def entry_of(spec: Spec) -> dict[str, Any]:
    """The entry of three images, as a file has it."""
    rows = np.array(ROWS.get(type(spec), [1, 1, 0]), np.float32)
    if getattr(spec, "detail", False):
        rows = np.array([[1, 0, 2], [0, 2, 1], [1, 2, 0]], np.float32)
    found: dict[str, Any] = json.loads(dumps(spec.entry(rows)))
    return found


def in_an_entry(spec: Spec) -> dict[str, Any]:
    """Its fields, without those of which no entry says anything: the criterion of PR_D, which has none."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.compare}
    if isinstance(spec, Noisy) and spec.rho is None:
        del fields["passes"]
    if isinstance(spec, Nearest):  # the search is within any distance
        fields["method"] = dataclasses.replace(spec.method, eps=UNBOUNDED)
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
def test_settings_are_the_protocol_and_findings_are_results(name: str) -> None:
    spec = MADE[name]
    settings = set(spec.settings())
    found = entry_of(spec).keys() - settings - {"metric", "n"}
    assert {field for field in settings if schema.role(field) != "protocol"} <= {"source_model"}
    assert {field for field in found if schema.role(field) == "protocol"} == set()


@pytest.mark.parametrize("name", MADE)
def test_a_damaged_setting_has_a_question_or_a_reason(name: str) -> None:
    entry = {**entry_of(MADE[name]), "seed": 0, "split": "test"}
    for field in entry.keys() - {"metric"}:
        for wrong in ({}, [], [{}], "x", -1, None, True, 1.5):
            with contextlib.suppress(Unsayable):
                question = question_of({**entry, field: wrong}, {}, lenient=name.endswith("draws"))
                hash(getattr(question, "specs", ()))


def test_an_entry_of_a_class_of_the_users_gives_its_spec_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "classes_of_a_user.py").write_text(OWN)
    for registry, word in ((ATTACKS, "Mine"), (CORRUPTIONS, "Dim")):
        registry.load(f"python:classes_of_a_user:{word}")
    own: list[Spec] = [
        Attacked(method=ATTACKS.build("python:classes_of_a_user:Mine", eps=EPS, push=0.3)),
        Corrupted(corruption=CORRUPTIONS.build("python:classes_of_a_user:Dim", factor=0.2), severity=1),
    ]
    for spec in own:
        assert spec_of(entry_of(spec)) == spec


OWN = """
from dataclasses import dataclass
from rbtools.attacks.base import Attack
from rbtools.corruptions.base import Corruption
from rbtools.registry import param

@dataclass(frozen=True, kw_only=True)
class Mine(Attack):
    eps: float = 0.1
    push: float = param(0.5, "How far.")

@dataclass(frozen=True, kw_only=True)
class Dim(Corruption):
    factor: float = param(0.5, "How dim.")
"""


@pytest.mark.parametrize("name", [name for name in MADE if name.startswith(("attack", "certificate"))])
def test_the_name_of_a_result_says_its_norm_and_distance(name: str) -> None:
    for spec in (MADE[name], *varied(MADE[name])):
        shown = {"value": 0.5, "n": 10, **spec.settings()}
        assert "eps" not in shown or consistency.contradicts_name(spec.name(), shown) is None


def test_fields_are_varied_at_all() -> None:
    assert all(list(varied(MADE[name])) for name in ("attack pgd", "distance", "loss", "rare uniform"))
    shown = [one.settings() for one in varied(MADE["attack pgd"])]
    assert len([one for one in shown if one != MADE["attack pgd"].settings()]) >= 5


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("n", -1, "only in part"),
        ("n", 0, "only in part"),
        ("split", 3, "the split of the entry is 3, which is not a text"),
        ("seed", "x", "the seed of the entry is 'x', which is not a number"),
        ("seed", -1, "the seed of the entry is -1"),
        ("steps", -1, "steps of PGD is -1"),
        ("norm", "x", "norm"),
    ],
)
def test_a_damaged_setting_is_named(field: str, value: object, said: str) -> None:
    spec = Attacked(method=ATTACKS.build("pgd", steps=2, eps=8 / 255))
    entry = {**entry_of(spec), "n": 20, "split": "test", "seed": 0, field: value}
    with pytest.raises(Unsayable, match=re.escape(said)):
        question_of(entry)
