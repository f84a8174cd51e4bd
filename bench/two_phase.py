"""Two-phase AutoAttack, by resampling known outcomes: how many images it needs, how often its interval holds.

    python bench/two_phase.py --checkpoint FILE --dataset NAME [--n 2000] [--eps 8] [--attacks LIST]

The screen runs on all images and the attack on all that it leaves (`--two-phase all`); from these outcomes
1,000 samples are drawn with other keys. One JSON line a size or goal: images attacked, half the length
of the interval, the mean error of the estimate, and the share of intervals that hold the true value.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from rbtools.attacks import ATTACKS
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, record_of, resolve_inputs
from rbtools.jobs import earlier_outcomes, evaluate_record, screened_attack
from rbtools.probabilistic import two_phase
from rbtools.store import Store

RESAMPLES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--dataset")
    parser.add_argument("--split", default="test")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--eps", type=float, default=8)
    parser.add_argument("--attacks", default="")
    parser.add_argument("--screen-steps", type=int, default=20)
    parser.add_argument("--store", default="rb-store")
    parser.add_argument("--sizes", default="60,100,130,160,200,250")
    parser.add_argument("--goals", default=".02,.01,.005")
    options = parser.parse_args()
    margins, stands = outcomes(options)
    survivors, n = len(margins), options.n
    truth = float(stands.sum())
    print(json.dumps({"images": n, "survivors": survivors, "robust accuracy": truth / n}), flush=True)
    for size in map(int, options.sizes.split(",")):
        if size < survivors:
            print(json.dumps({"size": size, **resampled(margins, stands, n, size, None)}), flush=True)
    for goal in map(float, options.goals.split(",")):
        print(json.dumps({"goal": goal, **resampled(margins, stands, n, None, goal)}), flush=True)


def outcomes(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Of the images that the screen leaves: their margins, and 1 if the attack leaves them too."""
    run = Run.of("bench", Store(options.store), n=options.n, dataset=options.dataset, split=options.split)
    record = record_of(options.checkpoint, CheckpointHints(options.arch, None), run)
    method = ATTACKS.build("aa", attacks=options.attacks)
    screen = screened_attack.screen_of(method, options.screen_steps)
    request = screened_attack.TwoPhaseRequest(method, (options.eps / 255,), screen)
    inputs = resolve_inputs(record, run)
    known = earlier_outcomes.ScreenSources(inputs)
    estimate = screened_attack.TwoPhaseEvaluation(inputs, request, request.eps[0], known)
    evaluate_record.task_entries(estimate.inputs, estimate.screening)
    left = np.flatnonzero(estimate.margins >= 0)
    numbers, _ = estimate.order(left)
    sample = estimate.inputs.on(options.split, indices=numbers, n=len(left))
    evaluate_record.task_entries(sample, estimate.task)
    stands = next(iter(evaluate_record.stored_outcomes(sample, estimate.task).values()))
    places = estimate.inputs.data.order(estimate.inputs.data.load().labels)[: options.n].tolist()
    margin = dict(zip(places, estimate.margins, strict=True))
    return np.array([margin[number] for number in numbers.numbers]), stands


def resampled(
    margins: np.ndarray, stands: np.ndarray, n: int, size: int | None, goal: float | None
) -> dict[str, float]:
    """Means over samples of one size, or of runs with a goal of precision."""
    rng = np.random.default_rng(0)
    truth, survivors = float(stands.sum()), len(margins)
    confidence = 0.95 if goal is None else two_phase.confidence_of_look(survivors)
    rows = []
    for _ in range(RESAMPLES):
        order, stratum = two_phase.order(margins, rng.random(survivors))
        for some in [size] if size else two_phase.looks(survivors):
            parts = two_phase.strata(survivors, stratum[:some], stands[order[:some]])
            result = two_phase.estimate(parts, confidence)
            low, high = result.interval
            if goal is not None and (high - low) / 2 / n <= goal:
                break
        rows.append((some, (high - low) / 2 / n, (result.robust - truth) / n, low <= truth <= high))
    attacked, half, error, covered = np.array(rows, float).T
    return {
        "attacked": round(attacked.mean(), 1),
        "half": round(half.mean(), 5),
        "error": round(error.mean(), 6),
        "root mean square error": round(float(np.sqrt((error**2).mean())), 5),
        "coverage": covered.mean(),
        "images for one attacked": round(n / attacked.mean(), 1),
    }


if __name__ == "__main__":
    main()
