"""The commands that measure a record's entries again, as their settings describe them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from rbtools import registry
from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.measures import MEASURES
from rbtools.probabilistic import NOISES
from rbtools.records import metric_name

Entry = Mapping[str, Any]
PR = ("noise", "norm", "clip", "samples", "denominator")
RARE = ("noise", "norm", "clip", "truncate", "particles", "moves", "runs", "floor")
KERNELS = ("clean", "robust", "twice", "joint")  # ntk's numbers; computing one also computes those before it
_MEASURED = ("on", "split", "batches", "batch_size", "batchnorm", "seed")
_PIXELS = ("cw-l2", "ddn")  # attacks whose distances are on [0, 1] whatever their entry says
_NO_HASH = "Chosen images were evaluated (--n LIST), of which the record has only a hash."


class Unsayable(Exception):
    """The reason why an entry does not determine its measurement."""


class EntryCommand(NamedTuple):
    """A command of rb-TOOL: its settings, and those for which one run accepts a list."""

    words: tuple[str, ...]
    settings: tuple[str, ...] = ()
    lists: Mapping[str, Sequence[str]] = {}

    def adding(self, *words: str) -> EntryCommand:
        return self._replace(settings=(*self.settings, *words))


def commands(
    entries: Mapping[str, Entry], lenient: Callable[[Entry], bool] = lambda entry: False
) -> list[list[str]]:
    """The commands that measure these entries (by metric); those that differ only in a list are one.

    lenient: the entries whose missing settings are the tools' defaults. Raises Unsayable for the first entry
    that does not determine its measurement.
    """
    steps = [command(entry, entries, lenient(entry)) for entry in entries.values()]
    merged: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, dict[str, None]]] = {}
    for step in filter(None, steps):
        lists = merged.setdefault((step.words, step.settings), {})
        for name, values in step.lists.items():
            lists.setdefault(name, {}).update(dict.fromkeys(values))
    lines = []
    for (words, settings), lists in merged.items():
        arguments = [",".join(lists.pop(""))] if "" in lists else []
        listed = [word for name, values in lists.items() for word in (f"--{name}", ",".join(values))]
        lines.append([*words, *arguments, *listed, *settings])
    return [*lines, *_measurements([entry for entry in entries.values() if _is_measure(entry)])]


def command(entry: Entry, entries: Mapping[str, Entry], lenient: bool = False) -> EntryCommand | None:
    """The command of one entry; None if another command of `entries` also gives it, or if it is a measure's.
    lenient: missing settings are the tool's defaults, as for published numbers. Raises Unsayable.
    """
    name = str(entry["metric"])
    if _is_measure(entry) or ("measure" not in entry and _comes_along(name, entry, entries)):
        return None
    parts = metric_name.parse(name)
    step = None if "measure" in entry else _described(name, entry, entries, lenient)
    if step is None and lenient:
        step = _by_name(parts)
    if step is None:
        guess = "measure" not in entry and _by_name(parts) is not None
        raise Unsayable(
            f"The record says only in part how this was measured: {name}."
            if guess
            else f"The record does not say how this was measured: {name}."
        )
    return step


# --- settings as words ------------------------------------------------------------------------------------


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
    """The shortest text that reads as this number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def distance(value: float, norm: str = "linf") -> str:
    """A distance of [0, 1] as on the command line: L-infinity in 1/255, others unchanged.

    One below 0.1/255 is written as a fraction, since the tools refuse 0.031 as ambiguous.
    """
    if norm != "linf":
        return number(value)
    short = f"{value * 255:g}"
    text = short if float(short) / 255 == value else number(value * 255)
    return f"{text}/255" if 0 < float(text) < 0.1 else text


def radius(value: float) -> str:
    """A radius on [0, 1]; as 8/255 if it is exactly that and has no shorter decimal form."""
    short = number(value)
    return f"{round(value * 255)}/255" if len(short) > 7 and round(value * 255) / 255 == value else short


def option(name: str, value: object, norm: str = "linf", of: type | None = None) -> list[str]:
    """`--step-size=2`, `--nesterov`, nothing for None. of: the registered class whose option it is.

    Raises Unsayable for other than plain values.
    """
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list):
        value = ",".join(number(item) if is_number(item) else str(item) for item in value) or "none"
    if not isinstance(value, str | int | float):
        raise Unsayable("a setting in the record is no number and no text.")
    pixels = {"eps", *(registry.public_name(f) for f in _fields(of) if f.metadata["unit"] == "eps")}
    if not isinstance(value, str):
        value = distance(value, norm) if name in pixels else number(value)
    return [f"--{flag}={value}"]


def _fields(of: type | None) -> list[Any]:
    return [] if of is None else registry.options(of)


def _own(of: type, entry: Entry, norm: str = "linf") -> list[str]:
    """The options of a registered class that the entry has."""
    names = [registry.public_name(field) for field in _fields(of)]
    values = {name: entry.get(name) for name in names if entry.get(name) != ""}
    if (share := values.pop("relative_step", None)) is not None:
        values["step_size"] = f"{number(share)}*eps"
    return [word for name, value in values.items() for word in option(name, value, norm, of)]


# --- one entry --------------------------------------------------------------------------------------------


def _comes_along(name: str, entry: Entry, entries: Mapping[str, Entry]) -> bool:
    """Whether a result is computed along with another one, or by no tool of the pipe."""
    parts, plain = metric_name.parse(name), metric_name.without_split(name)
    if name in ("score", "seconds_per_epoch") or plain == "acc":
        return True
    if "gamma" in entry and "rho" not in entry and any(_beside(entry, other) for other in entries.values()):
        return True
    if parts.is_ge:  # rb-ge pr gives PR over all images and over those classified correctly without noise
        return parts.stem == "pr-all" and parts._replace(stem="pr").build() in entries
    if parts.is_gap:  # rb-ge loss attack gives that of the loss and that of the error
        of_loss = {"error": "loss", "error_gap": "loss_gap"}
        other = parts._replace(prefixes=tuple(of_loss.get(word, word) for word in parts.prefixes))
        return other != parts and other.build() in entries
    former = metric_name.parse(plain)
    former = former._replace(prefixes=tuple(f"{word}_gap" for word in former.prefixes))
    if metric_name.gap_name(plain) in entries or (former.is_gap and former.build() in entries):
        return True
    return metric_name.ge_name(plain) in entries and (name != plain or entry.get("tool") == "rb-ge")


def _beside(entry: Entry, other: Entry) -> bool:
    """Whether a ProbAcc was counted on the copies of this PR_D: then its options are those of both."""
    if "rho" not in other or "stopping" in other or "particles" in entry:
        return False
    return all(entry.get(key) == other.get(key) for key in ("gamma", "split", *PR))


def _described(name: str, entry: Entry, entries: Mapping[str, Entry], lenient: bool) -> EntryCommand | None:
    """The command that an entry's settings describe; None where they describe none, or only in part."""
    step = EntryCommand(("acc",)) if name == "ge.acc" and "n" in entry else _evaluation(entry, lenient)
    if step is None or (not lenient and _is_partial(entry)):
        return None
    parts = metric_name.parse(name)
    difference = parts.is_gap or parts.is_ge
    if not difference and entry.get("split") not in (None, "test"):
        step = step.adding(*option("split", entry["split"]))
    if entry.get("split") in (None, "test") and "indices" in entry and not lenient:
        raise Unsayable(_NO_HASH)
    counts = _counts(entry, entries)
    if counts is None and not lenient:
        raise Unsayable("The record does not say how many images rb-pr was given.")
    flags = ("n", "n-train") if parts.is_gap else ("n-train", "n") if difference else ("n",)
    for flag, count in zip(flags, counts or (), strict=False):
        step = step.adding(*option(flag, count))
    step = step.adding(*option("seed", entry.get("seed")))
    searched = "certificate" not in entry and not is_transfer(entry) and ("eps" in entry or "gamma" in entry)
    if entry.get("precision") in ("fp32", "bf16") and searched:
        step = step.adding(*option("precision", entry["precision"]))
    both = parts.is_ge and parts.stem == "pr" and parts._replace(stem="pr-all").build() in entries
    if "gamma" in entry and "particles" not in entry and not both:
        # The default of rb-ge is both, that of rb-pr the images classified correctly without noise.
        wanted = entry.get("denominator")
        step = step.adding(*(option("denominator", wanted) if difference or wanted != "correct" else []))
    tool = ("ge", "loss") if parts.is_gap else ("ge",) if difference else ()
    return step._replace(words=(*tool, *step.words))


def _is_partial(entry: Entry) -> bool:
    """Whether settings are missing that rb-attack or rb-pr would have written, as in published results."""
    attack, wanted = entry.get("attack"), ["n"]
    if isinstance(attack, str) and attack in ATTACKS:
        wanted += [registry.public_name(field) for field in _fields(ATTACKS.load(attack))]
    elif "gamma" in entry and "particles" not in entry:
        wanted += PR
    return any(name not in entry for name in wanted if name != "relative_step")


def _counts(entry: Entry, entries: Mapping[str, Entry]) -> list[Any] | None:
    """The requested number of images, for a difference on train and test; None if they do not fit together.

    An entry of probabilistic robustness counts the correct images: the accuracy in the record has all.
    """
    n = entry.get("n")
    counts = n if isinstance(n, list) else [n]
    if entry.get("denominator") != "correct":
        return counts
    split = entry.get("split")
    accuracy = metric_name.split_name("acc", split if isinstance(split, str) else "test")
    sides = ["train.acc", "acc"] if len(counts) == 2 else [accuracy]
    clean = [entries.get(side, {}) for side in sides]
    for one, count in zip(clean, counts, strict=False):
        if not (isinstance(one.get("n"), int) and is_number(one.get("value"))):
            return None
        if round(one["n"] * one["value"]) != count:
            return None
    return [one["n"] for one in clean] if len(clean) == len(counts) else None


def _evaluation(entry: Entry, lenient: bool) -> EntryCommand | None:
    norm = entry["norm"] if isinstance(entry.get("norm"), str) else "linf"
    attack, certificate, eps = entry.get("attack"), entry.get("certificate"), entry.get("eps")
    if isinstance(attack, str) and attack in ATTACKS and is_number(eps):
        return _attack(attack, entry, eps, norm)
    if attack == "curve":
        curve = (word for name in ("norm", "queries") for word in option(name, entry.get(name)))
        lists = {"eps": [distance(eps, norm)]} if is_number(eps) else {}
        return EntryCommand(("attack", "curve"), tuple(curve), lists)
    if isinstance(entry.get("noise"), str) and is_number(entry.get("gamma")):
        return _noise(entry)
    if isinstance(certificate, str) and certificate in CERTIFIERS and is_number(eps):
        words = (*_own(CERTIFIERS.load(certificate), entry), *(["--adaptive"] if "stopping" in entry else []))
        return EntryCommand(("certify", certificate), words, {"eps": [distance(eps, norm)]})
    return _corruption(entry, lenient)


def _attack(attack: str, entry: Entry, eps: float, norm: str) -> EntryCommand:
    words = _own(ATTACKS.load(attack), entry, norm)
    distances = [distance(eps, "l2" if attack in _PIXELS else norm)]
    if isinstance(entry.get("ladder"), list):
        distances = [distance(value, norm) for value in entry["ladder"] if is_number(value)] + distances
        words.append("--ladder")
    about = entry.get("two_phase")
    if isinstance(about, dict):  # a value estimated from a sample
        sampled, goal = about.get("sampled"), about.get("goal")
        size = "all" if sampled == about.get("survivors") else sampled
        steps = f":steps={about['screen_steps']}" if "screen_steps" in about else ""
        words.append(f"--two-phase={size if goal is None else goal}{steps}")
    if is_transfer(entry):
        of = ("attack", "transfer")
        return EntryCommand(of, (f"--attack={attack}", "--from", entry["source"], *words), {"eps": distances})
    return EntryCommand(("attack", attack), tuple(words), {"eps": distances})


def is_transfer(entry: Entry) -> bool:
    """Whether another model was attacked: `source` is its checkpoint."""
    parts = metric_name.parse(str(entry.get("metric")))
    return "transfer" in parts.prefixes and isinstance(entry.get("source"), str)


def _noise(entry: Entry) -> EntryCommand:
    lists = {"gamma": [radius(entry["gamma"])]}
    if "particles" in entry:  # splitting
        words = [word for name in RARE[:4] for word in option(name, entry.get(name))]
        keys = ",".join(f"{name}={entry[name]}" for name in RARE[4:] if name in entry)
        return EntryCommand(("pr",), (f"--sampling=rare:{keys}", *words), lists)
    names = (*(name for name in PR if name != "denominator"), "truncate")
    words = [word for name in names for word in option(name, entry.get(name))]
    if str(entry.get("criterion", "")).startswith("PR > "):
        words.append("--passes=above")
    stopping = str(entry.get("stopping", ""))
    if stopping:
        words.append("--sampling=adaptive" if stopping.startswith("sequential") else "--only=probacc")
    if is_number(entry.get("rho")):
        lists["rho"] = [number(entry["rho"])]
    return EntryCommand(("pr",), tuple(words), lists)


def _corruption(entry: Entry, lenient: bool) -> EntryCommand | None:
    names = entry.get("corruptions") or [entry.get("corruption")]
    severities = entry.get("severities") or [entry.get("severity")]
    if not (isinstance(names, list) and isinstance(severities, list)):
        return None
    if not all(isinstance(severity, int) for severity in severities):
        return None
    if not all(isinstance(name, str) and name in CORRUPTIONS for name in names):
        return None
    if "archive" in entry and not lenient:
        raise Unsayable("The corrupted images came from an archive.")
    if "reference" in entry and not lenient:
        raise Unsayable("mCE is beside a reference, which the record does not have.")
    words = option("constants", entry.get("constants")) if entry.get("constants") != "auto" else []
    return EntryCommand(("corrupt",), tuple(words), {"": names, "severity": [str(one) for one in severities]})


# --- published numbers, whose names say how they were measured --------------------------------------------


def _by_name(name: metric_name.MetricName) -> EntryCommand | None:
    """The command that a metric's name suggests; None for a name that suggests none."""
    if name.prefixes:
        step = _by_name(name.rest()) if len(name.prefixes) == 1 else None
        if step is not None and name.is_ge:  # rb-ge gives both denominators
            settings = tuple(word for word in step.settings if word != "--denominator=all")
            return step._replace(words=("ge", *step.words), settings=settings)
        return step.adding(f"--split={name.split}") if step is not None and name.split != "test" else None
    if name.over == "gamma" and name.stem != "pfail" and name.of in NOISES:
        over_all = ("--denominator=all",) if name.stem.endswith("-all") else ()
        value = float(name.number) * 255  # the name has only six digits
        whole = len(name.number) > 6 and abs(value - round(value)) < 1e-3
        gamma = f"{value:.0f}/255" if whole else name.number
        rho = {"rho": [name.rho]} if name.rho else {}
        return EntryCommand(("pr",), (f"--noise={name.of}", *over_all), {"gamma": [gamma], **rho})
    if name.over == "severity" and name.of in CORRUPTIONS:
        return EntryCommand(("corrupt",), (), {"": [name.of], "severity": [name.number]})
    return _attack_named(name) if name.over == "eps" else None


def _attack_named(name: metric_name.MetricName) -> EntryCommand | None:
    """The command of `pgd20.l2.0.5`: a registered attack, perhaps its number of steps, norm and distance."""
    for attack in sorted(ATTACKS, key=len, reverse=True):
        steps = name.stem.removeprefix(attack)
        if name.stem.startswith(attack) and (steps.isdigit() or not steps):
            settings = {key: value for key, value in (("steps", steps), ("norm", name.norm)) if value}
            if settings.keys() <= {registry.public_name(field) for field in _fields(ATTACKS.load(attack))}:
                small = not name.norm and 0 < float(name.number) < 0.1  # a number alone would be ambiguous
                eps = f"{name.number}/255" if small else name.number
                words = tuple(f"--{key}={value}" for key, value in settings.items())
                return EntryCommand(("attack", attack), words, {"eps": [eps]})
    return None


# --- measures -----------------------------------------------------------------------------------------------


def _is_measure(entry: Entry) -> bool:
    """Whether a measure's entry has all settings that rb-measure needs; a bound may have had further inputs
    on the command line."""
    return entry.get("measure") in MEASURES and entry["measure"] != "bound"


def _measurements(entries: Iterable[Entry]) -> list[list[str]]:
    """A command for the numbers of each measure on the same images, weights and attack.

    Numbers that do not depend on the attack come with one that does.
    """
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Entry]]] = {}
    for entry in entries:
        groups.setdefault(_measured_on(entry), {}).setdefault(_perturbed(entry), []).append(entry)
    lines = []
    for words, by_attack in groups.items():
        clean = by_attack.pop((), [])
        for place, (attack, some) in enumerate(by_attack.items() or [((), [])]):
            of_command = [*some, *(clean if place == 0 else [])]
            eps = dict.fromkeys(
                distance(entry["eps"]) for entry in (*some, *clean) if is_number(entry.get("eps"))
            )
            listed = [f"--eps={','.join(eps)}"] if eps else []
            lines.append(["measure", *words, *attack, *listed, *_asked(of_command)])
    return lines


def _measured_on(entry: Entry) -> tuple[str, ...]:
    words = [word for name in _MEASURED for word in option(name, entry.get(name))]
    if "init_seed" in entry:
        words.append(f"--on={entry.get('on', 'auto')}:seed={entry['init_seed']}")
    n, batches, size = entry.get("n"), entry.get("batches"), entry.get("batch_size")
    if isinstance(batches, int) and isinstance(size, int) and n != batches * size:
        words += option("n", n)  # the last batch is smaller
    return str(entry["measure"]), *words


def _perturbed(entry: Entry) -> tuple[str, ...]:
    """The attack that perturbed the images; empty where there was none."""
    name = entry.get("attack")
    if not isinstance(name, str):
        return ()
    if name != "pgd":
        return tuple(option("attack", name))
    steps = option("steps", entry.get("steps")) + option(
        "step_size", entry.get("step_size"), of=ATTACKS.load(name)
    )
    return (f"--attack=pgd:{','.join(word[2:] for word in steps)}" if steps else "--attack=pgd",)


def _asked(entries: Sequence[Entry]) -> list[str]:
    """The measure's own options: from the entries, and from the names of their numbers."""
    measure = entries[0]["measure"]
    of = MEASURES.load(measure)
    own = [registry.public_name(field) for field in _fields(of)]
    values = {name: entry[name] for entry in entries for name in own if name in entry and name != "eps"}
    words = {word for entry in entries for word in str(entry.get("metric")).split(".")}
    if measure == "ntk":
        among = (kernel for kernel in reversed(KERNELS) if kernel in words)
        values["kernel"] = "joint" if words & {"all", "all_robust"} else next(among, KERNELS[0])
    if measure == "hessian":
        wrt = sorted(words & {"weight", "input"})
        values["wrt"] = wrt[0] if len(wrt) == 1 else "both"
        tops = [int(word[3:]) for word in words if word.startswith("top") and word[3:].isdigit()]
        if "labs" in words:
            values["solver"] = "both" if tops or "lmax" in words else "power"
        if tops:
            values["top"] = max(tops)
    parts = {registry.public_name(field): field.metadata["part_of"] for field in _fields(of)}
    lines, keys = [], dict[str, list[str]]()
    for name, value in values.items():
        words_of = option(name, value, of=of)
        if parts[name] is None:
            lines += words_of
        elif value is not False:
            whole, *_, key = parts[name].split(":")
            text = [f"{key}{word[len(name) + 2 :].replace(',', '/')}" for word in words_of]
            keys.setdefault(f"--{whole}=", []).extend(text)
    for flag, some in keys.items():
        value = next((word for word in lines if word.startswith(flag)), flag)
        lines = [*(word for word in lines if word != value), f"{value}:{','.join(some)}"]
    return lines
