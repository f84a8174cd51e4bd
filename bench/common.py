"""What several benches need: a line of figures, ways timed in turn, fresh processes, a published network."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

BIN = Path(sys.executable).parent
# Where byte code may not be written, every start would compile the package again.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def show(figure: str, **values: Any) -> None:
    """Print the JSON line of a figure, with the machine's load."""
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    print(json.dumps({"figure": figure, **values, "load": load}), flush=True)


Best = dict[str, tuple[float, float]]


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int, warm: int = 0) -> Best:
    """The least seconds of each way, on the clock and of the processor; `warm` first rounds do not count."""
    best: Best = {}
    for turn in range(rounds + warm):
        for name, way in ways.items():
            clock, processor = time.perf_counter(), time.process_time()
            way()
            took = time.perf_counter() - clock, time.process_time() - processor
            if turn >= warm:
                old = best.get(name, took)
                best[name] = (min(old[0], took[0]), min(old[1], took[1]))
    return best


def fresh(*command: str, source: Path | None = None) -> dict[str, Any]:
    """Run a command whose output goes nowhere: seconds, processor seconds, peak memory; `said` is stderr."""
    with open(source or os.devnull, "rb") as stdin:
        start = time.perf_counter()
        kept: Any = {
            "stdin": stdin,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.PIPE,
            "env": ENVIRONMENT,
        }
        tool = subprocess.Popen(command, **kept)
        assert tool.stderr is not None
        said = tool.stderr.read().decode()
        _, status, usage = os.wait4(tool.pid, 0)
        seconds = time.perf_counter() - start
    tool.returncode = os.waitstatus_to_exitcode(status)
    if tool.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {tool.returncode}: {said}")
    peak = round(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "peak_mb": peak, "said": said}


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number of some runs, and the seconds of them all."""
    numbers = [key for key in runs[0] if key != "said"]
    figures = {key: round(statistics.median(run[key] for run in runs), 3) for key in numbers}
    return {**figures, "runs": [round(run["seconds"], 3) for run in runs]}


def published_resnet18(device: str) -> nn.Module:
    """The ResNet-18 for CIFAR-10 that pyautoattack ships, built on its own code."""
    import torch

    found = importlib.util.find_spec("pyautoattack")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("pyautoattack is not installed; run this with the Python that `make test` set up.")
    folder = Path(found.submodule_search_locations[0]) / "examples"
    code = importlib.util.spec_from_file_location("published_resnet", folder / "resnet.py")
    assert code and code.loader
    source = importlib.util.module_from_spec(code)
    code.loader.exec_module(source)
    model: nn.Module = source.ResNet18()
    model.load_state_dict(torch.load(folder / "model_test.pt", map_location="cpu", weights_only=True))
    return model.to(device).eval().requires_grad_(False)


def images_of_folder(folder: str, count: int, device: str) -> tuple[Tensor, Tensor]:
    """`count` images float32 (N, C, H, W) in [0, 1] from all classes of FOLDER/test, and labels (N,)."""
    import torch

    from rbtools.models.torchvision_import import torchvision

    found = torchvision.datasets.ImageFolder(Path(folder) / "test", torchvision.transforms.ToTensor())
    pairs = [found[i] for i in torch.linspace(0, len(found) - 1, count).long().tolist()]
    labels = torch.tensor([label for _, label in pairs])
    return torch.stack([image for image, _ in pairs]).to(device), labels.to(device)
