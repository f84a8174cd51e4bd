"""rb-plot report: what is on the page of a model, and that nothing in a record gets out of its place."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from rbtools.records import answers
from rbtools.records.metric_name import heading
from tests import runner
from tests.runner import model

Record = dict[str, Any]
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e"


def run(arguments: list[str], *records: Record) -> Result:
    return runner.run("plot", ["report", "-o", "r.html", *arguments], records)


def page(arguments: list[str], *records: Record) -> str:
    result = run(arguments, *records)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    return Path("r.html").read_text("utf-8")


def entry(metric: str, value: float, **protocol: Any) -> Record:
    ends = [max(value - 0.1, 0.0), min(value + 0.1, 1.0)]
    return {"metric": metric, "n": 50, "split": "test", **protocol, "value": value, "ci95": ends}


def record(*entries: Record, **more: Any) -> Record:
    return model("resnet18", *entries, dataset="digits", **more)


def evaluated(**more: Any) -> Record:
    pgd = {"attack": "pgd", "norm": "linf", "steps": 20}
    entries = [entry("acc", 0.9)]
    entries += [entry(f"pgd20.{level}", 0.9 - level / 10, eps=level / 255, **pgd) for level in (1, 2, 4)]
    entries += [
        entry(f"corrupt.fog.{severity}", 0.8, corruption="fog", severity=severity) for severity in (1, 2)
    ]
    entries += [
        entry(f"pr.uniform.{gamma}", 0.95, noise="uniform", gamma=gamma, samples=9) for gamma in (0.1, 0.2)
    ]
    return record(*entries, train={"method": "trades"}, **more)


def test_a_report_has_results_curves_commands_and_references() -> None:
    text = page([], evaluated())
    assert len(re.findall(r'class="curve" alt="[^"]*" src="data:image/svg\+xml;base64,', text)) == 3
    assert (
        re.search(r"\[0\.8000, 1\.0000\]</td>\s*<td class=\"number\">50</td>", text)
        and "attack pgd, norm linf, eps 4/255, steps 20" in text
    )
    made = [
        entry("acc", 0.5, command="rb-attack none --member '&'"),
        entry("fgsm.8", 0.5, command="rb-attack none --member '&'"),
    ]
    labelled = page([], record(*made, train={"method": "trades", "command": "rb-train a.jsonl@01234567"}))
    assert "rb-train |\n  rb-attack none --member &#39;&amp;&#39;</pre>" in labelled
    keys = ["madry2018towards", "hendrycks2019benchmarking", "robey2022probabilistically"]
    assert re.findall(r"@\w+\{(\w+),", text) == [*keys, "zhang2019theoretically"]
    assert "default-src 'none'" in text and "<script" not in text
    assert "://" not in re.sub(r"base64,[^\"]*", "", text)  # nothing is loaded


def test_hostile_texts_stay_texts() -> None:
    tests = [{"test": HOSTILE, "says": HOSTILE, "holds": False}]
    bad = evaluated(checkpoint=HOSTILE, leaderboard=HOSTILE)
    bad["arch"] = {"space": "zoo", "name": HOSTILE}
    bad["dataset"], bad["train"] = HOSTILE, {"method": HOSTILE}
    bad["metrics"][HOSTILE] = 0.5
    bad["evals"] += [
        {"metric": "obfuscation.failed", "value": 1, "tests": tests},
        {**entry("aa.8", 0.1), "attack": HOSTILE, "warnings": [HOSTILE], "sanity": {"warnings": [HOSTILE]}},
    ]
    text = page(["--title", HOSTILE], bad)
    assert "&lt;script&gt;" in text
    assert not re.search(r"<(script|img src=x)", text) and "\u202e" not in text
    assert text.count("<td") == text.count("</td>") and text.count("<tr>") == text.count("</tr>")


def test_classes_have_names_and_files_no_folders() -> None:
    right = np.array([True, True, False, True, False, False])
    labels = np.array([0, 0, 1, 1, 9, 9])
    known = {**entry("acc", 0.5), "n": 6, "answers": answers.packed(right, "abc")}
    mean, fog = (entry(f"corrupt.{name}", 0.25, defend="python:/data/me/d:F") for name in ("mean", "fog.1"))
    made = record(known, mean, fog, checkpoint_file="/data/me/m.pt")
    text = page([], answers.with_labels(made, "abc", answers.packed_labels(labels)))
    found = re.findall(r'<td>(\d)</td><td class="number">(\d)</td><td class="number">([\d.]+)</td>', text)
    assert found == [("0", "2", "1.0000"), ("1", "2", "0.5000"), ("9", "2", "0.0000")]
    assert "/data" not in text and "<td>m.pt</td>" in text
    own = {**made, "class_map": [*"zyxwvutsr", "a cat"]}
    assert "<tr><td>a cat</td>" in page([], answers.with_labels(own, "abc", answers.packed_labels(labels)))
    shown, folded = text.split("<summary>Each corruption")
    assert heading("corrupt.mean") in shown and heading("corrupt.fog.1") in folded


def rows(text: str) -> list[tuple[str, ...]]:
    part = text.split(">Checklist<")[1].split("</table>")[0]
    return re.findall(r'<td>(.*?)</td>\s*<td class="(\w+)">.*?</td>\s*<td>(.*?)</td>', part)


def test_the_checklist_says_whether_attacks_were_adaptive() -> None:
    pgd = {"attack": "pgd", "norm": "linf", "eps": 8 / 255}
    plain = rows(page([], record(entry("acc", 0.9), entry("pgd20.8", 0.5, **pgd))))
    assert plain[0][:2] == ("adaptive attack", "holds") and "the complete model" in plain[0][2]
    stages = {"defend": "jpeg:75,python:a:B"}
    ways = {"backward": ["stand-in", "own"], "eot": 8, "eot_mean": "loss"}
    adaptive = entry("pgd20.8", 0.2, **pgd, **stages, **ways)
    transfer = entry("transfer.pgd20.8", 0.4, **pgd, **stages)
    found = rows(page([], record(entry("acc", 0.9), adaptive, transfer, randomised=True)))
    words = "with jpeg:75,python:a:B; attacks that were run: adaptive, transfer"
    assert found[0] == ("adaptive attack", "holds", words)
    assert found[1] == ("gradients replaced (BPDA)", "holds", "jpeg:75: stand-in")
    assert found[2][:2] == ("EOT", "holds") and "means of the loss over 8 random samples" in found[2][2]
    only = rows(page([], record(entry("acc", 0.9), transfer, randomised=True)))
    assert [row[:2] for row in only[:2]] == [("adaptive attack", "fails"), ("EOT", "fails")]


def test_the_checklist_has_masking_tests_flags_and_warnings() -> None:
    tests = [
        {"test": "a", "says": "fgsm.8 >= pgd20.8", "holds": True},
        {"test": "b", "says": "square.8 >= pgd20.8: violated by 0.08", "holds": False},
    ]
    checked = {"metric": "obfuscation.failed", "value": 1, "tests": tests}
    warned = entry("aa.8", 0.4, attack="aa", eps=8 / 255, norm="linf", warnings=["Square broke 9 of 50"])
    clean = entry("aa.4", 0.5, attack="aa", eps=4 / 255, norm="linf")
    run = {**clean, "metric": "aa.2", "tool": "rb-attack", "broken_by": {"apgd-ce": 20, "square": 0}}
    without = {**run, "metric": "aa.1", "broken_by": {"apgd-ce": 20}}
    text = page([], record(entry("acc", 0.9), checked, warned, clean, run, without))
    found = rows(text)
    assert ("gradient masking a", "holds", "fgsm.8 &gt;= pgd20.8") in found
    assert ("gradient masking b", "fails", "square.8 &gt;= pgd20.8: violated by 0.08") in found
    assert (f"flags of {heading('aa.8')}", "fails", "Square broke 9 of 50") in found
    kinds = {name: kind for name, kind, _ in found}
    assert [kinds[f"flags of {heading(f'aa.{eps}')}"] for eps in (1, 2, 4)] == ["hint", "holds", "hint"]


@pytest.mark.parametrize(
    ("arguments", "count", "words"),
    [
        ([], 2, "A report describes one model, but there are 2 records: r.html was not written."),
        (["--where", "acc > 2"], 1, "there is no record to report on"),
    ],
)
def test_what_cannot_be_reported_is_said_and_nothing_is_written(
    arguments: list[str], count: int, words: str
) -> None:
    records = [record(entry("acc", 0.5 + n / 10), checkpoint=f"sha256:{n}") for n in range(count)]
    result = run(arguments, *records)
    assert result.exit_code == 1 and words in result.stderr, result.stderr
    assert not Path("r.html").exists()
    if count == 2:
        assert "metric" in page(shlex.split(re.findall(r"--where '.*?'", result.stderr)[0]), *records)
