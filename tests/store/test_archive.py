"""A part of a store as one archive: all of its files are imported, and no others."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rbtools.errors import RbError
from rbtools.store import Store, archive, digest, listing
from rbtools.store.upkeep import verify

Entry = tuple[tarfile.TarInfo, bytes]


def packed(files: Any) -> bytes:
    stream = io.BytesIO()
    assert [one.problem for one in archive.put(files, stream) if one.problem] == []
    return stream.getvalue()


def taken(store: Store, data: bytes) -> list[archive.Taken]:
    return list(archive.take(store, io.BytesIO(data), "part.tar"))


def contents(store: Store) -> dict[str, bytes]:
    """Everything that is kept: the path in the store -> bytes."""
    assert store.folder is not None
    paths = [path for kind in ("objects", "results", "outcomes", "state") for path in store.files(kind)]
    return {str(path.relative_to(store.folder)): path.read_bytes() for path in paths}


def opened(data: bytes) -> list[Entry]:
    """The entries of an archive."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(entry, tar.extractfile(entry).read()) for entry in tar]  # type: ignore[union-attr]


def closed(entries: list[Entry]) -> bytes:
    """An archive of these entries, whatever they are."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def entry(name: str, data: bytes = b"", **fields: Any) -> Entry:
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found, data


@pytest.fixture
def whole(filled: Any) -> bytes:
    """The filled store, with an unfinished training, as an archive."""
    filled.store.keep_state(digest({}), b"state")
    return packed(archive.everything(filled.store, weights=True))


@pytest.fixture
def other() -> Store:
    return Store("other")


def test_a_whole_store_arrives_as_it_was(whole: bytes, filled: Any, other: Store) -> None:
    found = taken(other, whole)
    assert [one.new for one in found] == [True] * 13 and not any(one.problem for one in found)
    assert contents(other) == contents(filled.store)
    assert [one.problem for one in verify(other)] == [None] * 13
    listed = [[one.record for one in listing.records(store)] for store in (other, filled.store)]
    assert listed[0] == listed[1]  # when it was computed, too


def test_without_weights_only_what_was_found_goes(filled: Any, other: Store) -> None:
    filled.store.keep_state(digest({}), b"state")
    taken(other, packed(archive.everything(filled.store, weights=False)))
    kept = contents(filled.store)
    assert contents(other) == {k: v for k, v in kept.items() if k.startswith(("results", "outcomes"))}


@pytest.mark.parametrize("weights", [True, False])
def test_with_results_goes_what_belongs_to_them(weights: bool, filled: Any, other: Store) -> None:
    checkpoint = filled.trained[0]["checkpoint"]
    chosen = [one for one in listing.records(filled.store) if (one.record or {})["checkpoint"] == checkpoint]
    taken(other, packed(archive.belonging(filled.store, chosen, weights=weights)))
    names = sorted(contents(other))
    kinds = [name.split("/")[0] for name in names]
    assert kinds == ["objects"] * weights + ["outcomes"] * 2 + ["results"] * 3
    assert other.has_object(checkpoint) is weights
    assert {one.record["checkpoint"] for one in listing.records(other) if one.record} == {checkpoint}


def test_a_dropped_checkpoint_is_no_obstacle(filled: Any, other: Store) -> None:
    for path in filled.files("objects"):
        path.unlink()
    files = archive.belonging(filled.store, listing.records(filled.store), weights=True)
    taken(other, packed(files))
    assert contents(other) == contents(filled.store) and len(contents(other)) == 10


def test_a_damaged_file_is_left_out_and_named(filled: Any, other: Store) -> None:
    path = filled.files("outcomes")[0]
    path.write_bytes(path.read_bytes()[:-1])
    stream = io.BytesIO()
    wrong = [one.problem for one in archive.put(archive.everything(filled.store, weights=True), stream)]
    assert [one for one in wrong if one] == [f"{path} is damaged: its content does not fit its checksum"]
    taken(other, stream.getvalue())
    assert len(contents(other)) == 11


def test_an_unpacked_archive_is_a_store(whole: bytes, filled: Any) -> None:
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        for one in tar:
            target = Path("unpacked", one.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(one).read())  # type: ignore[union-attr]
    assert contents(Store("unpacked")) == contents(filled.store)


def test_an_archive_names_nobody_and_is_the_same_every_time(whole: bytes, filled: Any) -> None:
    assert packed(archive.everything(filled.store, weights=True)) == whole
    for one, _ in opened(whole):
        assert (one.uid, one.gid, one.uname, one.gname) == (0, 0, "", "")


def test_a_compressed_archive_is_read(whole: bytes, other: Store) -> None:
    assert len(taken(other, gzip.compress(whole))) == 13


def test_what_is_there_is_kept(whole: bytes, filled: Any) -> None:
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in filled.store.folder.rglob("*")}
    found = taken(filled.store, whole)
    assert not any(one.new or one.problem for one in found) and len(found) == 13
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in before} == before


def test_what_is_there_but_damaged_is_mended(whole: bytes, filled: Any) -> None:
    before = contents(filled.store)
    for kind in ("objects", "results", "outcomes"):
        path = filled.files(kind)[0]
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert [one.new for one in taken(filled.store, whole)].count(True) == 3
    assert contents(filled.store) == before


NAME = digest({"unit": "forged"})
FORGED = {
    "a path outside": entry("../outside", b"x"),
    "an absolute path": entry("/outside", b"x"),
    "a path outside below a kind": entry(f"results/../../{NAME}", b"x"),
    "another kind": entry(f"leases/{NAME[:2]}/{NAME}", b"x"),
    "the cache": entry(f"cache/{NAME[:2]}/{NAME}", b"x"),
    "another folder": entry(f"results/00/{'1' * 64}", b"x"),
    "a short name": entry("results/ab/abcd", b"x"),
    "upper case": entry(f"results/AB/{'AB' * 32}", b"x"),
    "a symbolic link": entry(f"results/{NAME[:2]}/{NAME}", type=tarfile.SYMTYPE, linkname="../../../outside"),
    "a hard link": entry(f"objects/{NAME[:2]}/{NAME}", type=tarfile.LNKTYPE, linkname="format.json"),
    "a device": entry(f"objects/{NAME[:2]}/{NAME}", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "a pipe": entry(f"state/{NAME[:2]}/{NAME}", type=tarfile.FIFOTYPE),
    "a folder": entry(f"results/{NAME[:2]}/{NAME}", type=tarfile.DIRTYPE),
    "an object of another name": entry(f"objects/{NAME[:2]}/{NAME}", b"weights"),
    "a result without a checksum": entry(f"results/{NAME[:2]}/{NAME}", b'{"what":{},"value":1}'),
    "outcomes cut short": entry(f"outcomes/{NAME[:2]}/{NAME}", b"\x93NUMPY"),
    "a result without end": entry(f"results/{NAME[:2]}/{NAME}", b"[" * 100_000),
    "a time that is none": entry(f"results/{NAME[:2]}/{NAME}", b"x", pax_headers={"mtime": "nan"}),
    "an empty state": entry(f"state/{NAME[:2]}/{NAME}", b""),
}


@pytest.mark.parametrize("kind", FORGED)
def test_what_is_no_file_of_a_store_is_refused_and_the_rest_taken(
    kind: str, whole: bytes, other: Store
) -> None:
    first, *rest, _ = opened(whole)
    data = closed([first, *rest[:4], FORGED[kind], *rest[4:], entry("complete.json", b'{"files":14}')])
    found = taken(other, data)
    assert [one.problem for one in found].count(None) == 13
    (refused,) = [one for one in found if one.problem]
    assert refused.name == FORGED[kind][0].name and not refused.new
    assert len(contents(other)) == 13
    everywhere = [path for path in Path().rglob("*") if "rb-store" not in path.parts]
    assert not [path for path in everywhere if path.is_symlink() or "outside" in path.name]
    assert not [path for path in everywhere if path.name.startswith(".")]  # nor anything half-written


def test_a_whole_result_under_a_key_that_is_not_its_own_is_refused(whole: bytes, other: Store) -> None:
    first, *rest, _ = opened(whole)
    (_, data), *_ = [found for found in rest if found[0].name.startswith("results")]
    forged = entry(f"results/{NAME[:2]}/{NAME}", data)
    (found,) = taken(other, closed([first, forged, entry("complete.json", b'{"files":1}')]))
    assert found.problem == "what it describes does not fit its name" and not contents(other)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (entry("format.json", b'{"format":2}'), "has format 2; this rbtools reads format 1"),
        (entry("format.json", b"[1]"), "is no archive of a store"),
        (entry("format.json", b"x"), "is no archive of a store"),
        (entry("format.json", type=tarfile.SYMTYPE, linkname="x"), "is no archive of a store"),
        (entry("photos/cat.png", b"x"), "is no archive of a store"),
    ],
    ids=["newer", "list", "no json", "link", "another archive"],
)
def test_an_archive_of_something_else_is_refused_whole(
    first: Entry, said: str, whole: bytes, other: Store
) -> None:
    _, *rest = opened(whole)
    with pytest.raises(RbError, match=said):
        taken(other, closed([first, *rest]))
    assert not Path("other").exists()


@pytest.mark.parametrize("data", [b"", b"no archive at all" * 100, b"\x1f\x8b\x08 damaged gzip"])
def test_what_is_no_tar_file_is_said(data: bytes, other: Store) -> None:
    with pytest.raises(RbError, match=r"part\.tar"):
        taken(other, data)
    assert not Path("other").exists()


def cuts(data: bytes) -> Iterator[int]:
    """Places to cut an archive at: between entries, in a header, in the content, before its end."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for number, one in enumerate(tar):
            if number in (2, 12):
                yield from (one.offset, one.offset + 200, one.offset_data + 5)
            last = one
    yield last.offset


def test_an_archive_that_was_cut_off_is_known_wherever_it_was(whole: bytes) -> None:
    for place in cuts(whole):
        store = Store(f"cut-{place}")
        with pytest.raises(archive.Cut, match=r"The archive part\.tar .*ends early"):
            taken(store, whole[:place])
        assert not [one.problem for one in verify(store) if one.problem]
        assert not list(Path(f"cut-{place}").rglob(".*"))
        assert len(taken(store, whole)) == 13  # and it goes on from there
        assert len(contents(store)) == 13


def test_an_archive_that_lacks_a_file_is_known(whole: bytes, other: Store) -> None:
    first, _, *rest = opened(whole)
    with pytest.raises(archive.Cut, match="it holds 12 files and says 13"):
        taken(other, closed([first, *rest]))
