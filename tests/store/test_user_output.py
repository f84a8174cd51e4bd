"""What an option says to write: plain files are replaced whole, everything else is written to."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rbtools.commands import convert, score, store
from rbtools.errors import RbError
from rbtools.plots import plot
from rbtools.store.files import user_output

LINE = json.dumps({"schema": 1, "arch": {"name": "x"}, "metrics": {"acc": 0.5, "fgsm.8": 0.25}}) + "\n"
# What writes to a path, and how its content begins.
WRITERS: dict[str, tuple[Callable[[str], Result], bytes]] = {
    "convert": (lambda path: run(convert.main, "csv", "--write", path), b"arch"),
    "plot": (lambda path: run(plot.main, "leaderboard", "-o", path), b"<!doctype"),
    "export": (lambda path: run(store.main, "export", path, "--store", "store"), b""),
}


def run(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), input=LINE)


@pytest.fixture(autouse=True)
def a_store() -> None:
    from rbtools.store.content_store import Store

    Store("store").mark()


def wrote(content: bytes, begins: bytes) -> bool:
    return content[: len(begins)].lower() == begins and len(content) > 20


@pytest.mark.parametrize("tool", WRITERS)
def test_a_pipe_is_written_to(tool: str) -> None:
    """Its reader waited for ever, where another file took its name."""
    write, begins = WRITERS[tool]
    os.mkfifo("x.html")
    content: list[bytes] = []
    reader = threading.Thread(target=lambda: content.append(Path("x.html").read_bytes()), daemon=True)
    reader.start()
    write("x.html")
    reader.join(60)
    assert content and wrote(content[0], begins) and stat.S_ISFIFO(os.stat("x.html").st_mode)


@pytest.mark.parametrize("tool", WRITERS)
def test_a_link_is_followed(tool: str) -> None:
    write, begins = WRITERS[tool]
    os.mkdir("there")
    Path("there/file").write_text("before")
    os.symlink("there/file", "x.html")
    os.symlink("there/new", "y.html")
    for name, target in (("x.html", "there/file"), ("y.html", "there/new")):
        write(name)
        assert os.readlink(name) == target and wrote(Path(target).read_bytes(), begins)


@pytest.mark.parametrize("tool", WRITERS)
def test_a_device_stays(tool: str) -> None:
    """Through a link, which the tree before replaced instead of the machine's device."""
    os.symlink(os.devnull, "x.html")
    os.symlink("/dev/full", "full.html")
    WRITERS[tool][0]("x.html")
    result = WRITERS[tool][0]("full.html")
    assert os.readlink("x.html") == os.devnull and stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert os.readlink("full.html") == "/dev/full"
    assert result.exit_code and "full.html: No space left" in result.stderr


def test_an_open_file_by_its_other_name_is_written_to() -> None:
    """/dev/stdout may be a file, to which the shell writes too."""
    with open("x", "wb") as held:
        before = os.fstat(held.fileno()).st_ino
        with user_output(Path(f"/dev/fd/{held.fileno()}"), hint="") as stream:
            stream.write(b"a")
    assert Path("x").read_bytes() == b"a" and os.stat("x").st_ino == before


def test_a_plain_file_is_replaced_only_when_all_is_there() -> None:
    Path("x").write_text("before")
    with pytest.raises(ValueError), user_output(Path("x"), hint="") as stream:
        stream.write(b"half")
        raise ValueError
    assert Path("x").read_text() == "before" and set(os.listdir()) == {"x", "store"}


def test_a_link_in_a_circle_is_told() -> None:
    os.symlink("x", "x")
    with pytest.raises(RbError, match="Cannot write x: Too many levels"), user_output(Path("x"), hint=""):
        pass


def test_what_is_read_is_not_written_through_a_link() -> None:
    Path("in.jsonl").write_text(LINE)
    os.symlink("in.jsonl", "out.csv")
    result = CliRunner().invoke(convert.main, ["csv", "--write", "out.csv", "in.jsonl"])
    assert result.exit_code == 2 and "both read and written" in result.stderr
    assert Path("in.jsonl").read_text() == LINE


def test_a_pipe_is_not_replaced_in_place() -> None:
    os.mkfifo("pipe")
    threading.Thread(target=Path("pipe").write_text, args=(LINE,), daemon=True).start()
    result = CliRunner().invoke(score.main, ["--in-place", "pipe"])
    assert result.exit_code == 2 and "no plain file" in result.stderr
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
