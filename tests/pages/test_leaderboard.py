"""The leaderboard page: what is in the file, and what it does in a browser (headless Chromium)."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import random
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rbtools import records as lines
from rbtools.pages import leaderboard, score_terms
from rbtools.pages.templates import CONTROL
from rbtools.scoring.rank_order import bands as rank_bands
from tests import runner

pytestmark = pytest.mark.xdist_group("browser")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
Record = dict[str, Any]


def record(name: str, dataset: str = "digits", method: str = "erm", **metrics: Any) -> Record:
    """A record; a metric given as (value, low, high) has an interval."""
    values = {key.replace("20_", "20.").replace("ge_", "ge."): value for key, value in metrics.items()}
    plain = {key: value[0] if isinstance(value, tuple) else value for key, value in values.items()}
    evals = [
        {"tool": "rb-attack", "metric": key, "value": value[0], "ci95": list(value[1:]), "n": 100}
        for key, value in values.items()
        if isinstance(value, tuple)
    ]
    return runner.model(name, dataset=dataset, train={"method": method}, metrics=plain, evals=evals)


def benchmark() -> list[Record]:
    """Two data sets, two networks and four methods, with gaps: what a published table looks like."""
    dice = random.Random(0)
    found = []
    for dataset in ("cifar10", "svhn"):
        for name in ("resnet18", "vgg16"):
            for method in ("erm", "pgd", "trades", "mart"):
                made = record(name, dataset, method)
                acc, adv = dice.uniform(0.7, 0.95), dice.uniform(0, 0.6)
                made["metrics"] = {
                    "acc": acc,
                    "pgd20.8": adv,
                    "pr.uniform.0.0313725": dice.uniform(0.9, 1),
                    "pr.uniform.0.08": dice.uniform(0.7, 0.9),
                    "ge.pgd20.8": dice.uniform(-0.05, 0.3),
                    "seconds_per_epoch": float(dice.randint(3, 60)),
                    "aa.8": 0.25,  # the same for all
                }
                made["evals"] = [
                    {"tool": "rb-attack", "metric": key, "value": value, "n": 100}
                    | {"ci95": [value - 0.04, value + 0.03]}
                    for key, value in (("acc", acc), ("pgd20.8", adv))
                ]
                found.append(made)
    return found


EVIL = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"'><svg onload=alert(1)>",
    '=HYPERLINK("http://example.com";"x")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "a\u2028b\u2029c\u202egnp.exe",
    "{{script}}<!--<script>",
    "__proto__",
    "'; rm -rf ~; echo '",
    "$(touch owned)`touch owned`",
    "-n\x07\x1b]0;owned\x07",
]


def wicked() -> list[Record]:
    found = [record(name, dataset=name, method=name, acc=0.5 + 0.01 * i) for i, name in enumerate(EVIL)]
    for made, name in zip(found, EVIL, strict=True):
        made["metrics"][name] = 0.5
        made["metrics"]["constructor"] = 0.25
        made["train"]["config"] = {"epochs": 1, name: name, "lr": name, "allow_code": True}
        made["evals"] = [{"tool": name, "metric": name, "value": 0.5, "attack": name, "eps": name, "n": name}]
    return found


def content_of(page: str) -> Any:
    return json.loads(
        re.findall(r'<script type="application/json" id="content">(.*?)</script>', page, re.S)[0]
    )


def shown(text: str) -> str:
    """A text as the page has it: without marks of direction, which JSON does not escape."""
    kept = {*map(chr, range(32)), "\u2028", "\u2029"}
    return "".join(letter if letter in kept else CONTROL.sub("\ufffd", letter) for letter in text)


def all_shown(value: Any) -> Any:
    """JSON with all its texts as the page has them."""
    if isinstance(value, dict):
        return {shown(name): all_shown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [all_shown(inner) for inner in value]
    return shown(value) if isinstance(value, str) else value


def test_nothing_in_a_record_can_leave_the_data_it_is_embedded_as() -> None:
    page = leaderboard.page(wicked(), title="</title><script>alert(1)</script>")
    assert len(re.findall("<script", page)) == 2 and page.count("</script>") == 2
    data = re.findall(r'id="content">(.*?)</script>', page, re.S)[0]
    assert not set("<>&\u2028\u2029") & set(data)
    names = next(field for field in content_of(page)["fields"] if field["path"] == "arch.name")
    assert names["values"] == [shown(name) for name in EVIL]
    assert "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>" in page


def test_the_policy_allows_this_script_and_this_style_alone() -> None:
    page = leaderboard.page(benchmark())
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0]
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy


def test_the_page_names_nothing_to_load_and_writes_no_markup_from_text() -> None:
    page = leaderboard.page(benchmark())
    assert set(re.findall(r"https?://[^\s\"'<]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=", page.replace('href="#table"', ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", page)
    assert "fetch(" not in page and "import(" not in page


@pytest.mark.parametrize(
    "told",
    [
        {"terms": [{"metric": "(((", "weight": 1.0, "higher": True}]},
        {"terms": [{"metric": "acc", "weight": True, "higher": True}]},
        {"terms": [{"metric": "acc", "weight": 1.0, "higher": True}], "within": {"))": 1}},
        {"terms": [{"metric": "acc", "weight": 1.0, "higher": True}], "within": {"arch": 1}, "preset": [1]},
        {"terms": [{"metric": "acc", "weight": 1.0, "higher": True}], "missing": "</script>"},
        {"terms": [1, None]},
    ],
)
def test_a_score_that_rb_score_never_wrote_makes_a_page_all_the_same(told: Record) -> None:
    made = [record(name, acc=0.5) for name in "ab"]
    for one in made:
        one["evals"] = [{"tool": "rb-score", "metric": "score", "value": 0.5, **told}]
        one["metrics"]["score"] = 0.5
    found = content_of(leaderboard.page(made))
    assert found["missing"] in ("refuse", "renormalise", "worst") and len(found["rows"]) == 2


def test_the_default_score_has_one_point_of_each_curve() -> None:
    names = ["acc", "fgsm.0.5", "fgsm.1", "fgsm.3", "pgd20.l2.0.5", *(f"pgd20.{2**at}" for at in range(5))]
    names += ["corrupt.fog.3", "corrupt.snow.3", "corrupt.mean", "params"]
    records = [{"metrics": dict.fromkeys(names, 0.5)}, {"metrics": dict.fromkeys(names, 0.25)}]
    found = [term.metric for term in score_terms.score(records).terms]
    assert sorted(found) == sorted(["acc", "pgd20.8", "fgsm.1", "pgd20.l2.0.5", "corrupt.mean", "params"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of some records; a complaint on the console or any request is a failure."""
    contexts, complaints, requests = [], [], []

    def open_(records: list[Record]) -> Any:
        file = tmp_path / "board.html"
        file.write_text(leaderboard.page(records), encoding="utf-8")
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    kinds = {address.split(":")[0] for address in requests if not address.endswith("/board.html")}
    assert kinds <= {"blob"}


def heading(page: Any, title: str) -> Any:
    return page.locator("#head button.sort", has_text=re.compile(f"^{re.escape(title)}$"))


def column(page: Any, title: str) -> list[str]:
    """The texts of a column in the order of the table, without intervals."""
    return page.evaluate(
        """(title) => {
          const heads = [...document.querySelectorAll("#head tr:last-child th")];
          const place = heads.findIndex((head) => head.textContent === title);
          return [...document.querySelectorAll("#body tr:not(.gap)")].map((row) => {
            const cell = row.cells[place].cloneNode(true);
            cell.querySelectorAll("small").forEach((small) => small.remove());
            return cell.textContent;
          });
        }""",
        title,
    )


def saved(page: Any, button: str) -> str:
    with page.expect_download() as download:
        page.click(f"#{button}")
    return Path(download.value.path()).read_text("utf-8")


def rows_of(page: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(saved(page, "csv"))))


def set_slider(page: Any, metric: str, weight: float) -> None:
    page.locator(f'#weights input[data-metric="{metric}"]').evaluate(
        "(slider, weight) => { slider.value = weight; slider.dispatchEvent(new Event('input'));"
        " slider.dispatchEvent(new Event('change')); }",
        weight,
    )


SOME = [
    record("b", acc=0.5, pgd20_8=0.3),
    record("a", acc=0.9, wci=2.0),
    record("c", acc=0.7, pgd20_8=0.1),
    record("d", acc=0.7, pgd20_8=0.2, wci=1.0),
]


def test_a_heading_sorts_best_first_and_then_the_other_way(opened: Any) -> None:
    page = opened(SOME)
    heading(page, "clean").click()
    assert column(page, "Model") == ["a", "c", "d", "b"] and column(page, "rank") == ["1", "2", "2", "4"]
    heading(page, "clean").click()
    assert column(page, "Model") == ["b", "c", "d", "a"] and column(page, "rank") == ["4", "2", "2", "1"]
    heading(page, "PGD-20, ε = 8/255").click()
    assert column(page, "Model") == ["b", "d", "c", "a"]  # what has no value is last
    heading(page, "PGD-20, ε = 8/255").click()
    assert column(page, "Model") == ["c", "d", "b", "a"] and column(page, "rank")[-1] == "–"
    assert {row["band"] for row in rows_of(page)} == {""}  # without intervals there are none
    heading(page, "wci").click()  # less is better
    assert column(page, "Model") == ["d", "a", "b", "c"]


def test_words_conditions_and_choices_filter(opened: Any) -> None:
    page = opened(benchmark())
    page.fill("#words", "vgg TRADES")
    assert column(page, "Model") == ["vgg16"] * 2 and set(column(page, "Training")) == {"trades"}
    page.fill("#words", "acc>0.8")
    want = sum(one["metrics"]["acc"] > 0.8 for one in benchmark())
    assert 0 < want < 16 and len(column(page, "Model")) == want
    page.select_option('#pickers select[data-path="dataset"]', label="svhn")
    assert set(column(page, "Data set")) == {"svhn"}
    assert column(page, "rank")[0] == "1"  # ranks are among the rows shown


def scored(records: list[Record], command: str) -> list[float | None]:
    """The scores that the command on the page gives to these records."""
    words = shlex.split(command.split("|")[0])
    assert words[0] == "rb-score" and words[-1] == "records.jsonl"
    Path("records.jsonl").write_text(runner.lines(*records), encoding="utf-8")
    result = runner.run("score", words[1:])
    assert result.exit_code == 0, result.stderr
    Path("scored.jsonl").write_text(result.stdout, encoding="utf-8")
    return [one["metrics"].get("score") for one in runner.records(result)]


def page_scores(page: Any, records: list[Record]) -> list[float | None]:
    """The scores of the page in the order of the records, with all their digits."""
    found = {
        (row["arch.name"], row["dataset"], row["train.method"]): float(row["score"]) if row["score"] else None
        for row in rows_of(page)
    }
    return [found[one["arch"]["name"], one["dataset"], one["train"]["method"]] for one in records]


def agree(found: list[float | None], want: list[float | None]) -> bool:
    assert len(found) == len(want)
    return all(
        (a is None) == (b is None) and (a is None or b is None or abs(a - b) < 1e-12)
        for a, b in zip(found, want, strict=True)
    )


def test_a_slider_ranks_anew_and_the_scores_are_those_of_rb_score(opened: Any) -> None:
    records = benchmark()
    page = opened(records)
    before = column(page, "score")
    assert agree(page_scores(page, records), scored(records, page.inner_text("#score-command")))
    set_slider(page, "acc", 5)
    set_slider(page, "ge.pgd20.8", 0.3)
    set_slider(page, "seconds_per_epoch", 0)
    after = column(page, "score")
    assert after != before and after == sorted(after, reverse=True)
    command = page.inner_text("#score-command")
    assert "--weight acc=5" in command and "--weight ge.pgd20.8=0.3" in command and "seconds" not in command
    assert agree(page_scores(page, records), scored(records, command))


def test_the_score_of_a_preset_with_other_names_on_a_data_set_is_kept(opened: Any) -> None:
    records = benchmark()
    other = {"pgd20.8": "pgd20.76.5", "pr.uniform.0.08": "pr.uniform.0.35", "ge.pgd20.8": "ge.pgd20.76.5"}
    for one in records[8:]:
        one["dataset"] = "mnist"
        one["metrics"] = {other.get(name, name): value for name, value in one["metrics"].items()}
        one["evals"] = []
    added = "--metric 'mean(pgd20.*),max(acc, pr.uniform.*)' --weight 'mean(pgd20.*)=2'"
    command = f"rb-score --preset prbench --missing renormalise --within dataset {added} records.jsonl"
    want = scored(records, command)
    text = Path("scored.jsonl").read_text("utf-8")
    page = opened([json.loads(line) for line in text.splitlines()])
    assert agree(page_scores(page, records), want)
    shown = page.inner_text("#score-command")
    assert "rb-score --preset prbench --metric" in shown and "pgd20.8" in shown and "76.5" not in shown
    assert agree(scored(records, shown), want)
    set_slider(page, "pgd20.8", 3)
    assert agree(page_scores(page, records), scored(records, page.inner_text("#score-command")))
    for line in saved(page, "jsonl").splitlines():
        one = json.loads(line)
        told = one["evals"][-1]
        assert told["within"] == {"dataset": one["dataset"]} and told["compared"] == 8
        assert told["terms"][1]["metric"] == ("pgd20.76.5" if one["dataset"] == "mnist" else "pgd20.8")


@pytest.mark.parametrize("missing", ["refuse", "renormalise", "worst"])
def test_records_that_lack_a_metric_are_scored_as_rb_score_does(opened: Any, missing: str) -> None:
    records = benchmark()
    for place in (3, 8):
        del records[place]["metrics"]["pgd20.8"]
    page = opened(records)
    page.select_option("#add", value="pgd20.8")
    page.select_option("#missing", value=missing)
    found = page_scores(page, records)
    if missing == "refuse":  # rb-score refuses them all, the page those that lack it
        assert [place for place, value in enumerate(found) if value is None] == [3, 8]
    else:
        command = page.inner_text("#score-command")
        assert f"--missing {missing}" in command and agree(found, scored(records, command))


def test_ranks_have_bands_and_the_places_that_intervals_leave_open(opened: Any) -> None:
    dice = random.Random(1)
    intervals, found = {}, []
    for place in range(60):
        value = round(dice.random(), 3)
        low, high = round(value - dice.random() * 0.1, 3), round(value + dice.random() * 0.1, 3)
        intervals[f"m{place}"] = (low, high)
        found.append(record(f"m{place}", acc=(value, low, high)))
    page = opened(found)
    heading(page, "clean").click()
    rows = rows_of(page)
    names = [row["arch.name"] for row in rows]
    bands = dict(zip(names, rank_bands([intervals[name] for name in names]), strict=True))
    assert {row["arch.name"]: int(row["band"]) for row in rows} == bands and max(bands.values()) > 5
    for row in rows:
        low, high = intervals[row["arch.name"]]
        assert int(row["rank_low"]) == 1 + sum(other > high for other, _ in intervals.values())
        assert int(row["rank_high"]) == sum(other >= low for _, other in intervals.values())
        assert int(row["rank_low"]) <= int(row["rank"]) <= int(row["rank_high"])


def test_wicked_names_are_text(opened: Any) -> None:
    page = opened(wicked())
    title = page.title()
    shown = column(page, "Model")
    assert len(shown) == len(EVIL) and EVIL[0] in shown and EVIL[1] in shown
    assert "a\ufffdb\ufffdc\ufffdgnp.exe" in shown  # no lines of their own, no turned text
    for place in range(len(EVIL)):
        page.locator("button.name").nth(place).click()
        command = page.locator("#record-command")
        if command.count():
            assert "allow-code" not in command.inner_text()
        page.click("#record-close")
    page.locator("#body input").nth(0).check()
    page.fill("#words", "<img")
    assert (
        page.evaluate("document.querySelectorAll('img, iframe, object, #body script, #chart script').length")
        == 0
    )
    assert page.title() == title == "Leaderboard"


def test_downloaded_csv_has_no_formulas_and_all_digits(opened: Any) -> None:
    page = opened(wicked())
    rows = rows_of(page)
    names = {row["arch.name"] for row in rows}
    evil = [shown(name) for name in EVIL]
    assert {"'" + evil[3], "'" + evil[4], "'" + evil[10], evil[0], evil[8]} <= names
    places = ("rank", "band", "rank_low", "rank_high")
    cells = [cell for row in rows for key, cell in row.items() if key not in places]
    assert not any(cell[:1] in "=+-@\t\r" for cell in cells if cell)
    page = opened([record("a", ge_acc=-0.1 / 3, acc=1 / 3), record("b", ge_acc=0.25, acc=0.5)])
    by_name = {row["arch.name"]: row for row in rows_of(page)}
    assert by_name["a"]["ge.acc"] == repr(-0.1 / 3) and by_name["a"]["acc"] == repr(1 / 3)


def test_downloaded_json_lines_are_the_records(opened: Any) -> None:
    records = [*benchmark(), *wicked()]
    records[0]["mine"] = {"kept": [1, "é\u2028"]}
    records[0]["train"]["history"] = {"loss": [1.0]}
    records[0]["evals"][0] |= {"seconds": 1.5, "quantiles": [1], "attack": "pgd"}
    page = opened(records)
    text = saved(page, "jsonl")
    found = [all_shown(lines.parse(line.encode())) for line in text.removesuffix("\n").split("\n")]
    key = lambda one: (one["arch"]["name"], one["dataset"], one["train"]["method"])  # noqa: E731
    by_key = {key(one): one for one in found}
    assert len(found) == len(records) == len(by_key)
    for one in map(all_shown, records):
        other = by_key[key(one)]
        value = other["metrics"].pop("score", None)
        assert other["metrics"] == one["metrics"]
        told = other["evals"].pop()
        assert (told["metric"], told["tool"], told["value"]) == ("score", "rb-plot", value)
        for entry in one["evals"]:
            entry.pop("quantiles", None)
        assert other["evals"] == one["evals"]
        one["train"].pop("history", None)
        other.pop("rank", None)
        assert {**other, "evals": 0, "metrics": 0} == {**one, "evals": 0, "metrics": 0}


def test_of_six_thousand_rows_only_those_in_view_are_drawn(opened: Any) -> None:
    dice = random.Random(2)
    many = [record(f"nb201-{index}", acc=round(dice.random(), 4), pgd20_8=0.5) for index in range(6466)]
    page = opened(many)
    assert page.locator("#body tr").count() < 100
    heading(page, "clean").click()
    want = sorted((one["metrics"]["acc"] for one in many), reverse=True)
    for share in (0, 0.5, 1):
        page.locator("#scroller").evaluate(
            "(one, share) => { one.scrollTop = share * one.scrollHeight; }", share
        )
        page.wait_for_function(
            "(share) => document.querySelector('#body tr:not(.gap)').ariaRowIndex > share * 6000", arg=share
        )
        first = int(page.locator("#body tr:not(.gap)").first.get_attribute("aria-rowindex")) - 3
        shown = column(page, "clean")
        assert shown == [f"{value:.4f}" for value in want[first : first + len(shown)]]
    assert first + len(shown) == 6466
