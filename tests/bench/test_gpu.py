"""The GPU's bench, with small numbers on the CPU: it runs, its checks hold, and they can fail."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "bench/gpu.py"


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gpu", SCRIPT)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["bench_gpu"] = found
    spec.loader.exec_module(found)
    return found


def test_every_part_in_this_process_runs_and_checks_what_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--small",
        "--device",
        "cpu",
        "--parts",
        "floor,verdicts,resume,train,robust,attack,aa,pr,profile,passes",
    ]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    module().main()
    first, *found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["machine"] == "cpu" and first["small"]
    figures = {one["figure"]: one for one in found}
    assert {"pgd, an epoch", "trades, an epoch", "cvar, an epoch", "at-pr, an epoch"} <= figures.keys()
    assert {"PGD-20, the last iterate", "PGD-20, any iterate", "AutoAttack, 10 images"} <= figures.keys()
    measured = [one for one in found if "reference" in one]
    assert len(measured) == 10 and all(one.get("good", True) and one["times"] > 0 for one in measured)
    assert "apgd-ce, 1 of 1" in figures["AutoAttack, 6 images"]["stages"]
    assert all(one["floor"] < one["ours"] for one in found if "an epoch" in one["figure"])
    told = ("verdicts of GPU and CPU, the attacked network", "resumed from cpu on cpu", "fgsm-pgi, 2 epochs")
    assert all(figures[name]["good"] for name in told)
    assert {"profile of PGD-20", "profile of training, PGD-7, a cell network"} <= figures.keys()


def test_a_check_that_fails_is_remembered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    gpu = module()
    bench = gpu.Bench(gpu.SMALL, torch.device("cpu"), "digits", tmp_path, small=True)
    bench.say("right", 2.0, reference=4.0, good=True)
    bench.say("wrong", 2.0, reference=4.0, unit="images/s", good=False)
    assert bench.failed == ["wrong"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["times"] for one in lines] == [2.0, 0.5]


def table_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gpu_table", SCRIPT.with_name("gpu_table.py"))
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    sys.modules["bench_gpu_table"] = table
    spec.loader.exec_module(table)
    return table


def test_the_table_has_what_was_measured_and_says_what_was_not() -> None:
    table = table_module()
    counts = {row.step: {"launches": 110.125, "waits": 0.125} for row in table.ROWS}
    line = {"ours": 4.321, "unit": "s", "floor": 1.5, "reference": 43.21, "times": 10.0, "memory_gib": 2.5}
    first, dashes, *rows = table.table({"pgd, an epoch": line}, counts).splitlines()
    assert len({text.count("|") for text in (first, dashes, *rows)}) == 1
    assert "| 4.321 s | 1.5 s | 43.21 s | 10 | 6 s | 110.1 | 0.125 | 2.5 GiB |" in rows[0]
    assert all(" |  |  |  |  | " in text for text in rows[1:]) and len(rows) == len(table.ROWS)
    gpu = SCRIPT.read_text()
    for part in ("an epoch", "PGD-20, ", "AutoAttack", "PR, 100 copies", "50 epochs of PGD-7, "):
        assert part in gpu  # the figures' names of bench/gpu.py
        assert any(part in row.figure for row in table.ROWS)


def test_without_a_gpu_it_says_how_to_try_it() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and "--small --device cpu" in done.stderr


@pytest.mark.parametrize("status", [0, 1])
def test_a_check_that_fails_costs_no_figure(
    status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import torch

    table = table_module()
    line = json.dumps({"figure": "pgd, an epoch", "ours": 4.321, "unit": "s", "good": not status})
    text = f"import sys\nprint('''{line}''')\nprint('half a li', end='')\nsys.exit({status})\n"
    (tmp_path / "gpu.py").write_text(text)
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setattr(
        table, "counted", lambda: {row.step: {"launches": 1, "waits": 0} for row in table.ROWS}
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys, "argv", ["gpu_table.py"])
    with pytest.raises(SystemExit) as ended:
        table.main()
    assert ended.value.code == status
    assert "| 4.321 s |" in capsys.readouterr().out


def test_memory_is_of_our_own_run_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import torch

    gpu, held = module(), [2**32]
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: held.__setitem__(0, 0))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: held[0])
    bench = gpu.Bench(gpu.SMALL, torch.device("cuda"), "digits", tmp_path, small=True)
    with bench.memory():
        held[0] = 2**30
    held[0] = 2**33  # the reference
    bench.say("here", 1.0)
    bench.say("in other processes", 1.0)
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["memory_gib"] == 1 and "memory_gib" not in second
