"""Specs: the settings in an entry are part of its key, and give the spec back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import search_named
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
from rbtools.records import dumps

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
    for field in entry.keys() - {"metric"}:
        for wrong in ({}, [], [{}], "x", -1, None, True, 1.5):
            with contextlib.suppress(Unsayable):
                question = question_of({**entry, field: wrong}, {}, lenient=name.endswith("draws"))
                hash(getattr(question, "specs", ()))
