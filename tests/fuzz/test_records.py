"""Records of which some have a field that is absent or something else, or are no JSON, through every tool.

A tool ends without a traceback and with a status of its own, and the records beside the changed ones come out
of it as they do without them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools.records import dumps, lines, parse, parse_again, schema
from tests import runner
from tests.fuzz.properties import bounded, told
from tests.fuzz.strategies import Draw, changed, damaged, json_of
from tests.golden import make as golden

# Command lines beside those of the golden set. @changed is a file of the whole stream, @alone.jsonl one of
# its first changed record.
EXTRA = """
: rank --by acc
: attack transfer --n 4 --from @alone.jsonl
: corrupt all --n 2 --reference @alone.jsonl --dry-run
: search random --objective acc --budget 4 --runs 1 --report-table @changed
: train --method erm --epochs 0 --init checkpoint
: plot cells --by acc -o o.svg
: plot bars --metric acc,fgsm.8 --group train.method --within dataset -o o.svg
: convert csv --write o.csv
"""
ELSEWHERE = ("bananas", "nasi", "darts", "advrush", "attack aa")  # these take long
LIGHT = ("rank", "score", "corr", "convert", "search")
COMMANDS: dict[str, list[str]] = {}  # the words of the command lines, by their tool
for _line in (golden.STEPS.read_text("utf-8") + EXTRA).splitlines():
    _command = _line.partition(":")[2].strip().replace("--epochs 2", "--epochs 0")
    if _command and not any(word in _command for word in ELSEWHERE):
        COMMANDS.setdefault(_command.split()[0], []).append(_command)

# What makes the records of tools that compute, one after another.
RESULTS = (
    "attack fgsm --eps 4,8 --n 10 --detail",
    "corrupt contrast --severity 1-5 --n 10",
    "pr --gamma 0.1,0.2 --samples 20 --n 10",
    "measure params,margin --batches 1 --batch-size 4",
)
# Refusals that are about records that do not go together, though each may be right.
OF_ALL = re.compile("results of several kinds|needs one space|--missing renormalise|no metric that all")
ONE_FOR_ONE = ("attack", "corrupt", "pr", "certify", "ge", "measure", "train")
# Fields that tools look at, for values in places where they are not expected.
FIELDS = [field.name for field in (*schema.RECORD, *schema.TRAIN, *schema.EVALS)]
FIELDS += "space name str index channels cells width depth params acc pgd20.8 pr.uniform.0.08".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that command lines name, and a store of all tests here."""
    path = tmp_path_factory.mktemp("records")
    golden.inputs(path)
    return path


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RB_STORE", str(folder / "rb-store"))


given_results = cache(golden.table)


@cache
def computed_results() -> list[runner.Record]:
    """Records as the tools write them, and those that are given."""
    written: list[runner.Record] = []
    text = Path("both.jsonl").read_text("utf-8")
    for words in RESULTS:
        result = runner.run(*words.split(" ", 1), text)
        text = result.stdout
        written += runner.records(result)
    return written[::-1] + given_results()


@st.composite
def changed_line(draw: Draw, records: list[runner.Record]) -> bytes:
    record = draw(st.sampled_from(records))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2)))):
        record = draw(changed(record, FIELDS)) or {"a": 0}
    text = draw(json_of(record))
    return draw(damaged(text)) if not draw(st.integers(0, 19)) else text  # type: ignore[no-any-return]


def check(pool: Callable[[], list[runner.Record]], tool: str, data: st.DataObject) -> None:
    """A command line of the tool, on three good records and some changed ones of the pool."""
    command = data.draw(st.sampled_from(COMMANDS[tool]))
    found = data.draw(st.lists(changed_line(pool()), min_size=1, max_size=8))
    usual_status, usual, _ = run(pool, command)
    status, kept, said = run.__wrapped__(pool, command, *found)
    if status == 2 and usual_status != 2 and "@" not in command:
        assert OF_ALL.search(said), f"it is refused as a whole: {said[-400:]}"
    # A model to attack that is none costs every record, each in words.
    assert kept >= usual or status == 2 or "@alone" in command, f"it loses records: {said[-400:]}"


@cache
def run(pool: Callable[[], list[runner.Record]], command: str, *changed: bytes) -> tuple[int, int, str]:
    """The status of a command, how many good records come out of it without an error, and what it says."""
    first, *others = [json.dumps({**record, "mark": "good"}).encode() for record in pool()[:3]]
    stream = [first, *changed, *others]
    Path("changed").write_bytes(b"\n".join(stream))
    Path("alone.jsonl").write_bytes(stream[1])
    tool, *words = shlex.split(command.replace("@", ""))
    with bounded():
        result = runner.run(tool, words, b"\n".join(stream))
    out, said = result.stdout_bytes, result.stderr
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in said and "bug in rbtools" not in said, said[-2000:]
    assert result.exit_code in (0, 1, 2), said[-300:]
    if tool in ONE_FOR_ONE and result.exit_code != 2:
        came = list(lines(io.BytesIO(out)))
        assert all(line.record for line in came), f"a line is no record: {out[:200]!r}"
        assert len(came) >= len(list(lines(io.BytesIO(b"\n".join(stream))))), "records are missing"
    good = sum(b'"mark":"good"' in line and b'"error":' not in line for line in out.splitlines())
    if tool in ("plot", "convert"):  # which write a file
        good = os.path.exists(words[-1])
        Path(words[-1]).unlink(missing_ok=True)
    elif tool in ("corr", "search") or "--aggregate" in words:  # whose records are others
        good = bool(out.strip())
    return result.exit_code, good, said


@pytest.mark.parametrize("tool", LIGHT)
@settings(max_examples=5)
@given(data=st.data())
def test_no_changed_record_ends_a_tool(tool: str, data: st.DataObject) -> None:
    check(given_results, tool, data)


@pytest.mark.slow
@pytest.mark.parametrize("tool", [tool for tool in COMMANDS if tool not in LIGHT])
@settings(max_examples=3)
@given(data=st.data())
def test_no_changed_record_ends_a_tool_that_computes(tool: str, data: st.DataObject) -> None:
    check(computed_results, tool, data)


@settings(max_examples=50)
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
