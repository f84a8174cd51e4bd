"""Files of torch.save: values equal torch's, and inconsistent files are refused."""

from __future__ import annotations

import argparse
import io
import struct
import zipfile
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rbtools.models import unpickle
from tests.unpickle import opcodes
from tests.unpickle.opcodes import Raw, pickled, storage, tensor, zipped

LAYOUTS = {"zip": True, "legacy": False}
KINDS = """float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128
uint16 uint32 uint64 float8_e4m3fn float8_e5m2""".split()


def saved(value: Any, layout: str = "zip", **how: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=LAYOUTS[layout], **how)
    return stream.getvalue()


def read(data: bytes) -> Any:
    return unpickle.torch_file(io.BytesIO(data))


def same(one: Any, other: Any) -> bool:
    """Whether two values are alike, types and memory layout of tensors included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        about = ("shape", "dtype", "requires_grad", "device")
        alike = all(getattr(one, what) == getattr(other, what) for what in about)
        places = one.stride() == other.stride() and one.storage_offset() == other.storage_offset()
        contents = [bytes(value.untyped_storage()) for value in (one, other)]
        return alike and places and contents[0] == contents[1]
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def of_types(kinds: list[str]) -> dict[str, torch.Tensor]:
    return {kind: torch.arange(5).remainder(2).to(getattr(torch, kind)) for kind in kinds}


def network() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    made(torch.rand(5, 3, 8, 8))
    return made


def trained() -> dict[str, Any]:
    moments = [value.clone() for value in network().state_dict().values()]
    state = {number: {"step": torch.tensor(1.0), "exp_avg": one} for number, one in enumerate(moments)}
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "fused": None, "params": list(state)}]
    plan = {"milestones": Counter([1, 2, 2]), "_step_count": 1, "_last_lr": [0.1]}
    optimizer = {"state": state, "param_groups": groups}
    return {"model": network().state_dict(), "optimizer": optimizer, "plan": plan, "epoch": 3}


def views() -> dict[str, torch.Tensor]:
    base = torch.arange(24.0)
    whole = base.view(2, 3, 4)
    return {
        "base": base,
        "again": base,
        "offset": base[5:9],
        "strided": whole[:, 1, ::2],
        "turned": whole.permute(2, 0, 1),
        "expanded": base[3].expand(4, 2),
        "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    }


VALUES: dict[str, Any] = {
    "a state dict": lambda: network().state_dict(),
    "a training": trained,
    "views": views,
    "types": lambda: of_types(KINDS[:12]),
    "newer types": lambda: of_types(KINDS[12:]),
    "sizes": lambda: [torch.tensor(3.5), torch.empty(0), torch.empty(2, 0, 3), torch.tensor(True)],
    "parameters": lambda: dict(network().named_parameters()) | {"i": nn.Parameter(torch.ones(2), False)},
    "a gradient": lambda: torch.ones(2, requires_grad=True),
    "containers": lambda: {
        "ordered": OrderedDict(a=1, b=[2, (3, None, True)]),
        "counter": Counter("abca"),
        "set": {1, "b", (2, 3)},
        "bytes": [b"a\xff", bytearray(b"xy")],
        "numbers": [0, -1, 255, 65536, 2**31, -(2**40), 2**70, 0.1, float("inf"), 1 + 2j],
        "text": ["", "e", "é", "\U0001f600", "x" * 300],
        (1, "a"): {2: {3.5: None}},
    },
    "of torch": lambda: [torch.Size([2, 3]), torch.device("cpu"), torch.device("cuda", 1), torch.bfloat16],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", VALUES)
def test_what_is_read_is_what_torch_reads(case: str, layout: str) -> None:
    data = saved(VALUES[case](), layout)
    if case == "newer types" and layout == "legacy":
        pytest.skip("torch writes these and does not read them")
    theirs = torch.load(io.BytesIO(data), "cpu", weights_only=True)
    ours = read(data)
    assert same(ours, theirs)
    if case == "a state dict":
        assert ours._metadata == theirs._metadata
        network().load_state_dict(ours)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shared_memory_stays_shared(layout: str) -> None:
    found = read(saved(views(), layout))
    found["base"][5] = -1
    assert found["offset"][0] == -1 and found["again"][5] == -1 and found["turned"][1, 0, 1] == -1


def test_a_file_of_another_byte_order_is_turned() -> None:
    state = of_types(KINDS[:12])
    data, stream = saved(state), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("byteorder"):
                content = b"big"
            if "/data/" in entry.filename:
                kind = getattr(torch, KINDS[int(entry.filename.rpartition("/")[2])])
                width = kind.itemsize // (2 if kind.is_complex else 1)
                content = np.frombuffer(content, f"u{width}").byteswap().tobytes()
            new.writestr(entry.filename, content)
    assert same(read(stream.getvalue()), state)


def test_what_training_scripts_note_comes_as_pythons_own() -> None:
    value = {
        "args": argparse.Namespace(lr=0.1, name="x", nested=argparse.Namespace(a=[1])),
        "best": np.float64(91.5),
        "half": np.float16(0.5),
        "epoch": np.int64(7),
        "done": np.bool_(True),
        "name": np.str_("resnet é"),
        "history": defaultdict(list, loss=[1.5]),
        "array": np.arange(6, dtype=np.int32).reshape(2, 3),
        "turned": np.asfortranarray(np.ones((2, 3))),
        "none": np.zeros((0, 4)),
        "type": np.dtype("float32"),
    }
    for layout in LAYOUTS:
        found = read(saved(value, layout))
        assert found["args"] == value["args"] and found["history"] == {"loss": [1.5]}
        for key in ("best", "half", "epoch", "done", "name"):
            assert found[key] == value[key].item() and type(found[key]) is type(value[key].item())
        for key in ("array", "turned", "none"):
            assert np.array_equal(found[key], value[key]) and found[key].dtype == value[key].dtype


def test_attributes_of_tensors_are_left_out() -> None:
    weight, parameter = torch.ones(2), nn.Parameter(torch.ones(2))
    weight.note = parameter.note = "x"
    found = read(saved([weight, parameter]))
    assert [type(one) for one in found] == [torch.Tensor, nn.Parameter]
    assert not any(hasattr(one, "note") for one in found)


def test_a_state_of_a_dict_is_torchs_own_note_alone() -> None:
    made = Raw(opcodes.call("collections.OrderedDict"))
    state = opcodes.mapping(_metadata=opcodes.mapping(a=1), items=3, __class__=4)
    found = read(zipped(pickled(opcodes.built(made, state))))
    assert vars(found) == {"_metadata": {"a": 1}} and list(found.items()) == []


def named(path: str) -> Raw:
    return Raw(opcodes.name(path))


FOUR, MAKER = storage("FloatStorage", "0", 4), "torch._tensor._rebuild_from_type_v2"
BAD_TENSORS: dict[str, Raw] = {
    "too long": tensor(FOUR, 0, (5,), (1,)),
    "too far": tensor(FOUR, 4, (1,), (1,)),
    "an empty one too far": tensor(FOUR, 5, (0,), (1,)),
    "strides beyond": tensor(FOUR, 0, (2, 2), (1, 3)),
    "a negative offset": tensor(FOUR, -1, (1,), (1,)),
    "a negative shape": tensor(FOUR, 0, (-1,), (1,)),
    "a negative stride": tensor(FOUR, 3, (2,), (-1,)),
    "a huge stride": tensor(FOUR, 0, (2,), (2**62,)),
    "a stride of 2^63": tensor(FOUR, 0, (1,), (2**63,)),
    "a product that wraps around": tensor(FOUR, 0, (2**32, 2**32), (0, 0)),
    "a huge expanded one": tensor(FOUR, 0, (2**31, 2**30), (0, 0)),
    "an empty one of a huge shape": tensor(FOUR, 0, (0, 2**62, 2**62), (1, 1, 1)),
    "other lengths": tensor(FOUR, 0, (2, 2), (1,)),
    "many dimensions": tensor(FOUR, 0, (1,) * 65, (1,) * 65),
    "a shape of text": tensor(FOUR, 0, "ab", (1, 1)),
    "a shape of truth values": tensor(FOUR, 0, (True,), (1,)),
    "no storage": tensor(Raw(opcodes.value(None)), 0, (1,), (1,)),
    "a storage of another length": tensor(storage("FloatStorage", "0", 5), 0, (1,), (1,)),
    "a storage of another type": tensor(storage("DoubleStorage", "0", 4), 0, (1,), (1,)),
    "a storage of 2^62 numbers": tensor(storage("FloatStorage", "0", 2**62), 0, (1,), (1,)),
    "a storage that is not there": tensor(storage("FloatStorage", "7", 4), 0, (1,), (1,)),
    "a storage outside": tensor(storage("FloatStorage", "../../0", 4), 0, (1,), (1,)),
    "a wider type": opcodes.call(
        "torch._utils._rebuild_tensor_v3", FOUR, 0, (3,), (1,), False, None, named("torch.float64")
    ),
    "a gradient of whole numbers": opcodes.call(
        "torch._utils._rebuild_tensor_v2", storage("IntStorage", "0", 4), 0, (4,), (1,), True, None
    ),
    "a parameter of no tensor": opcodes.call("torch._utils._rebuild_parameter", 3, False, None),
    "a maker inside a maker": opcodes.call(MAKER, named(MAKER), named("torch.Tensor"), (), None),
    "a persistent id of another kind": Raw(opcodes.value("storage") + b"Q"),
    "a persistent id of a number": Raw(opcodes.value(1) + b"Q"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
@pytest.mark.parametrize("around", [zipped, opcodes.legacy])
def test_a_tensor_outside_its_storage_is_refused(case: str, around: Any) -> None:
    content = struct.pack("<4f", 1, 2, 3, 4)
    assert read(around(pickled(tensor(FOUR, 0, (2, 2), (2, 1))), content)).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(unpickle.Damaged):
        read(around(pickled(BAD_TENSORS[case]), content))


def test_a_view_of_an_old_file_is_a_part_of_its_storage() -> None:
    part = tensor(storage("FloatStorage", "0", 4, ("v", 1, 3)), 1, (2,), (1,))
    assert read(opcodes.legacy(pickled(part), struct.pack("<4f", 1, 2, 3, 4))).tolist() == [3, 4]


def test_storages_of_an_old_file_that_do_not_come_are_refused() -> None:
    """Their memory would be whatever was there before."""
    data = pickled(tensor(FOUR, 0, (4,), (1,)))
    whole = opcodes.legacy(data, bytes(16))
    assert read(whole).tolist() == [0] * 4
    for bad in (whole[:-1], opcodes.legacy(data, bytes(8)), whole[:-30]):
        with pytest.raises(unpickle.Damaged):
            read(bad)


def rewritten(data: bytes, how: Any) -> bytes:
    """A zip with its list of members changed: how(entry) on each."""
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream, "a") as archive:
        for entry in archive.infolist():
            how(entry)
        archive._didModify = True
    return stream.getvalue()


def test_a_zip_whose_list_of_members_is_wrong_is_refused() -> None:
    good = zipped(pickled(tensor(FOUR, 0, (4,), (1,))), bytes(16))
    read(good)
    read(rewritten(good, lambda entry: None))

    def longer(entry: zipfile.ZipInfo) -> None:
        if entry.filename == "a/data/0":
            entry.file_size = entry.compress_size = 2**40

    with pytest.raises(unpickle.Damaged):
        read(rewritten(good, longer))
    for order in ("little", "big"):
        read(zipped(pickled(None), order=order))
    with pytest.raises(unpickle.Damaged, match="endianness"):
        read(zipped(pickled(None), order="middle"))


def with_member(name: str, content: bytes, packed: int = zipfile.ZIP_STORED) -> bytes:
    """A file of torch.save with a further member, whose name may have a NUL."""
    stream = io.BytesIO(saved({"w": torch.zeros(4)}))
    with zipfile.ZipFile(stream, "a") as archive:
        member = zipfile.ZipInfo("m")
        member.filename, member.compress_type = name, packed
        archive.writestr(member, content)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["archive/constants.pkl", "archive/constants.pkl\0x"])
def test_a_program_is_refused_under_each_name_that_torch_takes_for_one(name: str) -> None:
    with pytest.raises(unpickle.Refused, match="TorchScript"):
        read(with_member(name, b"x"))


def end_of(data: bytes, large: bool) -> tuple[int, int, str, int]:
    """Where the end record of a zip begins, what is at which place in it, and the offset of the list."""
    at, form, place = data.rindex(b"PK\5\6"), "<L", 16
    if large:
        at, form, place = data.rindex(b"PK\6\6"), "<Q", 48
    return at, place, form, struct.unpack_from(form, data, at + place)[0]


@pytest.mark.parametrize("large", [False, True])
def test_a_zip_with_two_lists_of_members_is_refused(large: bool) -> None:
    """zipfile reads the list before the end record, and torch the one at the offset that the record names."""
    good = saved({"w": torch.zeros(4)}) if large else zipped(pickled(None))
    at, place, form, offset = end_of(good, large)
    assert len(unpickle.members(io.BytesIO(good))) >= 3
    two = bytearray(good[:at] + good[offset:at] + good[at:])
    bad = [bytes(two)]
    struct.pack_into(form, two, at + at - offset + place, at)  # both are the second one
    if large:
        bad += [bytes(two)]  # the place of the larger record is wrong
        struct.pack_into("<Q", two, len(two) - 22 - 12, at + at - offset)
    unpickle.members(io.BytesIO(bytes(two)))
    for data in (*bad, good[: at + 10], good[:-1], good + b"PK\5\6"):
        with pytest.raises(unpickle.Damaged, match=r"list of members|end record|end of the archive"):
            unpickle.members(io.BytesIO(data))
        with pytest.raises(unpickle.Damaged):
            read(data)


def memo(made: bytes, *uses: Raw) -> Raw:
    """A list of `uses`, in each of which h\\1 stands for the same object."""
    return Raw(made + b"q\x010](" + b"".join(uses) + b"e")


SAME, LOAD = Raw(b"h\x01"), "torch.storage._load_from_bytes"
VECTOR = opcodes.call("numpy.core.multiarray._reconstruct", named("numpy.ndarray"), (0,), b"b")
BYTES = opcodes.call("numpy.dtype", "u1", False, True)
LARGE, NUMBERS = bytes(4000), [Raw(opcodes.value(n)) for n in range(100)]
REPEATED: dict[str, tuple[Raw, bytes]] = {
    "a record under several names": (
        Raw(opcodes.value(tuple(storage("FloatStorage", f"0\0{n}", 1000) for n in range(3)))),
        LARGE,
    ),
    "a tensor inside": (
        memo(
            opcodes.value(opcodes.legacy(pickled(storage("FloatStorage", "0", 1000)), LARGE)),
            *[opcodes.call(LOAD, SAME)] * 9,
        ),
        b"",
    ),
    "an array": (
        memo(opcodes.value(LARGE), *[opcodes.built(VECTOR, (1, (4000,), BYTES, False, SAME))] * 100),
        b"",
    ),
    "bytes": (memo(opcodes.value("x" * 4000), *[opcodes.call("_codecs.encode", SAME, "latin1")] * 100), b""),
    "a set": (memo(opcodes.value(tuple(NUMBERS)), *[opcodes.call("builtins.set", SAME)] * 100), b""),
    "tensors": (memo(storage("FloatStorage", "0", 4), *[tensor(SAME, 0, (4,), (1,))] * 100), bytes(16)),
    "classes": (Raw(b"](" + named("a.b") * 200 + b"e"), b""),
    "empty sets": (Raw(b"](" + b"\x8f" * 900 + b"e"), b""),
}


@pytest.mark.parametrize("case", REPEATED)
def test_the_same_bytes_again_and_again_are_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of a pickle can ask for the same bytes of the file again."""
    what, content = REPEATED[case]
    data = zipped(pickled(what), *[content] * bool(content))
    if case not in ("a record under several names", "a tensor inside"):  # storages have no room to spare
        read(data)
        monkeypatch.setattr(unpickle, "SMALL", 0)
        monkeypatch.setattr(unpickle, "SHARED", 4)
    with pytest.raises(unpickle.Damaged, match="unpacks to far more"):
        read(data)


def test_a_packed_member_and_members_that_share_bytes_are_refused() -> None:
    stream = io.BytesIO(zipped(pickled(None), bytes(9000)))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.filelist.append(archive.getinfo("a/data/0"))
        archive._didModify = True
    for data in (with_member("archive/x", bytes(100), zipfile.ZIP_DEFLATED), stream.getvalue()):
        with pytest.raises(unpickle.Damaged, match="PyTorch does not compress weights"):
            read(data)
