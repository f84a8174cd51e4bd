"""Which examples: those of --n are in proportion to the classes; the forms of --indices, and their errors."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rbtools import datasets
from rbtools.datasets import indices
from rbtools.errors import RbError
from rbtools.inputs.data import Data
from rbtools.probabilistic import intervals
from tests import runner

PUBLISHED = json.dumps({"train": ["int", ["0", "3", "1"]], "valid": ["int", ["2", "4"]]})


@pytest.fixture
def write(tmp_path):
    def written(text):
        (tmp_path / "chosen.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / "chosen.txt")

    return written


@pytest.mark.parametrize(
    "text", ["3 1 0", "0\n1\n3\n", "3,1,0", " 3 ,\t1\r\n0", "[3, 1, 0]", '["0", "1", "3"]', "\ufeff3 1 0"]
)
def test_forms_of_one_list(write, text):
    found = indices.read(write(text), 5)
    assert found.numbers == (0, 1, 3)
    assert found.name == "sha256:" + hashlib.sha256(b"0 1 3").hexdigest()


def test_one_list_of_several_is_named(write, tmp_path):
    path = write(PUBLISHED)
    assert indices.read(f"{path}:train", 5).numbers == (0, 1, 3)
    assert indices.read(f"{path}:valid", 5).numbers == (2, 4)
    (tmp_path / "a:b").write_text("1 2")  # a colon may be part of the name
    assert indices.read(str(tmp_path / "a:b"), 5).numbers == (1, 2)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("1 5", "", "names the example 5, but the split has 5 examples. Expected numbers from 0 to 4."),
        ("1 2 1", "", "names the example 1 twice"),
        ("1 two", "", "contains 'two'. Expected whole numbers"),
        ("[1, 2.5]", "", "contains 2.5"),
        ("[1, 2", "", "is not JSON"),
        (PUBLISHED, "", "has several lists: train, valid. Name one: "),
        (PUBLISHED, ":vaild", "has no 'vaild'. Did you mean 'valid'? It has: train, valid."),
        ("1 2", ":a", "is not a JSON object, so it has no 'a'"),
        (b"\xff\x00\xff", "", "cannot be read"),
        (None, "0-5", "names the example 5, but the split has 5 examples. Expected numbers from 0 to 4."),
        (None, "0-2,1", "names the example 1 twice"),
        (None, "3-1", "has the range 3-1, which is empty. Write 1-3."),
        (None, "0-99999999999", "Expected numbers below 10000000"),
        (None, ",".join(["0-9999998"] * 2), "names more than 10000000 examples"),
    ],
)
def test_anything_else_is_explained(write, text, key, message):
    path = "" if text is None else write(text)
    with pytest.raises(RbError) as caught:
        indices.read(path + key, 5)
    assert message in str(caught.value) and (path or key) in str(caught.value)


def test_ranges_need_no_file(tmp_path):
    for text, numbers in (("0-3", (0, 1, 2, 3)), ("2", (2,)), ("3,0-1", (0, 1, 3)), ("4-4", (4,))):
        assert indices.read(text, 5).numbers == numbers
        (tmp_path / text).write_text("4")  # a file of that name comes first
        assert indices.read(text, 5).numbers == (4,)


LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(torch.tensor)


@given(labels=LABELS, n=st.integers(1, 70), seed=st.integers(0, 2**64 - 1))
@pytest.mark.slow
def test_every_beginning_of_the_order_is_in_proportion_to_the_classes(labels, n, seed):
    chosen = datasets.subset(labels, n, seed)
    assert chosen.dtype == torch.int64 and len(chosen) == min(n, len(labels))
    assert len(set(chosen.tolist())) == len(chosen)
    assert torch.equal(chosen, datasets.subset(labels, 1000, seed)[:n])
    there = torch.bincount(labels, minlength=7)
    taken = torch.bincount(labels[chosen], minlength=7)
    assert ((taken - len(chosen) * there / len(labels)).abs() < 2).all()


TAIL = tuple(int(500 * 0.6**c) for c in range(12))
SIZES = {"two": (180, 20), "long tail": TAIL, "single": (300, *[1] * 300)}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_an_interval_from_n_images_contains_the_value_of_all(sizes):
    """In 400 populations, whose classes have accuracies of their own, at several n."""
    rng = np.random.default_rng(0)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    order = datasets.subset(labels, len(labels), seed=0).numpy()
    inside = []
    for _ in range(400):
        right = (rng.random(len(labels)) < rng.beta(0.5, 0.5, len(sizes))[labels])[order]
        for n in (20, 50, 100):
            low, high = intervals.clopper_pearson(int(right[:n].sum()), n)
            inside.append(low <= right.mean() <= high)
    assert np.mean(inside) >= 0.95
    # Large classes, which here are easier, are not preferred or avoided.
    easy = (torch.tensor(sizes) >= np.median(sizes)).numpy()[labels][order]
    assert all(abs(easy[:n].mean() - easy.mean()) < 0.08 for n in (40, 80, 160))


def test_nearly_equal_classes_take_turns():
    """Stored results of such data sets keep their order: here that of digits, 34 to 36 images a class."""
    labels = datasets.load("digits", "test").labels
    cycles = labels[datasets.subset(labels, 340, seed=0)].reshape(34, 10)
    assert len(set(map(tuple, cycles.tolist()))) == 1 and len(set(cycles[0].tolist())) == 10
    few = torch.tensor([0] * 105 + [1] * 95)  # after 190 in turn, the shares would be .5 for .525 and .475
    assert abs(int((few[datasets.subset(few, 190, seed=0)] == 0).sum()) - 190 * 0.525) < 1


def test_seeds_give_other_orders_and_the_order_is_frozen():
    labels = torch.arange(40) % 4
    orders = {seed: datasets.subset(labels, 8, seed).tolist() for seed in range(20)}
    assert len({tuple(order) for order in orders.values()}) == 20
    assert len({tuple(labels[order[:4]].tolist()) for order in map(torch.tensor, orders.values())}) > 8
    # Subsets are in users' stores: these may never change.
    assert orders[0] == [2, 33, 31, 32, 6, 37, 27, 4]
    assert orders[1] == [24, 14, 29, 7, 16, 34, 13, 27]


def test_fewer_than_one_is_refused():
    with pytest.raises(RbError, match=r"number of examples is -3\. Expected 1 or more"):
        datasets.subset(torch.tensor([0, 1]), -3, seed=0)


@pytest.mark.parametrize("in_order", [False, True])
def test_chosen_examples_cycle_through_the_classes_unless_their_order_is_given(in_order):
    chosen = indices.Indices((30, 3, 9, 22, 17, 7), "sha256:0", in_order)
    data = Data("x", "test", None, "", 40, None, None, chosen)
    order = data.order(torch.arange(40) % 4).tolist()
    assert order == ([30, 3, 9, 22, 17, 7] if in_order else [30, 9, 7, 22, 17, 3])


def test_indices_choose_examples_and_nothing_else_changes(trained, tmp_path):
    """An example's result in a subset equals its result in the whole split, random starts included."""
    attack = runner.command("attack", "--eps 16 --steps 2 --device cpu")
    parts = {"odd": [*range(1, 355, 2)], "even": [*range(0, 355, 2)]}
    (tmp_path / "parts.json").write_text(json.dumps(parts))
    right = 0
    for name, part in parts.items():
        result = runner.one(attack(f"pgd --indices parts.json:{name}", trained["erm"]))
        entry = runner.entry(result, "pgd2.16")
        assert entry["n"] == len(part) and entry["indices"].startswith("sha256:")
        assert runner.entry(result, "acc")["indices"] == entry["indices"]
        right += round(entry["value"] * entry["n"])
    entry = runner.entry(runner.one(attack("pgd", trained["erm"])), "pgd2.16")
    assert entry["n"] == 355 and "indices" not in entry and round(entry["value"] * 355) == right > 0
