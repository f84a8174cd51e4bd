"""bench/figures.py: what it names is there, and a run that was cut off goes on."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench/figures.py"


def figures(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)


def test_every_bench_is_among_the_figures() -> None:
    listed = figures("--list").stdout
    named = {word for word in shlex.split(listed.replace("'", " ")) if word.startswith("bench/")}
    assert all((ROOT / script).exists() for script in named)
    reproductions = {f"reproduce-{name}" in listed for name in ("prbench", "wci", "nas-robbench-201")}
    assert reproductions == {True}
    # Helpers of others, what compares two trees, what needs a GPU or what cannot be had here, and
    # this one.
    others = {"transformers_networks", "author_networks", "decoding"}
    others |= {"coverage_pr", "figures", "ray_nodes", "gpu", "fuzz", "fuzz_fields"}
    others |= {"fuzz_files", "fuzz_pickles", "fuzz_targets", "snapshots", "structure", "paired", "zoo"}
    others |= {"stack", "minimal_norm", "two_phase", "apgd_l1"}
    others |= {"certify", "check_wheel", "waits", "gpu_table", "gpu_plain"}
    scripts = {path.stem for path in (ROOT / "bench").glob("*.py")}
    assert scripts - others <= {Path(one).stem for one in named}


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    line = ("--out", str(tmp_path), "--only", "prbench-scored,corruptions-near")
    assert (
        "Left out, as their files were not named: prbench-scored, corruptions-near." in figures(*line).stderr
    )
    (tmp_path / "figures.jsonl").write_text('{"figure": "startup", "status": 0}\n')
    done = figures("--out", str(tmp_path), "--only", "startup")
    assert (done.returncode, done.stdout) == (0, "")
    assert "There is no figure named nonsense." in figures("--only", "nonsense").stderr


def test_a_bench_that_fails_is_told_and_measured_again(tmp_path: Path) -> None:
    board = tmp_path / "board.json"
    board.write_text("not JSON")
    for _ in range(2):
        figures("--out", str(tmp_path), "--only", "prbench-scored", "--leaderboard", str(board))
    told = [json.loads(one) for one in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert [one["figure"] for one in told] == ["prbench-scored"] * 2
    assert all(one["status"] for one in told)
