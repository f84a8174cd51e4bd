"""The commands of the evaluations that a record holds, as far as its entries and names tell them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from rbtools.attacks import ATTACKS
from rbtools.plots.board.shell_words import (
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


class _Step(NamedTuple):
    """A command, the options that its results share, and those that are lists."""

    command: str
    rest: tuple[str, ...]
    lists: Mapping[str, Sequence[str]]


def evaluations(record: Record, lacking: dict[str, None]) -> list[str]:
    """A command for each kind of evaluation; what the record does not say goes to `lacking`."""
    entries = {str(e.get("metric")): e for e in record.get("evals") or () if isinstance(e, Mapping)}
    data = () if record.get("train") else tuple(option("dataset", record.get("dataset")))
    steps: list[_Step] = []
    unsaid: list[str] = []
    unknown: list[str] = []
    for name in dict.fromkeys([*entries, *(record.get("metrics") or ())]):
        entry = entries.get(name, {})
        if _comes_along(name, entry, entries):
            continue
        step = _step(name, entry, entries, lacking)
        if step is None:
            step = _by_name(name)
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
    return _merged(steps)


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
    """The commands; what differs in its lists only is one."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, dict[str, None]]] = {}
    for step in steps:
        lists = found.setdefault((step.command, step.rest), {})
        for name, values in step.lists.items():
            lists.setdefault(name, {}).update(dict.fromkeys(values))
    lines = []
    for (command, rest), lists in found.items():
        first = ",".join(lists.pop("", {}))
        listed = [f"--{name} {','.join(values)}" for name, values in lists.items()]
        lines.append(joined(command, [first] if first else [], listed, rest))
    return lines


def _comes_along(name: str, entry: Mapping[str, Any], entries: Mapping[str, Any]) -> bool:
    """Whether a result is made on the way to another one, or by no tool of the pipe."""
    plain = metric_name.without_split(name)
    if name in ("score", "seconds_per_epoch") or plain == "acc":
        return True
    if "gamma" in entry and "rho" not in entry and any(_beside(entry, other) for other in entries.values()):
        return True
    if name.startswith("ge.pr-all.") and _over_right(name) in entries:
        return True
    if metric_name.is_gap(name):
        twin = name.replace("error_gap.", "loss_gap.").replace("train.error.", "train.loss.")
        return twin != name and twin in entries
    if name.startswith("ge."):
        return False
    first, _, rest = plain.partition(".")
    if metric_name.gap_name(plain) in entries or f"{first}_gap.{rest}" in entries:
        return True
    return metric_name.ge_name(plain) in entries and (name != plain or entry.get("tool") == "rb-ge")


def _over_right(name: str) -> str:
    """The name of the same gap over the images that are right without noise: `rb-ge pr` gives both."""
    return name.replace("-all.", ".", 1)


def _beside(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a ProbAcc was counted on the copies of this PR_D: then its options are those of both."""
    if "rho" not in other or "stopping" in other or "particles" in entry:
        return False
    return all(entry.get(key) == other.get(key) for key in ("gamma", "split", *PR))


def _step(
    name: str, entry: Mapping[str, Any], entries: Mapping[str, Any], lacking: dict[str, None]
) -> _Step | None:
    """The command that an entry's protocol tells; None where it does not."""
    made = _Step("rb-acc", (), {}) if name == "ge.acc" and "n" in entry else _question(entry, lacking)
    if made is None:
        return None
    gap = metric_name.is_gap(name)
    difference = gap or name.startswith("ge.")
    if not difference and entry.get("split") not in (None, "test"):
        made = made._replace(rest=(*made.rest, *option("split", entry["split"])))
    if entry.get("split") in (None, "test") and "indices" in entry:
        lacking["Chosen images were evaluated (--indices), of which the record has only a hash."] = None
    counts = _counts(entry, entries)
    if counts is None:
        lacking["The record does not say how many images rb-pr was given."] = None
    flags = ("n", "n-train") if gap else ("n-train", "n") if difference else ("n",)
    for flag, count in zip(flags, counts or (), strict=False):
        made = made._replace(rest=(*made.rest, *option(flag, count)))
    rest = [*made.rest, *option("seed", entry.get("seed"))]
    if entry.get("precision") in ("fp32", "bf16") and ("eps" in entry or "gamma" in entry):
        rest += option("precision", entry["precision"])  # of a search; other tools have no such option
    both = difference and name.replace("ge.pr.", "ge.pr-all.", 1) in entries and name.startswith("ge.pr.")
    if "gamma" in entry and "particles" not in entry and not both:
        # rb-ge gives both kinds unless told otherwise, rb-pr that over the right images.
        wanted = entry.get("denominator")
        rest += option("denominator", wanted) if difference or wanted != "correct" else []
    tool = "rb-ge loss " if gap else "rb-ge " if difference else "rb-"
    return _Step(made.command.replace("rb-", tool, 1), tuple(rest), made.lists)


def _counts(entry: Mapping[str, Any], entries: Mapping[str, Any]) -> list[Any] | None:
    """How many images were asked for, on train and test for a difference.

    Of probabilistic robustness an entry counts those that are right: the accuracy beside it has all.
    None where that does not fit together.
    """
    found = entry.get("n")
    counts = found if isinstance(found, list) else [found]
    if entry.get("denominator") != "correct":
        return counts
    sides = ["train.acc", "acc"] if len(counts) == 2 else [_acc_of(entry)]
    asked = []
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
    told = entry.get("norm")
    norm = told if isinstance(told, str) else "linf"
    attack = entry.get("attack")
    if isinstance(attack, str) and attack in ATTACKS and is_number(entry.get("eps")):
        return _attack(attack, entry, norm)
    if isinstance(entry.get("noise"), str) and is_number(entry.get("gamma")):
        return _noise(entry)
    return _corruption(entry, lacking)


def _attack(attack: str, entry: Mapping[str, Any], norm: str) -> _Step:
    words = []
    for name in own_options(ATTACKS.load(attack)):
        if name == "step_size" and entry.get("relative_step") is not None:
            continue
        if entry.get(name) != "":
            words += option(name, entry.get(name), norm)
    eps = [distance(entry["eps"], "l2" if attack == "cw-l2" else norm)]
    if isinstance(entry.get("ladder"), list):
        eps = [distance(value, norm) for value in entry["ladder"] if is_number(value)] + eps
        words.append("--ladder")
    return _Step(f"rb-attack {attack}", tuple(words), {"eps": eps})


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
    # They stand by themselves or in a list, where a word could be taken for an option.
    if not all(isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name) for name in names):
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


_DISTANCE = re.compile(r"(\d*)(\.l2)?\.(\d+(?:\.\d+)?)")
_PR = re.compile(r"pr(?:-all)?\.([a-z]+)\.(\d+(?:\.\d+)?)")
_PROB_ACC = re.compile(r"probacc(?:-all)?\.([a-z]+)\.(\d+\.\d+|\d+)\.(\d+\.\d+|\d+)")
_CORRUPT = re.compile(r"corrupt\.([a-z_]+)\.([1-5])")


@cache
def _by_name(name: str) -> _Step | None:
    """The command that a metric's name alone suggests, None for a name that says too little."""
    difference = name.startswith("ge.")
    plain = metric_name.without_split(name.removeprefix("ge."))
    step = _attack_named(plain)
    if (found := _PR.fullmatch(plain) or _PROB_ACC.fullmatch(plain)) and found[1] in NOISES:
        rho = {"rho": [found[3]]} if found.re is _PROB_ACC else {}
        over_all = ("--denominator", "all") if "-all." in plain and not difference else ()
        step = _Step("rb-pr", ("--noise", found[1], *over_all), {"gamma": [_of255(found[2])], **rho})
    elif found := _CORRUPT.fullmatch(plain):
        step = _Step("rb-corrupt", (), {"": [found[1]], "severity": [found[2]]})
    if step is None or difference:
        return None if step is None else step._replace(command=step.command.replace("rb-", "rb-ge ", 1))
    split = name.removesuffix(plain).removesuffix(".")
    return step._replace(rest=(*step.rest, *(option("split", split) if split else ())))


def _attack_named(name: str) -> _Step | None:
    """What `pgd20.l2.0.5` tells: a registered attack, perhaps its number of steps, a norm and a distance."""
    for attack in sorted(ATTACKS, key=len, reverse=True):
        found = _DISTANCE.fullmatch(name.removeprefix(attack)) if name.startswith(attack) else None
        if found is not None:
            said = {"steps": found[1], "norm": "l2" if found[2] else ""}
            words = [word for key, value in said.items() if value for word in (f"--{key}", value)]
            takes = own_options(ATTACKS.load(attack))
            if all(key in takes for key, value in said.items() if value):
                return _Step(f"rb-attack {attack}", tuple(words), {"eps": [found[3]]})
    return None


def _of255(text: str) -> str:
    """A radius of a name, which has six digits, as the one that was meant."""
    value = float(text) * 255
    return f"{value:.0f}/255" if len(text) > 6 and abs(value - round(value)) < 1e-3 else text
