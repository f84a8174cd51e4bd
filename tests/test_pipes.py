"""Behaviour that only real processes in real pipes show: streaming, signals, closed pipes, imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rbtools.cli.tools import TOOLS
from tests.runner import in_a_process, model, run

FAILED = '{"schema":1,"arch":{"name":"x"},"error":{"message":"no"}}\n'


def shell(line: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=300, **options
    )


@pytest.mark.smoke
@pytest.mark.parametrize("tool", TOOLS)
def test_help_imports_neither_torch_nor_numpy(tool: str) -> None:
    _, _, modules = in_a_process(tool, "--help")
    assert "click" in modules
    assert not {"torch", "numpy", "scipy", "sklearn", "torchvision", "matplotlib"} & modules


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("arch", "--sample 3 --where 'none == 0'"),
        ("score", "--metric acc"),
        ("rank", "--by acc --ci"),
        ("corr", ""),
        ("plot", "hist --metric acc -o x.png"),
    ],
)
def test_tools_without_models_import_no_torch(tool: str, words: str) -> None:
    given = [model(name, metrics={"acc": place / 4}) for place, name in enumerate("abc")]
    _, _, modules = in_a_process(tool, words, () if tool == "arch" else given)
    assert not {"torch", "sklearn"} & modules


def test_head_ends_a_source_quietly_with_141() -> None:
    done = shell('rb-arch | head -1 >/dev/null; echo "${PIPESTATUS[*]}"')
    assert done.stdout == "141 0\n" and done.stderr == ""


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[str]]:
    """A filter that has passed one record on and waits for the next."""
    with subprocess.Popen(
        ["rb-pr"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write(FAILED)
        process.stdin.flush()
        assert process.stdout.readline() == FAILED  # would hang if it waited for the end of the input
        yield process
        process.kill()


def test_a_record_is_out_while_standard_input_is_open(waiting: subprocess.Popen[str]) -> None:
    assert waiting.poll() is None
    assert waiting.stdin
    waiting.stdin.close()
    assert waiting.wait(300) == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_waiting_tool_with_their_status(
    number: int, status: int, waiting: subprocess.Popen[str]
) -> None:
    waiting.send_signal(number)
    assert waiting.wait(300) == status
    assert waiting.stderr and "Traceback" not in waiting.stderr.read()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("rb-pr <&-", 2, "Standard input is closed. Pipe records in"),
        ("rb-arch --index 1 >&-", 1, "Standard output is closed"),
        ("rb-arch --index 1 >/dev/full", 1, "Cannot write to standard output: No space left on device."),
        ("rb-arch --index 1 | rb-convert csv --write /dev/fd/1 >/dev/full", 2, "/dev/fd/1: No space left"),
    ],
)
def test_a_closed_end_and_a_full_disk_are_said(line: str, status: int, said: str) -> None:
    done = shell(line)
    assert done.returncode == status and said in done.stderr and done.stderr.count("\n") == 1


def test_an_error_that_nobody_expected_is_said_to_be_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("rbtools.commands.rank.write")
    result = run("rank", "--by acc", '{"arch":{"name":"a"},"metrics":{"acc":1}}\n')
    assert result.exit_code == 1 and "NameError" in result.stderr and "a bug in rbtools" in result.stderr


def test_a_file_is_not_read_and_written_at_once_and_in_place_loses_no_record() -> None:
    records = '{"arch":{"name":"a"},"metrics":{"acc":0.5}}\n{"arch":{"name":"b"},"metrics":{"acc":0.1}}\n'
    Path("a.jsonl").write_text(records)
    Path("link.jsonl").symlink_to("a.jsonl")
    for line, said in (
        ("rb-score --metric acc a.jsonl >> a.jsonl", "a.jsonl is both read and written"),
        ("rb-score --metric acc < a.jsonl >> a.jsonl", "are the same file"),
        ("rb-score --metric acc --in-place --shard 1/2 a.jsonl", "the other shards' records"),
        ("rb-rank --by acc --in-place a.jsonl", "No such option '--in-place'"),
    ):
        done = shell(line)
        assert done.returncode == 2 and said in done.stderr and Path("a.jsonl").read_text() == records
    done = shell("rb-score --metric acc --in-place link.jsonl")
    assert (done.returncode, done.stdout) == (0, "") and Path("link.jsonl").is_symlink()
    written = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert [one["metrics"]["score"] for one in written] == [1, 0]


def test_a_name_of_standard_output_is_that_of_the_command() -> None:
    done = shell("rb-arch --index 1 | rb-convert csv --write /dev/stdout")
    assert done.stdout.startswith("arch.") and "arch." not in done.stderr


@pytest.mark.parametrize("words", ["--format table", "--format csv-raw", "--format md", "--format jsonl", ""])
def test_what_steers_a_terminal_comes_from_no_record(words: str) -> None:
    """Neither through a pipe, except with csv-raw, nor on a terminal, where bold type remains."""
    steering = "\x07\x1b\x7f\x85\x9b\u061c\u200e\u202e\u2066"
    given = json.dumps(model(f"a{steering}b", metrics={"acc": 0.5}))
    Path("r.jsonl").write_text(given.replace(r"\u202e", "\u202e").replace(r"\u009b", "\x9b"))
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "rbtools.commands.rank", "--by", "acc", *words.split(), "r.jsonl"]
    subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode().replace("\x1b[1m", "").replace("\x1b[0m", "")
    os.close(ours)
    piped = run("rank", f"--by acc {words} r.jsonl").stdout
    for text in [shown, *([] if "raw" in words else [piped])]:
        assert "b" in text and not set(steering) & set(text)
    if words == "--format jsonl":
        assert json.loads(shown)["arch"]["name"] == json.loads(piped)["arch"]["name"] == f"a{steering}b"


def test_what_a_library_prints_stays_off_standard_output() -> None:
    code = (
        "import os, sys\n"
        "from rbtools.cli.output import RecordWriter\n"
        "output = RecordWriter()\n"
        "print('printed')\n"
        "os.system('echo by a child')\n"
        "os.write(1, b'by a C library\\n')\n"
        "output.line(b'{}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "{}\n"
    assert all(words in done.stderr for words in ("printed", "by a child", "by a C library"))
