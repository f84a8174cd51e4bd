"""Behaviour that all tools share: versions, no records, bad lines, failed records."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import pytest
import torch

from tests.runner import records, run

FILTERS = {
    "train": "--epochs 0",
    "attack": "fgsm",
    "certify": "smooth --samples 100 --eps 0.1",
    "corrupt": "contrast",
    "pr": "",
    "ge": "acc",
    "card": "--for corruptions",
    "measure": "margin",
    "score": "--metric acc",
}
READERS = {
    **FILTERS,
    "search": "random --objective acc",
    "rank": "--by acc",
    "corr": "",
    "plot": "hist --metric acc -o acc.png",
    "verify": "",
    "convert": "prbench --write out.json",
}
GOOD = '{"schema":1,"arch":{"space":"zoo","name":"resnet18"},"metrics":{"acc":0.5},"mine":{"kept":[1,2]}}'


@pytest.mark.parametrize("words", ["--version -v", "-v --version", "--version --verbose"])
@pytest.mark.parametrize("tool", ["attack", "train", "rank", "store"])
def test_version_with_v_has_the_versions_for_a_report(
    tool: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+of.this.build")
    result = run(tool, words)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and result.stderr == ""
    assert run(tool, "--version").stdout == lines[0] + "\n"
    assert lines[1] == f"Python {platform.python_version()} (CPython)"
    assert f"torch {importlib.metadata.version('torch')}" in lines
    assert any(line.startswith("torch 2.13.0+of.this.build computes on the CPU with ") for line in lines)
    assert any(line.startswith(("huggingface-hub ", "timm ")) for line in lines)
    assert not any(line.startswith(("pytest", "mypy", "playwright", "rbtools")) for line in lines)


@pytest.mark.parametrize("text", ["", "\n \n"], ids=["nothing", "blank lines"])
@pytest.mark.parametrize("tool", READERS)
def test_no_records_is_status_3_and_one_line_even_quietly(tool: str, text: str) -> None:
    for words in ("", "-q"):
        result = run(tool, f"{READERS[tool]} {words}", text)
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr.startswith(
            f"rb-{tool}: error: no records came in. The command that should write"
        )
        assert result.stderr.count("\n") == 1 and "--allow-empty" in result.stderr
    result = run(tool, f"{READERS[tool]} --allow-empty", text)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (0, "", 1)
    assert result.stderr.startswith(f"rb-{tool}: no records came in")


def test_in_place_leaves_a_file_without_records_alone(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("\n")
    assert run("attack", "fgsm --in-place results.jsonl").exit_code == 3
    assert (tmp_path / "results.jsonl").read_text() == "\n" and len(list(tmp_path.glob("*.jsonl"))) == 1


def test_assertions_on_no_records_fail_with_a_report() -> None:
    result = run("rank", "--assert-point 'acc > 0' --format junit")
    assert result.exit_code == 1 and "There are no records." in result.stdout


@pytest.mark.parametrize("tool", FILTERS)
def test_a_bad_line_is_named_carried_along_and_status_1(tool: str) -> None:
    """tests/records/test_lines.py has every kind of bad line."""
    result = run(tool, FILTERS[tool], '{"metrics":{"acc":1}}\n')
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith(
        f'rb-{tool}: error: line 1 is not a record: it has no "arch"'
    )
    (record,) = records(result)
    assert record["error"]["text"] == '{"metrics":{"acc":1}}' and record["error"]["line"] == 1
    assert record["error"]["tool"] == f"rb-{tool}"


@pytest.mark.parametrize("tool", FILTERS)
def test_strict_stops_at_the_first_bad_line(tool: str) -> None:
    result = run(tool, f"{FILTERS[tool]} --errors stop", "hello\nworld\n")
    assert result.exit_code == 1 and result.stdout == ""
    assert "line 2" not in result.stderr


@pytest.mark.parametrize("tool", FILTERS)
def test_a_failed_record_passes_unworked_and_uncounted(tool: str) -> None:
    failed = '{"schema":1,"arch":{"name":"x"},"error":{"tool":"rb-train","message":"no"},"mine":1}'
    result = run(tool, FILTERS[tool], failed + "\n")
    assert (result.exit_code, result.stdout) == (0, failed + "\n")


@pytest.mark.parametrize("tool", ["attack", "corrupt", "pr", "ge", "card", "measure"])
def test_a_record_without_checkpoint_fails_with_its_input_intact(tool: str) -> None:
    result = run(tool, FILTERS[tool], GOOD + "\n")
    assert result.exit_code == 1
    (record,) = records(result)
    assert record["mine"] == {"kept": [1, 2]} and record["metrics"] == {"acc": 0.5}
    assert "has no checkpoint" in record["error"]["message"]
    assert f"rb-{tool}: error: line 1 (resnet18): " in result.stderr
    failed = {**record, "error": {"tool": "rb-x", "message": "old"}}
    again = run(tool, f"{FILTERS[tool]} --errors retry", [failed])
    assert "has no checkpoint" in records(again)[0]["error"]["message"]
