"""rb-corrupt at the command line: lists of corruptions and severities, and their means."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rbtools import __version__, datasets, models
from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import cifar
from rbtools.jobs import corrupted_images
from rbtools.models import checkpoint
from rbtools.probabilistic.estimate import pr_d
from rbtools.records import answers
from rbtools.store import Store
from tests import runner
from tests.runner import Record, entry, one, records

run = runner.command("corrupt", "--device cpu")


@pytest.mark.parametrize("archived", [False, True])
def test_the_interval_of_a_mean_is_that_of_the_images_own_means(
    trained: dict[str, Record], archived: bool
) -> None:
    if archived:
        assert run("brightness --write copy").exit_code == 0
    source = "--from copy" if archived else ""
    found = one(run(f"brightness --n 50 {source}", trained["erm"]))
    *five, mean = (known for known in found["evals"] if known["metric"].startswith("corrupt."))
    known = [answers.of(single) for single in five]
    counts = np.sum([answer.right for answer in known if answer is not None], axis=0)
    assert len(five) == 5 and len(counts) == 50
    assert mean["ci95"] == pytest.approx(pr_d(counts.astype(int).tolist(), 5).interval)


def test_the_accuracy_is_that_of_a_loop_over_images(trained: dict[str, Record]) -> None:
    """Contrast at severity 5 of CIFAR-10-C: (x - mean) 0.15 + mean, cut off to 8 bits."""
    record = one(run("contrast --severity 5", trained["erm"]))
    file = Store("rb-store").object(record["checkpoint"])
    model, _, _ = checkpoint.load(file, classes=10, shape=(1, 8, 8))
    data = datasets.load("digits", "test")
    right = changed = 0
    for image, label in zip(data.images.double() / 255, data.labels, strict=True):
        grey = ((image - image.mean()) * 0.15 + image.mean()).clamp(0, 1)
        seen = (grey * 255).floor().float() / 255
        right += int(model(seen[None]).argmax() == label)
        changed += int((seen - image).abs().max() > 0.4)
    told = record["evals"][-1]
    assert told["value"] == pytest.approx(right / 355) and told["n"] == 355
    assert changed == 355
    assert (told["corruption"], told["severity"], told["constants"]) == ("contrast", 5, "cifar")
    assert (
        told["environment"].startswith(f"rbtools {__version__}, torch ") and told["versions"]["version"] == 1
    )
    assert "seed" not in told  # nothing is drawn


def test_a_written_copy_is_evaluated_as_the_images_made_here(trained: dict[str, Record]) -> None:
    chosen = "gaussian_noise,frost,contrast --n 40"
    wrote = run("gaussian_noise,frost,contrast --write copy --seed 3")
    assert wrote.exit_code == 0 and wrote.stdout == ""
    images = np.load("copy/contrast.npy")
    assert images.shape == (5 * 355, 8, 8, 1) and images.dtype == np.uint8
    labels = np.load("copy/labels.npy")
    assert labels.tolist() == datasets.load("digits", "test").labels.tolist() * 5
    made = one(run(f"{chosen} --seed 3", trained["erm"]))
    read = one(run(f"{chosen} --from copy", trained["erm"]))
    assert read["metrics"] == made["metrics"]
    frost = entry(read, "corrupt.frost.2")
    assert frost["archive"].startswith("sha256:") and frost["n"] == 40 and "constants" not in frost


def test_an_open_normalisation_is_tried_on_the_clean_images_of_an_archive_too(
    trained: dict[str, Record],
) -> None:
    path = Store(Path("rb-store")).object(trained["pgd"]["checkpoint"])
    torch.save(checkpoint.read(path).state, "bare.pt")  # without the normalisation
    record = one(runner.run("arch", f"--from-checkpoint bare.pt --arch '{trained['pgd']['arch']['str']}'"))
    assert record["recognised"]["normalize_from"] == "open"
    assert run("fog --write copy").exit_code == 0
    chosen = "fog --severity 1 --dataset digits"
    generated, read = (records(run(f"{chosen} {more}", record)) for more in ("", "--from copy"))
    assert "on 256 images of the data set are too similar" in generated[0]["error"]["message"]
    assert read == generated


def test_an_interrupted_copy_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "shot_noise,glass_blur --batch 100 --n 120"
    assert run(f"{whole} --write whole").exit_code == 0
    count = 0

    def tired(*words: Any) -> Any:
        nonlocal count
        count += 1
        if count == 7:
            with open("part/shot_noise.npy.part", "ab") as file:
                file.write(b"half an image")
            raise KeyboardInterrupt
        rows = made(*words)
        return rows[:17] if count == 6 else rows

    made = corrupted_images.corrupted
    with monkeypatch.context() as patched:
        patched.setattr(corrupted_images, "corrupted", tired)
        stopped = run(f"{whole} --write part")
    assert stopped.exit_code == 130 and not Path("part/shot_noise.npy").exists()
    with open("part/shot_noise.npy.part", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "being written by another process" in run(f"{whole} --write part").stderr
    went_on = run(f"{whole} --write part --batch 37")
    assert "shot_noise.npy was written, from image 357 on" in went_on.stderr  # twice 120, 100 and 17
    for name in ("shot_noise", "glass_blur", "labels"):
        assert Path(f"part/{name}.npy").read_bytes() == Path(f"whole/{name}.npy").read_bytes()
    assert "was already complete" in run(f"{whole} --write part").stderr
    left = sorted(path.name for path in Path("part").iterdir())
    assert left == ["glass_blur.npy", "labels.npy", "rb-corrupt.json", "shot_noise.npy"]


def test_a_copy_made_otherwise_is_not_mixed_with() -> None:
    assert run("contrast --write copy --n 5").exit_code == 0
    cases = {"--seed 1": "seed 0", "--n 6": "images 5", "--constants imagenet": "contrast"}
    for more, word in cases.items():
        result = run(f"contrast --write copy --n 5 {more}")
        assert result.exit_code == 2 and f"holds a different copy ({word})" in result.stderr
    Path("own").mkdir()
    np.save("own/fog.npy", np.zeros(3))
    result = run("contrast --write own")
    assert result.exit_code == 2 and "already has fog.npy, which rb-corrupt did not write" in result.stderr


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("contrast", None, "--from: The folder copy lacks contrast.npy. It has: fog."),
        ("contrast", np.zeros((1774, 8, 8, 1), np.uint8), "holds 1774 images. Expected 1775: the"),
        ("contrast", np.zeros((1775, 9, 8, 1), np.uint8), "holds uint8 (1775, 9, 8, 1). Expected uint8"),
        ("labels", np.zeros(1775, np.uint8), "labels.npy does not fit the data set digits:"),
        ("labels", np.zeros(7, np.uint8), "labels.npy holds uint8 (7,). Expected 1775"),
        ("contrast", b"no array", "contrast.npy is damaged:"),
    ],
)
def test_an_archive_that_does_not_fit_is_named(
    file: str, content: Any, message: str, trained: dict[str, Record]
) -> None:
    Path("copy").mkdir()
    for name in ("contrast", "fog"):
        np.save(f"copy/{name}.npy", np.zeros((5 * 355, 8, 8, 1), np.uint8))
    np.save("copy/labels.npy", np.tile(datasets.load("digits", "test").labels.numpy(), 5))
    path = Path(f"copy/{file}.npy")
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    result = run("contrast --from copy", trained["erm"])
    assert result.exit_code in (1, 2) and message in result.stderr


@pytest.mark.parametrize("chosen", ["fog,frost", "all"])
@pytest.mark.slow
def test_an_archive_is_enough_where_the_clean_images_are_not(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar.Cifar10, "sizes", {"train": 6, "test": 4})
    Path("CIFAR-10-C").mkdir()
    levels = np.random.default_rng(0).integers(0, 256, size=(20, 32, 32, 3), dtype=np.uint8)
    for name in CORRUPTIONS.all:
        np.save(f"CIFAR-10-C/{name}.npy", levels)
    np.save("CIFAR-10-C/labels.npy", np.tile(np.array([3, 1, 4, 1], np.uint8), 5))
    model = models.build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(3, 32, 32))
    torch.save(model.state_dict(), "model.pt")
    named = "--checkpoint model.pt --arch simplecnn --dataset cifar10"
    named += " --normalize none"  # a file without BatchNorm does not show its normalisation
    result = run(f"{chosen} --from CIFAR-10-C --store none {named}")
    record = one(result)
    assert "relative mCE need the clean images of cifar10, which are missing" in result.stderr
    assert "acc" not in record["metrics"] and "corrupt.fog.mean" in record["metrics"]
    assert ("corrupt.mean" in record["metrics"]) is (chosen == "all")
    images = torch.tensor(levels[8:12]).permute(0, 3, 1, 2).float() / 255
    loaded, _, _ = checkpoint.load("model.pt", record["arch"], classes=10, shape=(3, 32, 32))
    right = loaded(images).argmax(1) == torch.tensor([3, 1, 4, 1])
    assert record["metrics"]["corrupt.fog.3"] == float(right.float().mean())
    for labels, said in (
        (np.full(20, 77, np.uint8), "77"),
        (np.zeros(20), "Expected 4 or more whole numbers"),
    ):
        np.save("CIFAR-10-C/labels.npy", labels)
        wrong = run(f"fog --from CIFAR-10-C --store none {named}")
        assert wrong.exit_code == 1 and said in wrong.stderr


@pytest.mark.slow
def test_all_at_all_severities_has_means_and_errors_beside_a_reference(trained: dict[str, Record]) -> None:
    chosen = "all --n 10"
    base = one(run(chosen, trained["pgd"]))
    Path("base.jsonl").write_text(runner.lines(base))
    record = one(run(f"{chosen} --reference base.jsonl", trained["erm"]))
    metrics = record["metrics"]
    single = [value for name, value in metrics.items() if name[-1].isdigit()]
    assert len(single) == 75 and metrics["corrupt.mean"] == pytest.approx(sum(single) / 75)
    ratios = [
        (1 - metrics[f"corrupt.{name}.mean"]) / (1 - base["metrics"][f"corrupt.{name}.mean"])
        for name in CORRUPTIONS.all
    ]
    assert metrics["corrupt.mce"] == pytest.approx(sum(ratios) / 15)
    assert entry(record, "corrupt.mce")["reference"]["clean"] == pytest.approx(1 - base["metrics"]["acc"])
