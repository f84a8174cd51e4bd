"""An expensive attack on a sample of the images that survive cheap attacks: `rb-attack aa --two-phase`.

The first phase is a cheap PGD attack (APGD in L1) on all images, first with the cross-entropy and then with
the margin. The survivors are put into a random stratified order (`probabilistic.two_phase`), and the
expensive attack runs on the first N of them. The order is fixed. Therefore, a run with a larger N, or a run
after a crash, continues from the stored outcomes. A finished estimate is stored as a separate result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.attacks import ATTACKS
from rbtools.attacks.apgd import APGDMargin
from rbtools.attacks.losses import logit_margin
from rbtools.datasets import indices
from rbtools.errors import Pending, RbError
from rbtools.evaluation import attacking
from rbtools.evaluation.accuracy import Attacked, Clean
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.spec import Evaluation, Spec
from rbtools.jobs import randomness, stored_results
from rbtools.jobs.evaluate_record import Ask, Entries, Entry, Plan, PlanJob
from rbtools.lazy import np, torch
from rbtools.probabilistic import two_phase
from rbtools.records import answers, dumps, results
from rbtools.rng import seed_fields
from rbtools.rng.draws import Draws
from rbtools.store import digest

if TYPE_CHECKING:
    from rbtools.attacks.base import Attack
    from rbtools.execution.run import Run
from rbtools.inputs.resolve import Inputs

_OF_SAMPLE = ("loss", "device", "precision", "prepared", "warnings", "environment", "versions")
_BROKEN = -1.0  # the margin of an image that a cheap attack breaks
VERSION = 1  # version of the estimate from outcomes


def screen_of(method: Attack, steps: int) -> tuple[Attack, ...]:
    """The cheap attacks of the first phase, on the cross-entropy and then on the margin, in the norm of
    `method`: PGD, or l1-APGD in L1, where the direction of a step is more important."""
    if method.norm == "l1":
        return ATTACKS.build("apgd-ce", norm="l1", steps=steps), APGDMargin(norm="l1", steps=steps)
    return tuple(ATTACKS.build(name, norm=method.norm, steps=steps) for name in ("pgd", "cw"))


@dataclass(frozen=True, kw_only=True)
class Screened(Spec):
    """The share of images that survive cheap attacks. A row (1,) is the smallest margin of the example under
    these attacks, or -1 if the example is misclassified."""

    attacks: tuple[Any, ...]
    searches = True

    @property
    def most_passes(self) -> int:
        return 1 + sum(attack.most_passes for attack in self.attacks)

    def name(self) -> str:
        return "screen"

    def column(self) -> Entry:
        return {"kind": "screen", "attacks": [Attacked(method=attack).column() for attack in self.attacks]}

    def settings(self) -> Entry:
        return {}

    def correct(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, 0] >= 0

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        n, left = len(rows), int(self.correct(rows).sum())
        return {"n": n, "value": left / n}

    def rows(self, batch: Batch) -> Outcome:
        """Each attack runs only on the images that are still classified correctly."""
        still_correct, least = batch.clean, torch.full_like(batch.images[:, 0, 0, 0], torch.inf)
        totals = {"forward": 0.0, "backward": 0.0}
        for attack in self.attacks:
            result = attacking.run_attack(batch, attack, still_correct=still_correct)
            still_correct = result.survived
            least = torch.minimum(least, logit_margin(result.logits, batch.labels))
            for name, value in result.totals.items():
                totals[name] = totals.get(name, 0.0) + value
        rows = torch.where(still_correct, least.clamp_min(0), torch.full_like(least, _BROKEN))
        return Outcome(rows[:, None], totals)


@dataclass(frozen=True)
class TwoPhaseJob(PlanJob):
    """Estimates the accuracy under both phases together from a sample, at each eps.

    `screen` contains the cheap attacks of the first phase. `size` is the number of images for the expensive
    attack; None means all survivors of the first phase. `goal` is an alternative to `size`: the run stops if
    half the length of the interval is at most `goal`.
    """

    method: Any
    eps: tuple[float, ...]
    screen: tuple[Any, ...]
    size: int | None = None
    goal: float | None = None

    def plans(self, record: dict[str, Any], run: Run) -> Sequence[Plan]:
        return [self._estimates]

    def _estimates(self, ask: Ask) -> Iterator[Entries]:
        if randomness.found(ask.inputs).randomised:
            raise RbError(
                "--two-phase cannot average over random draws, and this model is randomised. Leave it out."
            )
        estimates = [_Estimate(ask, self, eps) for eps in self.eps]
        yield [estimate.expected() for estimate in estimates]
        calls, plan = [estimate.entry for estimate in estimates], ask.inputs.run.plan
        entries = [call() for call in calls] if plan is None else plan.each(calls)
        yield [_finer(ask.inputs, entry) for entry in entries]


def _finer(inputs: Inputs, entry: Entry) -> Entry:
    """The entry, or the record's earlier entry if the earlier one is based on a larger sample."""
    old = results.last_entry(inputs.record, entry["metric"])
    sampled = results.at(old, ("two_phase", "sampled"))
    if inputs.run.replace or not isinstance(sampled, int) or sampled <= entry["two_phase"]["sampled"]:
        return entry
    inputs.run.report.notify(
        f"{entry['metric']}: the record keeps its estimate, which uses a larger sample ({sampled})."
    )
    return dict(old)


class _Estimate:
    """The estimate of both phases at one eps."""

    def __init__(self, ask: Ask, request: TwoPhaseJob, eps: float) -> None:
        self.ask, self.inputs, self.request, self.n = ask, ask.inputs, request, ask.inputs.n
        self.screen = Screened(attacks=tuple(replace(attack, eps=eps) for attack in request.screen))
        self.attack = Attacked(method=replace(request.method, eps=eps))
        self.task = Evaluation(title=str(self.attack.method.stem), specs=(self.attack,))
        self.about = {"screen_steps": getattr(request.screen[0], "steps", None)}

    def expected(self) -> Entry:
        """The fields of the entry that are known before the work."""
        (entry,) = self.ask.expected(self.task)
        # the seed of the sample, which an attack without random numbers needs, too
        drawn = seed_fields(self.inputs.run.settings.seed)
        return {**entry, **drawn, "screen": ",".join(attack.stem for attack in self.screen.attacks)}

    def entry(self) -> Entry:
        """The entry with its estimate, which is read from the store or computed."""
        run, key_fields = self.inputs.run, self._key_fields()
        try:
            screened = self.ask(Evaluation(title="screen", specs=(self.screen,), along=(Clean(),)))
        except Pending:
            self._note_sample()
            raise
        expected = {name: value for name, value in self.expected().items() if value is not results.LATER}
        if kept := stored_results.stored_entries(run, key_fields, 1):
            return expected | kept[0]
        entry = expected | self._measured(screened)
        if run.plan is None:
            numbers = {name: value for name, value in entry.items() if name not in ("tool", "dataset")}
            stored_results.keep_entries(self.inputs, key_fields, [orjson.loads(dumps(numbers))])
        return entry

    def _note_sample(self) -> None:
        """Make a dry run list the second phase with the number of images that the sample would have."""
        n, data = self.n, self.inputs.data
        size = min(self.request.size or n, n) if self.request.goal is None else two_phase.looks(n)[0]
        some = data.order(data.load().labels)[:n].tolist()
        chosen = indices.of(some, in_order=True)  # its key belongs to no other evaluation
        with contextlib.suppress(Pending):
            stored_results.task_entries(self.inputs.on(data.split, indices=chosen, n=size), self.task)

    def _key_fields(self) -> dict[str, Any]:
        """Everything that determines the entry, as fields of its key."""
        inputs, request = self.inputs, self.request
        specs = {"attack": self.attack, "screen": self.screen}
        return {
            "kind": "two-phase",
            **stored_results.inputs_fields(inputs),
            **{name: digest(stored_results.outcome_fields(inputs, spec)) for name, spec in specs.items()},
            **seed_fields(inputs.run.settings.seed),
            **self.about,
            "n": self.n,
            **({"size": request.size} if request.goal is None else {"goal": request.goal}),
            "estimate": [VERSION, two_phase.VERSION, stored_results.POSTPROCESSING],
        }

    def _measured(self, screened: stored_results.Results) -> Entry:
        """The fields of the entry that are known after the work."""
        inputs, goal = self.inputs, self.request.goal
        margins = screened.rows(self.screen, again=True)[:, 0]  # (n,), -1 if a cheap attack breaks the image
        left = np.flatnonzero(margins >= 0)
        looks = two_phase.looks(len(left)) if goal is not None else [self.request.size or len(left)]
        confidence = two_phase.confidence_of_look(len(left)) if goal is not None else 0.95
        order, stratum = self._order(left, margins[left])
        of_sample: list[Entry] = []
        parts, stands = two_phase.strata(0, stratum[:0], stratum[:0]), np.zeros(0)
        for size in looks if len(left) else ():
            sample = inputs.on(inputs.data.split, indices=order, n=min(size, len(left)))
            of_sample, _, rows = stored_results.task_entries(sample, self.task)
            stands = rows(self.attack, again=True)
            parts = two_phase.strata(len(left), stratum[:size], stands)
            low, high = two_phase.estimate(parts, confidence).interval
            if goal is not None and (high - low) / 2 / self.n <= goal:
                break
        whole = len(left) == sum(part.sampled for part in parts) and self.n <= answers.MOST
        bits = self._answers(order, stands) if whole else {}
        return self._estimated(parts, confidence, of_sample) | self._cost(screened, of_sample) | bits

    def _order(self, left: np.ndarray, margins: np.ndarray) -> tuple[indices.Indices, np.ndarray]:
        """The places in the split and the strata (S,) of the survivors, in the order of the sample."""
        data = self.inputs.data
        numbers = data.order(data.load().labels)[: self.n][torch.from_numpy(left)]
        keys = Draws(self.inputs.run.settings.seed, "two-phase", numbers).uniform((1,))[:, 0].double().numpy()
        order, stratum = two_phase.order(margins, keys)
        return indices.of(numbers[torch.from_numpy(order)].tolist(), in_order=True), stratum

    def _answers(self, order: indices.Indices, stands: np.ndarray) -> Entry:
        """One bit for each image, which is 1 if the image survives both phases. `stands` (N,) is 1 for each
        survivor of the first phase, all in the order `order`, that also survives the expensive attack."""
        data = self.inputs.data
        right = np.isin(data.order(data.load().labels)[: self.n].numpy(), np.array(order.numbers)[stands > 0])
        return {answers.FIELD: answers.packed(right, stored_results.examples_digest(data))}

    def _estimated(
        self, parts: Sequence[two_phase.Stratum], confidence: float, of_sample: Sequence[Entry]
    ) -> Entry:
        """The value, its interval, and the numbers from which the value was estimated."""
        n, estimate = self.n, two_phase.estimate(parts, confidence)
        about: Entry = {
            "survivors": sum(part.size for part in parts),
            "sampled": sum(part.sampled for part in parts),
            **self.about,
            "estimator": two_phase.FIXED,
            "version": two_phase.VERSION,
            "strata": [list(part) for part in parts],
            "interval": [end / n for end in estimate.interval],
        }
        for entry in of_sample:
            if "broken_by" in entry:
                about["broken_by"] = entry["broken_by"]
        if self.request.goal is not None:
            about |= {"goal": self.request.goal, "confidence": round(confidence, 6)}
            if not estimate.exact:
                about["estimator"] = two_phase.STOPPED
        interval = two_phase.population_interval(estimate.robust, estimate.interval, n)
        return {"value": estimate.robust / n, "ci95": list(interval), "two_phase": about}

    def _cost(self, screened: stored_results.Results, of_sample: Sequence[Entry]) -> Entry:
        """Seconds and passes of both phases, and precision and warnings of the expensive attack."""
        entries = [*screened.entries, *of_sample]
        fields = {name: value for entry in entries for name, value in entry.items() if name in _OF_SAMPLE}
        passes = {
            name: round(sum(entry["passes"][name] * entry["n"] for entry in entries) / self.n, 2)
            for name in ("forward", "backward")
            if all("passes" in entry for entry in entries)
        }
        seconds = round(sum(entry["seconds"] for entry in entries), 3)
        return fields | {"seconds": seconds} | ({"passes": passes} if passes else {})
