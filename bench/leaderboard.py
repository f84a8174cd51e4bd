"""How fast the leaderboard page is made, and how fast it sorts in headless Chromium.

    python bench/leaderboard.py [RECORDS [METRICS]]

One JSON line a figure. The page is made of 6,466 records with 30 metrics and their intervals, unless said
otherwise. Times in the browser are medians of clicks or moves, from the event to the end of the layout that
follows, and the processor time of the page's process (where there is /proc), which says more where the
machine is busy: see `load`. Needs playwright and a chromium on the path.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from rbtools.pages.leaderboard import page

TIMED = """([selector, event, values]) => {
  const all = [...document.querySelectorAll(selector)];
  return values.map((value, turn) => {
    const one = all[turn % all.length];
    const start = performance.now();
    if (event === "click") one.click();
    else {
      one.value = value;
      one.dispatchEvent(new Event(event));
    }
    document.body.getBoundingClientRect();
    return performance.now() - start;
  });
}"""
SCROLLED = """async () => {
  const scroller = document.getElementById("scroller"), times = [];
  for (let turn = 0; turn < 40; turn++) {
    const start = performance.now();
    scroller.scrollTop += 700;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - start);
  }
  return times;
}"""


def records(count: int, metrics: int) -> list[dict[str, Any]]:
    """A table of a search space: every network under clean images and attacks."""
    dice = random.Random(0)
    attacks = ("fgsm", "pgd20", "aa", "square")
    names = ["acc", *(f"{attacks[i % 4]}.{1 + i // 4}" for i in range(metrics - 1))]
    found = []
    for index in range(count):
        values = {name: round(dice.random(), 4) for name in names}
        evals = [
            {"tool": "rb-attack", "metric": name, "n": 10000, "value": v, "ci95": [v - 0.01, v + 0.01]}
            for name, v in values.items()
        ]
        arch = {"space": "nasbench201", "name": f"nb201-{index}", "index": index}
        found.append({"schema": 1, "arch": arch, "dataset": "cifar10", "metrics": values, "evals": evals})
    return found


def say(figure: str, **measured: Any) -> None:
    print(json.dumps({"figure": figure, **measured, "load": round(os.getloadavg()[0], 1)}), flush=True)


def processor_ms(profile: str) -> float:
    """What the renderers of the browser with this profile have used, all threads."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
            if "--type=renderer" in line and profile in line:
                used = (folder / "stat").read_text().rpartition(")")[2].split()
                found += int(used[11]) + int(used[12])
        except OSError:
            continue
    return found * 1000 / os.sysconf("SC_CLK_TCK")


def timed(board: Any, profile: str, figure: str, script: str, argument: Any = None) -> None:
    before = processor_ms(profile)
    times = board.evaluate(script, argument)
    used = (processor_ms(profile) - before) / len(times)
    middle, worst = round(statistics.median(times), 1), round(max(times), 1)
    say(figure, median_ms=middle, worst_ms=worst, processor_ms=round(used, 1), runs=len(times))


def main() -> None:
    count, metrics = (int(text) for text in [*sys.argv[1:], "6466", "30"][:2])
    made = records(count, metrics)
    start = time.process_time()
    text = page(made)
    seconds = round(time.process_time() - start, 2)
    say("page", records=count, metrics=metrics, processor_seconds=seconds, mb=round(len(text) / 1e6, 1))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder, "board.html")
        file.write_text(text, encoding="utf-8")
        executable = shutil.which("chromium") or shutil.which("google-chrome")
        profile = str(Path(folder, "profile"))
        browser = driver.chromium.launch_persistent_context(
            profile,
            executable_path=executable,
            args=["--no-sandbox"],
            viewport={"width": 1400, "height": 900},
        )
        board = browser.pages[0]
        start = time.perf_counter()
        board.goto(file.as_uri())
        say("open", seconds=round(time.perf_counter() - start, 2))
        clicks = ["button.sort", "click", list(range(3 * metrics))]
        timed(board, profile, "sort", TIMED, clicks)
        words = ["n", "nb", "nb201-1", "nb201-12", "acc>0.5", "acc>0.5 pgd20.2>0.5", ""]
        timed(board, profile, "filter", TIMED, ["#words", "input", words])
        weights = [step / 5 for step in range(25)]
        timed(board, profile, "slider", TIMED, ["#weights input", "input", weights])
        timed(board, profile, "scroll by a screen", SCROLLED)
        browser.close()


if __name__ == "__main__":
    main()
