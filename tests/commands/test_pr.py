"""rb-pr at the command line: radii, tolerances, names, and what they count."""

from __future__ import annotations

import pytest

from rbtools.cli.parse_units import radii, tolerances
from rbtools.errors import UsageError
from tests import runner
from tests.runner import Record, entry, one

run = runner.command("pr", "--device cpu")


@pytest.mark.slow
def test_several_noises_are_measured_in_one_record(trained: dict[str, Record]) -> None:
    chosen = "--gamma 0.3 --samples 4 --n 10 --rho 0.1 --noise"
    both = one(run(f"{chosen} uniform,gaussian", trained["erm"]))["metrics"]
    for noise in ("uniform", "gaussian"):
        alone = one(run(f"{chosen} {noise}", trained["erm"]))["metrics"]
        assert both[f"pr.{noise}.0.3"] == alone[f"pr.{noise}.0.3"]


def test_radii_are_read_on_the_unit_scale() -> None:
    assert radii("8/255,0.08, 0.1:0.3:3,") == (8 / 255, 0.08, 0.1, 0.2, 0.3)
    assert radii("0.1,0.1") == (0.1,)
    for text, message in (
        ("8", r"--gamma 8 is not in \(0, 1\]: radii are on the \[0, 1\] scale\. Did you mean 8/255\?"),
        ("0", r"--gamma 0 is not in"),
        ("300", r"--gamma 300 is not in .* scale\.$"),
        ("", r"--gamma is empty\. Expected radii such as 8/255"),
    ):
        with pytest.raises(UsageError, match=message):
            radii(text)


def test_tolerances_are_shares() -> None:
    assert tolerances("0,0.05,0.05") == (0.0, 0.05)
    for text in ("1", "-0.1", "5"):
        with pytest.raises(UsageError, match=r"Expected a tolerated failure rate in \[0, 1\)"):
            tolerances(text)


def test_too_few_samples_get_a_note_and_are_refused_where_certainty_is_asked_for(
    known: dict[str, Record],
) -> None:
    chosen = "--gamma 0.1 --n 4 --samples"
    result = run(f"{chosen} 100 --rho 0.05,0.01", known["erm"])
    assert "100 samples cannot show a failure rate below 0.01. With 95 % confidence, this" in result.stderr
    record = one(result)
    assert entry(record, "probacc.uniform.0.1.0.01")["undecided"] >= 1
    assert "note" not in run(f"{chosen} 29 --rho 0.1", known["erm"]).stderr
    assert "note" not in run(f"{chosen} 20 --rho 0.1 --confidence 0.8", known["erm"]).stderr
    for option in ("--sampling=adaptive", "--require-decided"):
        refused = run(f"{chosen} 298 --rho 0.01 {option}", known["erm"])
        assert refused.exit_code == 2 and "this takes at least 299 samples" in refused.stderr
        never = run(f"{chosen} 9 --rho 0 {option}", known["erm"])
        assert "--rho 0 tolerates no failures" in never.stderr
    assert run(f"{chosen} 59 --rho 0.05 --require-decided", known["erm"]).exit_code == 0


def test_a_curve_begins_at_radius_zero(known: dict[str, Record]) -> None:
    chosen = "--gamma 0:0.4:3 --rho 0.1 --samples 5 --n 30"
    for more in ("", "--only probacc", "--denominator all"):
        metrics = one(run(f"{chosen} {more}", known["erm"]))["metrics"]
        name = "probacc-all" if "all" in more else "probacc"
        assert metrics[f"{name}.uniform.0.0.1"] == (metrics["acc"] if "all" in more else 1)
        assert metrics[f"{name}.uniform.0.4.0.1"] < metrics[f"{name}.uniform.0.0.1"]
    assert entry(one(run(chosen, known["erm"])), "pr.uniform.0")["value"] == 1


def test_both_denominators_come_from_the_same_copies(trained: dict[str, Record]) -> None:
    chosen = "--gamma 0:0.3:2 --rho 0.2 --samples 6 --n 60 --prepare none"
    both = one(run(f"{chosen} --denominator both", trained["erm"]))["metrics"]
    for denominator in ("correct", "all"):
        alone = one(run(f"{chosen} --denominator {denominator} --force", trained["erm"]))["metrics"]
        shared = [name for name in alone if not name.startswith("probacc-all.")]
        assert shared and {name: both[name] for name in shared} == {name: alone[name] for name in shared}
    assert both["pr-all.uniform.0"] == both["acc"] and both["pr.uniform.0"] == 1


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
