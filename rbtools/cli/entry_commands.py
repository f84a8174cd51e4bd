"""The commands that measure a record's entries again, as their settings describe them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools import registry
from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.measures import MEASURES
from rbtools.probabilistic import NOISES
from rbtools.records import metric_name
from rbtools.records.results import is_number

Entry = Mapping[str, Any]
PR = ("noise", "norm", "clip", "samples", "denominator")
RARE = ("noise", "norm", "clip", "truncate", "particles", "moves", "runs", "floor")
KERNELS = ("clean", "robust", "twice", "joint")  # ntk's numbers; computing one also computes those before it
_MEASURED = ("on", "split", "batches", "batch_size", "batchnorm", "seed")
_PIXELS = ("cw-l2", "ddn")  # attacks whose distances are on [0, 1] whatever their entry says
_NO_HASH = "Chosen images were evaluated (--indices), of which the record has only a hash."


class Unsayable(Exception):
    """The reason why an entry does not determine its measurement."""


class EntryCommand(NamedTuple):
    """A command of rb-TOOL, its options by their Python names, and those of which one run takes a list.

    The list under "" is an argument.
    """

    words: tuple[str, ...]
    options: Mapping[str, Any] = {}
    lists: Mapping[str, Sequence[Any]] = {}

    def on_images(self, numbers: Sequence[int]) -> EntryCommand:
        """The same on these images alone."""
        options = {name: value for name, value in self.options.items() if name != "n"}
        return self._replace(options={**options, "indices": numbers})

    def adding(self, **options: object) -> EntryCommand:
        return self._replace(options={**self.options, **plain(options)})


def commands(
    entries: Mapping[str, Entry], lenient: Callable[[Entry], bool] = lambda entry: False
) -> list[EntryCommand]:
    """The commands that measure these entries (by metric); those that differ only in a list are one.

    lenient: the entries whose missing settings are the tools' defaults. Raises Unsayable for the first entry
    that does not determine its measurement.
    """
    merged: dict[str, EntryCommand] = {}
    for entry in entries.values():
        if (step := command(entry, entries, lenient(entry))) is not None:
            former = merged.get(repr(step[:2]), step)
            lists = {key: dict.fromkeys((*former.lists[key], *step.lists[key])) for key in step.lists}
            merged[repr(step[:2])] = step._replace(lists={key: list(values) for key, values in lists.items()})
    return [*merged.values(), *_measurements([entry for entry in entries.values() if _is_measure(entry)])]


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
    return step.adding(**defended(entry))


def defended(entry: Entry) -> dict[str, str]:
    """The option of the stages that an entry names."""
    stages, backward = entry.get("defend"), entry.get("backward")
    if not isinstance(stages, str):
        return {}
    hows = set(backward) if isinstance(backward, list) else set()
    how = next(iter(hows)) if len(hows) == 1 and hows <= {"none", "identity", "own"} else None
    return {"defend": stages} if how is None else {"defend": stages, "backward": how}


# --- settings as options ---------------------------------------------------------------------------------


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


def plain(options: Mapping[str, object]) -> dict[str, Any]:
    """The options that have a value. Raises Unsayable for what is no number, text or list of them."""
    for value in options.values():
        for item in value if isinstance(value, list) else [value]:
            if item is not None and not isinstance(item, str | int | float):
                raise Unsayable("a setting in the record is no number and no text.")
    return {name: "none" if value == [] else value for name, value in options.items() if value is not None}


def _settings(of: type, entry: Entry, norm: str = "linf") -> dict[str, Any]:
    """The options of a registered class that the entry has, distances in the unit of the command line."""
    fields = {registry.public_name(field): field for field in registry.options(of)}
    values = plain({name: entry[name] for name in fields if entry.get(name, "") != ""})
    if "relative_step" in values:
        values.pop("step_size", None)
    return {
        name: distance(value, norm) if fields[name].metadata["unit"] == "eps" and is_number(value) else value
        for name, value in values.items()
    }


# --- one entry --------------------------------------------------------------------------------------------


def _comes_along(name: str, entry: Entry, entries: Mapping[str, Entry]) -> bool:
    """Whether a result is computed along with another one, or by no tool of the pipe."""
    parts, unsplit = metric_name.parse(name), metric_name.without_split(name)
    if name in ("score", "seconds_per_epoch") or unsplit in ("acc", "acc-among"):
        return True
    if "gamma" in entry and "rho" not in entry and any(_beside(entry, other) for other in entries.values()):
        return True
    if parts.is_ge:  # rb-ge pr gives PR over all images and over those classified correctly without noise
        return parts.stem == "pr-all" and parts._replace(stem="pr").build() in entries
    if parts.is_gap:  # rb-ge loss attack gives that of the loss and that of the error
        other = parts._replace(prefixes=tuple("loss" if word == "error" else word for word in parts.prefixes))
        return other != parts and other.build() in entries
    if metric_name.gap_name(unsplit) in entries:
        return True
    return metric_name.ge_name(unsplit) in entries and (name != unsplit or entry.get("tool") == "rb-ge")


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
    options: dict[str, Any] = {"seed": entry.get("seed"), "draws": entry.get("verdict_draws")}
    if not difference and entry.get("split") not in (None, "test"):
        options["split"] = entry["split"]
    if entry.get("split") in (None, "test") and "indices" in entry and not lenient:
        raise Unsayable(_NO_HASH)
    counts = _counts(entry, entries)
    if counts is None and not lenient:
        raise Unsayable("The record does not say how many images rb-pr was given.")
    flags = ("n", "n_train") if parts.is_gap else ("n_train", "n") if difference else ("n",)
    options |= dict(zip(flags, counts or (), strict=False))
    searched = "certificate" not in entry and not is_transfer(entry) and ("eps" in entry or "gamma" in entry)
    if entry.get("precision") in ("fp32", "bf16") and searched:
        options["precision"] = entry["precision"]
    both = parts.is_ge and parts.stem == "pr" and parts._replace(stem="pr-all").build() in entries
    if "gamma" in entry and "particles" not in entry and not both:
        # The default of rb-ge is both, that of rb-pr the images that are right without noise.
        denominator = entry.get("denominator")
        options["denominator"] = denominator if difference or denominator != "correct" else None
    tool = ("ge", "loss") if parts.is_gap else ("ge",) if difference else ()
    return step._replace(words=(*tool, *step.words)).adding(**options)


def _is_partial(entry: Entry) -> bool:
    """Whether settings are missing that rb-attack or rb-pr would have written, as in published results."""
    attack, wanted = entry.get("attack"), ["n"]
    if isinstance(attack, str) and attack in ATTACKS:
        fields = registry.options(ATTACKS.load(attack))
        wanted += [registry.public_name(field) for field in fields if not field.metadata["optional"]]
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
        lists = {"eps": [distance(eps, norm)]} if is_number(eps) else {}
        return EntryCommand(("attack", "curve"), _present(entry, "norm", "queries", "grid"), lists)
    if isinstance(entry.get("noise"), str) and is_number(entry.get("gamma")):
        lists = {"gamma": [entry["gamma"]]}
        if "particles" in entry:  # splitting
            keys = ",".join(f"{name}={entry[name]}" for name in RARE[4:] if name in entry)
            return EntryCommand(("pr",), {"sampling": f"rare:{keys}", **_present(entry, *RARE[:4])}, lists)
        options = _present(entry, *(name for name in PR if name != "denominator"), "truncate")
        if str(entry.get("criterion", "")).startswith("PR > "):
            options["passes"] = "above"
        if stopping := str(entry.get("stopping", "")):
            options |= {"sampling": "adaptive"} if stopping.startswith("sequential") else {"only": "probacc"}
        if is_number(entry.get("rho")):
            lists["rho"] = [entry["rho"]]
        return EntryCommand(("pr",), options, lists)
    if isinstance(certificate, str) and certificate in CERTIFIERS and is_number(eps):
        options = _settings(CERTIFIERS.load(certificate), entry)
        options |= {"adaptive": True} if "stopping" in entry else {}
        return EntryCommand(("certify", certificate), options, {"eps": [distance(eps, norm)]})
    return _corruption(entry, lenient)


def _present(entry: Entry, *names: str) -> dict[str, Any]:
    return plain({name: entry.get(name) for name in names})


def _attack(attack: str, entry: Entry, eps: float, norm: str) -> EntryCommand:
    options = _settings(ATTACKS.load(attack), entry, norm)
    distances = [distance(eps, "l2" if attack in _PIXELS else norm)]
    if isinstance(entry.get("ladder"), list):
        distances = [distance(value, norm) for value in entry["ladder"] if is_number(value)] + distances
        options["ladder"] = True
    about = entry.get("two_phase")
    if isinstance(about, dict):  # a value estimated from a sample
        sampled, goal = about.get("sampled"), about.get("goal")
        size = "all" if sampled == about.get("survivors") else sampled
        options |= {"two_phase": size} if goal is None else {"precision_goal": goal}
        options |= {"screen_steps": about["screen_steps"]} if "screen_steps" in about else {}
    if is_transfer(entry):
        options = {"attack": attack, "from_": ",".join(listed(entry["source"])), **options}
        return EntryCommand(("attack", "transfer"), options, {"eps": distances})
    return EntryCommand(("attack", attack), options, {"eps": distances})


def is_transfer(entry: Entry) -> bool:
    """Whether other models were attacked: `source` is their checkpoint, or a list of them."""
    parts = metric_name.parse(str(entry.get("metric")))
    sources = listed(entry.get("source"))
    return "transfer" in parts.prefixes and all(isinstance(one, str) for one in sources)


def listed(value: object) -> list[Any]:
    """The items of a field that is a list only where there are several."""
    return value if isinstance(value, list) else [value]


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
    options = _present(entry, "constants") if entry.get("constants") != "auto" else {}
    return EntryCommand(("corrupt",), options, {"": names, "severity": severities})


# --- published numbers, whose names say how they were measured --------------------------------------------


def _by_name(name: metric_name.MetricName) -> EntryCommand | None:
    """The command that a metric's name suggests; None for a name that suggests none."""
    if name.prefixes:
        step = _by_name(name.rest()) if len(name.prefixes) == 1 else None
        if step is not None and name.is_ge:  # rb-ge gives both denominators
            options = {key: value for key, value in step.options.items() if key != "denominator"}
            return step._replace(words=("ge", *step.words), options=options)
        return step.adding(split=name.split) if step is not None and name.split != "test" else None
    if name.over == "gamma" and name.stem != "pfail" and name.of in NOISES:
        over_all = {"denominator": "all"} if name.stem.endswith("-all") else {}
        value = float(name.number) * 255  # the name has only six digits
        whole = len(name.number) > 6 and abs(value - round(value)) < 1e-3
        gamma = f"{value:.0f}/255" if whole else name.number
        rho = {"rho": [name.rho]} if name.rho else {}
        return EntryCommand(("pr",), {"noise": name.of, **over_all}, {"gamma": [gamma], **rho})
    if name.over == "severity" and name.of in CORRUPTIONS:
        return EntryCommand(("corrupt",), {}, {"": [name.of], "severity": [name.number]})
    return _attack_named(name) if name.over == "eps" else None


def _attack_named(name: metric_name.MetricName) -> EntryCommand | None:
    """The command of `pgd20.l2.0.5`: a registered attack, perhaps its number of steps, norm and distance."""
    for attack in sorted(ATTACKS, key=len, reverse=True):
        steps = name.stem.removeprefix(attack)
        if name.stem.startswith(attack) and (steps.isdigit() or not steps):
            options = {key: value for key, value in (("steps", steps), ("norm", name.norm)) if value}
            if options.keys() <= {
                registry.public_name(field) for field in registry.options(ATTACKS.load(attack))
            }:
                small = not name.norm and 0 < float(name.number) < 0.1  # which alone would have two readings
                eps = f"{name.number}/255" if small else name.number
                return EntryCommand(("attack", attack), options, {"eps": [eps]})
    return None


# --- measures -----------------------------------------------------------------------------------------------


def _is_measure(entry: Entry) -> bool:
    """Whether a measure's entry has all settings that rb-measure needs; a bound may have had further inputs
    on the command line."""
    return entry.get("measure") in MEASURES and entry["measure"] != "bound"


def _measurements(entries: Sequence[Entry]) -> list[EntryCommand]:
    """A command for the numbers of each measure on the same images, weights and attack.

    Numbers that do not depend on the attack come with one that does.
    """
    groups: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        by_attack = groups.setdefault(repr((entry["measure"], _measured_on(entry))), {})
        by_attack.setdefault(repr(_perturbed(entry)), []).append(entry)
    steps = []
    for by_attack in groups.values():
        clean = by_attack.pop("{}", [])
        for perturbed in by_attack.values() or [[]]:
            of_command = [*perturbed, *clean]
            clean = []  # they come with the first attack
            eps = dict.fromkeys(distance(entry["eps"]) for entry in of_command if is_number(entry.get("eps")))
            of = of_command[0]
            options = {**_measured_on(of), **_perturbed(of), **_of_measure(of_command)}
            steps.append(EntryCommand(("measure", of["measure"]), options, {"eps": list(eps)} if eps else {}))
    return steps


def _measured_on(entry: Entry) -> dict[str, Any]:
    options = _present(entry, *_MEASURED)
    if "init_seed" in entry:
        options["init_seed"] = entry["init_seed"]
    n, batches, size = entry.get("n"), entry.get("batches"), entry.get("batch_size")
    if isinstance(batches, int) and isinstance(size, int) and n != batches * size:
        options |= _present(entry, "n")  # the last batch is smaller
    return options


def _perturbed(entry: Entry) -> dict[str, Any]:
    """The attack that perturbed the images; empty where there was none."""
    name = entry.get("attack")
    if name != "pgd":
        return {"attack": name} if isinstance(name, str) else {}
    of_pgd = _settings(ATTACKS.load(name), entry)
    return plain({"attack": name, "attack_steps": of_pgd.get("steps"), "step_size": of_pgd.get("step_size")})


def _of_measure(entries: Sequence[Entry]) -> dict[str, Any]:
    """The measure's own options: what the entries state, and what the names of their numbers ask for."""
    measure = entries[0]["measure"]
    options = {
        name: value for entry in entries for name, value in _settings(MEASURES.load(measure), entry).items()
    }
    options.pop("eps", None)
    words = {word for entry in entries for word in str(entry.get("metric")).split(".")}
    if measure == "ntk":
        among = (kernel for kernel in reversed(KERNELS) if kernel in words)
        options["kernel"] = "joint" if words & {"all", "all_robust"} else next(among, KERNELS[0])
    if measure == "hessian":
        wrt = sorted(words & {"weight", "input"})
        options["wrt"] = wrt[0] if len(wrt) == 1 else "both"
        tops = [int(word[3:]) for word in words if word.startswith("top") and word[3:].isdigit()]
        if "labs" in words:
            options["solver"] = "both" if tops or "lmax" in words else "power"
        if tops:
            options["top"] = max(tops)
    return options
