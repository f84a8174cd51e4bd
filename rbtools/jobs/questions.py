"""What an entry of a record states (its question), and the job that measures it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import SEARCHES
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation.accuracy import Attacked, Clean
from rbtools.evaluation.probabilistic import Noisy
from rbtools.evaluation.spec import Evaluation, Spec
from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run
from rbtools.jobs import attack_tasks, measurement, screened_attack
from rbtools.jobs.attack_tasks import MaskingChecklist
from rbtools.jobs.corruption_archive import Archived
from rbtools.jobs.evaluate_record import EvaluateJob
from rbtools.jobs.measurement import MeasureJob
from rbtools.jobs.screened_attack import TwoPhaseJob
from rbtools.jobs.train_test_gap import GapJob
from rbtools.jobs.transfer import Transferred
from rbtools.measures import MEASURES
from rbtools.probabilistic import NOISES
from rbtools.records import consistency, metric_name
from rbtools.records.name_forms import SPECS
from rbtools.records.results import is_number
from rbtools.registry import options as options_of
from rbtools.registry import public_name

Entry = Mapping[str, Any]
Record = dict[str, Any]


def specs() -> tuple[type[Spec], ...]:
    """The classes of results, and those that have the names of others."""
    return (Transferred, Archived, *(SPECS.load(name) for name in (*SPECS, *SPECS.plugins)))


class Unsayable(Exception):
    """Raised if an entry does not determine its measurement. The text states the reason."""


def spec_of(entry: Entry) -> Any:
    """The spec that produces this entry, whose metric must name no split. Returns None if no spec produces
    such an entry, or if settings are missing. Raises RbError for a setting that is invalid for a method."""
    refused: RbError | None = None
    for cls in specs():
        try:
            spec = cls.from_entry(entry)
        except RbError as wrong:
            refused = refused or wrong
            continue
        if spec is not None:
            return spec
    if refused is not None:
        raise refused
    return None


# --- questions ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Question:
    """A job whose results contain the answer. `under` contains the options of the run (`Run.changed`), with
    `defend` as text. `fixed` is the job, if it does not depend on the run. `metric` is the name of the answer
    in the results of the job, or None if this is the entry's own name."""

    under: Mapping[str, Any]
    fixed: Any = None
    metric: str | None = None

    @property
    def of_part(self) -> bool:
        """True if the question can be asked about a random part of the images."""
        return False

    def joined(self, other: Any) -> Any:
        """One question that replaces both, or None if one measurement does not answer both."""
        return None

    def name(self) -> str | None:
        """The metric under which the job returns the answer, or None if this is the entry's own metric."""
        return None if self.metric is None else self.split_name(self.metric)

    def split_name(self, metric: str) -> str:
        return metric_name.split_name(metric, self.under.get("split", "test"))

    def job(self, run: Run) -> JobFunction:
        """The job. `run` must have the options of the question."""
        return self.fixed

    def measure(self, record: Record, run: Run) -> Record:
        """The record with the results. Raises RbError if the results cannot be measured."""
        run = self.with_options(run)
        return self.job(run)(record, run)

    def with_options(self, run: Run) -> Run:
        under = dict(self.under)
        stages, backward = under.pop("defend", None), under.pop("backward", None)
        if stages is not None:
            from rbtools.defences.stages import Stages, parse

            under["defend"] = Stages(parse(stages, allow_code=run.selection.allow_code), backward)
        return run.changed(**under)


@dataclass(frozen=True, kw_only=True)
class SpecQuestion(Question):
    """Specs of one class on one split, or their differences between training and test images. `n_train` is
    the number of training images for a difference."""

    specs: tuple[Any, ...]
    difference: bool = False
    n_train: int | None = None

    @property
    def of_part(self) -> bool:
        return not (self.difference or any(spec.batch_dependent for spec in self.specs))

    def joined(self, other: Any) -> Any:
        alike = type(other) is type(self) and type(other.specs[0]) is type(self.specs[0])
        if not alike or replace(other, specs=()) != replace(self, specs=()):
            return None
        return replace(self, specs=tuple(dict.fromkeys((*self.specs, *other.specs))))

    def name(self) -> str | None:
        (spec, *more) = self.specs  # a mean has several specs
        spec = spec.by_draws(self.under.get("draws", 0)) or spec  # the name depends on it
        return None if more or self.difference else self.split_name(spec.name())

    def job(self, run: Run) -> JobFunction:
        """Evaluates the specs and those that they need, and computes the means of corruptions."""
        specs = type(self.specs[0]).joined(self.specs)
        along: list[Any] = [] if specs[0].is_clean else [Clean()]
        for spec in specs:
            while spec.needs:
                (spec,) = spec.needs
                along += [] if spec in (*specs, *along) else [spec]
        means = specs[0].summary()
        asked = Evaluation(title="verification", specs=tuple(specs), along=tuple(along), summary=means)
        return GapJob((asked,), self.n_train) if self.difference else EvaluateJob((asked,))


@dataclass(frozen=True, kw_only=True)
class MeasureQuestion(Question):
    """Numbers of one measure on the same images and weights (`about`), under one attack (`attack`), which is
    empty if no number depends on an attack."""

    measure_name: str
    about: Mapping[str, Any]
    attack: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def joined(self, other: Any) -> Any:
        if type(other) is not MeasureQuestion or (
            self.attack and other.attack and self.attack != other.attack
        ):
            return None
        both = replace(self, attack=self.attack or other.attack, entries=(*self.entries, *other.entries))
        same = replace(other, attack=both.attack, entries=both.entries)
        return both if both == same else None

    def job(self, run: Run) -> JobFunction:
        distances = tuple(dict.fromkeys(one["eps"] for one in self.entries if is_number(one.get("eps"))))
        eps = distances or (8 / 255,)
        attack = {"attack": "pgd", "steps": 10, "step_size": None, "norm": "linf", **self.attack}
        settings = attack["steps"], attack["step_size"], str(attack["norm"])
        attacks = measurement.perturbing([attack["attack"]], eps, *settings)
        options = self._options(MEASURES.load(self.measure_name))
        measure = MEASURES.build(self.measure_name, **options)
        return MeasureJob(measures=(measure,), attacks=attacks, eps=eps, **self.about)

    def _options(self, cls: Any) -> dict[str, Any]:
        """The measure's own options: those in the entries and those that the names of the numbers require."""
        names = {public_name(field) for field in options_of(cls)} - {"eps"}
        stated = {
            name: entry[name]
            for entry in self.entries
            for name in names
            if entry.get(name, "") not in ("", None)
        }
        words = {word for entry in self.entries for word in str(entry["metric"]).split(".")}
        return {**stated, **cls.asked(words)}


def joined(questions: Mapping[str, Question]) -> list[tuple[Any, list[str]]]:
    """A few questions that answer all given ones, with the names of the questions that they replace."""
    found: list[tuple[Any, list[str]]] = []
    for name, question in questions.items():
        for place, (other, names) in enumerate(found):
            if (both := other.joined(question)) is not None:
                found[place] = (both, [*names, name])
                break
        else:
            found.append((question, [name]))
    return found


_METHODS: tuple[tuple[str, Any], ...] = (
    ("attack", SEARCHES),
    ("attack", ATTACKS),
    ("corruption", CORRUPTIONS),
    ("noise", NOISES),
    ("certificate", CERTIFIERS),
)


# --- from an entry --------------------------------------------------------------------------------


def question_of(entry: Entry, beside: Mapping[str, Entry] | None = None) -> Question:
    """The question that an entry answers. Raises Unsayable if the entry does not determine its measurement.

    `beside` maps metrics to the record's entries, which contain the number of images for PR and the attacks
    of a checklist. Settings that a published number lacks have the tools' defaults.
    """
    name, beside = str(entry["metric"]), beside or {}
    parts = metric_name.parse(name)
    measure = entry.get("measure")
    if isinstance(measure, str) and measure in MEASURES and measure != "bound":
        return _measured(entry)
    if metric_name.without_split(name) == attack_tasks.METRIC:
        return _checked(entry, beside)
    if "measure" in entry:
        raise Unsayable(f"The record does not say how this was measured: {name}.")
    difference = parts.is_gap or parts.is_ge
    published = consistency.is_published(entry)
    specs = _specs(entry, parts, published)
    under = _under(entry, searched=specs[0].searches and not specs[0].precise, difference=difference)
    if entry.get("split") in (None, "test") and "indices" in entry and not published:
        raise Unsayable("The images were selected by --indices, of which the record has only a hash.")
    counts = _counts(entry, beside)
    if counts is None and not published:
        raise Unsayable("The record does not say how many images rb-pr evaluated.")
    counts = counts or [None] * (1 + difference)
    if len(counts) != 1 + difference or not all(n is None or (type(n) is int and n > 0) for n in counts):
        raise Unsayable(f"The record does not fully describe how this was measured: {name}.")
    if not parts.is_gap:
        counts = counts[::-1]  # a generalisation error lists train before test
    under = {**under, "n": counts[0]}
    if isinstance(entry.get("two_phase"), Mapping):
        return _two_phase(entry, specs[0], under)
    return SpecQuestion(
        specs=specs, under=under, difference=difference, n_train=counts[1] if difference else None
    )


def _specs(entry: Entry, parts: metric_name.MetricName, published: bool) -> tuple[Any, ...]:
    """The specs of an entry. A mean over corruptions has several specs; any other metric has one."""
    name = str(entry["metric"])
    bare = (parts.rest() if parts.is_ge or parts.is_gap else parts).build()
    entry = {**entry, "metric": metric_name.without_split(bare)}
    if bare.endswith("acc-among"):
        return (Clean(),)  # it is measured along with clean accuracy
    if "archive" in entry and not published:
        raise Unsayable("The corrupted images came from an archive.")
    if "reference" in entry and not published:
        raise Unsayable("mCE is relative to a reference, which the record does not contain.")
    names, severities = entry.get("corruptions") or [entry.get("corruption")], entry.get("severities")
    if isinstance(severities, list) and isinstance(names, list):
        several = [{**entry, "corruption": one, "severity": s} for one in names for s in severities]
    else:
        several = [entry]
    if published:
        several = [_completed(one) for one in several]
    try:
        specs: list[Any] = [spec_of(one) if published or "n" in one else None for one in several]
    except RbError as wrong:
        raise Unsayable(str(wrong)) from None
    if specs and None not in specs:
        return tuple(spec.by_draws(0) or spec for spec in specs)
    if "transfer" in parts.prefixes and "source" in entry:
        raise Unsayable(
            "the record does not contain the attacked model, which rb-attack transfer --from names"
        )
    attack = entry.get("attack")
    if isinstance(attack, str) and attack not in SEARCHES and ATTACKS.of_name(attack) is None:
        raise Unsayable(f"The attack {attack} is not installed. Install the package that provides it.")
    known = _named(entry["metric"])
    how = "does not fully describe how" if known else "does not say how"
    raise Unsayable(f"The record {how} this was measured: {name}.")


def _completed(entry: Entry) -> Record:
    """A published entry with the settings that its name contains, and the defaults of those that it lacks."""
    entry = {**_named(entry["metric"]), **entry}
    usual: Any = {"samples": Noisy.samples, "denominator": Noisy.denominator}
    for word, methods in _METHODS:
        if (cls := methods.of_name(entry.get(word))) is not None:
            needed = [field for field in dataclasses.fields(cls) if not field.metadata.get("optional")]
            usual |= {public_name(field): field.default for field in needed}
    known = {name: value for name, value in usual.items() if value not in (None, dataclasses.MISSING)}
    return {**known, **entry}


def _under(entry: Entry, *, searched: bool = True, difference: bool = False) -> dict[str, Any]:
    """The options of the run that an entry names, `precision` if `searched`, and no split if `difference`."""
    under: dict[str, Any] = {"seed": entry.get("seed"), "draws": entry.get("verdict_draws")}
    under["preprocessing"] = entry.get("preprocessing")
    if not difference:
        under["split"] = entry.get("split")
    if searched and entry.get("precision") in ("fp32", "bf16"):
        under["precision"] = entry["precision"]
    stages, backward = entry.get("defend"), entry.get("backward")
    if isinstance(stages, str):
        hows = {str(one) for one in backward} if isinstance(backward, list) else set()
        how = next(iter(hows)) if len(hows) == 1 and hows <= {"none", "identity", "own"} else None
        under |= {"defend": stages, "backward": how}
    for name, value in under.items():
        whole = name in ("seed", "draws")
        if value is not None and not (type(value) is int and value >= 0 if whole else isinstance(value, str)):
            raise Unsayable(
                f"the {name} of the entry is {value!r}, which is not a {'number' if whole else 'string'}."
            )
    return {name: value for name, value in under.items() if value is not None}


def _counts(entry: Entry, beside: Mapping[str, Entry]) -> list[Any] | None:
    """The requested number of images, or two numbers for a difference of splits. Returns None if the numbers
    of the entries contradict each other.

    An entry of probabilistic robustness counts only the correct images, and the entry of clean accuracy
    counts all images.
    """
    n = entry.get("n")
    counts = n if isinstance(n, list) else [n]
    if entry.get("denominator") != "correct":
        return counts
    sides = ["train.acc", "acc"]
    if len(counts) == 1:
        sides = [metric_name.split_name("acc", str(entry.get("split") or "test"))]
    clean = [beside.get(side, {}) for side in sides]
    for one, count in zip(clean, counts, strict=False):
        if not (isinstance(one.get("n"), int) and is_number(one.get("value"))):
            return None
        if round(one["n"] * one["value"]) != count:
            return None
    return [one["n"] for one in clean] if len(clean) == len(counts) else None


def _two_phase(entry: Entry, spec: Attacked, under: Mapping[str, Any]) -> Question:
    about, method = entry["two_phase"], spec.method
    sampled, goal, steps = (about.get(name) for name in ("sampled", "goal", "screen_steps"))
    if type(sampled) is not int or not (goal is None or is_number(goal)) or type(steps) is not int:
        raise Unsayable(f"The record does not fully describe how this was measured: {entry['metric']}.")
    size = None if sampled == about.get("survivors") or goal is not None else sampled
    screen = screened_attack.screen_of(method, steps)
    job = TwoPhaseJob(method, (method.eps,), screen, size, goal)
    return Question(fixed=job, metric=spec.name(), under=under)


def _checked(entry: Entry, beside: Mapping[str, Entry]) -> Question:
    same = {name: entry.get(name) for name in ("eps", "split", "n", "seed")}
    methods: dict[str, Any] = {"fgsm": ATTACKS.build("fgsm")}
    for attack, option in (("pgd", "steps"), ("square", "queries"), ("noise", "samples")):
        for one in beside.values():
            alike = all(one.get(name) == value for name, value in same.items())
            if alike and one.get("attack") == attack and option in one:
                methods.setdefault(attack, ATTACKS.build(attack, **{option: one[option]}))
    if len(methods) < 4 or not is_number(entry.get("eps")):
        raise Unsayable("the record lacks some of the attacks that were compared")
    checklist = MaskingChecklist(eps=float(entry["eps"]), **methods)
    return Question(fixed=checklist, under={**_under(entry), "n": entry.get("n")})


def _measured(entry: Entry) -> MeasureQuestion:
    about = {
        name: entry[name]
        for name in ("on", "batches", "batch_size", "batchnorm", "init_seed")
        if name in entry
    }
    under = {name: entry[name] for name in ("split", "seed", "preprocessing") if name in entry}
    if "split" in entry:
        about["splits"] = (entry["split"],)
    batches, size = entry.get("batches"), entry.get("batch_size")
    if isinstance(batches, int) and isinstance(size, int) and entry.get("n") != batches * size:
        under["n"] = entry.get("n")  # the last batch is smaller
    named = ("attack", "steps", "step_size", "norm") if entry.get("attack") == "pgd" else ("attack",)
    attack = {name: entry[name] for name in named if entry.get(name) is not None}
    return MeasureQuestion(
        measure_name=entry["measure"], about=about, attack=attack, entries=(entry,), under=under
    )


def _named(name: str) -> dict[str, Any]:
    """The settings that the name of a metric contains."""
    parts = metric_name.parse(name)
    return parts.form.settings(parts) if parts.over else {}
