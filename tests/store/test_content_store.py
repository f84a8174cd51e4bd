"""The store: keys, files whole or absent, what is damaged, full or of another format; other output."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rbtools.errors import RbError
from rbtools.store import Store, canonical, checksum, content_store, digest
from rbtools.store.checksum import RESOLUTION_SECONDS, stamp
from rbtools.store.files import user_output, write_whole
from tests.runner import model, run

WHAT = {"kind": "test"}
KEY = digest(WHAT)


def test_a_key_is_the_hash_of_sorted_json_without_spaces() -> None:
    text = b'{"a":[1,2.5,null,true],"b":{"x":"\xc3\xa9","y":0.1}}'
    known = {"b": {"y": 0.1, "x": "é"}, "a": [1, 2.5, None, True]}
    assert canonical(known) == text and digest(known) == hashlib.sha256(text).hexdigest()
    assert digest({"n": 1}) != digest({"n": 1.0})


@pytest.fixture
def store() -> Store:
    return Store("rb-store")


def files(pattern: str = "**/*") -> list[Path]:
    """The files of the store, apart from the cache's and the marker of its format."""
    found = [path for path in Path("rb-store").glob(pattern) if path.is_file()]
    return [path for path in found if "cache" not in path.parts and path.name != "format.json"]


def test_results_outcomes_states_and_objects_are_found_again(store: Store) -> None:
    assert store.result(KEY) is store.outcomes(KEY) is store.state(KEY) is store.get("x") is None
    assert not Path("rb-store").exists()  # looking makes nothing
    store.keep_result(KEY, WHAT, {"value": [1, 2.5, None]})
    store.keep_outcomes(KEY, b"\x00\n bytes")
    store.keep_state(KEY, b"state")
    name = store.keep_object(b"weights")
    later = Store("rb-store")
    assert later.result(KEY) == {"value": [1, 2.5, None]}
    assert later.outcomes(KEY) == b"\x00\n bytes"
    assert later.state(KEY) == b"state"
    assert later.object(name).read_bytes() == b"weights"
    assert name == "sha256:" + hashlib.sha256(b"weights").hexdigest()
    assert not later.damaged and later.trouble is None
    what = {"seed": 2**70}  # beyond 64 bits
    store.keep_result(digest(what), what, 0.5)
    assert store.result(digest(what)) == 0.5 and not store.damaged
    store.keep_state(digest(what), b"another")
    store.drop_state(KEY)
    assert store.state(KEY) is None and store.state(digest(what)) == b"another"
    forced = Store("rb-store", force=True)
    assert forced.result(digest(what)) is None and forced.object(name).is_file()


def test_without_a_folder_nothing_is_kept_and_a_training_is_refused() -> None:
    nowhere = Store(None)
    nowhere.keep_result(KEY, WHAT, 1)
    nowhere.put("text", "value")
    assert nowhere.result(KEY) is None and nowhere.get("text") is None
    with pytest.raises(RbError, match="needs a store for the checkpoint"):
        nowhere.keep_object(b"weights")
    assert not list(Path().iterdir())


def test_what_stands_under_the_key_of_another_counts_as_absent(store: Store) -> None:
    other = digest({"kind": "test", "eps": 0.3})
    store.keep_result(KEY, WHAT, 0.4)
    store.keep_outcomes(KEY, b"bytes")
    store.keep_state(KEY, b"bytes")
    places = [copied(store, kind, KEY, other) for kind in ("results", "outcomes", "state")]
    assert store.result(other) is store.outcomes(other) is store.state(other) is None
    assert store.damaged == places and store.result(KEY) == 0.4
    store.put("one", "value")
    copied(store, "cache", *(hashlib.sha256(key).hexdigest() for key in (b"one", b"two")))
    assert store.get("one") == "value" and store.get("two") is None


def copied(store: Store, kind: str, key: str, to: str) -> Path:
    place = store.path(kind, to)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(store.path(kind, key), place)
    return place


ODD: dict[str, Callable[[Path, Path], None]] = {
    "folder": lambda path, aside: path.mkdir(),
    "pipe": lambda path, aside: os.mkfifo(path),
    "socket": lambda path, aside: os.mknod(path, stat.S_IFSOCK | 0o600),
    "link": lambda path, aside: path.symlink_to(aside),
    "link to a device": lambda path, aside: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path, aside: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_counts_as_absent(odd: str, store: Store) -> None:
    store.keep_result(KEY, WHAT, 1)
    store.keep_outcomes(KEY, b"bytes")
    store.keep_state(KEY, b"bytes")
    store.put("text", "value")
    name = store.keep_object(b"weights")
    for kind in ("results", "outcomes", "state", "objects", "cache"):
        (path,) = store.files(kind)
        aside = path.rename(Path(f"{kind}.aside").absolute())  # whole, but elsewhere
        ODD[odd](path, aside)
    assert store.result(KEY) is store.outcomes(KEY) is store.state(KEY) is store.get("text") is None
    assert not store.has_object(name) and store.state(KEY) is None and not store.damaged
    with pytest.raises(RbError, match="is not in the store"):
        store.object(name)
    if odd != "folder":  # a file replaces any other object
        store.keep_result(KEY, WHAT, 1)
        assert store.keep_object(b"weights") == name
        assert store.result(KEY) == 1 and store.has_object(name)


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"0.25", b"0.75"),
        lambda data: b'{"value":{"acc":0.75}}',
        lambda data: data + b"\n",
    ],
    ids=["empty", "short", "half", "changed", "replaced", "long"],
)
def test_a_damaged_result_counts_as_absent_and_is_written_anew(
    store: Store, harm: Callable[[bytes], bytes]
) -> None:
    store.keep_result(KEY, WHAT, {"acc": 0.25})
    (path,) = files("results/*/*")
    path.write_bytes(harm(path.read_bytes()))
    assert store.result(KEY) is None and store.damaged == [path.absolute()]
    store.keep_result(KEY, WHAT, {"acc": 0.25})
    later = Store("rb-store")
    assert later.result(KEY) == {"acc": 0.25} and not later.damaged
    store.put("text", "0.25")
    (path,) = store.files("cache")
    path.write_bytes(harm(path.read_bytes()))
    assert Store("rb-store").get("text") is None


def test_a_damaged_object_is_told_and_replaced(store: Store) -> None:
    name = store.keep_object(b"weights")
    path = store.object(name)
    path.write_bytes(b"weightz")
    later = Store("rb-store")
    with pytest.raises(RbError, match=r"is damaged: its content does not match its name\. Train it again"):
        later.object(name)
    assert not later.has_object(name)
    later.keep_object(b"weights")
    assert later.has_object(name) and path.read_bytes() == b"weights"


def test_an_object_that_rots_without_a_new_time_is_found_when_it_is_hashed(
    store: Store, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = store.keep_object(b"weights")
    path = store.object(name)
    before = checksum.stamp_of(path)
    path.write_bytes(b"weightz")
    monkeypatch.setattr(checksum, "stamp_of", lambda _: before)  # a disk error changes no stamp
    later = Store("rb-store")
    assert later.has_object(name)  # looking up does not read the file
    assert later.hash_now(path) != name
    assert not later.has_object(name)


def test_the_hash_of_a_file_just_written_is_not_believed(store: Store) -> None:
    """It may be written again within the resolution of its times."""
    file = Path("model.pt")
    file.write_bytes(b"one")
    os.utime(file, (0, 0))  # no time of modification hides that
    key, settled = content_store._file_key(file)
    store.put(key, "sha256:of what it was before")
    assert not settled and store.file_hash(file) == "sha256:" + hashlib.sha256(b"one").hexdigest()


def fails(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_write_whole_leaves_the_old_file_and_nothing_else(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Path("folder/file").absolute()
    write_whole(target, b"old")
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(os, call, interrupt)
        write_whole(target, b"new")
    with monkeypatch.context() as full:
        full.setattr(os, call, fails(errno.ENOSPC))
        with pytest.raises(RbError, match=r"Cannot write .*folder/file: No space left on device\. Free some"):
            write_whole(target, b"new")
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert target.read_bytes() == b"old"


def test_whether_a_checkpoint_can_be_kept_is_known_before_it_is_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.check_writable()
    assert not files()
    with pytest.raises(RbError, match="Leave out --store none"):
        Store(None).check_writable()
    monkeypatch.setattr(os, "makedirs", fails(errno.EROFS))
    with pytest.raises(RbError, match="Read-only file system"):
        Store("elsewhere").check_writable()


@pytest.mark.parametrize(
    ("marker", "said"), [('{"format": 2}', "format 2"), ("[1]", "format unreadable"), ("x", "unreadable")]
)
def test_a_store_of_another_format_is_left_alone(marker: str, said: str) -> None:
    Path("rb-store").mkdir()
    Path("rb-store/format.json").write_text(marker)
    for use in (lambda store: store.result(KEY), lambda store: store.keep_object(b"weights")):
        with pytest.raises(RbError, match=rf"{said}, but this version of rbtools reads format 1\. Use the"):
            use(Store("rb-store"))
    assert [path.name for path in Path("rb-store").iterdir()] == ["format.json"]


def test_a_store_that_cannot_be_read_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.keep_result(KEY, WHAT, 1)
    monkeypatch.setattr(content_store, "read_plain", fails(errno.EACCES))
    with pytest.raises(RbError, match=r"Cannot read .*: Permission denied\. Check the store's permissions"):
        Store("rb-store").result(KEY)


NOW_NS = 1_700_000_000_123_456_789
OLD: dict[str, int] = {"st_size": 7, "st_ino": 3, "st_dev": 4}
OLD |= {"st_mtime_ns": NOW_NS - 10**15 - 1, "st_ctime_ns": NOW_NS - 10**14 - 1}


def status(**fields: int) -> Any:
    return SimpleNamespace(**{**OLD, **fields})


@pytest.mark.parametrize("field", OLD)
def test_a_stamp_changes_with_each_field(field: str) -> None:
    assert stamp(status(**{field: OLD[field] + 1})).text != stamp(status()).text


@pytest.mark.parametrize(
    ("fields", "settled"),
    [
        ({}, True),
        ({"st_mtime_ns": NOW_NS + 10**12}, True),  # a time that anybody may set
        ({"st_ctime_ns": NOW_NS - int(RESOLUTION_SECONDS * 5e8)}, False),
        ({"st_ctime_ns": NOW_NS + 10**12}, False),
        ({"st_ino": 0}, False),
        ({"st_ctime_ns": 0}, False),
        ({"st_ctime_ns": OLD["st_mtime_ns"]}, True),  # written once, and never touched since
        ({"st_ctime_ns": 10**18, "st_mtime_ns": 10**18}, False),  # no time of change of its own
        ({"st_ctime_ns": 10**18 + 3 * 10**7, "st_mtime_ns": 10**18 + 3 * 10**7}, False),
        ({"st_ctime_ns": 10**18}, True),
    ],
)
def test_a_stamp_under_which_a_file_may_change_is_not_believed(
    fields: dict[str, int], settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("file", "w") as stream:
        assert not stamp(os.fstat(stream.fileno())).settled  # a new one
    monkeypatch.setattr(time, "time", lambda: NOW_NS / 1e9)
    assert stamp(status(**fields)).settled is settled


def write(path: str, data: bytes = b"data") -> None:
    with user_output(Path(path), hint="") as stream:
        stream.write(data)


def test_a_tool_follows_links_and_writes_to_devices() -> None:
    os.mkdir("there")
    Path("there/file").write_text("before")
    for name, target in (("x", "there/file"), ("y", "there/new"), ("full", "/dev/full")):
        os.symlink(target, name)
        result = run("convert", f"csv --write {name}", [model("x", metrics={"acc": 0.5})])
        assert os.readlink(name) == target
        if target == "/dev/full":
            assert result.exit_code and "full: No space left" in result.stderr
        else:
            assert Path(target).read_bytes().startswith(b"arch")


def test_an_open_file_by_its_other_name_is_written_to() -> None:
    """/dev/stdout may be a file, to which the shell writes too."""
    with open("x", "wb") as held:
        before = os.fstat(held.fileno()).st_ino
        write(f"/dev/fd/{held.fileno()}", b"a")
    assert Path("x").read_bytes() == b"a" and os.stat("x").st_ino == before


def test_a_plain_file_is_replaced_only_when_all_is_there() -> None:
    Path("x").write_text("before")
    with pytest.raises(ValueError), user_output(Path("x"), hint="") as stream:
        stream.write(b"half")
        raise ValueError
    assert Path("x").read_text() == "before" and os.listdir() == ["x"]
    os.symlink("y", "y")  # in a circle
    with pytest.raises(RbError, match="Cannot write y: Too many levels"):
        write("y")


def test_what_is_read_is_not_written_over() -> None:
    Path("in.jsonl").write_text("{}")
    os.symlink("in.jsonl", "out.csv")
    result = run("convert", "csv --write out.csv in.jsonl")
    assert result.exit_code == 2 and "both read and written" in result.stderr
    os.mkfifo("pipe")
    result = run("score", "--in-place pipe")
    assert result.exit_code == 2 and "not a regular file" in result.stderr
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
