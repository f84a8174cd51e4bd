"""Stored outcomes: all settings in an entry are part of its key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation.base import Output
from rbtools.evaluation.certified import certification_task
from rbtools.evaluation.distances import DistanceOutput, OptimalityOutput
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.rare_failures import RareOutput
from rbtools.evaluation.robust_loss import LossOutput
from rbtools.evaluation import accuracy
from rbtools.jobs.transfer import TransferOutput
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from rbtools.probabilistic.splitting import Splitting
from rbtools.records import consistency

EPS = 8 / 255


def outputs() -> dict[str, Output]:
    """One of each kind, and of each registered attack, corruption, noise and certifier."""
    made: dict[str, Output] = {}
    for name in ATTACKS:
        made[f"attack {name}"] = accuracy.attacked(ATTACKS.build(name), (EPS,)).outputs()[-1]
    for name in CORRUPTIONS:
        made[f"corruption {name}"] = accuracy.corrupted((CORRUPTIONS.build(name),), (3,)).outputs()[-1]
    for name in NOISES:
        task = noisy(NOISES.build(name), (0.1,), Estimator(rho=(0.1,)), 4)
        made |= {f"noise {name} {place}": one for place, one in enumerate(task.outputs())}
    for name in CERTIFIERS:
        task = certification_task(CERTIFIERS.build(name), (0.25,), lambda _: None)
        made |= {f"certificate {name} {place}": one for place, one in enumerate(task.outputs())}
    curve = DistanceOutput(ATTACKS.build("fmn"), (EPS, 2 * EPS))
    made |= {"distance": curve, "optimality": OptimalityOutput((curve,))}
    made |= {"loss": LossOutput(ATTACKS.build("pgd"))}
    made |= {"transfer": TransferOutput(ATTACKS.build("pgd"), sources=("sha256:0",), source_models=({},))}
    made |= {"rare": RareOutput(NOISES.build("uniform"), 0.1, Splitting(), 0.95)}
    return made


MADE = outputs()


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


def key(output: Output) -> tuple[dict[str, Any], dict[str, Any]]:
    return output.key_fields(), output.postprocess_key()


@pytest.mark.parametrize("name", MADE)
def test_what_shows_in_an_entry_decides_its_key(name: str) -> None:
    output = MADE[name]
    for other in varied(output):
        try:
            entry, shown = output.entry_template(), other.entry_template()
        except (RbError, KeyError, ValueError):
            continue
        if shown != entry:
            assert key(other) != key(output), (entry, shown)


@pytest.mark.parametrize("name", [name for name in MADE if name.startswith(("attack", "certificate"))])
def test_the_name_of_a_result_says_its_norm_and_distance(name: str) -> None:
    for output in (MADE[name], *varied(MADE[name])):
        for entry in output.entry_template():
            if "eps" in entry:
                assert consistency.contradicts_name(entry["metric"], {"value": 0.5, "n": 10, **entry}) is None


def test_fields_are_varied_at_all() -> None:
    assert all(list(varied(MADE[name])) for name in ("attack pgd", "distance", "loss", "rare", "transfer"))
    shown = [one.entry_template() for one in varied(MADE["attack pgd"])]
    assert len([one for one in shown if one != MADE["attack pgd"].entry_template()]) >= 5
