"""Paired comparisons: coverage of intervals, family-wise error, time and memory of rb-rank --paired.

    python bench/paired_intervals.py [--part coverage,errors,time]

coverage  of the 95 % interval, exactly (a sum over all numbers of changed images), for n images of which some
          number changes on average, .5 to 1 of them in favour of the first model; others beside it
errors    how often any of 20 equal models differs from the reference at .05, single ones and means of 3 seeds
time      10,000 records with answers of 1,000 images through rb-rank --paired: time and memory
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy import stats

from rbtools.proportions import wilson
from rbtools.records import answers
from rbtools.scoring import bootstrap, paired

Z = 1.959963984540054


def wald(gained: np.ndarray, lost: np.ndarray, n: int, more: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Wald's interval; with one more image of each kind that of Bonett and Price."""
    p, q = (gained + more) / (n + 2 * more), (lost + more) / (n + 2 * more)
    half = Z * np.sqrt((p + q - (p - q) ** 2) / (n + 2 * more))
    return p - q - half, p - q + half


def tango(gained: np.ndarray, lost: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Tango's score interval (Stat. Med. 17, 1998), by bisection."""

    def score(difference: np.ndarray) -> np.ndarray:
        b = (2 * n - gained + lost) * difference - gained - lost
        c = -lost * difference * (1 - difference)
        rest = (np.sqrt(np.maximum(b * b - 8 * n * c, 0)) - b) / (4 * n)
        variance = n * np.maximum(2 * rest + difference * (1 - difference), 1e-300)
        found: np.ndarray = (gained - lost - n * difference) / np.sqrt(variance)
        return found

    def end(low: np.ndarray, high: np.ndarray, target: float) -> np.ndarray:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = np.where(score(middle) > target, [middle, high], [low, middle])
        return low

    value = (gained - lost) / n
    return end(value - 2, value, Z).clip(-1), end(value, value + 2, -Z).clip(None, 1)


def coverage() -> Iterator[str]:
    kinds: dict[str, Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]] = {
        "mid-P, joined": lambda gained, lost, n: paired.interval(gained, lost, np.full(len(gained), n)),
        "Tango": tango,
        "Bonett and Price": lambda gained, lost, n: wald(gained, lost, n, 1),
        "Wald": wald,
    }
    for n in (100, 1000, 10_000):
        gained, lost = np.array([(a, b) for a in range(120) for b in range(120) if a + b <= n]).T
        counts = np.stack([gained, lost, n - gained - lost], 1)
        ends = {kind: interval(gained, lost, n) for kind, interval in kinds.items()}
        for changes in (0, 1, 5, 50):
            found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for share in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
                p, q = changes * share / n, changes * (1 - share) / n
                chance = stats.multinomial.pmf(counts, n, [p, q, 1 - p - q])
                for kind, (low, high) in ends.items():
                    held = chance[(low <= p - q + 1e-12) & (p - q - 1e-12 <= high)].sum()
                    found[kind].append((held, n * (chance * (high - low)).sum()))
            for kind, rows in found.items():
                held, width = np.array(rows).T
                each = " ".join(f"{value:.3f}" for value in held)
                summary = f"mean {held.mean():.3f}, width {width.mean():.1f} images"
                yield f"n {n}, {changes} changes, {kind}: {each}; {summary}"


def errors(repetitions: int = 2000, images: int = 1000) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for own in (0.03, 0.2, 1.0):  # what a model adds to the difficulty that images have for all
        found = changes = 0
        for _ in range(repetitions):
            right = rng.standard_normal(images) + own * rng.standard_normal((20, images)) < 0.5
            counts = np.array([paired.changed(row, right[0]) for row in right[1:]]).T
            changes += counts.sum() / 19
            found += bool((paired.holm(paired.mcnemar(*counts)) < 0.05).any())
        yield f"20 equal models, {changes / repetitions:.0f} changes: {found / repetitions:.4f}"
    for between in (0.0, 0.05, 0.3):  # the deviation of a model's skill over seeds
        found, several = 0, repetitions // 10
        for _ in range(several):
            skill = 0.5 + between * rng.standard_normal((20, 3, 1))
            right = rng.standard_normal(images) + 0.2 * rng.standard_normal((20, 3, images)) < skill
            found += min(_p_of_means(right)) < 0.05
        yield f"20 equal means of 3 seeds, deviation {between} of skill: {found / several:.3f}"


def _p_of_means(right: np.ndarray) -> list[float]:
    """Corrected p of the means (20, 3 seeds, N) but the first, which is the reference."""
    groups = [
        [_record(f"{at}", seed, {"m.8": row}) for seed, row in enumerate(rows)]
        for at, rows in enumerate(right)
    ]

    def counted(record: paired.Record, entry: object) -> answers.Answers:
        return answers.Answers("", right[int(record["arch"]["name"]), record["train"]["seed"]])

    draws = bootstrap.BootstrapDraws(
        200,
        0,
        lambda record, entry: (
            counted(record, entry).right.astype(np.float32),
            np.ones(right.shape[2], np.float32),
        ),
    )
    others = [("", members) for members in groups[1:]]
    rows, _ = paired.compare(groups[0], others, counted, draws, ["m.8"])
    return [row["m.8"]["p"] for row in rows]


def _record(name: str, seed: int, metrics: dict[str, np.ndarray]) -> paired.Record:
    evals = []
    for metric, right in metrics.items():
        n, count = len(right), int(right.sum())
        about = {"metric": metric, "value": count / n, "n": n, "ci95": wilson(count, n)}
        evals.append({**about, answers.FIELD: answers.packed(right, "0" * 16)})
    record = {"schema": 1, "arch": {"space": "zoo", "name": name}, "train": {"method": "pgd", "seed": seed}}
    return {**record, "metrics": {entry["metric"]: entry["value"] for entry in evals}, "evals": evals}


def time(count: int = 10_000, images: int = 1000) -> Iterator[str]:
    rng = np.random.default_rng(0)
    hard, packed = rng.random(images), answers.packed_labels(rng.integers(0, 10, images))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.jsonl"
        with file.open("w") as stream:
            for at in range(count):
                skill = 0.9 - rng.random() / 2
                own = hard + 0.2 * rng.standard_normal((2, images))
                record = _record(f"n{at}", 0, {"acc": own[0] < 0.95, "pgd20.8": own[1] < skill})
                stream.write(json.dumps(answers.with_labels({**record}, "0" * 16, packed)) + "\n")
        words = ["--by", "pgd20.8", "--paired", "1", "--store", folder, str(file)]
        done = subprocess.run(
            [sys.executable, "-m", "rbtools.commands.rank", *words], capture_output=True, check=True
        )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ranked = sum(b'"changed"' in line for line in done.stdout.splitlines())
    seconds = used.ru_utime + used.ru_stime
    yield f"{ranked + 1} records: {seconds:.1f} s of processor time, {used.ru_maxrss / 1024:.0f} MB"


PARTS = {"coverage": coverage, "errors": errors, "time": time}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", default=",".join(PARTS), help=f"what to measure [{','.join(PARTS)}]")
    for part in parser.parse_args().part.split(","):
        for line in PARTS[part]():
            print(f"{part}: {line}", flush=True)


if __name__ == "__main__":
    main()
