"""rb-corrupt at the command line: lists of corruptions and severities, and what they add up to."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from rbtools import datasets
from rbtools.cli.corrupt import main
from rbtools.corruptions import CORRUPTIONS
from rbtools.models import checkpoint
from rbtools.store import Store

Record = dict[str, Any]


def run(arguments: list[str], *records: Record) -> Result:
    text = "".join(json.dumps(record) + "\n" for record in records)
    return CliRunner().invoke(main, [*arguments, "--device", "cpu"], input=text)


def one(result: Result) -> Record:
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    record: Record = json.loads(line)
    return record


def test_each_corruption_has_a_result_at_each_severity(trained: dict[str, Record]) -> None:
    record = one(run(["contrast,gaussian_noise", "--severity", "1,4-5", "--n", "20"], trained["erm"]))
    assert list(record["metrics"]) == [
        "seconds_per_epoch",
        "acc",
        "corrupt.contrast.1",
        "corrupt.contrast.4",
        "corrupt.contrast.5",
        "corrupt.gaussian_noise.1",
        "corrupt.gaussian_noise.4",
        "corrupt.gaussian_noise.5",
    ]
    assert record["mine"] == {"kept": [1, 2]}


def test_all_is_the_fifteen_of_the_benchmark(trained: dict[str, Record]) -> None:
    metrics = one(run(["all", "--severity", "5", "--n", "5"], trained["erm"]))["metrics"]
    found = [name.split(".")[1] for name in metrics if name.startswith("corrupt.")]
    assert found == list(CORRUPTIONS.all) and len(found) == 15
    assert set(CORRUPTIONS) - set(found) == {"speckle_noise", "gaussian_blur", "spatter", "saturate"}


def test_severities_default_to_all_five(trained: dict[str, Record]) -> None:
    metrics = one(run(["brightness", "--n", "5"], trained["erm"]))["metrics"]
    assert [name for name in metrics if name.startswith("corrupt.")] == [
        f"corrupt.brightness.{severity}" for severity in range(1, 6)
    ]


def test_the_accuracy_is_that_of_a_loop_over_images(trained: dict[str, Record]) -> None:
    """Contrast at severity 5 of CIFAR-10-C: (x - mean) 0.15 + mean, cut off to 8 bits."""
    record = one(run(["contrast", "--severity", "5"], trained["erm"]))
    file = Store("rb-store").object(record["checkpoint"])
    model, _, _ = checkpoint.load(file, classes=10, shape=(1, 8, 8))
    data = datasets.load("digits", "test")
    right = 0
    for image, label in zip(data.images.double() / 255, data.labels, strict=True):
        grey = ((image - image.mean()) * 0.15 + image.mean()).clamp(0, 1)
        seen = (grey * 255).floor().float() / 255
        right += int(model(seen[None]).argmax() == label)
    entry = record["evals"][-1]
    assert entry["value"] == pytest.approx(right / 355) and entry["n"] == 355
    assert entry["value"] < record["metrics"]["acc"] - 0.1
    assert (entry["corruption"], entry["severity"], entry["constants"]) == ("contrast", 5, "auto")
    assert "seed" not in entry  # nothing is drawn


def test_the_seed_stands_where_there_is_chance_and_changes_the_result(trained: dict[str, Record]) -> None:
    chosen = ["gaussian_noise", "--severity", "5"]
    first, second = (one(run([*chosen, "--seed", seed], trained["erm"])) for seed in ("1", "2"))
    name = "corrupt.gaussian_noise.5"
    assert [record["evals"][-1]["seed"] for record in (first, second)] == [1, 2]
    assert first["metrics"][name] != second["metrics"][name]
    assert first["metrics"][name] == pytest.approx(second["metrics"][name], abs=0.1)


def test_a_longer_list_computes_what_is_missing_only(trained: dict[str, Record]) -> None:
    short = one(run(["contrast", "--severity", "1", "--n", "20"], trained["erm"]))
    result = run(["contrast,brightness", "--severity", "1", "--n", "20"], trained["erm"])
    assert one(result)["metrics"]["corrupt.contrast.1"] == short["metrics"]["corrupt.contrast.1"]
    again = run(["brightness,contrast", "--severity", "1", "--n", "20"], trained["erm"])
    assert again.stderr == "rb-corrupt: 1 record: 0 computed, 1 found in the store.\n"


def test_constants_can_be_chosen(trained: dict[str, Record]) -> None:
    chosen = ["contrast", "--severity", "1", "--constants"]
    mild = one(run([*chosen, "cifar"], trained["erm"]))["metrics"]["corrupt.contrast.1"]
    hard = one(run([*chosen, "imagenet"], trained["erm"]))["metrics"]["corrupt.contrast.1"]
    assert hard < mild


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["contrast", "--severity", "0"],
            "--severity is 0. Severities are 1, 2, 3, 4 and 5; write 3 or 1-5.",
        ),
        (["contrast", "--severity", "2.5"], "--severity is 2.5. Severities are"),
        (["contrast", "--severity", "5-1"], "runs backwards. Write '1-5'."),
        (["fogg,contrast"], "Unknown corruption 'fogg'."),
        (["contrst"], "Did you mean 'contrast' or 'frost'? Known: gaussian_noise, shot_noise,"),
        (["contrast", "--constants", "mnist"], "Invalid value for '--constants'"),
        (["--severity", "5", "contrast"], "Options follow it"),
    ],
)
def test_wrong_use_is_a_usage_error(arguments: list[str], message: str) -> None:
    result = run(arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr


def test_images_on_the_grid_stay_there() -> None:
    """What the model sees has 256 levels, as the published archives have."""
    images = datasets.load("digits", "test").images[:5].float() / 255
    corrupted = CORRUPTIONS.build("contrast")(images, 1, None)
    assert torch.equal((corrupted * 255).round() / 255, corrupted)
