"""The theory's spaces: notation, order, sizes, costs by hand, and samples of what is too large to list."""

from __future__ import annotations

import itertools
import json

import pytest

from rbtools.errors import RbError
from rbtools.spaces import describe, sized
from rbtools.spaces.residual import ACTIVATIONS, FILTERS, drawn


@pytest.mark.parametrize(("name", "count"), [("fcnn", 5 * 5 * 2), ("rescnn", 20 * 20 * 2)])
def test_every_index_is_a_network_of_its_own(name, count):
    kept = sized(name, depth=3)
    archs = [kept.arch(index) for index in kept.indices(unique=True)]
    assert len(archs) == len({arch["str"] for arch in archs}) == len(kept) == count
    assert [kept.find(arch["str"]) for arch in archs] == list(range(count))
    if name == "fcnn":
        first, second = (list(ACTIVATIONS), [f"{a}{skip}" for a in ACTIVATIONS for skip in ("", "+skip")])
        assert {arch["str"] for arch in archs} == {"/".join(p) for p in itertools.product(first, second)}


def test_costs_by_hand():
    found = sized("fcnn", width=7, depth=4).arch(0, classes=10, shape=(3, 4, 5))
    assert found["params"] == found["macs"] == 60 * 7 + 7 * 7 + 7 * 7 + 7 * 10
    two = sized("fcnn", width=7, depth=2).arch(0, classes=2, shape=(3, 4, 5))
    assert two["params"] == 60 * 7 + 7  # for two classes one output
    arch = {"space": "rescnn", "str": "relu3/tanh5+skip", "width": 7}
    found = describe(arch, 10, (3, 4, 5))
    convolutions = 9 * 3 * 7 + 25 * 7 * 7
    assert found["params"] == convolutions + 20 * 7 * 10
    assert found["macs"] == convolutions * 20 + 20 * 7 * 10
    counts = {key: found[key] for key in ("skips", "relu", "tanh", "swish", "receptive", "depth", "width")}
    assert counts == {"skips": 1, "relu": 1, "tanh": 1, "swish": 0, "receptive": 7, "depth": 3, "width": 7}


def test_neighbours_differ_in_one_choice():
    kept = sized("rescnn", depth=3)
    mine = kept.find("relu3/tanh5+skip")
    found = [kept.arch(index)["str"] for index in kept.neighbours(mine)]
    others = len(ACTIVATIONS) - 1, len(FILTERS) - 1
    assert len(found) == len(set(found)) == 2 * sum(others) + 1
    assert {"relu3/tanh5", "relu1/tanh5+skip", "swish3/tanh5+skip", "relu3/relu5+skip"} <= set(found)
    assert "relu3/tanh5+skip" not in found
    assert all(mine in kept.neighbours(index) for index in kept.neighbours(mine))


@pytest.mark.parametrize(
    ("name", "arch", "words"),
    [
        ("fcnn", {"str": "relu/gelu"}, "Layer 2 of the network is 'gelu'. Expected one of relu, leaky"),
        ("rescnn", {"str": "relu"}, "and the size of its filters, .*relu3/tanh5"),
        ("rescnn", {"str": "relu4"}, "Layer 1 has filters of size 4. Choose from: 1, 3, 5, 7"),
        ("fcnn", {"str": "relu+skip/relu"}, "skip needs a layer before it"),
        ("fcnn", {"str": "relu/relu", "index": 9}, "has the index 0, but 9 is given. Leave out the index"),
        ("fcnn", {"index": 500}, "no index 500 at depth 4. Indices go from 0 to 499"),
        ("fcnn", {"index": 0, "width": 0}, "no networks with width 0. Expected a whole number from 1"),
    ],
)
def test_a_bad_arch_says_what_is_wrong(name, arch, words):
    with pytest.raises(RbError, match=words):
        describe({"space": name, **arch}, 10, (3, 8, 8))


def test_deep_networks_have_names_that_find_them_and_no_rounded_index():
    kept = sized("rescnn", depth=40)
    index = kept.size - 12345
    arch = kept.arch(index)
    assert index > 2**53 and "index" not in arch
    assert kept.find(arch["name"]) == kept.find(arch["str"]) == index
    assert describe(json.loads(json.dumps(arch)), 10, (3, 32, 32)) == arch


def test_a_draw_is_without_repetition_and_reaches_all():
    assert sorted(drawn(50, "a")) == list(range(50))
    assert list(itertools.islice(drawn(10**30, "a"), 3)) != list(itertools.islice(drawn(10**30, "b"), 3))
    top = [index >= 9 * 10**299 for index in itertools.islice(drawn(10**300, "x"), 400)]
    assert 20 < sum(top) < 64  # a tenth of 400, and four standard deviations of 6
