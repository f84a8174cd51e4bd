"""Records of which some have a field that is absent or something else, or are no JSON, through every tool.

A tool ends without a traceback and with a status of its own, and the records beside the changed ones come out
of it as they do without them.
"""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools.records import dumps, lines, parse, parse_again
from tests import runner
from tests.fuzz.properties import bounded, told
from tests.fuzz.strategies import ODD, TOKENS, Draw, changed, damaged, json_of
from tests.golden import make as golden

# Command lines beside those of the golden set. @changed is a file of the whole stream, @alone.jsonl one of
# its first changed record.
EXTRA = """
<results: rank --by acc
<results: attack transfer --n 4 --from @alone.jsonl
<results: corrupt all --n 2 --reference @alone.jsonl --dry-run
<results: search random --objective acc --budget 4 --runs 1 --report-table @changed
<results: train --method erm --epochs 0 --init checkpoint
<results: plot cells --by acc -o o.svg
<results: plot bars --metric acc,fgsm.8 --group train.method --within dataset -o o.svg
<results: convert csv --write o.csv
"""
ELSEWHERE = ("bananas", "nasi", "attack aa")  # too long
LIGHT = ("rank", "score", "corr", "convert", "search")
# What makes the records of the pool, one after another.
POOL = (
    "attack fgsm --eps 4,8 --n 10 --detail",
    "attack pgd --steps 2 --n 10",
    "corrupt contrast --severity 1-5 --n 10",
    "pr --gamma 0.1,0.2 --samples 20 --n 10",
    "ge acc --n 10",
    "measure params,macs,margin --batches 1 --batch-size 4",
)
# Refusals that are about records that do not go together, though each may be right.
OF_ALL = (
    *("results of several kinds", "A search needs one space", "--missing renormalise"),
    "There is no metric that all",
)
ONE_FOR_ONE = ("attack", "corrupt", "pr", "certify", "ge", "measure", "train")
# Fields that tools look at, for values in places where they are not expected.
FIELDS = (
    "schema arch metrics evals train error dataset checkpoint checkpoint_file recognised score class_map"
    " space name str index channels cells width depth params metric value n ci95 eps norm steps split"
    " method seed epochs config history seconds_per_epoch normalize member tool message on acc pgd20.8"
    " pr.uniform.0.08"
).split()


def commands() -> dict[str, list[list[str]]]:
    """The words of the command lines, by their tool."""
    found: dict[str, list[list[str]]] = {}
    for line in (golden.STEPS.read_text("utf-8") + EXTRA).splitlines():
        words = shlex.split(line.partition(":")[2])
        if words and not any(word in line for word in ELSEWHERE):
            found.setdefault(words[0], []).append(words)
    return found


COMMANDS = commands()


@dataclass(repr=False)
class Pool:
    """Records to be changed, of which the first ones stand beside the changed ones."""

    records: list[Any]
    usual: dict[str, tuple[int, int]] = field(default_factory=dict)  # by command line: what `run` gives

    @property
    def good(self) -> list[bytes]:
        return [json.dumps({**record, "mark": "good"}).encode() for record in self.records[:3]]


@st.composite
def changed_line(draw: Draw, records: list[Any]) -> bytes:
    record = draw(st.sampled_from(records))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2)))):
        record = draw(changed(record, FIELDS, ODD | st.sampled_from(TOKENS))) or {"a": 0}
    text = draw(json_of(record))
    return draw(damaged(text)) if not draw(st.integers(0, 19)) else text  # type: ignore[no-any-return]


def check(pool: Pool, tool: str, data: st.DataObject) -> None:
    words = data.draw(st.sampled_from(COMMANDS[tool]))
    found = data.draw(st.lists(changed_line(pool.records), min_size=1, max_size=10))
    command, (first, *others) = shlex.join(words), pool.good
    if command not in pool.usual:
        pool.usual[command] = run(words, [first, *others])[:2]
    usual_status, usual = pool.usual[command]
    status, kept, said = run(words, [first, *found, *others])
    if status == 2 and usual_status != 2 and "@" not in command:
        assert any(some in said for some in OF_ALL), f"it is refused as a whole: {said[-400:]}"
    # A model to attack that is none costs every record, each in words.
    assert kept >= usual or status == 2 or "@alone" in command, f"it loses records: {said[-400:]}"


def run(command: Sequence[str], stream: Sequence[bytes]) -> tuple[int, int, str]:
    """The status of a command, how many good records come out of it without an error, and what it says."""
    text = b"\n".join(stream) + b"\n"
    Path("changed").write_bytes(text)
    Path("alone.jsonl").write_bytes(stream[1])
    words = [word.replace("@", "") for word in command]
    with bounded():
        result = runner.run(words[0], words[1:], text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    said = result.stderr
    assert "Traceback" not in said and "bug in rbtools" not in said, said[-2000:]
    assert result.exit_code in (0, 1, 2), said[-300:]
    kept = of_good(words, result.stdout_bytes, text) if result.exit_code < 2 else 0
    return result.exit_code, kept, said


def of_good(words: Sequence[str], out: bytes, stream: bytes) -> int:
    """How many good records are in the output; of a tool that writes something else, whether it did."""
    if words[0] in ("plot", "convert"):
        there = os.path.isfile(words[-1])
        if there:
            os.remove(words[-1])
        return int(there)
    if words[0] in ("corr", "search") or {"--format", "--aggregate"} & set(words):
        return int(bool(out.strip()))
    came = list(lines(io.BytesIO(out)))
    assert all(line.record is not None for line in came), f"a line is no record: {out[:200]!r}"
    if words[0] in ONE_FOR_ONE:
        assert len(came) >= len(list(lines(io.BytesIO(stream)))), "records are missing"
    marks = [line.record.get("mark") for line in came if line.record and "error" not in line.record]
    return marks.count("good")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that command lines name, and a store of all tests here."""
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def inputs(folder: Path) -> dict[str, str]:
    return golden.inputs(folder)


@pytest.fixture
def _inside(folder: Path, inputs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RB_STORE", str(folder / "rb-store"))


@pytest.fixture(scope="module")
def given_results() -> Pool:
    return Pool(golden.table())


@pytest.fixture(scope="module")
def results(folder: Path, inputs: dict[str, str]) -> Pool:
    """Records as the tools write them."""
    written: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RB_STORE", str(folder / "rb-store"))
        text = inputs["both"]
        for words in POOL:
            tool, _, options = words.partition(" ")
            text = runner.run(tool, options, text).stdout
            written += [json.loads(line) for line in text.splitlines()]
    return Pool(written[::-1] + golden.table())


@pytest.mark.usefixtures("_inside")
@pytest.mark.parametrize("tool", LIGHT)
@settings(max_examples=10)
@given(data=st.data())
def test_no_changed_record_ends_a_tool(given_results: Pool, tool: str, data: st.DataObject) -> None:
    check(given_results, tool, data)


@pytest.mark.slow
@pytest.mark.usefixtures("_inside")
@pytest.mark.parametrize("tool", [tool for tool in COMMANDS if tool not in LIGHT])
@settings(max_examples=5)
@given(data=st.data())
def test_no_changed_record_ends_a_tool_that_computes(results: Pool, tool: str, data: st.DataObject) -> None:
    check(results, tool, data)


@given(changed_line(golden.table()))
def test_a_line_is_a_record_that_survives_writing_or_has_a_problem(text: bytes) -> None:
    for line in lines(io.BytesIO(text)):
        if line.record is None:
            told(f"Line {line.number} {line.problem}")
            continue
        written = dumps(line.record)
        assert b"\n" not in written
        for again in (parse(written), parse_again(line.text), parse_again(written)):
            assert repr(again) == repr(line.record)  # 1 is not 1.0, and not true
