"""What all spaces share."""

from __future__ import annotations

import pytest

from rbtools.errors import RbError
from rbtools.spaces import BY_NAME, SPACES, describe, space
from rbtools.spaces import nasbench201 as nb


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.slow
def test_every_space_lists_finds_and_describes_its_own(name):
    found = space(name)
    indices = list(found.indices())
    assert len(indices) == len(found)
    assert set(found.indices(unique=True)) <= set(indices)
    for index in indices[:: max(1, len(indices) // 7)]:
        arch = found.arch(index, classes=7, shape=(1, 8, 8))
        assert arch["space"] == name
        assert found.find(arch["name"]) == found.find(str(index)) == index
        assert describe(arch, 7, [1, 8, 8]) == arch
        assert describe({**arch, "note": "kept"}, 10, (3, 32, 32)) == {**found.arch(index), "note": "kept"}


@pytest.mark.parametrize(
    "arch",
    [
        {"str": nb.strings()[7]},
        {"str": nb.strings()[7].replace("~", "^"), "index": 7},
        {"index": 7},
        {"name": "nb201-7"},
        {"index": 7, "name": "mine"},
    ],
)
def test_a_short_arch_is_completed_and_keeps_its_name(arch):
    expected = {**nb.arch(7, shape=(3, 8, 8)), "name": arch.get("name", "nb201-7")}
    assert describe({"space": "nasbench201", **arch}, 10, (3, 8, 8)) == expected


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ({"str": nb.strings()[7], "index": 8}, "has the index 7 .*the record says 8"),
        ({"str": 5}, "'5' does not parse at character 1"),
        ({"index": 99999}, "0 to 15624"),
        ({"index": 7, "channels": [16]}, r"cannot have channels = \[16\]"),
    ],
)
def test_a_bad_arch_says_what_is_wrong(arch, words):
    with pytest.raises(RbError, match=words):
        describe({"space": "nasbench201", **arch}, 10, (3, 32, 32))


@pytest.mark.parametrize("name", BY_NAME)
def test_a_space_without_a_list_says_so_and_passes_its_records_on(name):
    with pytest.raises(RbError, match=f"The space {name} cannot be listed. Name a network, such as"):
        space(name).indices()
    arch = {"space": name, "name": "x", "note": "kept"}
    assert describe(arch, 10, (3, 32, 32)) == arch
    with pytest.raises(RbError, match=f"names the space {name} but no model"):
        describe({"space": name}, 10, (3, 32, 32))
