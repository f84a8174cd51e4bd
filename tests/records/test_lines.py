"""Lines in and out: what is a record, what is named instead, and that nothing is changed on the way."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools import plain_files
from rbtools.errors import RbError
from rbtools.records import BadLine, can_be_retried, dumps, lines, parse, read, write
from rbtools.records.held import HeldRecords

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(VALUES, st.booleans())
def test_what_goes_in_comes_out(value: Any, pretty: bool) -> None:
    record = {"arch": {"name": "x"}, "mine": value}
    text = json.dumps(record, ensure_ascii=pretty, separators=None if pretty else (",", ":"))
    found = parse(text.encode())
    assert found == record and repr(found) == repr(record)  # 1 is not 1.0, and not true
    assert json.loads(dumps(found)) == record
    for held in (HeldRecords().hold(found, 0, text.encode()), HeldRecords().hold(found, 0)):
        assert repr(dict(held)) == repr(found)


@pytest.mark.parametrize(("bad", "big"), [(float("nan"), 1), (float("inf"), 2**70)])
def test_a_number_that_is_not_finite_is_never_written(bad: float, big: int) -> None:
    with pytest.raises(ValueError, match=r"nan|inf|finite|not JSON compliant"):
        dumps({"arch": {}, "evals": [{"value": bad, "n": big}]})


BAD = {
    "{}": 'is not a record: it has no "arch" (it has: nothing)',
    '{"arch":null}': 'has an "arch" that is null. Expected an object',
    '{"arch":{},"train":3}': 'has a "train" that is a number. Expected an object.',
    '{"arch":{},"metrics":{"acc":"high"}}': 'has a metric "acc" that is a string. Expected a number.',
    '{"arch":{},"evals":[1]}': 'has an entry in "evals" that is not an object',
    '{"arch":{},"evals":[{"metric":"acc","ci95":[0,"1"]}]}': 'or whose "ci95" is not a list of two numbers',
    '{"arch":{},"evals":[{"metric":"acc","value":1e200}]}': 'or "std" is not a number or too large',
    '{"arch":{},"metrics":{"acc":9223372036854775808}}': 'has a metric "acc" that is too large.',
    '{"a\\nb":1,"' + "x" * 3000 + '":2}': "it has: a\\nb, xxxxxxxxxxxxxxxxxxxx...)",
    '{"arch":{},"' + "x" * 3000 + '":1,"' + "x" * 3000 + '":1}': 'contains the key "xxxx',
    '{"arch":{},"x":NaN}': "contains NaN, which is not valid JSON",
    '{"arch":{},"x":1e999}': "is not JSON: number is infinity",
    '{"arch":{"a":1,"a":1}}': 'contains the key "a" twice. Expected each key only once.',
    '{"arch":{},"schema":3}': "has schema 3, which is newer than schema 1 of this version. Upgrade rbtools.",
    '{"arch":{},"x":' + "[" * 3000 + "]" * 3000 + "}": "is not JSON: depth limit exceeded",
    '{"arch":{},"x":' + "[" * 300 + "]" * 300 + "}": "nests lists and objects too deeply to be written",
    '{"arch":{},"x":"\\ud800"}': "is not JSON: no low surrogate",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:40])
def test_what_is_no_record_is_named(text: str) -> None:
    with pytest.raises(BadLine) as wrong:
        parse(text.encode())
    assert BAD[text] in str(wrong.value)
    assert len(str(wrong.value)) < 250  # a line may be megabytes
    assert str(wrong.value).isprintable()


def test_text_that_is_not_utf8_is_called_that() -> None:
    with pytest.raises(BadLine, match=r"is not UTF-8 \(byte 17\)"):
        parse('{"arch":{},"x":"é"}'.encode("latin-1"))


def test_a_cut_off_line_is_called_that_wherever_it_is_cut() -> None:
    text = b'{"schema":1,"arch":{"name":"x"}}'
    for cut in range(1, 30):
        with pytest.raises(BadLine, match=rf"is cut off: it ends after {cut} bytes"):
            parse(text[:cut], whole=False)
        with pytest.raises(BadLine, match="is not JSON"):
            parse(text[:cut])


def test_metrics_may_be_null_and_a_failed_record_may_be_anything() -> None:
    assert parse(b'{"arch":{},"metrics":{"acc":null}}')["metrics"] == {"acc": None}
    assert parse(b'{"error":{}}') == {"error": {}}
    assert not can_be_retried({"error": {}, "text": "hello"})
    assert can_be_retried({"error": {}, "arch": {}})


def test_lines_are_counted_and_blank_ones_left_out() -> None:
    mark = b"\xef\xbb\xbf"  # of the byte order: only before the first line
    stream = io.BytesIO(
        mark + b'{"arch":{}}\r\n\r\n  \nhello\n{"arch":{"name":"x"}}\n' + mark + b'{"arch":{}}'
    )
    found = list(lines(stream, "file"))
    assert [line.number for line in found] == [1, 4, 5, 6]
    assert [line.number for line in found if line.problem is None] == [1, 5]
    assert {line.source for line in found} == {"file"} and "is not JSON" in str(found[-1].problem)
    assert found[0].text == b'{"arch":{}}'
    assert found[1].text == b"hello" and found[1].record is None


@pytest.mark.parametrize(("wrap", "way"), [(lambda one: one, "-c ."), (lambda one: [one, one], "-c '.[]'")])
def test_a_document_over_several_lines_is_named_once_and_loses_nothing(wrap: Any, way: str) -> None:
    text = json.dumps(wrap({"arch": {}, "evals": [{"a": [1]}]}), indent=1) + "\n"
    last = '{"arch":{}}\n{\n'
    found = list(lines(io.BytesIO((text + last).encode())))
    assert "over several lines" in str(found[0].problem) and f"jq {way} FILE" in str(found[0].problem)
    inside, (record, bad) = found[1:-2], found[-2:]
    assert not found[0].continues and all(line.problem and line.continues for line in inside)
    assert [line.text.decode() for line in found[:-2]] == [line.strip() for line in text.splitlines()]
    assert record.record == {"arch": {}} and bad.problem and not bad.continues


def test_reading_and_writing_files() -> None:
    records = [{"schema": 1, "arch": {"name": name}, "metrics": {"acc": 0.5}} for name in "ab"]
    with open("records.jsonl", "wb") as stream:
        write(records, stream)
    assert list(read("records.jsonl")) == records
    Path("records.jsonl").write_text('{"arch":{}}\n{"arch"\n')
    with pytest.raises(RbError, match=r"records.jsonl: line 2 is not JSON"):
        list(read("records.jsonl"))
    (line,) = lines(io.BytesIO(b"{"))
    assert "is cut off" in str(line.problem)


BINARY = {
    "zip": b"PK\x03\x04\x00\x00\x08\n\x00{}\n" + b"\x80\n" * 99,
    "after a line of text": b"%PDF-1.7\n%\xe2\x00\n" * 99,
}


@pytest.mark.parametrize("kind", BINARY)
def test_binary_data_is_one_bad_line_and_not_read_further(kind: str) -> None:
    found = list(lines(io.BytesIO(BINARY[kind]), "file"))
    assert len(found) == 1 + kind.startswith("after") and all(line.record is None for line in found)
    problem = found[-1].problem
    assert problem is not None and problem.startswith("is binary data, not text: ")
    assert "--checkpoint FILE" in problem and problem.isprintable() and len(problem) < 400


GOOD = '{"arch":{}}\n' * 99
OTHER = {"zcat": gzip.compress(GOOD.encode()) * 2, "iconv -f UTF-16LE -t UTF-8": GOOD.encode("utf-16LE")}


@pytest.mark.parametrize("command", OTHER)
def test_compressed_or_utf_16_records_are_one_bad_line_that_says_what_to_type(command: str) -> None:
    (line,) = lines(io.BytesIO(OTHER[command]), "my file")
    assert line.problem is not None and line.problem.endswith(f": {command} 'my file' | TOOL.")
    Path("set").write_bytes(OTHER[command])
    with pytest.raises(RbError, match=f"^set is .*: {command} set > NEWFILE, and use that file"):
        plain_files.read_text("set")


def test_a_key_that_stands_twice_among_very_many_is_found_at_once() -> None:
    keys = "".join(f'"k{i}":1,' for i in range(200_000))  # key by key it would take a quarter of an hour
    with pytest.raises(BadLine, match='contains the key "z" twice'):
        parse(f'{{"arch":{{}},{keys}"z":1,"z":2}}'.encode())


def test_held_records_are_the_records() -> None:
    records = HeldRecords()
    given = [{"arch": {}, "metrics": {"acc": n / 9}, "note": "x" * n} for n in range(9)]
    held = [records.hold(record, 7) for record in given]
    assert [dict(one) for one in held] == given
    assert "dataset" not in held[3] and held[3].get("metrics") == {"acc": 3 / 9} and len(held[3]) == 3
    assert dict(held[0].changed({"arch": {}, "dataset": "digits"})) == {"arch": {}, "dataset": "digits"}
