"""One published checkpoint, measured by rbtools and by the libraries people use, image by image.

    python bench/cifar_resnet18.py --data FOLDER [--device cuda] [--part clean,pgd,aa] [--eps 0.5,1,8]

FOLDER holds CIFAR-10 as images: train/<class>/ and test/<class>/. The checkpoint is the ResNet-18
that pyautoattack ships, built on the reference's side from the file beside it, so that the two sides
share neither network code nor image loading.

clean  accuracy on all test images: a plain loop over torchvision's ImageFolder, and `rb-attack`
pgd    20 steps, last iterate, on --n images: torchattacks, and `rb-attack pgd --iterate last`
aa     the standard version, on --aa-n of them: pyautoattack, and `rb-attack aa`

One JSON line each: both accuracies, their difference, and the images on which the verdicts differ.
The attacks start at random points of their own, so a few images near the boundary may.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rbtools import datasets, units
from rbtools.attacks import ATTACKS
from rbtools.evaluation.base import EvalTask
from rbtools.evaluation.tasks import AttackTask
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import evaluate_record
from rbtools.models.torchvision_import import torchvision
from rbtools.store import Store

BIN = Path(sys.executable).parent
STEPS = 20


# --- the reference's side ---------------------------------------------------------------------------


def shipped() -> Path:
    """The folder of pyautoattack with the checkpoint and the network's source."""
    spec = importlib.util.find_spec("pyautoattack")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pyautoattack is not installed; run this with the Python that `make test` set up.")
    return Path(spec.submodule_search_locations[0]) / "examples"


def reference_model(device: str) -> nn.Module:
    spec = importlib.util.spec_from_file_location("published_resnet", shipped() / "resnet.py")
    assert spec and spec.loader
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    model: nn.Module = source.ResNet18()
    model.load_state_dict(torch.load(shipped() / "model_test.pt", map_location="cpu", weights_only=True))
    return model.to(device).eval().requires_grad_(False)


def image_folder(data: str) -> Any:
    return torchvision.datasets.ImageFolder(Path(data) / "test", torchvision.transforms.ToTensor())


def chosen_images(folder: Any, positions: list[int], device: str) -> tuple[Tensor, Tensor]:
    pairs = [folder[i] for i in positions]
    return torch.stack([image for image, _ in pairs]).to(device), torch.tensor([y for _, y in pairs]).to(
        device
    )


def right(model: nn.Module, images: Tensor, labels: Tensor) -> np.ndarray:
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in images.split(100)])
    return found.eq(labels).cpu().numpy()


def reference_clean(model: nn.Module, folder: Any, device: str) -> np.ndarray:
    loader = torch.utils.data.DataLoader(folder, batch_size=100)
    return np.concatenate([right(model, images.to(device), labels.to(device)) for images, labels in loader])


def reference_pgd(model: nn.Module, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    import torchattacks

    step = min(2 / 255, 2.5 * eps / STEPS)
    attack = torchattacks.PGD(model, eps=eps, alpha=step, steps=STEPS, random_start=True)
    return torch.cat([attack(x, y) for x, y in zip(images.split(100), labels.split(100), strict=True)])


def reference_aa(model: nn.Module, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    from pyautoattack import AutoAttack

    attack = AutoAttack(model, norm="Linf", eps=eps, version="standard", seed=0, device=images.device)
    attack.verbose = False
    perturbed: Tensor = attack.run_standard_evaluation(images, labels, batch_size=len(images))[0]
    return perturbed.to(images.device)


# attack -> our options, the metric's stem, the reference
ATTACKED: dict[str, tuple[dict[str, Any], str, Callable[[nn.Module, Tensor, Tensor, float], Tensor]]] = {
    "pgd": ({"iterate": "last", "steps": STEPS}, f"pgd{STEPS}", reference_pgd),
    "aa": ({}, "aa", reference_aa),
}


# --- our side ---------------------------------------------------------------------------------------


class Verdicts(NamedTuple):
    """What rb-attack wrote into the record, and what it found for each image."""

    metrics: dict[str, float]
    positions: list[int]  # of the images in ImageFolder's order
    clean: np.ndarray  # which are classified right, unchanged
    attacked: list[np.ndarray]  # and under the attack, one array a distance
    seconds: float


def ours(attack: str, options: dict[str, Any], args: argparse.Namespace, *, eps: str, n: int) -> Verdicts:
    """Run rb-attack as a user types it, then read its verdict on each image from its store."""
    with tempfile.TemporaryDirectory() as store:
        own = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        source = ["--checkpoint", str(shipped() / "model_test.pt"), "--arch", "resnet18"]
        data = ["--dataset", f"imagefolder:{Path(args.data).resolve()}", "--n", str(n)]
        where = ["--device", args.device, "--store", store]
        start = time.perf_counter()
        command = [str(BIN / "rb-attack"), attack, *own, "--eps", eps, *source, *data, *where]
        record = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        seconds = time.perf_counter() - start
        run = Run.of(tool="rb-attack", store=Store(store), device=args.device, n=n)
        distances = tuple(units.eps_to_pixels(one) for one in eps.split(","))
        positions, found = stored_verdicts(record, ATTACKS.build(attack, **options), distances, run, n)
    return Verdicts(record["metrics"], positions, found[0], found[1:], seconds)


class Kept:
    """A column of outcomes that are wanted themselves: found under its key in the store, only read anew."""

    def __init__(self, column: Any) -> None:
        self.column = column
        self.outcomes = np.empty(0, np.int32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.column, name)

    def postprocess_key(self) -> dict[str, Any]:
        return {"each image": True}

    def entries(self, outcomes: np.ndarray, totals: Any) -> list[dict[str, Any]]:
        self.outcomes = outcomes
        return []


class KeptTask(EvalTask):
    """What an attack left right, from the store alone."""

    title = "verdicts"

    def __init__(self, method: Any, distances: tuple[float, ...]) -> None:
        self.kept = [Kept(column) for column in AttackTask(method, distances).outputs()]

    def outputs(self) -> list[Any]:
        return self.kept

    def run(self, *_: Any) -> list[Tensor]:
        raise AssertionError("the store does not hold what rb-attack has just computed")


def stored_verdicts(
    record: dict[str, Any], method: Any, distances: tuple[float, ...], run: Run, n: int
) -> tuple[list[int], list[np.ndarray]]:
    """The images that were met, and for clean and every distance which of them were right: bool (n,)."""
    task = KeptTask(method, distances)
    inputs = resolve_inputs(record, run)
    evaluate_record.task_entries(inputs, task)
    data = inputs.data
    positions = datasets.subset(data.load().labels, data.size, seed=0)[:n].tolist()
    return positions, [one.outcomes == 1 for one in task.kept]


# --- side by side -----------------------------------------------------------------------------------


def show(
    figure: str, reported: float, mine: np.ndarray, theirs: np.ndarray, where: list[int], **more: Any
) -> None:
    """One line; `reported` is what the record says, and must be the mean of its verdicts."""
    assert abs(reported - mine.mean()) < 1e-12, (reported, mine.mean())
    differing = [where[i] for i in np.flatnonzero(mine != theirs)]
    line = {"figure": figure, "ours": round(reported, 4), "reference": round(float(theirs.mean()), 4)}
    line["points"] = round(100 * (reported - float(theirs.mean())), 2)
    print(json.dumps({**line, "n": len(mine), "differing": differing, **more}), flush=True)


def compare_clean(args: argparse.Namespace, model: nn.Module, folder: Any) -> None:
    start = time.perf_counter()
    theirs = reference_clean(model, folder, args.device)
    seconds = time.perf_counter() - start
    mine = ours("fgsm", {}, args, eps="0", n=len(folder))  # at distance 0 only clean images are judged
    cost = {"seconds": round(mine.seconds, 1), "reference_seconds": round(seconds, 1)}
    show("clean", mine.metrics["acc"], mine.clean, theirs[mine.positions], mine.positions, **cost)


def compare_attack(args: argparse.Namespace, model: nn.Module, folder: Any, *, attack: str, n: int) -> None:
    options, stem, reference = ATTACKED[attack]
    mine = ours(attack, options, args, eps=args.eps, n=n)
    images, labels = chosen_images(folder, mine.positions, args.device)
    for eps, verdicts in zip(args.eps.split(","), mine.attacked, strict=True):
        torch.manual_seed(0)
        random.seed(0)
        start = time.perf_counter()
        theirs = right(model, reference(model, images, labels, units.eps_to_pixels(eps)), labels)
        seconds = time.perf_counter() - start
        metric = f"{stem}.{float(eps):g}"
        cost = {"seconds_all_eps": round(mine.seconds, 1), "reference_seconds": round(seconds, 1)}
        show(metric, mine.metrics[metric], verdicts, theirs, mine.positions, **cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="CIFAR-10 as images: FOLDER/test/<class>/...")
    parser.add_argument("--part", default="clean,pgd,aa", help="what to compare [clean,pgd,aa]")
    parser.add_argument("--eps", default="0.5,1,8", help="distances in 1/255 [0.5,1,8]")
    parser.add_argument("--n", type=int, default=200, help="images under attack [200]")
    parser.add_argument("--aa-n", type=int, default=None, help="images under AutoAttack [as --n]")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    wanted = args.part.split(",")
    if not set(wanted) <= {"clean", *ATTACKED}:
        parser.error(f"--part is '{args.part}'. Choose from: clean, {', '.join(ATTACKED)}.")
    warnings.simplefilter("ignore")
    model, folder = reference_model(args.device), image_folder(args.data)
    if "clean" in wanted:
        compare_clean(args, model, folder)
    if "pgd" in wanted:
        compare_attack(args, model, folder, attack="pgd", n=args.n)
    if "aa" in wanted:
        compare_attack(args, model, folder, attack="aa", n=args.aa_n or args.n)


if __name__ == "__main__":
    main()
