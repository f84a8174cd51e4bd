"""Files that grow aside over several runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbtools.errors import RbError
from rbtools.store.resumable_write import resumable_write

HEAD = b"head"


def test_a_file_appears_when_it_has_all_rows() -> None:
    path = Path("folder/file")
    with resumable_write(path, HEAD, 3, 2) as file:
        file.append(b"abc")
    assert not path.exists() and Path("folder/file.part").read_bytes() == b"headabc"
    with resumable_write(path, HEAD, 3, 2) as file:
        assert file.rows == 1
        file.append(b"def")
    assert path.read_bytes() == b"headabcdef" and not Path("folder/file.part").exists()


def test_half_a_row_is_cut_off_and_another_head_begins_anew() -> None:
    path, aside = Path("file"), Path("file.part")
    aside.write_bytes(b"headabcd")
    with resumable_write(path, HEAD, 3, 9) as file:
        assert file.rows == 1
    assert aside.read_bytes() == b"headabc"
    with resumable_write(path, b"other", 3, 9) as file:
        assert file.rows == 0
    assert aside.read_bytes() == b"other"


def test_two_writers_do_not_mix() -> None:
    with (
        resumable_write(Path("file"), HEAD, 3, 2),
        pytest.raises(RbError, match="being written by another process"),
        resumable_write(Path("file"), HEAD, 3, 2),
    ):
        pass


def test_a_folder_that_cannot_be_made_is_named() -> None:
    Path("taken").write_text("")
    with pytest.raises(RbError, match=r"Cannot write taken/file: .* name another folder"):
        resumable_write(Path("taken/file"), HEAD, 3, 2).__enter__()
