"""Figures of rb-card: coverage of its intervals, regret of its scheduler, time beside others' tools, pairs.

    python bench/card.py coverage [--runs 2000]
    python bench/card.py regret [--checkpoint FILE --data FOLDER --n 16]
    python bench/card.py peers --checkpoint FILE --data FOLDER [--n 64]
    python bench/card.py pair [--runs 2000]

coverage  simulated: runs that stop at the look where the value is highest, or lowest, or the interval
          shortest, and all looks together; of the source, and of the 1,000 images of each run
regret    mean half-width after a time, beside the best last look of each part in hindsight. Looks at digits
          are made once, by a network that is trained here, and are kept in --trace; with a checkpoint they
          cost what its looks cost
peers     processor seconds beside the sum of what a card replaces, and whether the values agree
pair      images until the looks decide between two models, beside a fixed number with the same error

FILE and FOLDER are those of bench/attacks.py. One JSON line a figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attacks import Bench
from common import show
from corruptions import theirs
from pr import GAMMAS, plain_loop
from scipy import special

from rbtools import units
from rbtools.corruptions import CORRUPTIONS
from rbtools.evaluation.tasks import CorruptionTask
from rbtools.execution.run import Run
from rbtools.inputs import checkpoints
from rbtools.jobs import EvaluateJob
from rbtools.jobs.card_parts import CHOICES, CardPart, PlannedLook, parts
from rbtools.jobs.model_card import Card, CardRequest, PartState, Record, run_card
from rbtools.probabilistic import looks, two_phase
from rbtools.probabilistic.looks import AnytimeInterval
from rbtools.spaces import sized
from rbtools.store import Store
from rbtools.trainer import recipe, train_model
from rbtools.training import METHODS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.corruptions import peer

IMAGES, EPS, COPIES = 1000, 8 / 255, 100
PARTS = parts(EPS)
ALIKE = dict.fromkeys(("clean", "attack", "corruptions", "pr"), 1.0)  # the parts that have a peer
Seen = tuple[float, AnytimeInterval]
Row = dict[str, Any]


# --- coverage -------------------------------------------------------------------------------------------


@functools.lru_cache(1 << 16)
def _of_sorted(values: bytes, seen: float, sure: float) -> AnytimeInterval:
    return looks.of_mean(np.frombuffer(values), seen, sure)


def of_mean(values: np.ndarray, seen: float, sure: float) -> AnytimeInterval:
    """The intervals of the same values once only: those of zeros and ones are few."""
    return _of_sorted(np.sort(values).tobytes(), seen, sure)


of_sample = functools.lru_cache(1 << 16)(looks.of_sample)


def see_values(rows: np.ndarray, look: PlannedLook, seen: float, sure: float) -> Seen:
    """rows: (1, n), the values."""
    return float(rows[0].mean()), of_mean(rows[0], seen, sure)


def see_copies(rows: np.ndarray, look: PlannedLook, seen: float, sure: float) -> Seen:
    """rows: (2, n), the true rates of the images, and the shares of their copies that are right."""
    value, of_source = float(rows[1].mean()), of_mean(rows[1], seen, sure).of_source
    return value, looks.of_copies(value, of_source, look.n, COPIES, seen, sure)


def see_pairs(rows: np.ndarray, look: PlannedLook, seen: float, sure: float) -> Seen:
    """rows: (3, n), the difference, and whether each of two models is right."""
    return float(rows[0].mean()), looks.of_pairs(rows[1], rows[2], seen, sure)


def see_sample(rows: np.ndarray, look: PlannedLook, seen: float, sure: float) -> Seen:
    """rows: (3, n), whether an image stands, its margin under the screen, which is below 0 if that broke it,
    and its random number."""
    left = np.flatnonzero(rows[1] >= 0)
    order, stratum = two_phase.order(rows[1, left], rows[2, left])
    size = len(left) if look.attacked is None else min(look.attacked, len(left))
    strata = tuple(two_phase.strata(len(left), stratum[:size], rows[0, left][order[:size]]))
    value = two_phase.estimate(strata).robust / look.n
    return value, of_sample(strata, value, look.n, seen, sure)


def bernoulli(p: float, rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.random((1, n)) < p).astype(float)


def copies(rng: np.random.Generator, n: int) -> np.ndarray:
    """80 % of the images are always right, 15 % mostly, 5 % at any rate."""
    kind = rng.random(n)
    rates = np.where(kind < 0.8, 1.0, np.where(kind < 0.95, rng.beta(20, 1, n), rng.random(n)))
    return np.stack([rates, rng.binomial(COPIES, rates) / COPIES])


def pairs(gap: float, rng: np.random.Generator, n: int) -> np.ndarray:
    """Accuracies of .7 + gap and .7; what is hard for one is for the other: they disagree on a ninth."""
    own = 0.3
    scores = (rng.standard_normal(n) + own * rng.standard_normal((2, n))) / np.hypot(1, own)
    right = (scores < special.ndtri([[0.7 + gap], [0.7]])).astype(float)
    return np.stack([right[0] - right[1], *right])


def sample(rates: tuple[float, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    """The screen leaves half; of these the attack breaks such shares of each stratum."""
    margins, keys, screened = rng.random(n), rng.random(n), rng.random(n) < 0.5
    broken = rng.random(n) < np.array(rates)[np.searchsorted((0.05, 0.2), margins)]
    return np.stack([~screened & ~broken, np.where(screened, -1, margins), keys])


@dataclasses.dataclass(frozen=True)
class Shape:
    """How values are drawn, (rows, N); their intervals at a look; the mean of the first row at the source."""

    draw: Callable[[np.random.Generator, int], np.ndarray]
    see: Callable[[np.ndarray, PlannedLook, float, float], Seen]
    truth: float
    part: str = "clean"

    def plan(self, images: int) -> list[PlannedLook]:
        return PARTS[self.part].looks(images)

    def seen(self, rows: np.ndarray) -> Iterator[tuple[PlannedLook, float, AnytimeInterval]]:
        """What each look sees; the screen alone sees nothing of its attack."""
        n = rows.shape[1]
        plan = self.plan(n)
        for look in plan:
            if look.attacked != 0:
                yield look, *self.see(rows[:, : look.n], look, look.n / n, looks.confidence(len(plan)))


def shape_of_pairs(gap: float) -> Shape:
    return Shape(functools.partial(pairs, gap), see_pairs, gap)


def shape_of_sample(*rates: float) -> Shape:
    truth = 0.5 * (1 - float(np.dot((0.05, 0.15, 0.8), rates)))
    return Shape(functools.partial(sample, rates), see_sample, truth, "attack")


SHAPES = {
    **{f"Bernoulli {p}": Shape(functools.partial(bernoulli, p), see_values, p) for p in (0.5, 0.03, 0.003)},
    "PR of an image, skewed": Shape(copies, see_copies, 0.8 + 0.15 * 20 / 21 + 0.05 / 2),
    "two-phase, the margin tells": shape_of_sample(0.4, 0.1, 0.01),
    "two-phase, the margin tells nothing": shape_of_sample(0.03, 0.03, 0.03),
    "paired difference .05": shape_of_pairs(0.05),
}


def coverage(args: argparse.Namespace) -> None:
    for name, shape in SHAPES.items():
        rng = np.random.default_rng([args.seed, *name.encode()])
        held: dict[str, list[np.ndarray]] = {}
        for _ in range(args.runs):
            rows = shape.draw(rng, IMAGES)
            _, values, both = zip(*shape.seen(rows), strict=True)
            low, high = np.moveaxis(np.array(both), 2, 0)  # (looks, 2): of the source, of all images
            truths = np.array([shape.truth, rows[0].mean()])
            right = (low <= truths + 1e-12) & (truths - 1e-12 <= high)
            at = {"highest": np.argmax(values), "lowest": np.argmin(values)}
            for rule, place in {**at, "shortest": np.argmin((high - low)[:, 0])}.items():
                held.setdefault(rule, []).append(right[place])
            held.setdefault("every look", []).append(right.all(0))
        for rule, found in held.items():
            about = dict(zip(("of_source", "of_all"), np.mean(found, 0).round(4).tolist(), strict=True))
            show(f"coverage: {name}: {rule}", **about, goal=0.95, runs=args.runs)


# --- regret ---------------------------------------------------------------------------------------------

HALVES = ("half", "half_sampled", "half_all")


class Traced(Card):
    """A card that makes every look of every part, and notes what each took, and its intervals."""

    def note_in(self, file: Path) -> None:
        self.file = file
        self.made()

    def choose(self) -> PartState | None:
        return next((state for state in self.states if state.next is not None), None)

    def look(self, state: PartState) -> None:
        super().look(state)
        if state.reason is None:
            row = {"part": state.part.name, "look": state.looks[state.done - 1], "seconds": state.took[-1][1]}
            with self.file.open("a") as stream:
                print(json.dumps(row | {name: getattr(state, name) for name in HALVES}), file=stream)


def looks_of_digits(file: Path) -> None:
    record = {"schema": 1, "arch": sized("nasbench201", channels=8, cells=1).arch(13714), "dataset": "digits"}
    method = METHODS.build("pgd", eps=32 / 255, step_size=8 / 255, attack_steps=7)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.of(tool="card", store=Store(folder), device="cpu")
        trained = train_model.train(record, method, recipe.Recipe(epochs=15, lr=0.2), run)
        Traced(trained, CardRequest(CHOICES["all"], 32 / 255, None, 1e-9), run).note_in(file)


def looks_of_checkpoint(args: argparse.Namespace, file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        record, run = card_run(args, folder)
        Traced(record, CardRequest(CHOICES["all"], EPS, None, 1e-9), run).note_in(file)


def rows_of(file: Path) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for row in map(json.loads, file.read_text().splitlines()):
        rows.setdefault(row["part"], []).append({**row, "look": PlannedLook(*row["look"])})
    return rows


def with_costs(rows: dict[str, list[Row]], of: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """The looks at what the work of the last look `of` another model took."""
    made = {}
    for name, looked in rows.items():
        if name in of:
            part, dear = PARTS[name], of[name][-1]
            spent = sum(row["seconds"] for row in of[name])
            state = PartState(part, 1.0, [row["look"] for row in looked])
            rate = spent / part.work(dear["look"], state.left)
            made[name] = [{**row, "seconds": max(0.2, rate * state._new(i))} for i, row in enumerate(looked)]
    return made


class Replayed(Card):
    """The scheduler on looks that were made before: it computes nothing, and its clock is theirs."""

    def __init__(self, rows: dict[str, list[Row]], seconds: float) -> None:
        self.request = CardRequest(dict.fromkeys(rows, 1.0), EPS, seconds, 1e-9)
        self.states = [PartState(PARTS[name], 1.0, [row["look"] for row in of]) for name, of in rows.items()]
        self.seconds = seconds
        while (state := self.choose()) is not None:
            row = rows[state.part.name][state.done]
            self.seconds -= row["seconds"]
            if self.seconds < 0 and state.done:
                break  # the time is over in the middle of it
            state.done += 1
            state.spend(row["seconds"])
            state.half, state.half_sampled, state.half_all = (row[name] for name in HALVES)
        self.mean_half = float(np.mean([state.half for state in self.states]))

    def left(self) -> float:
        return self.seconds


def best_mean_half(rows: dict[str, list[Row]], seconds: float) -> tuple[float, list[int]]:
    """The least mean half-width of all choices of a last look for each part that take no more; their n."""
    front: list[tuple[float, float, list[int]]] = [(0.0, 0.0, [])]  # none betters another in both numbers
    for looked in rows.values():
        took = np.cumsum([row["seconds"] for row in looked]).tolist()
        every = sorted(
            (spent + more, total + row["half"], [*chosen, row["look"].n])
            for spent, total, chosen in front
            for more, row in zip(took, looked, strict=True)
            if spent + more <= seconds
        )
        least = list(itertools.accumulate((total for _, total, _ in every), min, initial=math.inf))
        front = [one for one, before in zip(every, least, strict=False) if one[1] < before]
    return (front[-1][1] / len(rows), front[-1][2]) if front else (math.nan, [])


def regret(args: argparse.Namespace) -> None:
    file, costs = Path(args.trace), Path(f"{args.trace}.costs")
    if not file.exists():
        looks_of_digits(file)
    if args.checkpoint and not costs.exists():
        looks_of_checkpoint(args, costs)
    rows = with_costs(rows_of(file), rows_of(costs)) if args.checkpoint else rows_of(file)
    everything = round(sum(row["seconds"] for looked in rows.values() for row in looked))
    for seconds in args.budgets:
        mine, (best, chosen) = Replayed(rows, seconds), best_mean_half(rows, seconds)
        sizes = {state.part.name: [state.n, n] for state, n in zip(mine.states, chosen, strict=False)}
        about = {"mean_half": round(mine.mean_half, 4), "best": round(best, 4), "goal": 1.15}
        about |= {"regret": round(mine.mean_half / best, 3), "n, best": sizes}
        show("regret", budget=seconds, everything=everything, **about)


# --- peers ----------------------------------------------------------------------------------------------


class AlikeRequest(CardRequest):
    """A card with the corruptions of the package imagecorruptions, which has the constants of ImageNet-C."""

    def parts(self) -> list[CardPart]:
        made = tuple(CORRUPTIONS.build(name, constants="imagenet") for name in CORRUPTIONS.all)
        task = CorruptionTask(made, units.SEVERITIES)
        alike = {"corruptions": {"job": lambda run, look, sure: EvaluateJob(task, run)}}
        return [dataclasses.replace(part, **alike.get(part.name, {})) for part in super().parts()]


def on_processor(work: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    start = time.process_time()
    found = work(*given)
    return time.process_time() - start, found


def card_run(args: argparse.Namespace, folder: str) -> tuple[Record, Run]:
    """The record of the checkpoint, and a run with a store of its own."""
    given: dict[str, Any] = {"dataset": f"imagefolder:{args.data}", "device": "cpu", "n": args.n}
    run = Run.of(tool="card", store=Store(folder), **given)
    record = checkpoints.record_of(args.checkpoint, checkpoints.CheckpointHints(None, None), run)
    return checkpoints.prepared(record, run), run


def values_of_peers(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Metrics of a card, and how others' tools measure them."""
    import torchattacks

    others = Bench(argparse.Namespace(**vars(args), arch=None, cpu=True, eps=8))
    make = functools.partial(torchattacks.PGD, eps=EPS, alpha=EPS / 8, steps=20)
    model, images, labels = others.model, others.images, others.labels

    def corrupted() -> float:
        levels = (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
        right, every = 0, list(itertools.product(CORRUPTIONS.all, units.SEVERITIES))
        with peer.running() as module, torch.no_grad():
            for name, severity in every:
                made = torch.from_numpy(theirs(module, name, levels, severity)).permute(0, 3, 1, 2)
                right += int((model(made.float() / 255).argmax(1) == labels).sum())
        return right / len(labels) / len(every)

    def noisy() -> list[float]:
        found = plain_loop(model, images, labels, GAMMAS, COPIES)
        return [float(right.float().mean()) / COPIES for right in found]

    yield "pgd20.8", lambda: others.theirs(make, 0)
    yield "aa.8", lambda: float(others.pyautoattack(0).float().mean())
    yield "corrupt.mean", corrupted
    yield "pr-all", noisy


def peers(args: argparse.Namespace) -> None:
    total, values = 0.0, {}
    for name, work in values_of_peers(args):
        took, values[name] = on_processor(work)
        total += took
        show(f"peers: {name} of a peer", n=args.n, seconds=round(took, 1), value=values[name])
    values |= zip((f"pr-all.uniform.{gamma:.6g}" for gamma in GAMMAS), values.pop("pr-all"), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        record, run = card_run(args, folder)
        spent = 0.0
        for part in AlikeRequest(ALIKE, EPS, None, 0.01).parts():
            took, made = on_processor((part.on_all or part.job)(run, PlannedLook(args.n), 0.95), record)
            spent += took
            found = {metric: made["metrics"][metric] for metric in (*part.headlines, *part.paired)}
            show(f"peers: exact, {part.name}", n=args.n, seconds=round(took, 1), values=found)
    show("peers: exact", n=args.n, seconds=round(spent, 1), times=round(total / spent, 2), goal=3)
    for name, weights in (("the same parts", ALIKE), ("all parts", CHOICES["all"])):
        with tempfile.TemporaryDirectory() as folder:
            record, run = card_run(args, folder)
            took, made = on_processor(run_card, record, AlikeRequest(weights, EPS, None, 0.01), run)
        about = {"seconds": round(took, 1), "times": round(total / took, 2), "goal": 8}
        show(f"peers: card, {name}", n=args.n, **about, card=made["card"])
        for entry in made["evals"]:
            if (value := values.get(entry["metric"])) is not None and "anytime" in entry:
                low, high = entry["anytime"]["interval"]
                about = {"ours": entry["value"], "of_all": [low, high], "ci95": entry["ci95"]}
                show(f"peers: {entry['metric']}", value=value, **about, holds=low <= value <= high)


# --- pair -----------------------------------------------------------------------------------------------


def pair(args: argparse.Namespace) -> None:
    for gap, images in ((0.05, 10_000), (0.005, 10_000), (0.005, 50_000)):
        shape, rng = shape_of_pairs(gap), np.random.default_rng([args.seed, images])
        disagree = float(np.abs(shape.draw(rng, 1_000_000)[0]).mean())
        # Connor, Biometrics 43, 1987: McNemar's test at .05 with power .8.
        fixed = (special.ndtri((0.975, 0.8)) @ np.sqrt((disagree, disagree - gap**2)) / gap) ** 2
        ended, wrong = np.full((args.runs // 10, 2), np.inf), np.zeros(2)
        for run in ended:
            rows = shape.draw(rng, images)
            better = np.sign([gap, rows[0].mean()])
            for look, _, both in shape.seen(rows):
                low, high = np.array(both).T
                new = ((low > 0) | (high < 0)) & np.isinf(run)
                run[new] = look.n
                wrong += new & (np.sign(low + high) != better)
        # Of just these images fewer tell, by the correction for a finite population.
        for place, (name, needs) in enumerate({"source": fixed, "all": fixed / (1 + fixed / images)}.items()):
            ns = np.minimum(ended[:, place], images)
            about = {"disagree": round(disagree, 3), "fixed": round(needs), "mean": round(ns.mean())}
            about |= {"ratio": round(ns.mean() / needs, 2), "median": float(np.median(ns))}
            about |= {"decided": float(np.isfinite(ended[:, place]).mean()), "runs": len(ns)}
            show(f"pair: {gap} of {images} images, of {name}", **about, wrong=wrong[place] / len(ns))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = {"coverage": coverage, "regret": regret, "peers": peers, "pair": pair}
    parser.add_argument("part", nargs="+", choices=work, help="what to measure")
    parser.add_argument("--runs", type=int, default=2000, help="of a simulation; pair has a tenth [2000]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", default="card-looks.jsonl", help="looks of regret, and .costs beside it")
    parser.add_argument(
        "--budgets", type=float, nargs="+", default=[60, 300, 1200], help="of regret, seconds"
    )
    parser.add_argument("--checkpoint", help="a model")
    parser.add_argument("--data", help="its images")
    parser.add_argument("--n", type=int, default=64, help="how many of them [64]")
    args = parser.parse_args()
    for part in args.part:
        work[part](args)


if __name__ == "__main__":
    main()
