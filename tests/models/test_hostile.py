"""Hostile and unusual files: each gives an error message, with little time and memory."""

from __future__ import annotations

import bz2
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rbtools import models
from rbtools.errors import RbError
from rbtools.models import checkpoint, families
from rbtools.models.meta import meta_init
from rbtools.models.unpack import PickleScan

W = torch.zeros(2, 3)
CIFAR = {"cifar10": ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)), "none": None}


def refused(raw: Any, match: str, **how: Any) -> None:
    """Of the bytes of a file, or of what torch.save writes."""
    if isinstance(raw, bytes):
        Path("weights.pt").write_bytes(raw)
    else:
        torch.save(raw, "weights.pt")
    with pytest.raises(RbError, match=match) as wrong:
        checkpoint.load("weights.pt", **how)
    assert "\n" not in str(wrong.value) and len(str(wrong.value)) < 1000


def cell() -> dict[str, torch.Tensor]:
    """The weights of a small NAS-Bench-201 network with a convolution on every edge."""
    text = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_1x1~1|+|nor_conv_3x3~0|nor_conv_1x1~1|nor_conv_1x1~2|"
    arch = {"space": "nasbench201", "str": text, "channels": 4, "cells": 1}
    return models.build(arch, classes=10, shape=(1, 32, 32)).state_dict()


def test_a_file_that_holds_itself_has_an_end() -> None:
    raw: dict[str, Any] = {"w": W}
    raw["model"] = raw
    refused(raw, r"inside 8 or more nested mappings \(model, model, .*\), or contains itself")


def test_lists_of_the_same_lists_are_looked_at_once() -> None:
    raw: dict[str, Any] = {}
    raw |= {str(number): raw for number in range(1000)}
    assert not PickleScan().holds_tensors(raw) and not PickleScan().is_plain(raw)
    value: Any = 0.5
    for _ in range(4):
        value = [value] * 2_000  # 10^13 numbers if expanded
    torch.save({"state_dict": cell(), "history": value}, "weights.pt")
    read = checkpoint.read("weights.pt")
    assert "history" not in read.metadata and read.origin["nesting"] == ["state_dict"]


@pytest.mark.parametrize(
    "tensor, kind",
    [
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.zeros(2, 3, dtype=torch.complex64), "complex"),
        (torch.zeros(2, 3, device="meta"), "without data"),
    ],
)
def test_what_is_no_block_of_numbers_is_refused(tensor: torch.Tensor, kind: str) -> None:
    refused({"fc.weight": tensor, "fc.bias": W}, rf"has the tensor 'fc.weight'.*{kind}")
    expanded = torch.zeros(()).expand(10**6, 10**6)
    refused({"fc.weight": expanded}, "1 tensors of 4000000000000 bytes, but only 4 bytes of data")
    torch.save({"fc.weight": torch.zeros(1, 3).expand(2, 3), "x": W}, "weights.pt")  # a small one is fine
    assert checkpoint.read("weights.pt").state["fc.weight"].shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0, 1, 1, 1)])
def test_a_tensor_of_any_shape_in_any_place_is_no_crash(shape: tuple[int, ...]) -> None:
    for name in ("nasbench201", "resnet18", "preactresnet18", "wrn-10-1", "vgg11", "deit-ti", "simplecnn"):
        images = (1, 28, 28) if name == "simplecnn" else (3, 32, 32)
        with meta_init():
            arch = {"space": "zoo", "name": name}
            network = None if name == "nasbench201" else models.build(arch, classes=10, shape=images)
        state = cell() if network is None else network.state_dict()
        assert families.infer(state).classes == 10
        for key in state:
            odd = {**state, key: torch.zeros(shape)}
            try:
                families.infer(odd)
            except RbError as wrong:
                assert str(wrong).endswith(".")
            families.classes_of(odd)
            families.in_channels_of(odd)


@pytest.mark.parametrize(
    "noted, match",
    [
        ({"cells": 10**9}, r"has the cells 1000000000. Expected a value that rb-arch writes"),
        ({"cells": 7}, r"an architecture with cells 7, but its weights have cells 1. Name the right"),
        ({"channels": "four"}, r"in the metadata of the checkpoint .* has the channels 'four'"),
        ({"normalize": "junk"}, r"has the normalize 'junk'"),
        ({"str": ["x"] * 50}, r"has the str \['x', .*\.\.\.\. Expected"),
    ],
)
def test_an_architecture_that_a_file_notes_is_checked(noted: dict[str, Any], match: str) -> None:
    text = "|nor_conv_3x3~0|+|none~0|none~1|+|none~0|none~1|none~2|"
    refused({"state_dict": cell(), "arch": {"space": "nasbench201", "str": text, **noted}}, match)


def test_a_billion_cells_are_not_counted_and_a_normalisation_of_other_channels_is_left_out() -> None:
    whole = cell()
    few = {key: value for key, value in whole.items() if not key.startswith(("cells.1.", "cells.3."))}
    for numbers in ((10**9, 2 * 10**9 + 1), (10**9, "9" * 900)):
        refused({**few, **{f"cells.{one}.conv_a.op.1.weight": W for one in numbers}}, "not recognised")
    whole["stem.1.running_mean"] = torch.full((4,), 0.3)  # BatchNorm's statistics are not the initial ones
    torch.save(whole, "weights.pt")
    _, _, facts = checkpoint.load("weights.pt", hints=checkpoint.NormalizationHints(known=CIFAR))
    assert facts["shape"][0] == 1 and facts["normalize"] is None


@pytest.mark.parametrize("beside", [{"mean": torch.rand(3), "std": torch.rand(2)}, {}])
def test_means_and_deviations_of_different_numbers_are_refused(beside: dict[str, Any]) -> None:
    notes = {} if beside else {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2]}
    refused({"state_dict": {**cell(), **beside}, **notes}, "with 3 means and 2 standard deviations")
    refused({**cell(), "mean": torch.zeros(0), "std": torch.zeros(0)}, "does not fit|not recognised")


RUN = {"net_state_dict": {"fc.weight": W}, "arch_config": {"arch_str": "|none~0|"}}


def test_published_runs_are_looked_for_where_they_are() -> None:
    for runs in (
        *({name: RUN} for name in ("cifar10", ("cifar10", "x"))),
        *({("cifar10", 777): run} for run in (None, {"net_state_dict": W}, {"net_state_dict": {}})),
    ):
        refused({"full": {"all_results": runs}}, r"has the results of \d training runs, but no weights")
    raw = {"full": {"nothing": 1}, "200": {"all_results": {("cifar10", 777): {**RUN, "arch_config": 3}}}}
    torch.save(raw, "weights.pt")
    assert checkpoint.read("weights.pt").origin["run"] == "cifar10/777"
    torch.save({"full": {"all_results": [1]}, "w": W}, "weights.pt")
    assert "run" not in checkpoint.read("weights.pt").origin


def test_a_packed_file_that_unpacks_to_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rbtools.models.published.ROOM", 1000)
    torch.save({"w": torch.zeros(2**20)}, "large.pt")
    packed = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile("large.pt") as there, zipfile.ZipFile("w.pt", "w", **packed) as small:
        for name in there.namelist():
            small.writestr(name, there.read(name))
    refused(Path("w.pt").read_bytes(), r"unpacks to \d+ bytes, but PyTorch does not compress weights")
    large = bz2.compress(pickle.dumps({"full": bytes(2**24)}))
    refused(large, "unpacks to more than 100 times its size")
    # The opcode r stores an object at an index of the memo: index two billion would allocate all before it.
    refused(bz2.compress(b"\x80\x02}r\xff\xff\xff\x7f."), "has no weights in any of the usual places")


def test_a_zip_archive_is_no_tensor() -> None:
    class Tensor:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
            return torch.storage._load_from_bytes, (Path("inner.pt").read_bytes(),)

    torch.save(W, "inner.pt")
    file = bz2.compress(pickle.dumps({"a": Tensor()}))
    refused(file, "contains a zip archive instead of a tensor")


def test_names_from_a_file_stay_on_one_line() -> None:
    file = bz2.compress(b"\x80\x04\x8c\x02os\x8c\x05sys\nx\x93.")
    refused(file, r"contains the Python object os.sys\\nx, whose class")
    refused({"a\nb": 1, "x" * 10**5: 2}, r"it contains 'a\\nb', 'x{80}\.\.\.'")


def test_many_tensors_of_the_same_few_bytes_are_refused() -> None:
    one = torch.zeros(1).expand(2**18)
    refused(
        {f"{i}.weight{end}": one for i in range(50) for end in ("_orig", "_mask")},
        "but only 4 bytes of data",
    )
    refused({"x" * 10**6: torch.zeros(1), "fc.weight": W}, "of 1000000 characters")  # slow for patterns
    tied = torch.zeros(64, 64)
    torch.save({f"{i}.weight": tied for i in range(12)}, "weights.pt")
    assert len(checkpoint.read("weights.pt").state) == 12
