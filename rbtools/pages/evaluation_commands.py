"""The commands of a record's evaluations, as far as its entries and names determine them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.pages import measure_commands
from rbtools.pages.shell_words import (
    CONTROL,
    distance,
    is_number,
    joined,
    number,
    option,
    own_options,
    radius,
)
from rbtools.probabilistic import NOISES
from rbtools.records import metric_name

Record = Mapping[str, Any]
PR = ["noise", "norm", "clip", "samples", "denominator"]
_OVER_ALL = ("--denominator", "all")
# A corruption's name is an argument, where another word could be parsed as an option.
_CORRUPTION = re.compile("[a-z][a-z0-9_]*")


class _Step(NamedTuple):
    """A command, the options that its results share, and those that are lists."""

    command: str
    rest: tuple[str, ...]
    lists: Mapping[str, Sequence[str]]


def evaluations(record: Record, lacking: dict[str, None]) -> list[str]:
    """A command for each kind of evaluation; what is missing in the record goes to `lacking`."""
    entries = {str(e.get("metric")): e for e in record.get("evals") or () if isinstance(e, Mapping)}
    data = () if record.get("train") else tuple(option("dataset", record.get("dataset")))
    steps: list[_Step] = []
    unsaid: list[str] = []
    unknown: list[str] = []
    measures = [entry for entry in entries.values() if measure_commands.is_described(entry)]
    for name in dict.fromkeys([*entries, *(record.get("metrics") or ())]):
        entry = entries.get(name, {})
        if entry in measures:
            continue
        if "measure" in entry:
            unknown.append(name)
            continue
        if _comes_along(name, entry, entries):
            continue
        step = _step(name, entry, entries, lacking)
        if step is None:
            step = _by_name(metric_name.parse(name))
            (unknown if step is None else unsaid).append(name)
        elif _partial(entry):
            unsaid.append(name)
        if step is not None:
            steps.append(step._replace(rest=(*step.rest, *data)))
    if unsaid:
        lacking[
            f"The record says only in part how these were measured ({_listed(unsaid)}): for the rest the"
            " tools' own settings stand in the command, not what was used."
        ] = None
    if unknown:
        lacking[f"The record does not say how these were measured: {_listed(unknown)}."] = None
    return [*_merged(steps), *measure_commands.measurements(measures, data)]


def _partial(entry: Mapping[str, Any]) -> bool:
    """Whether settings are missing that rb-attack or rb-pr would have written, as in published results."""
    attack = entry.get("attack")
    wanted = ["n"]
    if isinstance(attack, str) and attack in ATTACKS:
        wanted += [name for name in own_options(ATTACKS.load(attack)) if name != "relative_step"]
    elif "gamma" in entry and "particles" not in entry:
        wanted += PR
    return any(name not in entry for name in wanted)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(CONTROL.sub("\ufffd", name) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _merged(steps: Iterable[_Step]) -> list[str]:
    """The commands; those that differ only in their lists are merged."""
    commands: dict[tuple[str, tuple[str, ...]], dict[str, dict[str, None]]] = {}
    for step in steps:
        lists = commands.setdefault((step.command, step.rest), {})
        for name, values in step.lists.items():
            lists.setdefault(name, {}).update(dict.fromkeys(values))
    lines = []
    for (command, rest), lists in commands.items():
        first = ",".join(lists.pop("", {}))
        listed = [f"--{name} {','.join(values)}" for name, values in lists.items()]
        lines.append(joined(command, [first] if first else [], listed, rest))
    return lines


def _comes_along(name: str, entry: Mapping[str, Any], entries: Mapping[str, Any]) -> bool:
    """Whether a result is computed along with another one, or by no tool of the pipe."""
    parts = metric_name.parse(name)
    plain = metric_name.without_split(name)
    if name in ("score", "seconds_per_epoch") or plain == "acc":
        return True
    if "gamma" in entry and "rho" not in entry and any(_beside(entry, other) for other in entries.values()):
        return True
    if parts.is_ge:  # rb-ge pr gives PR over all images and over those that are right without noise
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


def _beside(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a ProbAcc was counted on the copies of this PR_D: then its options are those of both."""
    if "rho" not in other or "stopping" in other or "particles" in entry:
        return False
    return all(entry.get(key) == other.get(key) for key in ("gamma", "split", *PR))


def _step(
    name: str, entry: Mapping[str, Any], entries: Mapping[str, Any], lacking: dict[str, None]
) -> _Step | None:
    """The command that an entry's protocol describes; None where it describes none."""
    step = _Step("rb-acc", (), {}) if name == "ge.acc" and "n" in entry else _question(entry, lacking)
    if step is None:
        return None
    parts = metric_name.parse(name)
    difference = parts.is_gap or parts.is_ge
    if not difference and entry.get("split") not in (None, "test"):
        step = step._replace(rest=(*step.rest, *option("split", entry["split"])))
    if entry.get("split") in (None, "test") and "indices" in entry:
        lacking["Chosen images were evaluated (--n LIST), of which the record has only a hash."] = None
    counts = _counts(entry, entries)
    if counts is None:
        lacking["The record does not say how many images rb-pr was given."] = None
    flags = ("n", "n-train") if parts.is_gap else ("n-train", "n") if difference else ("n",)
    for flag, count in zip(flags, counts or (), strict=False):
        step = step._replace(rest=(*step.rest, *option(flag, count)))
    rest = [*step.rest, *option("seed", entry.get("seed"))]
    searched = "certificate" not in entry and not _is_transfer(entry)
    searched &= "eps" in entry or "gamma" in entry
    if entry.get("precision") in ("fp32", "bf16") and searched:
        rest += option("precision", entry["precision"])  # of a search; other tools have no such option
    both = parts.is_ge and parts.stem == "pr" and parts._replace(stem="pr-all").build() in entries
    if "gamma" in entry and "particles" not in entry and not both:
        # The default of rb-ge is both, that of rb-pr the images that are right without noise.
        wanted = entry.get("denominator")
        rest += option("denominator", wanted) if difference or wanted != "correct" else []
    tool = "rb-ge loss " if parts.is_gap else "rb-ge " if difference else "rb-"
    return _Step(step.command.replace("rb-", tool, 1), tuple(rest), step.lists)


def _counts(entry: Mapping[str, Any], entries: Mapping[str, Any]) -> list[Any] | None:
    """The requested number of images, for a difference on train and test. An entry of probabilistic
    robustness counts the correct images: the accuracy in the record has all. None if these do not fit
    together.
    """
    number = entry.get("n")
    counts = number if isinstance(number, list) else [number]
    if entry.get("denominator") != "correct":
        return counts
    sides = ["train.acc", "acc"] if len(counts) == 2 else [_acc_of(entry)]
    asked: list[Any] = []
    if len(counts) != len(sides):
        return None
    for side, count in zip(sides, counts, strict=True):
        clean = entries.get(side, {})
        n, value = clean.get("n"), clean.get("value")
        if not (isinstance(n, int) and is_number(value) and round(n * value) == count):
            return None
        asked.append(n)
    return asked


def _acc_of(entry: Mapping[str, Any]) -> str:
    split = entry.get("split")
    return metric_name.split_name("acc", split if isinstance(split, str) else "test")


def _question(entry: Mapping[str, Any], lacking: dict[str, None]) -> _Step | None:
    stated = entry.get("norm")
    norm = stated if isinstance(stated, str) else "linf"
    attack = entry.get("attack")
    if isinstance(attack, str) and attack in ATTACKS and is_number(entry.get("eps")):
        return _attack(attack, entry, norm, lacking)
    if attack == "curve":
        words = tuple(word for name in ("norm", "queries") for word in option(name, entry.get(name)))
        eps = {"eps": [distance(entry["eps"], norm)]} if is_number(entry.get("eps")) else {}
        return _Step("rb-attack curve", words, eps)
    if isinstance(entry.get("noise"), str) and is_number(entry.get("gamma")):
        return _noise(entry)
    certificate = entry.get("certificate")
    if isinstance(certificate, str) and certificate in CERTIFIERS and is_number(entry.get("eps")):
        return _certificate(certificate, entry, norm)
    return _corruption(entry, lacking)


def _certificate(certificate: str, entry: Mapping[str, Any], norm: str) -> _Step:
    words = []
    for name in own_options(CERTIFIERS.load(certificate)):
        words += option(name, entry.get(name), of=CERTIFIERS.load(certificate))
    if "stopping" in entry:
        words.append("--adaptive")
    return _Step(f"rb-certify {certificate}", tuple(words), {"eps": [distance(entry["eps"], norm)]})


def _attack(attack: str, entry: Mapping[str, Any], norm: str, lacking: dict[str, None]) -> _Step:
    words = []
    for name in own_options(ATTACKS.load(attack)):
        if name == "step_size" and entry.get("relative_step") is not None:
            continue
        if entry.get(name) != "":
            words += option(name, entry.get(name), norm, ATTACKS.load(attack))
    eps = [distance(entry["eps"], "l2" if attack in ("cw-l2", "ddn") else norm)]
    if isinstance(entry.get("ladder"), list):
        eps = [distance(value, norm) for value in entry["ladder"] if is_number(value)] + eps
        words.append("--ladder")
    words += _two_phase(entry)
    if _is_transfer(entry):
        lacking[SOURCE] = None
        start = [*option("attack", attack), *option("from", entry["source"])]
        return _Step("rb-attack transfer", (*start, *words), {"eps": eps})
    return _Step(f"rb-attack {attack}", tuple(words), {"eps": eps})


SOURCE = "The attacked model of a transfer is named by its checkpoint: put its file there (--from FILE)."


def _is_transfer(entry: Mapping[str, Any]) -> bool:
    """Whether another model was attacked: `source` is its checkpoint."""
    parts = metric_name.parse(str(entry.get("metric")))
    return "transfer" in parts.prefixes and isinstance(entry.get("source"), str)


def _two_phase(entry: Mapping[str, Any]) -> list[str]:
    """The options of an entry that was estimated from a sample."""
    about = entry.get("two_phase")
    if not isinstance(about, dict):
        return []
    sampled, goal = about.get("sampled"), about.get("goal")
    size = "all" if sampled == about.get("survivors") else sampled
    words = option("two_phase", size) if goal is None else option("precision_goal", goal)
    return [*words, *option("screen_steps", about.get("screen_steps"))]


def _noise(entry: Mapping[str, Any]) -> _Step | None:
    if "particles" in entry:  # splitting
        words = ["--rare"]
        for name in ("noise", "norm", "clip", "truncate", "particles", "moves", "runs", "floor"):
            words += option(name, entry.get(name))
        return _Step("rb-pr", tuple(words), {"gamma": [radius(entry["gamma"])]})
    words = []
    for name in (*PR, "truncate"):
        if name != "denominator":
            words += option(name, entry.get(name))
    if str(entry.get("criterion", "")).startswith("PR > "):
        words += ["--passes", "above"]
    stopping = str(entry.get("stopping", ""))
    if stopping:
        words += ["--adaptive"] if stopping.startswith("sequential") else ["--only", "probacc"]
    lists = {"gamma": [radius(entry["gamma"])]}
    if is_number(entry.get("rho")):
        lists["rho"] = [number(entry["rho"])]
    return _Step("rb-pr", tuple(words), lists)


def _corruption(entry: Mapping[str, Any], lacking: dict[str, None]) -> _Step | None:
    names = entry.get("corruptions") or [entry.get("corruption")]
    severities = entry.get("severities") or [entry.get("severity")]
    if not (isinstance(names, list) and isinstance(severities, list)):
        return None
    if not all(isinstance(name, str) and _CORRUPTION.fullmatch(name) for name in names):
        return None
    if not all(isinstance(severity, int) for severity in severities):
        return None
    words = option("constants", entry.get("constants")) if entry.get("constants") != "auto" else []
    if "archive" in entry:
        lacking["The corrupted images came from an archive: add --from DIR."] = None
    if "reference" in entry:
        lacking["mCE is beside a reference: add --reference FILE."] = None
    lists = {"": names, "severity": [str(severity) for severity in severities]}
    return _Step("rb-corrupt", tuple(words), lists)


@cache
def _by_name(name: metric_name.MetricName) -> _Step | None:
    """The command that a metric's name suggests; None for a name that suggests none."""
    if name.prefixes:
        step = _by_name(name.rest()) if len(name.prefixes) == 1 else None
        if step is not None and name.is_ge:
            rest = tuple(word for word in step.rest if word not in _OVER_ALL)  # rb-ge gives both
            return step._replace(command=step.command.replace("rb-", "rb-ge ", 1), rest=rest)
        if step is not None and name.split != "test":
            return step._replace(rest=(*step.rest, *option("split", name.split)))
        return None
    if name.over == "gamma" and name.stem != "pfail" and name.of in NOISES:
        over_all = _OVER_ALL if name.stem.endswith("-all") else ()
        rho = {"rho": [name.rho]} if name.rho else {}
        return _Step("rb-pr", ("--noise", name.of, *over_all), {"gamma": [_of255(name.number)], **rho})
    if name.over == "severity" and _CORRUPTION.fullmatch(name.of):
        return _Step("rb-corrupt", (), {"": [name.of], "severity": [name.number]})
    return _attack_named(name) if name.over == "eps" else None


def _attack_named(name: metric_name.MetricName) -> _Step | None:
    """The command of `pgd20.l2.0.5`: a registered attack, perhaps its number of steps, norm and distance."""
    for attack in sorted(ATTACKS, key=len, reverse=True):
        steps = name.stem.removeprefix(attack)
        if name.stem.startswith(attack) and (steps.isdigit() or not steps):
            settings = {key: value for key, value in (("steps", steps), ("norm", name.norm)) if value}
            if settings.keys() <= set(own_options(ATTACKS.load(attack))):
                words = [word for key, value in settings.items() for word in (f"--{key}", value)]
                small = not name.norm and 0 < float(name.number) < 0.1  # which alone would have two readings
                eps = f"{name.number}/255" if small else name.number
                return _Step(f"rb-attack {attack}", tuple(words), {"eps": [eps]})
    return None


def _of255(text: str) -> str:
    """The intended radius of a name, which has only six digits."""
    value = float(text) * 255
    return f"{value:.0f}/255" if len(text) > 6 and abs(value - round(value)) < 1e-3 else text
