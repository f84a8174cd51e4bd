"""Dry runs at full scale without data: what a recipe does, counted by hand, and hours from measured works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from rbtools.papers import packaged, pipes, recipe_hours, recipes
from rbtools.papers.__main__ import main
from rbtools.papers.recipe_work import Work, work
from rbtools.papers.recipes import Setting

ARCH = "rb-arch --arch resnet18 --dataset cifar10"
MULTIPLY_ADDS = 555_422_720  # 64 channels, 32x32 images: as fvcore counts them, without the ReLUs


def counted(*lines: str) -> list[Work]:
    found, left_out = work([line.split() for line in lines])
    assert not left_out
    return found


@pytest.mark.parametrize(
    ("command", "images", "most"),
    [
        ("rb-attack pgd --eps 8 --steps 20 --iterate last", 10_000, 1 + 2 * 20),
        ("rb-attack fgsm --eps 1,2,3 --n 500", 500, 3 * (1 + 2)),
        ("rb-attack square --eps 8 --queries 300", 10_000, 1 + 300),
        ("rb-corrupt all --severity 1-5 --from nowhere/CIFAR-10-C", 10_000, 75),
        ("rb-pr --gamma 0.03,0.08 --samples 100 --noise uniform,laplace", 10_000, 4 * 101),
        ("rb-ge pr --gamma 0.08 --samples 100 --indices 0-999", 2_000, 101),
    ],
)
def test_passes_of_evaluations(command: str, images: int, most: float) -> None:
    (one,) = counted(ARCH, command)
    assert (one.networks.multiply_adds, one.images, one.passes) == (MULTIPLY_ADDS, images, images * most)
    attacked = command.startswith("rb-attack")
    assert one.usual == pytest.approx(one.passes * (0.3 if attacked else 1))


def test_passes_of_trainings() -> None:
    """PGD-10 has two passes for each step of the attack, and three for the loss and both of its gradients."""
    train = "rb-train --epochs 4 --val 0 --batch-size 100 --method erm,pgd --seed 0,1 --attack-steps 10"
    *trainings, attack = counted(ARCH, train, "rb-attack none")
    for one, passes in zip(trainings, (3, 3, 23, 23), strict=True):
        assert (one.images, one.epochs, one.batch) == (200_000, 4, 100)
        # The gradient of the images is not needed for the weights of the first layer.
        assert one.passes == pytest.approx(200_000 * passes, rel=0.05)
    assert attack.networks.records == 4 and attack.networks.multiply_adds == 4 * MULTIPLY_ADDS


def test_passes_of_a_measure() -> None:
    """One projection of the Jacobian is one pass forward and one backward."""
    arch = "rb-arch --index 1835 --cells 1 --channels 2 --dataset cifar10"
    (one,) = counted(arch, "rb-measure jacobian --projections 1 --batches 2 --batch-size 50 --on both")
    assert one.images == 2 * 100
    assert one.passes == pytest.approx(2 * one.images, rel=0.05)


def test_hours_of_measured_works_are_those_of_the_documents() -> None:
    """docs/speed.md: an epoch of PGD-10 takes 8.7 s, and PGD-20 attacks 3,824 images in a second."""
    ((name, fields),) = packaged.read("device_speeds.yaml").items()
    text = (Path(__file__).parents[2] / "docs/speed.md").read_text()
    assert "One NVIDIA H200".lower() in text.lower() and name == "one NVIDIA H200"
    speed = re.search(r"each to the last step \| ([\d,]+) images/s", text)
    epoch = re.search(r"PGD-10 training, an epoch of 50,000 images \| ([\d.]+) s", text)
    assert speed and epoch
    device = recipe_hours.MeasuredBefore(name, fields)
    train = "rb-train --method pgd --epochs 1 --val 0 --attack-steps 10 --batch-size"
    (large,), (usual,) = counted(ARCH, f"{train} 1024"), counted(ARCH, f"{train} 128")
    assert 3600 * device.hours(large, 50_000 * 23) == pytest.approx(float(epoch[1]))
    # Without CUDA graphs, the same epoch took 21.1 s (bench/results.jsonl).
    assert 3600 * device.hours(usual, 50_000 * 23) == pytest.approx(21.1, rel=0.05)
    (attack,) = counted(ARCH, "rb-attack pgd --eps 8 --iterate last")
    hours = device.hours(attack, attack.passes)
    assert 3600 * hours == pytest.approx(10_000 / float(speed[1].replace(",", "")))
    # A small network has too few multiply-adds to keep a GPU busy: each batch takes the time of its launches.
    (small,) = counted("rb-arch --index 0 --cells 1 --channels 4 --dataset cifar10", "rb-attack none")
    assert 3600 * device.hours(small, small.passes) == pytest.approx(10_000 / 1024 * 21.1 / 8602)


def test_a_plan_needs_no_data_and_ends_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = [
        ["rb-arch", *"--index 13714 --cells 1 --channels 2 --dataset cifar10:classes=cat/dog".split()],
        ["rb-train", *"--method erm --epochs 3 --val 0 --seed 0,1".split()],
        ["rb-attack", *"pgd --eps 8".split()],
    ]
    monkeypatch.setattr(recipes, "pipe", lambda name, setting: pipe)
    words = ("reproduce-theory", "--scale", "full", "--data", "nowhere", "--dry-run")
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[: len(pipe)] == pipes.lines(pipe)
    (row,) = (line.split(" | ") for line in lines if line.startswith("| rb-train"))
    assert row[1:3] == ["2", "60,000"]  # two classes of ten have 10,000 images
    assert "2 trainings with 6 epochs, and 2 evaluations of a network by a command." in lines
    assert "images of cifar10:classes=cat/dog through nb201-13714 in" in done.stdout
    assert lines[-4] == "reproduce-theory at full scale needs these missing files:"
    assert lines[-3] == "  nowhere/cifar-10-batches-py" and not Path("reproduced").exists()


TRAININGS = {
    "nas-bench-201-robustness": "0 trainings with 0 epochs, and 109,922 evaluations",
    # All 6,466 architectures on three data sets with three seeds, and three cells of searches.
    "nas-robbench-201": f"{3 * 3 * 6466 + 9:,} trainings with {50 * (3 * 3 * 6466 + 9):,} epochs",
    "wci": "8 trainings with 1,600 epochs",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_recipe_is_planned_without_data(name: str) -> None:
    setting = Setting("full", data="no", weights="no/nas-bench-201")
    done = CliRunner().invoke(main, [f"reproduce-{name}", "--scale", "full", "--data", "no", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("\n".join(pipes.lines(recipes.pipe(name, setting))))
    assert TRAININGS.get(name, "trainings with") in done.stdout
    (total,) = (line for line in done.stdout.splitlines() if line.startswith("| in all"))
    assert all(re.search(r"\d", cell) for cell in total.split("|")[3:7])
    assert "no/cifar-10-batches-py\n    from: its authors" in done.stdout
