"""Figures of rb-card: coverage of its intervals, regret of its scheduler, time beside others' tools, pairs.

    python bench/card.py coverage [--runs 2000]
    python bench/card.py regret [--checkpoint FILE --data FOLDER]
    python bench/card.py peers --checkpoint FILE --data FOLDER [--n 64]
    python bench/card.py pair [--runs 2000]

coverage  of the anytime intervals, simulated: of runs that stop at the look where the value is highest, or
          lowest, or the interval shortest, and of all looks together
regret    mean half-width after a time, beside the best choice of looks in hindsight
peers     processor seconds of a card beside the sum of what it replaces, and whether its intervals hold
          their values; FILE and FOLDER as for bench/attacks.py
pair      images until the looks decide between two models, beside a fixed number with the same error

One JSON line a figure.
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
from rbtools.jobs.card import Card, CardRequest, PartState, Record, run_card
from rbtools.jobs.card_parts import CHOICES, Look, Part, parts
from rbtools.probabilistic import looks, two_phase
from rbtools.probabilistic.looks import AnytimeInterval
from rbtools.spaces import sized
from rbtools.store import Store
from rbtools.trainer import recipe, train_model
from rbtools.training import METHODS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.corruptions import peer

IMAGES = 1000
Seen = tuple[float, AnytimeInterval]
of_sample = functools.lru_cache(1 << 16)(looks.of_sample)


@functools.lru_cache(1 << 16)
def _of_sorted(values: bytes, seen: float, sure: float) -> AnytimeInterval:
    return looks.of_mean(np.frombuffer(values), seen, sure)


def of_mean(values: np.ndarray, seen: float, sure: float) -> AnytimeInterval:
    """The intervals of the same values once only: those of zeros and ones are few."""
    return _of_sorted(np.sort(values).tobytes(), seen, sure)


# --- coverage -------------------------------------------------------------------------------------------


class Shape:
    """Values of one kind, one an image: how they are drawn, their true mean, and the looks at them."""

    def __init__(
        self, draw: Callable[[np.random.Generator, int], np.ndarray], truth: float, images: int = IMAGES
    ) -> None:
        self.draw, self.truth = draw, truth
        self.plan = parts(8 / 255)["clean"].looks(images)
        self.sure = looks.confidence(len(self.plan))

    def mean(self, values: np.ndarray) -> float:
        return float(values.mean())

    def see(self, rng: np.random.Generator, values: np.ndarray) -> Iterator[Seen]:
        for look in self.plan:
            some = values[: look.n]
            yield float(some.mean()), of_mean(some, look.n / len(values), self.sure)


class Copies(Shape):
    """Rates of the images, and shares of 100 copies that are right (2, N). The truth is of the rates."""

    def mean(self, values: np.ndarray) -> float:
        return float(values[0].mean())

    def see(self, rng: np.random.Generator, values: np.ndarray) -> Iterator[Seen]:
        for look in self.plan:
            some, seen = values[1, : look.n], look.n / values.shape[1]
            value, of_source = float(some.mean()), of_mean(some, seen, self.sure).of_source
            yield value, looks.of_copies(value, of_source, look.n, 100, seen, self.sure)


class Pairs(Shape):
    """Two models, right (2, N) as a shared difficulty of the images and noise of their own have it."""

    def mean(self, values: np.ndarray) -> float:
        return float((values[0] - values[1]).mean())

    def see(self, rng: np.random.Generator, values: np.ndarray) -> Iterator[Seen]:
        for look in self.plan:
            first, second = values[:, : look.n]
            seen = look.n / values.shape[1]
            yield float((first - second).mean()), looks.of_pairs(first, second, seen, self.sure)


class TwoPhase(Shape):
    """Rows (2, N): the margin under the screen, below 0 if that broke the image, and whether it stands.

    rates: of the survivors of each stratum that the attack breaks.
    """

    def __init__(self, left: float, rates: tuple[float, float, float]) -> None:
        edges = np.cumsum([0.05, 0.15])

        def draw(rng: np.random.Generator, n: int) -> np.ndarray:
            margins = rng.random(n)
            broken = rng.random(n) < np.array(rates)[np.searchsorted(edges, margins)]
            screened = rng.random(n) >= left
            return np.stack([np.where(screened, -1, margins), ~screened & ~broken])

        super().__init__(draw, left * (1 - float(np.dot((0.05, 0.15, 0.8), rates))))
        self.plan = parts(8 / 255)["attack"].looks(IMAGES)
        self.sure = looks.confidence(len(self.plan))

    def mean(self, values: np.ndarray) -> float:
        return float(values[1].mean())

    def see(self, rng: np.random.Generator, values: np.ndarray) -> Iterator[Seen]:
        keys = rng.random(values.shape[1])
        for look in self.plan:
            if look.attacked == 0:  # the screen alone has no interval of the attack
                continue
            margins, stands = values[:, : look.n]
            left = np.flatnonzero(margins >= 0)
            order, stratum = two_phase.order(margins[left], keys[left])
            size = len(left) if look.attacked is None else min(look.attacked, len(left))
            strata = two_phase.strata(len(left), stratum[:size], stands[left][order[:size]])
            value = two_phase.estimate(strata).robust / look.n
            yield value, of_sample(tuple(strata), value, look.n, look.n / values.shape[1], self.sure)


def bernoulli(p: float) -> Shape:
    return Shape(lambda rng, n: (rng.random(n) < p).astype(float), p)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rates, and shares of 100 copies (2, N): 80 % of images always right, 15 % mostly, 5 % at any rate."""
    kind = rng.random(n)
    rates = np.where(kind < 0.8, 1.0, np.where(kind < 0.95, rng.beta(20, 1, n), rng.random(n)))
    return np.stack([rates, rng.binomial(100, rates) / 100])


def pairs(rng: np.random.Generator, n: int, gap: float = 0.05, own: float = 0.3) -> np.ndarray:
    """Right (2, N): accuracies of .7 + gap and .7; they disagree about a tenth of the images."""
    hard = rng.standard_normal(n)
    scores = (hard + own * rng.standard_normal((2, n))) / np.hypot(1, own)
    ends = special.ndtri(np.array([[0.7 + gap], [0.7]]))
    return (scores < ends).astype(float)


SHAPES: dict[str, Shape] = {
    "Bernoulli, .5": bernoulli(0.5),
    "Bernoulli, .03": bernoulli(0.03),
    "Bernoulli, .003": bernoulli(0.003),
    "PR of an image, skewed": Copies(skewed, 0.8 + 0.15 * 20 / 21 + 0.05 / 2),
    "two-phase, the margin tells": TwoPhase(0.5, (0.4, 0.1, 0.01)),
    "two-phase, the margin tells nothing": TwoPhase(0.5, (0.03, 0.03, 0.03)),
    "paired difference, .05": Pairs(pairs, 0.05),
}


def coverage(args: argparse.Namespace) -> None:
    for name, shape in SHAPES.items():
        rng = np.random.default_rng([args.seed, *name.encode()])
        held: dict[str, list[np.ndarray]] = {}
        for _ in range(args.runs):
            values = shape.draw(rng, IMAGES)
            seen = list(shape.see(rng, values))
            truths = shape.truth, shape.mean(values)
            ends = np.array([both for _, both in seen])  # (looks, 2, 2)
            right = (ends[:, :, 0] <= np.add(truths, 1e-12)) & (ends[:, :, 1] >= np.subtract(truths, 1e-12))
            means, lengths = np.array([value for value, _ in seen]), np.diff(ends[:, 0])[:, 0]
            at = {"highest": means.argmax(), "lowest": means.argmin(), "shortest": lengths.argmin()}
            for rule, place in at.items():
                held.setdefault(rule, []).append(right[place])
            held.setdefault("every look", []).append(right.all(0))
        for rule, rows in held.items():
            source, everything = np.mean(rows, 0)
            about = {"of_source": round(source, 4), "of_all": round(everything, 4), "goal": 0.95}
            show(f"coverage: {name}: {rule}", **about, runs=args.runs, looks=len(shape.plan))


# --- peers ----------------------------------------------------------------------------------------------

ALIKE = dict.fromkeys(("clean", "attack", "corruptions", "pr"), 1.0)  # the parts that have a peer


class AlikeRequest(CardRequest):
    """A card with the corruptions of the package imagecorruptions, which has the constants of ImageNet-C."""

    def parts(self) -> list[Part]:
        corruptions = tuple(CORRUPTIONS.build(name, constants="imagenet") for name in CORRUPTIONS.all)
        task = CorruptionTask(corruptions, units.SEVERITIES)
        return [
            dataclasses.replace(part, job=lambda run, look, sure: EvaluateJob(task, run))
            if part.name == "corruptions"
            else part
            for part in super().parts()
        ]


def on_processor(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def card_run(args: argparse.Namespace, folder: str, **more: Any) -> tuple[Record, Run]:
    """The record of the checkpoint, and a run with a store of its own."""
    run = Run.of(
        tool="card", store=Store(folder), dataset=f"imagefolder:{args.data}", device="cpu", n=args.n, **more
    )
    record = checkpoints.record_of(args.checkpoint, checkpoints.CheckpointHints(None, None), run)
    return checkpoints.prepared(record, run), run


def peers(args: argparse.Namespace) -> None:
    options = argparse.Namespace(**vars(args), arch=None, cpu=True, eps=8)
    others = Bench(options)
    seconds, values = {}, {}

    def pgd() -> float:
        import torchattacks

        make = torchattacks.PGD
        return others.theirs(lambda model: make(model, eps=8 / 255, alpha=1 / 255, steps=20), 0)

    def corrupted() -> float:
        images = (others.images * 255).round().byte().permute(0, 2, 3, 1).numpy()
        right = 0
        with peer.running() as module, torch.no_grad():
            for name, severity in itertools.product(CORRUPTIONS.all, units.SEVERITIES):
                made = torch.from_numpy(theirs(module, name, images, severity)).permute(0, 3, 1, 2)
                right += int((others.model(made.float() / 255).argmax(1) == others.labels).sum())
        return right / len(images) / len(CORRUPTIONS.all) / len(units.SEVERITIES)

    def copies() -> list[float]:
        found = plain_loop(others.model, others.images, others.labels, GAMMAS, 100)
        return [float(right.float().mean()) / 100 for right in found]

    plain: dict[str, Callable[[], Any]] = {
        "torchattacks PGD-20": pgd,
        "pyautoattack standard": lambda: float(others.pyautoattack(0).float().mean()),
        "imagecorruptions, a loop": corrupted,
        "PR, a loop of 100 copies": copies,
    }
    for name, work in plain.items():
        seconds[name], values[name] = on_processor(work)
        show(f"peers: {name}", n=args.n, seconds=round(seconds[name], 1), value=values[name])
    theirs_sum = sum(seconds.values())
    with tempfile.TemporaryDirectory() as folder:
        record, run = card_run(args, folder)
        took = 0.0
        for part in AlikeRequest(ALIKE, 8 / 255, None, 0.01).parts():
            job = (part.on_all or part.job)(run, Look(args.n), 0.95)
            took += on_processor(functools.partial(job, record))[0]
    show("peers: exact", n=args.n, seconds=round(took, 1), times=round(theirs_sum / took, 2), goal=3)
    for name, weights in (("the same parts", ALIKE), ("all parts", CHOICES["all"])):
        with tempfile.TemporaryDirectory() as folder:
            record, run = card_run(args, folder)
            request = AlikeRequest(weights, 8 / 255, None, 0.01)
            took, made = on_processor(functools.partial(run_card, record, request, run))
        about = {"seconds": round(took, 1), "times": round(theirs_sum / took, 2), "goal": 8}
        show(f"peers: card, {name}", n=args.n, **about, card=made["card"])
        inside(made, values)


def inside(made: Record, values: dict[str, Any]) -> None:
    """Show each value of a peer, and the interval of the card for it."""
    entries = {entry["metric"]: entry for entry in made["evals"]}
    names = {
        "torchattacks PGD-20": "pgd20.8",
        "pyautoattack standard": "aa.8",
        "imagecorruptions, a loop": "corrupt.mean",
    }
    wanted = [(entries[metric], values[name]) for name, metric in names.items() if metric in entries]
    of_noise = [entry for metric, entry in entries.items() if metric.startswith("pr-all.")]
    wanted += zip(of_noise, values["PR, a loop of 100 copies"], strict=True)
    for entry, value in wanted:
        low, high = entry["anytime"]["interval"] if "anytime" in entry else (None, None)
        fits = None if low is None else low - 1e-9 <= value <= high + 1e-9
        show(
            f"peers: interval of {entry['metric']}",
            value=value,
            ours=entry["value"],
            interval=[low, high],
            ci95=entry.get("ci95"),
            n=entry.get("n"),
            fits=fits,
        )


# --- regret ---------------------------------------------------------------------------------------------

Row = dict[str, Any]


class Traced(Card):
    """A card that makes every look of every part, and notes what each took, and its intervals."""

    def note_in(self, file: Path) -> None:
        self.file = file
        self.made()

    def choose(self) -> PartState | None:
        return next((state for state in self.states if state.next is not None), None)

    def take(self, state: PartState, look: Look, result: Record) -> None:
        super().take(state, look, result)
        self.taken = {"part": state.part.name, "look": look} | {name: getattr(state, name) for name in HALVES}

    def look(self, state: PartState) -> None:
        super().look(state)
        if state.reason is None:
            with self.file.open("a") as stream:
                print(json.dumps({**self.taken, "seconds": state.last}), file=stream)


HALVES = ("half", "half_sampled", "half_all")


def trace(file: Path) -> None:
    """Note all looks at a network that is trained here, on digits with attacks."""
    record = {"schema": 1, "arch": sized("nasbench201", channels=8, cells=1).arch(13714), "dataset": "digits"}
    method = METHODS.build("pgd", eps=32 / 255, step_size=8 / 255, attack_steps=7)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.of(tool="card", store=Store(folder), device="cpu")
        trained = train_model.train(record, method, recipe.Recipe(epochs=15, lr=0.2), run)
        Traced(trained, CardRequest(CHOICES["all"], 32 / 255, None, 1e-9), run).note_in(file)


class Replayed(Card):
    """The scheduler on looks that were made before: it computes nothing, and its clock is theirs."""

    def __init__(self, rows: dict[str, list[Row]], seconds: float) -> None:
        self.request = CardRequest(dict.fromkeys(rows, 1.0), 8 / 255, seconds, 1e-9)
        self.spent = 0.0
        known = parts(8 / 255)
        self.states = [
            PartState(known[name], 1.0, [Look(*row["look"]) for row in looked])
            for name, looked in rows.items()
        ]
        while (state := self.choose()) is not None:
            row = rows[state.part.name][state.done]
            self.spent += row["seconds"]
            if self.left() < 0 and state.done:
                break  # the time is over in the middle of it
            state.done, state.last = state.done + 1, row["seconds"]
            state.half, state.half_sampled, state.half_all = (row[name] for name in HALVES)
        self.mean_half = float(np.mean([state.half for state in self.states]))

    def left(self) -> float:
        return float(self.request.seconds or 0) - self.spent


def best_mean_half(rows: dict[str, list[Row]], seconds: float) -> tuple[float, list[int]]:
    """The least mean half-width of all choices of a last look for each part that take no more; the looks."""
    front: list[tuple[float, float, list[int]]] = [(0.0, 0.0, [])]  # none betters another in both numbers
    for looked in rows.values():
        took = np.cumsum([row["seconds"] for row in looked]).tolist()
        every = sorted(
            (spent + more, total + row["half"], [*chosen, row["look"][0]])
            for spent, total, chosen in front
            for more, row in zip(took, looked, strict=True)
            if spent + more <= seconds
        )
        front, least = [], math.inf
        for one in every:
            if one[1] < least:
                least = one[1]
                front.append(one)
    return (front[-1][1] / len(rows), front[-1][2]) if front else (math.nan, [])


def regret(args: argparse.Namespace) -> None:
    file = Path(args.trace)
    if not file.exists():
        trace(file)
    rows: dict[str, list[Row]] = {}
    for row in map(json.loads, file.read_text().splitlines()):
        rows.setdefault(row["part"], []).append(row)
    everything = sum(row["seconds"] for looked in rows.values() for row in looked)
    for seconds in args.budgets:
        mine, (best, chosen) = Replayed(rows, seconds), best_mean_half(rows, seconds)
        about = {"mean_half": round(mine.mean_half, 4), "best": round(best, 4), "goal": 1.15}
        sizes = {state.part.name: [state.n, n] for state, n in zip(mine.states, chosen, strict=False)}
        about |= {"regret": round(mine.mean_half / best, 3), "images, best": sizes}
        show("regret", budget=seconds, spent=round(mine.spent, 1), everything=round(everything), **about)


# --- pair -----------------------------------------------------------------------------------------------


def pair(args: argparse.Namespace) -> None:
    for gap, count in ((0.05, 10_000), (0.005, 10_000), (0.005, 50_000)):
        shape = Pairs(functools.partial(pairs, gap=gap), gap, count)
        rng = np.random.default_rng([args.seed, count])
        disagree = float(np.abs(np.diff(pairs(rng, 1_000_000, gap), axis=0)).mean())
        # Connor, Biometrics 43, 1987: McNemar's test at .05 with power .8.
        ends = special.ndtri((0.975, 0.8)) * np.sqrt((disagree, disagree - gap**2))
        fixed = float(ends.sum() / gap) ** 2
        spent, wrong = np.full((args.runs // 10, 2), np.inf), np.zeros(2)
        for run in spent:
            values = shape.draw(rng, count)
            better = np.sign([gap, shape.mean(values)])
            for look, (_, both) in zip(shape.plan, shape.see(rng, values), strict=True):
                low, high = np.array(both).T
                news = ((low > 0) | (high < 0)) & np.isinf(run)
                run[news] = look.n
                wrong += news & (np.sign(low + high) != better)
        # The difference on just these images needs fewer of them.
        for name, ns, needs, errors in zip(
            ("of the source", "of all images"),
            spent.T,
            (fixed, fixed / (1 + (fixed - 1) / count)),
            wrong,
            strict=True,
        ):
            most = float(np.quantile(ns, 0.8, method="inverted_cdf"))
            show(
                f"pair: difference {gap}, {count} images, {name}",
                disagree=round(disagree, 3),
                fixed=round(needs),
                mean=round(float(np.minimum(ns, count).mean())),
                ratio=round(float(np.minimum(ns, count).mean()) / needs, 2),
                power_reached_at=most if np.isfinite(most) else None,
                decided=round(float(np.isfinite(ns).mean()), 3),
                wrong=errors / len(ns),
                runs=len(ns),
            )


PARTS = {"coverage": coverage, "regret": regret, "peers": peers, "pair": pair}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="+", choices=PARTS, help="what to measure")
    parser.add_argument("--runs", type=int, default=2000, help="of each simulation [2000]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--trace", default="card-looks.jsonl", help="file of regret: looks that were made, or will be"
    )
    parser.add_argument("--budgets", type=float, nargs="+", default=[60, 300, 1200], help="seconds of regret")
    parser.add_argument("--checkpoint", help="the model of peers")
    parser.add_argument("--data", help="its images, a folder with test/CLASS/*")
    parser.add_argument("--n", type=int, default=64, help="images of peers [64]")
    args = parser.parse_args()
    for part in args.part:
        PARTS[part](args)


if __name__ == "__main__":
    main()
