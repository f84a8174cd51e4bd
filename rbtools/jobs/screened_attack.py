"""An expensive attack on a sample of the images that cheap attacks do not break: `rb-attack aa --two-phase`.

The screen, PGD (in L1 APGD) on the cross-entropy and then on the margin, runs on all images. The attack
itself runs on the first N images that the screen leaves, in a random stratified order
(`probabilistic.two_phase`). That order is one fixed list, so that a larger N, or a run after a crash,
continues from the stored outcomes. A finished estimate is a result of its own in the store: to find it again
takes neither images nor torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.attacks import ATTACKS
from rbtools.attacks.apgd import APGDMargin
from rbtools.datasets import indices
from rbtools.errors import Pending, RbError
from rbtools.evaluation import attacking
from rbtools.evaluation.accuracy import Attacked, Clean
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.probabilistic import margin
from rbtools.evaluation.spec import Entry, Evaluation, Spec
from rbtools.inputs import resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import SplitJob, evaluate_record, randomness
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

_OF_SAMPLE = ("loss", "device", "precision", "prepared", "warnings")
_BROKEN = -1.0  # stands for the margin of an image that the screen breaks
VERSION = 1  # version of the estimate from outcomes


def screen_of(method: Attack, steps: int) -> tuple[Attack, ...]:
    """The attacks of the screen: on the cross-entropy, then on the margin, in the norm of the attack.

    They are PGD's; in L1, where the direction of a step matters more, those of l1-APGD.
    """
    if method.norm == "l1":
        return ATTACKS.build("apgd-ce", norm="l1", steps=steps), APGDMargin(norm="l1", steps=steps)
    return tuple(ATTACKS.build(name, norm=method.norm, steps=steps) for name in ("pgd", "cw"))


@dataclass(frozen=True, kw_only=True)
class Screened(Spec):
    """The share of images that survive cheap attacks. A row (1,) is the smallest margin of the example under
    the attacks that it survives, or -1."""

    attacks: tuple[Any, ...]

    @property
    def searches(self) -> bool:
        return True

    def name(self) -> str:
        return "screen"

    def column(self) -> Entry:
        return {"kind": "screen", "attacks": [Attacked(method=attack).column() for attack in self.attacks]}

    def settings(self) -> Entry:
        return {}

    def correct(self, rows: np.ndarray) -> np.ndarray:
        correct: np.ndarray = rows[:, 0] >= 0
        return correct

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        n, left = len(rows), int(self.correct(rows).sum())
        return {"n": n, "value": left / n}

    def rows(self, batch: Batch) -> Outcome:
        """The rows of a batch, float32 (N, 1). Each attack gets the images that the one before does not
        break."""
        still_correct, least = batch.clean, torch.full_like(batch.images[:, 0, 0, 0], torch.inf)
        totals = {"forward": 0.0, "backward": 0.0}
        for attack in self.attacks:
            result = attacking.run_attack(batch, attack, still_correct=still_correct)
            still_correct = result.survived
            least = torch.minimum(least, margin(result.logits, batch.labels))
            for name, value in result.totals.items():
                totals[name] = totals.get(name, 0.0) + value
        rows = torch.where(still_correct, least.clamp_min(0), torch.full_like(least, _BROKEN))
        return Outcome(rows[:, None], totals)


@dataclass(frozen=True)
class TwoPhaseJob(SplitJob):
    """The attack at each eps, the attacks of its screen, and how many images the attack itself gets.

    size: that number, None for all that the screen leaves. goal: in place of a size, half the length of the
    interval at which the run stops.
    """

    method: Any
    eps: tuple[float, ...]
    screen: tuple[Any, ...]
    size: int | None = None
    goal: float | None = None

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        """The record with the estimated accuracy under the screen and the attack together, at each eps.

        Raises RbError as `evaluate_record.run_task` does.
        """
        inputs = resolve_inputs(record, run)
        if randomness.found(inputs).randomised:
            raise RbError("--two-phase has no verdict by rates, and this model is randomised: leave it out.")
        estimates = [TwoPhaseEvaluation(inputs, self, eps) for eps in self.eps]
        expected = [estimate.expected() for estimate in estimates]
        evaluate_record.check_entries(inputs.record, expected, run)
        if run.plan is not None:
            run.plan.each([call for estimate in estimates for call in estimate.calls()])
        record = inputs.record
        entries = []
        for estimate in estimates:
            record, estimate.screened = evaluate_record.measured_entries(inputs, estimate.screening)
            for entry in estimate.screened.along:
                record = results.add_implicit(record, entry)
            entries.append(_finer(record, estimate.entry(), run))
        evaluate_record.report_warnings(entries, run)
        return evaluate_record.add_entries(record, entries, run)


def _finer(record: dict[str, Any], entry: Entry, run: Run) -> Entry:
    """The entry, or that of the record if it is of a larger sample."""
    for old in record.get("evals") or ():
        about = old.get("two_phase")
        if old.get("metric") != entry["metric"] or not isinstance(about, dict) or run.replace:
            continue
        sampled = about.get("sampled")
        if isinstance(sampled, int) and sampled > entry["two_phase"]["sampled"]:
            run.report.notify(
                f"{entry['metric']}: the record's estimate is of a larger sample, {sampled}, and stays."
            )
            return dict(old)
    return entry


class TwoPhaseEvaluation:
    """The two phases at one eps."""

    def __init__(self, inputs: Inputs, request: TwoPhaseJob, eps: float) -> None:
        self.inputs, self.request = inputs, request
        self.method = replace(request.method, eps=eps)
        self.attacks: list[Attack] = [replace(attack, eps=eps) for attack in request.screen]
        self.screen, self.attack = Screened(attacks=tuple(self.attacks)), Attacked(method=self.method)
        self.screening = Evaluation(title="screen", specs=(self.screen,), along=(Clean(),))
        self.task = Evaluation(title=str(self.method.stem), specs=(self.attack,))

    def calls(self) -> list[Callable[[], Any]]:
        """Both phases, for a dry run."""
        return [lambda: self.screened, self._second]

    def _second(self) -> None:
        """The second phase of a dry run: on its images if the screen is stored, else on the same number of
        others."""
        n, known = self.inputs.n, 0
        with contextlib.suppress(Pending):
            known = len(self.screened.rows(self.screen))
        if known == n:
            self.entry()
            return
        size = min(self.request.size or n, n) if self.request.goal is None else two_phase.looks(n)[0]
        numbers = self.inputs.data.order(self.inputs.data.load().labels)[:n]
        chosen = indices.of(numbers.tolist(), in_order=True)  # the key is of no other evaluation
        evaluate_record.task_entries(
            self.inputs.on(self.inputs.data.split, indices=chosen, n=size), self.task
        )

    def expected(self) -> Entry:
        """The entry as far as it is known before the work."""
        (entry,) = evaluate_record.expected_entries(self.inputs, self.task)
        # the key of the sample, which does not depend on the attack
        drawn = seed_fields(self.inputs.run.settings.seed)
        return {**entry, **drawn, "screen": ",".join(attack.stem for attack in self.attacks)}

    @cached_property
    def screened(self) -> evaluate_record.Results:
        """The results of the screen."""
        return evaluate_record.task_entries(self.inputs, self.screening)

    @property
    def margins(self) -> np.ndarray:
        """The margin of each image (n,) under the screen, in the order of the evaluation; -1 if broken."""
        margins: np.ndarray = self.screened.rows(self.screen, again=True)[:, 0]
        return margins

    def entry(self) -> Entry:
        """The entry with its estimate, from the store or computed."""
        inputs, key_fields = self.inputs, self._key_fields()
        expected = {name: value for name, value in self.expected().items() if value is not results.LATER}
        kept = inputs.run.store.result(digest(key_fields))
        if isinstance(kept, list) and len(kept) == 1 and isinstance(kept[0], dict):
            return expected | kept[0]
        entry = expected | self._measured()
        if inputs.run.plan is None:
            named_elsewhere = ("tool", "dataset")
            numbers = orjson.loads(dumps({k: v for k, v in entry.items() if k not in named_elsewhere}))
            about = {"kind": "evaluation", "of": key_fields, **resolve.names(inputs.record, inputs.data)}
            inputs.run.store.keep_result(digest(key_fields), key_fields, [numbers], about)
        return entry

    def _key_fields(self) -> dict[str, Any]:
        """Everything that determines the entry."""
        inputs, request = self.inputs, self.request
        specs = {"attack": self.attack, "screen": self.screen}
        return {
            "kind": "two-phase",
            **evaluate_record.inputs_fields(inputs),
            **{name: digest(evaluate_record.outcome_fields(inputs, spec)) for name, spec in specs.items()},
            **seed_fields(inputs.run.settings.seed),
            "sources": [],
            "screen_steps": getattr(request.screen[0], "steps", None),
            "n": inputs.n,
            **({"size": request.size} if request.goal is None else {"goal": request.goal}),
            "estimate": [VERSION, two_phase.VERSION, evaluate_record.POSTPROCESSING],
        }

    def _measured(self) -> Entry:
        """The fields of the entry that are known after the work."""
        inputs, n = self.inputs, self.inputs.n
        left = np.flatnonzero(self.margins >= 0)
        confidence = two_phase.confidence_of_look(len(left)) if self.request.goal is not None else 0.95
        order, stratum = self.order(left)
        of_sample: list[Entry] = []
        parts, stands = two_phase.strata(0, stratum[:0], stratum[:0]), np.zeros(0)
        for size in self._sizes(len(left)):
            sample = inputs.on(inputs.data.split, indices=order, n=size)
            of_sample, _, rows = evaluate_record.task_entries(sample, self.task)
            stands = rows(self.attack, again=True)
            parts = two_phase.strata(len(left), stratum[:size], stands)
            low, high = two_phase.estimate(parts, confidence).interval
            if self.request.goal is not None and (high - low) / 2 / n <= self.request.goal:
                break
        whole = len(left) == sum(part[1] for part in parts)
        bits = self._answers(order, stands) if whole else {}
        return self._estimated(parts, confidence, of_sample) | self._cost(of_sample) | bits

    def _answers(self, order: indices.Indices, stands: np.ndarray) -> Entry:
        """A bit for each image: whether it survives both phases. Only where the attack ran on all survivors
        of the screen, in this order, is it known which of them it breaks: stands (N,), 1 or 0.
        """
        data, n = self.inputs.data, self.inputs.n
        if n > answers.MOST:
            return {}
        right = np.isin(data.order(data.load().labels)[:n].numpy(), np.array(order.numbers)[stands > 0])
        examples = evaluate_record.examples_digest(self.inputs.fields, data.protocol())
        return {answers.FIELD: answers.packed(right, examples)}

    def order(self, left: np.ndarray) -> tuple[indices.Indices, np.ndarray]:
        """The survivors at the places `left` of the evaluation, in the order of the sample; their strata."""
        places = torch.from_numpy(left)
        numbers = self.inputs.data.order(self.inputs.data.load().labels)[: self.inputs.n][places]
        keys = Draws(self.inputs.run.settings.seed, "two-phase", numbers).uniform((1,))[:, 0].double().numpy()
        order, stratum = two_phase.order(self.margins[left], keys)
        return indices.of(numbers[torch.from_numpy(order)].tolist(), in_order=True), stratum

    def _sizes(self, survivors: int) -> Iterator[int]:
        """The sizes of the sample: one, or those at which a run with a goal looks at its interval."""
        if not survivors:
            return
        if self.request.goal is not None:
            yield from two_phase.looks(survivors)
        else:
            yield min(self.request.size or survivors, survivors)

    def _estimated(
        self, parts: Sequence[two_phase.Stratum], confidence: float, of_sample: Sequence[Entry]
    ) -> Entry:
        """The value, its interval, and what it was estimated from."""
        n, estimate = self.inputs.n, two_phase.estimate(parts, confidence)
        sampled, survivors = (sum(part[column] for part in parts) for column in (1, 0))
        about: Entry = {
            "survivors": survivors,
            "sampled": sampled,
            "screen_steps": getattr(self.request.screen[0], "steps", None),
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

    def _cost(self, of_sample: Sequence[Entry]) -> Entry:
        """Time, precision and warnings: of the attack on the sample, and the time of the screen."""
        entries = [*self.screened.entries, *of_sample]
        fields = {name: value for entry in entries for name, value in entry.items() if name in _OF_SAMPLE}
        passes = {
            name: round(sum(entry["passes"][name] * entry["n"] for entry in entries) / self.inputs.n, 2)
            for name in ("forward", "backward")
            if all("passes" in entry for entry in entries)
        }
        seconds = round(sum(entry["seconds"] for entry in entries), 3)
        return fields | {"seconds": seconds} | ({"passes": passes} if passes else {})
