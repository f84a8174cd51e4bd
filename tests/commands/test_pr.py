"""rb-pr at the command line: radii, tolerances, names, and what they count."""

from __future__ import annotations

import pytest
from click.testing import Result

from rbtools.errors import UsageError
from rbtools.parse_units import radii, tolerances
from tests import runner
from tests.runner import Record, entry, one


def run(words: str, *given: Record) -> Result:
    return runner.run("pr", f"{words} --device cpu", given)


def test_the_defaults_are_those_of_the_benchmark(trained: dict[str, Record]) -> None:
    metrics = one(run("--n 2", trained["erm"]))["metrics"]
    gammas = ["0.0313725", "0.08", "0.1", "0.12"]
    expected = {f"pr.uniform.{gamma}" for gamma in gammas} | {
        f"probacc.uniform.{gamma}.{rho}" for gamma in gammas for rho in ("0.1", "0.05", "0.01")
    }
    assert metrics.keys() == {"seconds_per_epoch", "acc"} | expected


def test_results_say_what_was_counted(known: dict[str, Record]) -> None:
    record = one(run("--gamma 0.3 --rho 0.2 --samples 10 --n 50 --seed 4", known["erm"]))
    assert record["mine"] == {"kept": [1, 2]}
    right = round(record["metrics"]["acc"] * 50)
    pr, passed = entry(record, "pr.uniform.0.3"), entry(record, "probacc.uniform.0.3.0.2")
    assert pr["n"] == passed["n"] == right < 50  # images classified correctly without noise
    assert pr["value"] * 10 * right == pytest.approx(round(pr["value"] * 10 * right))
    assert passed["value"] * right == pytest.approx(round(passed["value"] * right))
    assert 0.3 < pr["value"] < 1
    for one_ in (pr, passed):
        asked = ("noise", "gamma", "samples", "clip", "seed", "split", "denominator")
        assert [one_[key] for key in asked] == ["uniform", 0.3, 10, True, 4, "test", "correct"]
        assert one_["ci95"][0] < one_["value"] < one_["ci95"][1]
    assert passed["rho"] == 0.2


@pytest.mark.slow
def test_several_noises_are_measured_in_one_record(trained: dict[str, Record]) -> None:
    chosen = "--gamma 0.3 --samples 4 --n 10 --rho 0.1 --noise"
    both = one(run(f"{chosen} uniform,gaussian", trained["erm"]))["metrics"]
    for noise in ("uniform", "gaussian"):
        alone = one(run(f"{chosen} {noise}", trained["erm"]))["metrics"]
        assert both[f"pr.{noise}.0.3"] == alone[f"pr.{noise}.0.3"]
    gaps = one(runner.run("ge", f"pr {chosen} uniform,gaussian", [trained["erm"]]))["metrics"]
    assert {"ge.pr.uniform.0.3", "ge.pr.gaussian.0.3"} <= gaps.keys()
    assert "--noise is empty" in run(f"{chosen} ,").stderr


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
        with pytest.raises(UsageError, match=r"is not in \[0, 1\): it is the tolerated failure rate"):
            tolerances(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--noise gauss", "noise"),
        ("--samples 0", "Invalid value for '--samples'"),
        ("--gamma 0", "--gamma 0 is not in (0, 1]"),
        ("--as mine --gamma 8", "Did you mean 8/255?"),
        ("--preset prbenck", "Did you mean 'prbench'"),
        ("--truncate --no-clip", "in place of clipping"),
        ("--confidence 95", "0.95 is 95 %. Did you mean 0.95?"),
        ("--confidence 0.3", "is not in [0.5, 1)"),
        ("--rho 0.1,0 --passes above", "no PR is above 1"),
        ("--sampling rare --require-decided", "--require-decided does not go with it"),
        ("--sampling rare --denominator all", "--denominator all does not go with it"),
        ("--sampling rare --floor 0", "--floor is 0. Expected a probability in (0, 1)"),
        ("--sampling rare --gamma 0:0.1:3", "--sampling rare needs a --gamma above 0"),
    ],
)
def test_wrong_use_is_a_usage_error(words: str, message: str) -> None:
    result = run(words)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_too_few_samples_get_a_note_and_are_refused_where_certainty_is_asked_for(
    known: dict[str, Record],
) -> None:
    chosen = "--gamma 0.1 --n 4 --samples"
    note = (
        "rb-pr: note: 100 samples cannot show a failure rate below 0.01: at 95 % that takes 299, all of them"
        ' correct. "undecided" in evals counts the images that stay open. ProbAcc is'
        " biased by that; its interval is of the images' true PR.\n"
    )
    result = run(f"{chosen} 100 --rho 0.05,0.01", known["erm"])
    assert result.stderr.endswith(note)
    record = one(result)
    assert entry(record, "probacc.uniform.0.1.0.01")["undecided"] >= 1
    assert entry(record, "probacc.uniform.0.1.0.05")["undecided"] >= 0
    assert "note" not in run(f"{chosen} 29 --rho 0.1", known["erm"]).stderr
    assert "note" not in run(f"{chosen} 20 --rho 0.1 --confidence 0.8", known["erm"]).stderr
    assert "note" not in run(f"{chosen} 3").stderr  # without a record there is no note
    for option in ("--sampling=adaptive", "--require-decided"):
        refused = run(f"{chosen} 298 --rho 0.01 {option}", known["erm"])
        assert refused.exit_code == 2 and refused.stdout == ""
        assert "298 samples cannot show a failure rate below 0.01: at 95 % that takes 299" in refused.stderr
        never = run(f"{chosen} 9 --rho 0 {option}", known["erm"])
        assert "--rho 0 tolerates no failure at all" in never.stderr
    enough = run(f"{chosen} 59 --rho 0.05 --require-decided", known["erm"])
    assert enough.exit_code == 0


def test_a_curve_begins_at_radius_zero(known: dict[str, Record]) -> None:
    chosen = "--gamma 0:0.4:3 --rho 0.1 --samples 5 --n 30"
    for more in ("", "--only probacc", "--denominator all"):
        metrics = one(run(f"{chosen} {more}", known["erm"]))["metrics"]
        name = "probacc-all" if "all" in more else "probacc"
        assert metrics[f"{name}.uniform.0.0.1"] == (metrics["acc"] if "all" in more else 1)
        assert metrics[f"{name}.uniform.0.4.0.1"] < metrics[f"{name}.uniform.0.0.1"]
    assert entry(one(run(chosen, known["erm"])), "pr.uniform.0")["value"] == 1


@pytest.mark.parametrize("noise", ["uniform", "gaussian", "laplace"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_record_defines_the_noise(noise: str, norm: str, trained: dict[str, Record]) -> None:
    gamma = "0.2" if norm == "linf" else "2"  # an L2 radius may be above 1
    chosen = f"--noise {noise} --norm {norm} --gamma {gamma} --samples 3 --n 5"
    record = one(run(f"{chosen} --rho 0.5 --no-clip", trained["erm"]))
    stem = f"{noise}.{'l2.' if norm == 'l2' else ''}{gamma}"
    told = entry(record, f"pr.{stem}")
    assert [told["noise"], told["norm"], told["clip"]] == [noise, norm, False]
    assert told["definition"].startswith("delta=") and told["definition"].endswith("the model sees x+delta")
    assert f"probacc.{stem}.0.5" in record["metrics"]


def test_advbench_counts_every_image(known: dict[str, Record]) -> None:
    chosen = "--gamma 0.3 --rho 0.2 --samples 10 --n 60"
    default = one(run(chosen, known["erm"]))
    theirs = one(run(f"{chosen} --denominator all --passes above", known["erm"]))
    name, passed = "pr{}.uniform.0.3", "probacc{}.uniform.0.3.0.2"
    assert entry(theirs, name.format("-all"))["n"] == 60 > entry(default, name.format(""))["n"]
    assert name.format("") not in theirs["metrics"] and passed.format("") not in theirs["metrics"]
    assert theirs["metrics"][name.format("-all")] < default["metrics"][name.format("")]
    assert theirs["metrics"][passed.format("-all")] < default["metrics"][passed.format("")]
    assert entry(theirs, passed.format("-all"))["criterion"] == "PR > 1 - rho"
    strict = one(run(f"{chosen} --passes above", known["erm"]))
    other = run(chosen, strict)
    assert other.exit_code == 1 and "'PR > 1 - rho' there and 'PR >= 1 - rho' here" in other.stderr
    # the metrics have different names, so neither replaces the other
    both = one(run(chosen, theirs))["metrics"]
    assert both[name.format("")] == default["metrics"][name.format("")]
    assert both[name.format("-all")] == theirs["metrics"][name.format("-all")]


def test_both_denominators_come_from_the_same_copies(trained: dict[str, Record]) -> None:
    chosen = "--gamma 0:0.3:2 --rho 0.2 --samples 6 --n 60 --prepare none"
    both = one(run(f"{chosen} --denominator both", trained["erm"]))["metrics"]
    for denominator in ("correct", "all"):
        alone = one(run(f"{chosen} --denominator {denominator} --force", trained["erm"]))["metrics"]
        shared = [name for name in alone if not name.startswith("probacc-all.")]
        assert shared and {name: both[name] for name in shared} == {name: alone[name] for name in shared}
    assert both["pr-all.uniform.0"] == both["acc"] and both["pr.uniform.0"] == 1


def test_truncated_noise_is_an_option_that_the_record_names(trained: dict[str, Record]) -> None:
    chosen = "--gamma 0.3 --rho 0.2 --samples 4 --n 30"
    cut = one(run(f"{chosen} --truncate", trained["erm"]))
    about = entry(cut, "pr.uniform.0.3")
    assert about["truncate"] is True
    assert about["definition"].startswith("the model sees u~U(max(x-gamma,0),min(x+gamma,1)) on each pixel")
    clipped = one(run(chosen, trained["erm"]))
    assert "truncate" not in entry(clipped, "pr.uniform.0.3")
    assert "truncate True there" in run(chosen, cut).stderr


@pytest.mark.slow
def test_a_preset_has_the_settings_of_a_paper(trained: dict[str, Record]) -> None:
    few = "--samples 4 --n 20"
    typed = f"{few} --gamma 0.03,0.08,0.1,0.12 --truncate --passes above"
    code = one(run(f"--preset prbench-code {few}", trained["erm"]))
    assert code["metrics"] == one(run(typed, trained["erm"]))["metrics"]
    assert one(run(f"--preset prbench {few}", trained["erm"])) == one(run(few, trained["erm"]))
    over = one(run(f"--preset prbench-code {few} --gamma 0.3", trained["erm"]))
    assert entry(over, "pr.uniform.0.3")["truncate"] is True and "pr.uniform.0.03" not in over["metrics"]


def test_the_sequential_test_spends_less_and_decides_alike(known: dict[str, Record]) -> None:
    chosen = "--gamma 0.05,0.4 --rho 0.05 --samples 400 --n 40"
    record = one(run(f"{chosen} --sampling adaptive", known["erm"]))
    assert "pr.uniform.0.05" not in record["metrics"]
    easy, hard = (entry(record, f"probacc.uniform.{gamma}.0.05") for gamma in ("0.05", "0.4"))
    assert easy["error"] == 0.05 and easy["samples"] == 400
    assert easy["draws_spent"] == 59 * easy["n"]  # no draw of any image fails: (1 - .05)**59 < .05
    assert hard["value"] < easy["value"] == 1 and hard["undecided"] <= 6
    exact = one(run(f"{chosen} --only probacc", known["erm"]))
    for name in ("probacc.uniform.0.05.0.05", "probacc.uniform.0.4.0.05"):
        assert record["metrics"][name] == pytest.approx(exact["metrics"][name], abs=2 / easy["n"])


def test_the_confidence_is_that_of_every_interval(known: dict[str, Record]) -> None:
    chosen = "--gamma 0.3 --rho 0.2 --samples 20 --n 40 --confidence"
    wide = one(run(f"{chosen} 0.99", known["erm"]))
    narrow = one(run(f"{chosen} 0.8", wide))  # the same protocol: no conflict
    for name in ("pr.uniform.0.3", "probacc.uniform.0.3.0.2"):
        (low, high), (lower, higher) = entry(narrow, name)["ci80"], entry(wide, name)["ci99"]
        assert lower < low < high <= higher <= 1
    assert "ci80" in entry(narrow, "pr.uniform.0.3")["quantiles"][0]


def test_rare_failures_go_where_samples_do_not(known: dict[str, Record]) -> None:
    short = "--rho 0.1 --samples 29"
    rare = "--sampling rare --particles 40 --moves 4 --runs 2 --n 6"
    record = one(run(f"{rare} --gamma 0.1,0.4", known["erm"]))
    small, large = (entry(record, f"pfail.uniform.{gamma}") for gamma in ("0.1", "0.4"))
    assert 0 <= small["value"] < large["value"] < 1 and large["value"] < large["ci95"][1]
    assert small["n"] == len(small["images"]) and small["floor"] == 1e-12 and "reason" not in small
    sampled = one(run(f"{short} --gamma 0.4 --n 6", known["erm"]))
    assert large["value"] == pytest.approx(1 - sampled["metrics"]["pr.uniform.0.4"], abs=0.15)
    assert any(image["log_p"] is None or image["log_p"] < -4 for image in small["images"])
    again = run(f"{rare} --gamma 0.1,0.4", known["erm"])
    assert again.stderr == "rb-pr: 1 record: 0 computed, 1 found in the store.\n"
