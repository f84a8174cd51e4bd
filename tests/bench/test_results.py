"""bench/results.py: RESULTS.md is printed from results.jsonl, and names scripts that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_the_page_is_printed_from_the_figures_and_stays_short() -> None:
    check = subprocess.run([sys.executable, BENCH / "results.py", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr or "bench/RESULTS.md is stale: python bench/results.py"
    assert len((BENCH / "RESULTS.md").read_bytes()) < 30_000


def test_every_bench_has_a_figure_or_a_reason_to_be_there() -> None:
    lines = (BENCH / "results.jsonl").read_text("utf-8").splitlines()
    measured = {
        name for line in lines for name in re.findall(r"bench/(\w+)\.py", json.loads(line)["command"])
    }
    tools = {"check_wheel", "mutants", "results"}
    parts = {"common", "peer_fgsm", "gpu_plain", "gpu_table"}
    assert {path.stem for path in BENCH.glob("*.py")} <= measured | tools | parts
