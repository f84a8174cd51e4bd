"""An attack that is killed again and again continues, and finds what an uninterrupted attack finds."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.attacks import ATTACKS, active_examples
from rbtools.attacks.active_examples import CheckSchedule
from rbtools.attacks.curve import SEARCHES
from rbtools.corruptions import CORRUPTIONS
from rbtools.evaluation import tiles
from rbtools.evaluation.accuracy import Attacked
from rbtools.evaluation.base import Batch, Outcome, OutcomeRows
from rbtools.evaluation.distances import Nearest
from rbtools.evaluation.evaluate import StatusLine
from rbtools.evaluation.tiles import TileState
from rbtools.evaluation.under_corruption import Corrupted
from rbtools.execution.device import environment
from rbtools.execution.report import Report
from rbtools.store import Store, digest
from tests import networks

CPU, EPS = torch.device("cpu"), 16 / 255
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "pgd": ("pgd", {"steps": 4, "restarts": 3, "eps": EPS}),
    "last": ("pgd", {"steps": 9, "iterate": "last", "eps": EPS}),
    "8bit": ("pgd", {"steps": 4, "restarts": 2, "norm": "l2", "eps": 0.1, "grid": "8bit"}),
    "eot": ("pgd", {"steps": 9, "eot": 2, "eps": EPS}),
    "mi-fgsm": ("mi-fgsm", {"steps": 7, "diversity": 0.5, "eps": EPS}),
    "apgd-ce": ("apgd-ce", {"steps": 30, "eps": EPS}),
    "apgd-t in l1": ("apgd-t", {"steps": 12, "targets": 2, "norm": "l1", "eps": 1.0}),
    "fab": ("fab", {"steps": 4, "restarts": 2, "eps": EPS}),
    "square": ("square", {"queries": 530, "eps": EPS}),
    "square in l2": ("square", {"queries": 20, "restarts": 2, "norm": "l2", "eps": 0.1}),
    "aa": ("aa", {"attacks": "pgd,apgd-dlr", "eps": EPS}),
    "cw-l2": ("cw-l2", {"steps": 6, "searches": 3}),
    "fmn": ("fmn", {"steps": 9, "eps": EPS}),
    "ddn": ("ddn", {"steps": 9}),
    "hopskipjump": ("hopskipjump", {"queries": 150, "eps": EPS}),
    **{name: (name, {"queries": 40, "eps": EPS}) for name in ("rays", "surfree", "boundary")},
    "spsa": ("spsa", {"queries": 90, "samples": 3, "eps": EPS}),
}


WRITES = {"square": 150, "aa": 30, "cw-l2": 1, "corruptions": 1}  # until the process is killed


class Killed(BaseException):
    """The process ends here."""


class KilledStore(Store):
    """The process ends instead of one more write."""

    left = 3

    def keep_state(self, *arguments: Any, **named: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed
        super().keep_state(*arguments, **named)


class Counted(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.images = network, 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        logits: Tensor = self.network(images)
        return logits


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SECONDS_BEFORE_KEEPING", "_SECONDS_BETWEEN_WRITES", "_TIMES_OF_A_WRITE"):
        monkeypatch.setattr(tiles, name, 0.0)


def state(store: Store) -> TileState:
    return TileState(store, {0: digest("one"), 1: digest("other")}, CPU, environment(CPU))


def batch(model: nn.Module, store: Store, count: int = 12) -> Batch:
    images = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    images = images.mul(255).round().div(255)
    ids, labels = torch.arange(count), model(images).argmax(1)
    made = Batch(model, images, labels, ids, seed=0, chunk_size=count, partial=state(store))
    made.clean_logits  # noqa: B018  # as in every evaluation, before the attack
    return made


def same(found: list[Outcome], expected: list[Outcome]) -> bool:
    """To the bit, with the passes."""
    alike = []
    for one, other in zip(found, expected, strict=True):
        sums = [
            {name: value for name, value in each.totals.items() if name != "seconds"} for each in (one, other)
        ]
        alike += [torch.equal(one.values, other.values), sums[0] == sums[1]]
        alike += [one.images is None or torch.equal(one.images, other.images)]  # type: ignore[arg-type]
    return all(alike)


def rows_of(some: list[Any], work: Batch) -> list[Outcome]:
    return list(type(some[0]).rows_together(some, work))


def specs(name: str) -> list[Any]:
    if name == "corruptions":
        return [Corrupted(corruption=CORRUPTIONS.build("contrast"), severity=1 + i) for i in range(5)]
    if name == "curve":
        return [Nearest(method=SEARCHES.build("curve", queries=60))]
    attack, settings = ASKED[name]
    return [Attacked(method=ATTACKS.build(attack, **settings))]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", [*ASKED, "curve", "corruptions"])
@pytest.mark.slow
def test_a_killed_tile_has_the_same_outcomes(name: str, every: int, tmp_path: Any, monkeypatch: Any) -> None:
    """On a GPU, broken examples are dropped every few steps."""
    monkeypatch.setattr(active_examples, "check_schedule", lambda device: CheckSchedule(every))
    model, kills = Counted(networks.convolutional(width=4)), 0
    expected = rows_of(specs(name), batch(model, Store(None)))
    whole, model.images = model.images, 0
    while True:
        store = KilledStore(tmp_path)
        store.left = WRITES.get(name, 3)
        work = batch(model, store)
        try:
            found = rows_of(specs(name), work)
            break
        except Killed:
            kills += 1
    assert kills > 1 and same(found, expected)
    # Each process classifies the images and begins a loop; nothing else is computed twice.
    assert model.images <= whole + kills * 10 * len(work.labels)
    store.left = 2
    work.partial.finished({i: OutcomeRows(found[0].stored(), {}, ()) for i in (0, 1)})  # type: ignore[attr-defined]
    parts = {path.name for path in store.files("state")}
    assert parts == {digest("one"), digest("other")}  # they replace the partial results


def test_damaged_partial_results_are_computed_again(tmp_path: Any) -> None:
    model, store = networks.convolutional(width=4), KilledStore(tmp_path)
    expected = rows_of(specs("pgd"), batch(model, Store(None)))
    with pytest.raises(Killed):
        rows_of(specs("pgd"), batch(model, store))
    for path in store.files("state"):
        Store(tmp_path).keep_state(path.name, b"not the form of partial results")
    assert same(rows_of(specs("pgd"), batch(model, Store(tmp_path))), expected)


def test_passes_of_an_earlier_process_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 130 passes, 110 were kept, and ten seconds were spent on 10 others."""
    spec, clock, said = Attacked(method=ATTACKS.build("pgd", steps=6)), iter([0.0, 10.0]), list[str]()
    assert spec.most_passes == 13
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    line = StatusLine("pgd6", 10, [spec], [()], 0, Report(progress=said.append))  # type: ignore[list-item]
    line.inside("", 110)
    line.inside("words", 120)
    assert "at most 10 s left" in said[0]
