"""NAS-Bench-201: published order, strings, classes and costs, computed without torch."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.spaces import nasbench201 as nb
from rbtools.spaces.nasbench201 import cells

# sha256 of the JSON list of [string, index of its class] over all 15,625 entries of the metadata that
# Jung et al. published (meta.json of the robustness dataset), in the order of their indices.
PUBLISHED = "b273e144f00ddb2a7f483e51004ebfdc33dc433b08d990d82d34e865187a8901"
BEST = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"


def test_all_strings_and_classes_are_the_published_ones():
    listing = [list(pair) for pair in zip(nb.strings(), nb.classes(), strict=True)]
    text = json.dumps(listing, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == PUBLISHED


def test_live_edges_equal_a_walk_over_all_paths():
    paths = [[3], [0, 4], [1, 5], [0, 2, 5]]
    for ops in cells():
        live = {edge for path in paths if all(ops[edge] for edge in path) for edge in path}
        assert nb.live_edges(ops) == tuple(edge in live for edge in range(6))
        weights = {"nor_conv_1x1": 1, "nor_conv_3x3": 9}
        assert nb.live_kernel_params(ops) == sum(weights.get(nb.OPS[ops[edge]], 0) for edge in live)


def test_dead_cells_and_kernel_params_of_the_representatives():
    dead = [index for index, ops in enumerate(cells()) if not any(nb.live_edges(ops))]
    assert len(dead) == 341
    assert [index for index in nb.unique() if index in set(dead)] == [10, 12, 74, 172, 879]
    of_unique = [cells()[index] for index in nb.unique()]
    assert sum(nb.kernel_params(ops) == 18 for ops in of_unique) == 405
    assert sum(nb.live_kernel_params(ops) == 18 for ops in of_unique) == 408
    assert sorted(map(nb.kernel_params, cells()))[:: len(cells()) - 1] == [0, 54]


@pytest.mark.parametrize(
    ("index", "of_10", "of_100", "of_120", "mflops_32", "mflops_16"),
    [
        (1651, 73_306, 79_156, 80_456, 7.78305, 1.95340),
        (13714, 1_073_466, 1_079_316, 1_080_616, 153.27297, 38.32588),
        (0, 129_306, 135_156, 136_456, 15.64737, 3.91948),
    ],
)
def test_published_counts(index, of_10, of_100, of_120, mflops_32, mflops_16):
    params = [nb.arch(index, classes=classes)["params"] for classes in (10, 100, 120)]
    assert params == [of_10, of_100, of_120]
    # AutoDL counts the classifier's bias among the FLOPs.
    assert round((nb.arch(index)["macs"] + 10) / 1e6, 5) == mflops_32
    assert round((nb.arch(index, classes=120, shape=(3, 16, 16))["macs"] + 120) / 1e6, 5) == mflops_16


@pytest.mark.parametrize(
    ("index", "channels", "depth", "classes", "side", "params", "macs"),
    [  # counted by hooks on the original network
        (13714, 16, 5, 10, 32, 1073466, 153272960),
        (3, 8, 1, 10, 16, 18738, 514368),
        (1832, 16, 5, 120, 16, 164456, 4902400),
    ],
)
def test_counts_of_the_original_network(index, channels, depth, classes, side, params, macs):
    arch = nb.arch(index, channels=channels, cells=depth, classes=classes, shape=(3, side, side))
    assert (arch["params"], arch["macs"]) == (params, macs)


def test_images_are_of_multiples_of_four_pixels():
    for height, width in itertools.product(range(1, 14), repeat=2):
        if height % 4 == width % 4 == 0:
            assert nb.arch(0, shape=(3, height, width))["macs"] > 0
            continue
        with pytest.raises(RbError, match=f"images of {height}x{width} pixels.*multiples of 4"):
            nb.arch(0, shape=(3, height, width))
    with pytest.raises(RbError, match=r"second reduction, the convolution returns 8x8 and the shortcut 7x7"):
        nb.arch(0, shape=(3, 30, 30))


def test_neighbours_differ_in_one_edge():
    for index in (0, 1651, 13714):
        found = nb.neighbours(index)
        assert len(set(found)) == 24
        assert {nb.edit_distance(cells()[index], cells()[other]) for other in found} == {1}
    assert nb.edit_distance(cells()[13714], cells()[3456]) == 2


@pytest.mark.parametrize("options", [{"channels": 0}, {"cells": -1}, {"classes": 0}, {"shape": (0, 32, 32)}])
def test_sizes_below_one(options):
    with pytest.raises(RbError, match="whole number of 1 or more"):
        nb.arch(0, **options)


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("", 1, "found its end, expected '|'"),
        ("|nor_conv_3x4~0|", 2, "Did you mean 'nor_conv_3x3'"),
        ("|none|+", 6, "expected '~0'"),
        ("|none~0|+|none~0|none~1|+|none~0|none~1|none~2", 47, "found its end, expected '|'"),
        ("|none~0|+|none~0|none~1|+|none~0|none~1|none~2|+|", 48, "the end, after six edges"),
    ],
)
def test_a_string_that_does_not_parse_says_where(text, where, words):
    with pytest.raises(RbError) as caught:
        nb.parse(text)
    assert f"does not parse at character {where}:" in str(caught.value)
    assert words in str(caught.value)
    assert "The form is |op~0|+|op~0|op~1|+" in str(caught.value)


@settings(deadline=None)
@given(st.text(alphabet="|+~^012_ncor3x\n ", max_size=60) | st.text(max_size=30))
def test_other_text_raises_only_rberror(text):
    for read in (nb.parse, nb.find):
        try:
            read(text)
        except RbError as error:
            assert str(error).endswith(".")
