"""What an option says to write: plain files are replaced whole, everything else is written to."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from rbtools.errors import RbError
from rbtools.store.files import user_output
from tests.runner import model, run

LINE = model("x", metrics={"acc": 0.5, "fgsm.8": 0.25})


def write(path: str, data: bytes = b"data") -> None:
    with user_output(Path(path), hint="") as stream:
        stream.write(data)


@pytest.mark.parametrize(
    ("tool", "words", "begins"),
    [("convert", "csv --write", b"arch"), ("plot", "leaderboard -o", b"<!doctype")],
)
def test_the_tools_follow_links_and_write_to_devices(tool: str, words: str, begins: bytes) -> None:
    os.mkdir("there")
    Path("there/file").write_text("before")
    for name, target in (("x.html", "there/file"), ("y.html", "there/new"), ("full.html", "/dev/full")):
        os.symlink(target, name)
        result = run(tool, f"{words} {name}", [LINE])
        assert os.readlink(name) == target
        if target == "/dev/full":
            assert result.exit_code and "full.html: No space left" in result.stderr
        else:
            content = Path(target).read_bytes()
            assert content[: len(begins)].lower() == begins and len(content) > 20


def test_a_pipe_is_written_to() -> None:
    """Its reader waited for ever, where another file took its name."""
    os.mkfifo("x")
    content: list[bytes] = []
    reader = threading.Thread(target=lambda: content.append(Path("x").read_bytes()), daemon=True)
    reader.start()
    write("x")
    reader.join(60)
    assert content == [b"data"] and stat.S_ISFIFO(os.stat("x").st_mode)


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
