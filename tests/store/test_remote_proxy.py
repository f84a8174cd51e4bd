"""A store on a machine that does not see the real one: what it asks for, and what travels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rbtools.errors import RbError
from rbtools.store import Store, digest
from rbtools.store.remote_proxy import (
    THERE,
    File,
    NeedFiles,
    RemoteStoreProxy,
    export_file,
    import_file,
    is_whole,
)

WHAT = {"kind": "test"}
KEY, OTHER = digest(WHAT), digest({"kind": "other"})


@pytest.fixture
def home() -> Store:
    return Store("home")


@pytest.fixture
def away(home: Store) -> RemoteStoreProxy:
    assert home.folder is not None
    return RemoteStoreProxy(Path("away").absolute(), home.folder)


def nothing(kind: str, name: str, data: bytes) -> None:
    raise AssertionError("nothing is posted here")


def known(home: Store, *files: File) -> dict[File, bytes | None]:
    return {file: export_file(home, *file) for file in files}


def missing(away: RemoteStoreProxy, *keys: str) -> set[File]:
    with pytest.raises(NeedFiles) as asked, away.claimed(keys, lambda: False, lambda: None):
        raise AssertionError("computed without asking")
    return asked.value.files


# --- what travels ---------------------------------------------------------------------------------


def test_every_kind_of_file_arrives_as_it_was(home: Store) -> None:
    home.keep_result(KEY, WHAT, [1, 2])
    home.keep_outcomes(KEY, b"bits")
    home.keep_state(KEY, b"state")
    name = home.keep_object(b"weights").removeprefix("sha256:")
    there = Store("there")
    for kind, key in (("results", KEY), ("outcomes", KEY), ("state", KEY), ("objects", name)):
        data = export_file(home, kind, key)
        assert data is not None and is_whole(kind, key, data)
        import_file(there, kind, key, data)
    assert there.result(KEY) == [1, 2]
    assert (there.outcomes(KEY), there.state(KEY)) == (b"bits", b"state")
    assert there.object(f"sha256:{name}").read_bytes() == b"weights"
    assert Store("there").has_object(f"sha256:{name}")  # the folder is marked as a store


@pytest.mark.parametrize("kind", ["results", "outcomes", "state", "objects"])
def test_a_damaged_file_is_not_taken_in(home: Store, kind: str) -> None:
    home.keep_result(KEY, WHAT, 1)
    home.keep_outcomes(KEY, b"bits")
    home.keep_state(KEY, b"state")
    name = home.keep_object(b"weights").removeprefix("sha256:") if kind == "objects" else KEY
    data = export_file(home, kind, name)
    assert data is not None
    for wrong in (data[:-1], data + b" ", bytes([data[0] ^ 1]) + data[1:], b""):
        with pytest.raises(RbError, match="arrived damaged"):
            import_file(Store("there"), kind, name, wrong)
    assert not Path("there").exists()


@pytest.mark.parametrize("name", ["../../../etc/passwd", "ab/../" + "0" * 58, "0" * 63, "G" * 64, ""])
def test_a_name_that_is_no_hash_names_no_file(name: str) -> None:
    with pytest.raises(RbError, match="arrived damaged"):
        import_file(Store("there"), "results", name, lend_sealed())
    with pytest.raises(RbError, match="arrived damaged"):
        import_file(Store("there"), "elsewhere", KEY, lend_sealed())


def lend_sealed() -> bytes:
    body = b"{}"
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def test_what_is_damaged_at_home_is_named_and_not_lent(home: Store) -> None:
    home.keep_outcomes(KEY, b"bits")
    path = home.path("outcomes", KEY)
    assert path is not None
    path.write_bytes(b"x" + path.read_bytes())
    assert export_file(home, "outcomes", KEY) is None and export_file(home, "outcomes", KEY) is None
    assert home.damaged == [path]


def test_what_is_not_at_home_is_not_lent(home: Store) -> None:
    assert [export_file(home, kind, KEY) for kind in ("results", "objects", "state", THERE)] == [None] * 4
    assert not Path("home").exists()


# --- the protocol ---------------------------------------------------------------------------------


def test_nothing_is_computed_before_all_that_was_looked_for_is_known(
    home: Store, away: RemoteStoreProxy
) -> None:
    away.begin({}, nothing)
    assert away.result(KEY) is None
    wanted = {("results", KEY), ("outcomes", KEY), ("state", KEY)}
    assert missing(away, KEY) == wanted
    away.begin(known(home, *wanted), nothing)
    assert away.result(KEY) is None
    with away.claimed([KEY], lambda: False, lambda: None) as ours:
        assert ours


def test_what_home_has_is_found(home: Store, away: RemoteStoreProxy) -> None:
    home.keep_result(KEY, WHAT, 0.5)
    home.keep_state(OTHER, b"epoch 3")
    away.begin(known(home, ("results", KEY), ("state", OTHER)), nothing)
    assert (away.result(KEY), away.state(OTHER)) == (0.5, b"epoch 3")
    assert away.written() == {}


def test_an_object_is_asked_for_by_name_and_its_presence_without_its_bytes(
    home: Store, away: RemoteStoreProxy
) -> None:
    name = home.keep_object(b"weights")
    digits = name.removeprefix("sha256:")
    away.begin({}, nothing)
    with pytest.raises(NeedFiles) as asked:
        away.has_object(name)
    assert asked.value.files == {(THERE, digits)}
    with pytest.raises(NeedFiles) as asked:
        away.object(name)
    assert asked.value.files == {("objects", digits)}
    answers = known(home, *asked.value.files, (THERE, digits), (THERE, KEY))
    assert answers[THERE, digits] == b""
    away.begin(answers, nothing)
    assert away.has_object(name) and not away.has_object(f"sha256:{KEY}")
    assert away.object(name).read_bytes() == b"weights"


def test_an_object_that_home_lacks_is_missed_in_the_real_store(home: Store, away: RemoteStoreProxy) -> None:
    away.begin({("objects", KEY): None}, nothing)
    with pytest.raises(RbError, match="is not in the store") as wrong:
        away.object(f"sha256:{KEY}")
    assert f" {home.folder}. " in str(wrong.value) and str(away.folder) not in str(wrong.value)


def test_what_is_made_is_handed_over_and_nothing_stays(away: RemoteStoreProxy) -> None:
    posted = []
    away.begin({}, lambda *file: posted.append(file[:2]))
    away.keep_state(KEY, b"epoch 1")
    away.keep_outcomes(OTHER, b"bits")
    name = away.keep_object(b"weights")
    away.keep_result(KEY, WHAT, 1)
    away.drop_state(KEY)
    assert away.has_object(name)
    assert posted == [("state", KEY), ("outcomes", OTHER)]
    made = away.written()
    assert set(made) == {("outcomes", OTHER), ("objects", name.removeprefix("sha256:")), ("results", KEY)}
    assert all(is_whole(*file, data) for file, data in made.items())
    assert away.dropped == [KEY]
    away.end()
    assert not Path("away").exists()


def test_with_force_only_checkpoints_are_asked_for(home: Store) -> None:
    home.keep_result(KEY, WHAT, 1)
    away = RemoteStoreProxy(Path("away").absolute(), Path("home").absolute(), force=True)
    away.begin({}, nothing)
    assert away.result(KEY) is None
    with away.claimed([KEY], lambda: away.result(KEY) is not None, lambda: None) as ours:
        assert ours


def test_a_second_piece_of_work_asks_only_for_what_is_its_own(away: RemoteStoreProxy) -> None:
    nothing_there = {(kind, KEY): None for kind in ("results", "outcomes", "state")}
    away.begin(nothing_there, lambda *file: None)
    assert away.result(KEY) is None
    with away.claimed([KEY], lambda: False, lambda: None):
        away.keep_outcomes(KEY, b"bits")
    away.keep_result(KEY, WHAT, 1)
    assert away.result(OTHER) is None
    assert missing(away, OTHER) == {("results", OTHER), ("outcomes", OTHER), ("state", OTHER)}
    assert set(away.written()) == {("outcomes", KEY), ("results", KEY)}


def test_nothing_of_one_piece_of_work_is_left_for_the_next(away: RemoteStoreProxy) -> None:
    def work(key: str) -> None:
        away.begin({(kind, key): None for kind in ("results", "outcomes", "state")}, lambda *file: None)
        assert away.result(key) is None
        with away.claimed([key], lambda: False, lambda: None):
            away.keep_outcomes(key, b"bits")
            away.drop_state(key)

    work(KEY)
    work(OTHER)  # without being asked for anything of KEY
    assert set(away.written()) == {("outcomes", OTHER)} and away.dropped == [OTHER]


def test_the_name_of_a_damaged_file_is_told_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(RbError, match=r"damaged \(a\\nb\)"):
        import_file(Store(tmp_path / "s"), "results", "a\nb", b"x")
