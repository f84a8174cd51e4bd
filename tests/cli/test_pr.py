"""rb-pr at the command line: radii, tolerances, names, and what they count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rbtools.cli.pr import main
from rbtools.edge import radii, tolerances
from rbtools.errors import UsageError

Record = dict[str, Any]


def run(arguments: list[str], *records: Record) -> Result:
    text = "".join(json.dumps(record) + "\n" for record in records)
    return CliRunner().invoke(main, [*arguments, "--device", "cpu"], input=text)


def one(result: Result) -> Record:
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    record: Record = json.loads(line)
    return record


def entry(record: Record, metric: str) -> Record:
    (found,) = [entry for entry in record["evals"] if entry["metric"] == metric]
    return found


def test_the_defaults_are_those_of_the_benchmark(trained: dict[str, Record]) -> None:
    metrics = one(run(["--n", "2"], trained["erm"]))["metrics"]
    gammas = ["0.0313725", "0.08", "0.1", "0.12"]
    expected = {f"pr.uniform.{gamma}" for gamma in gammas} | {
        f"probacc.uniform.{gamma}.{rho}" for gamma in gammas for rho in ("0.1", "0.05", "0.01")
    }
    assert metrics.keys() == {"seconds_per_epoch", "acc"} | expected


def test_results_say_what_was_counted(trained: dict[str, Record]) -> None:
    record = one(
        run(["--gamma", "0.3", "--rho", "0.2", "--samples", "10", "--n", "50", "--seed", "4"], trained["erm"])
    )
    assert record["mine"] == {"kept": [1, 2]}
    right = round(record["metrics"]["acc"] * 50)
    pr, passed = entry(record, "pr.uniform.0.3"), entry(record, "probacc.uniform.0.3.0.2")
    assert pr["n"] == passed["n"] == right < 50  # images that are right without noise
    assert pr["value"] * 10 * right == pytest.approx(round(pr["value"] * 10 * right))
    assert passed["value"] * right == pytest.approx(round(passed["value"] * right))
    assert 0.3 < pr["value"] < 1
    for one_ in (pr, passed):
        asked = ("noise", "gamma", "samples", "clip", "seed", "split", "denominator")
        assert [one_[key] for key in asked] == ["uniform", 0.3, 10, True, 4, "test", "correct"]
        assert one_["ci95"][0] < one_["value"] < one_["ci95"][1]
    assert passed["rho"] == 0.2


def test_more_noise_costs_more_and_more_tolerance_less(trained: dict[str, Record]) -> None:
    chosen = ["--gamma", "0.05:0.45:3", "--rho", "0,0.1,0.5", "--samples", "8", "--n", "60"]
    metrics = one(run(chosen, trained["erm"]))["metrics"]
    by_radius = [metrics[f"pr.uniform.{gamma}"] for gamma in ("0.05", "0.25", "0.45")]
    assert by_radius == sorted(by_radius, reverse=True) and by_radius[0] > by_radius[2]
    by_rho = [metrics[f"probacc.uniform.0.45.{rho}"] for rho in ("0", "0.1", "0.5")]
    assert by_rho == sorted(by_rho) and by_rho[0] < by_rho[2]
    # All copies right in a share p0 of the images, half of them in p2: PR lies in between.
    assert by_rho[0] <= by_radius[2] <= by_rho[2] + 0.5 * (1 - by_rho[2])


def test_clipping_can_be_left_out(trained: dict[str, Record]) -> None:
    chosen = ["--gamma", "0.4", "--rho", "0.1", "--samples", "5", "--n", "60"]
    clipped = one(run(chosen, trained["erm"]))
    free = one(run([*chosen, "--no-clip"], trained["erm"]))
    assert entry(free, "pr.uniform.0.4")["clip"] is False
    assert free["metrics"]["pr.uniform.0.4"] != clipped["metrics"]["pr.uniform.0.4"]


def test_a_further_tolerance_is_found_without_a_model(trained: dict[str, Record]) -> None:
    chosen = ["--gamma", "0.3", "--samples", "4", "--n", "10", "--rho"]
    run([*chosen, "0.1"], trained["erm"])
    metrics = one(run([*chosen, "0.1,0.3"], trained["erm"]))["metrics"]
    assert "probacc.uniform.0.3.0.3" in metrics
    again = run([*chosen, "0.1"], trained["erm"])
    assert again.stderr == "rb-pr: 1 record: 0 computed, 1 found in the store.\n"


def test_radii_are_read_on_the_unit_scale() -> None:
    assert radii("8/255,0.08, 0.1:0.3:3,") == (8 / 255, 0.08, 0.1, 0.2, 0.3)
    assert radii("0.1,0.1") == (0.1,)
    for text, message in (
        ("8", r"--gamma 8 is not in \(0, 1\]: radii are on the \[0, 1\] scale\. Did you mean 8/255\?"),
        ("0", r"--gamma 0 is not in"),
        ("-0.1", r"--gamma -0\.1 is not in"),
        ("300", r"--gamma 300 is not in .* scale\.$"),
        ("x", r"--gamma is 'x'\. Expected a number"),
        ("", r"--gamma is empty\. Expected radii such as 8/255"),
    ):
        with pytest.raises(UsageError, match=message):
            radii(text)


def test_tolerances_are_shares() -> None:
    assert tolerances("0,0.05,0.05") == (0.0, 0.05)
    for text in ("1", "-0.1", "5"):
        with pytest.raises(UsageError, match=r"is not in \[0, 1\): it is the failure rate"):
            tolerances(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise", "gauss"], "noise"),
        (["--samples", "0"], "Invalid value for '--samples'"),
        (["--gamma", "8"], "Did you mean 8/255?"),
        (["--as", "mine", "--gamma", "8"], "Did you mean 8/255?"),
    ],
)
def test_wrong_use_is_a_usage_error(arguments: list[str], message: str) -> None:
    result = run(arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1
