"""The command line that makes a record again, as far as the record says how it was made.

Every word comes from a file that may be anybody's and is meant to be pasted into a shell: options are
those that the tools have, values are quoted, and a value with control characters gives no command at all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from rbtools import registry
from rbtools.attacks import ATTACKS
from rbtools.records import metrics
from rbtools.training import METHODS

Record = Mapping[str, Any]

# The options of rb-train itself that stand in `train.config`; a test holds them against the command.
RECIPE = (
    "epochs batch_size lr momentum nesterov weight_decay schedule milestones decay augment val micro_batch"
    " regularize cutout_length mixup_alpha awp_gamma awp_warmup l2 label_smoothing ema filter warm_steps"
    " patience clean_pass deterministic"
).split()
PR = ["noise", "norm", "clip", "samples", "denominator"]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Again(NamedTuple):
    """The commands of a pipe, and a sentence for each thing that the record does not say."""

    steps: list[str]
    lacking: list[str]


class _Unsayable(Exception):
    """A value that no command line should hold."""


def again(record: Record) -> Again:
    """The pipe that makes this record again. Never raises: what cannot be said stands in `lacking`."""
    lacking: dict[str, None] = {}
    try:
        steps = [*_source(record, lacking), *_training(record, lacking), *_evaluations(record, lacking)]
    except _Unsayable as wrong:
        return Again([], [f"No command line is shown: {wrong}"])
    return Again(steps, list(lacking))


@cache
def own_options(method: type) -> tuple[str, ...]:
    """The names, as records have them, of the options of a registered class."""
    return tuple(registry.public_name(field) for field in registry.options(method))


@cache
def distances() -> frozenset[str]:
    """The options of attacks and training methods that are distances in the unit of --eps."""
    fields = [
        field for kind in (ATTACKS, METHODS) for name in kind for field in registry.options(kind.load(name))
    ]
    return frozenset(["eps", *(registry.public_name(f) for f in fields if f.metadata["unit"] == "eps")])


# --- words ----------------------------------------------------------------------------------------


def word(value: Any) -> str:
    """A value as the shell takes it. Raises _Unsayable for control characters and what is no plain value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Unsayable("a setting in the record is no number and no text.")
    text = value if isinstance(value, str) else number(value)
    if _CONTROL.search(text):
        raise _Unsayable("a name in the record holds control characters.")
    return shlex.quote(text)


def number(value: float) -> str:
    """The shortest text that reads as this number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def distance(value: float, norm: str = "linf") -> str:
    """A distance of [0, 1] as the command line takes it: L-infinity in 1/255, L2 as it is."""
    if norm != "linf":
        return number(value)
    short = f"{value * 255:g}"
    return short if float(short) / 255 == value else number(value * 255)


def radius(value: float) -> str:
    """A radius on [0, 1]; 8/255 where it is just that and no shorter number."""
    short = number(value)
    return f"{round(value * 255)}/255" if len(short) > 7 and round(value * 255) / 255 == value else short


def option(name: str, value: Any, norm: str = "linf") -> list[str]:
    """`--step-size 2`, `--nesterov`, nothing for None; `--name=-x` where the value looks like an option."""
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list):
        value = ",".join(number(one) if _is_number(one) else str(one) for one in value) or "none"
    text = word(distance(value, norm) if name in distances() and _is_number(value) else value)
    return [f"{flag}={text}"] if text.startswith(("-", "'-")) else [flag, text]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _command(*parts: str | Iterable[str]) -> str:
    words: list[str] = []
    for part in parts:
        words += [part] if isinstance(part, str) else part
    return " ".join(words)


# --- where the network comes from -----------------------------------------------------------------


def _source(record: Record, lacking: dict[str, None]) -> list[str]:
    arch = record.get("arch") or {}
    space, name = arch.get("space"), arch.get("name")
    file = record.get("checkpoint_file")
    if isinstance(file, str) and not record.get("train"):
        named = option("arch", name) if isinstance(name, str) and space == "zoo" else []
        lacking["The file of weights is named as on the machine that evaluated it."] = None
        return [_command("rb-arch", option("from_checkpoint", file), named)]
    if not record.get("train"):
        lacking["The record does not say how its weights came to be: it has no training and no file."] = None
    sizes = [*option("channels", arch.get("channels")), *option("cells", arch.get("cells"))]
    if space == "nasbench201" and isinstance(arch.get("index"), int):
        return [_command("rb-arch", option("index", arch["index"]), sizes)]
    if space == "zoo" and isinstance(name, str):
        return [_command("rb-arch", option("arch", name))]
    if space in ("torchvision", "timm") and isinstance(name, str):
        return [_command("rb-arch", option("arch", f"{space}:{name}"))]
    if space == "python" and isinstance(name, str):
        lacking["The network is a program: rb-arch and the tools after it ask for --allow-code."] = None
        return [_command("rb-arch", option("arch", f"python:{name}"))]
    lacking["The record does not say which architecture this is in a way that rb-arch knows."] = None
    return []


def _training(record: Record, lacking: dict[str, None]) -> list[str]:
    train = record.get("train")
    if not isinstance(train, Mapping) or not train:
        return []
    method, config = train.get("method"), train.get("config")
    if not isinstance(method, str) or method not in METHODS:
        lacking["The record does not name a training method that rb-train has."] = None
        return []
    data = option("dataset", record.get("dataset"))
    if not isinstance(config, Mapping) or "epochs" not in config:
        lacking[
            "The training's configuration is not in the record: rb-train's defaults stand in its place."
        ] = None
        known = option("epochs", train.get("epochs"))
        return [_command("rb-train --method", word(method), option("seed", train.get("seed")), data, known)]
    words = []
    for name in [*own_options(METHODS.load(method)), *RECIPE]:
        if name in config and not _unused(name, config):
            words += option(name, config[name])
    words += _normalize(config.get("normalize"))
    if config.get("init") is not None:
        lacking["The training went on from other weights, of which the record knows no more."] = None
    if train.get("processes", 1) != 1:
        lacking["Several processes trained the network together (torchrun)."] = None
    if train.get("precision") in ("fp32", "bf16"):
        words += option("precision", train["precision"])
    checkpoints = train.get("checkpoints")
    if isinstance(checkpoints, Mapping) and checkpoints.get("selected") == "best":
        words += option("select", "best")
    seed = option("seed", train.get("seed"))
    return [_command("rb-train --method", word(method), seed, data, words)]


def _unused(name: str, config: Mapping[str, Any]) -> bool:
    """What stands in the configuration though its option would be refused."""
    if name == "momentum":
        return config.get("schedule") == "onecycle"
    return name in ("rounds", "tail_lr") and config.get("tail") == "exact"


def _normalize(found: Any) -> list[str]:
    if found is None:
        return ["--normalize none"]
    if found == "none":
        return option("normalize", found)
    if isinstance(found, list) and len(found) == 2 and all(isinstance(side, list) for side in found):
        return ["--normalize", *(word(",".join(map(number, filter(_is_number, side)))) for side in found)]
    return []


# --- what was measured ----------------------------------------------------------------------------


class _Step(NamedTuple):
    """A command, the options that its results share, and those that are lists."""

    command: str
    rest: tuple[str, ...]
    lists: Mapping[str, Sequence[str]]


def _evaluations(record: Record, lacking: dict[str, None]) -> list[str]:
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
    shown = ", ".join(_CONTROL.sub("\ufffd", name) for name in names[:12])
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
        lines.append(_command(command, [first] if first else [], listed, rest))
    return lines


def _comes_along(name: str, entry: Mapping[str, Any], entries: Mapping[str, Any]) -> bool:
    """Whether a result is made on the way to another one, or by no tool of the pipe."""
    plain = metrics.without_split(name)
    if name in ("score", "seconds_per_epoch") or plain == "acc":
        return True
    if "gamma" in entry and "rho" not in entry and any(_beside(entry, other) for other in entries.values()):
        return True
    if name.startswith("error_gap.") and f"loss_gap.{name.partition('.')[2]}" in entries:
        return True
    if name.startswith(("ge.", "loss_gap.", "error_gap.")):
        return False
    first, _, rest = plain.partition(".")
    if f"{first}_gap.{rest}" in entries:
        return True
    return metrics.ge_name(plain) in entries and (name != plain or entry.get("tool") == "rb-ge")


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
    gap = name.startswith(("loss_gap.", "error_gap."))
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
        if not (isinstance(n, int) and _is_number(value) and round(n * value) == count):
            return None
        asked.append(n)
    return asked


def _acc_of(entry: Mapping[str, Any]) -> str:
    split = entry.get("split")
    return metrics.split_name("acc", split if isinstance(split, str) else "test")


def _question(entry: Mapping[str, Any], lacking: dict[str, None]) -> _Step | None:
    told = entry.get("norm")
    norm = told if isinstance(told, str) else "linf"
    attack = entry.get("attack")
    if isinstance(attack, str) and attack in ATTACKS and _is_number(entry.get("eps")):
        return _attack(attack, entry, norm)
    if isinstance(entry.get("noise"), str) and _is_number(entry.get("gamma")):
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
        eps = [distance(value, norm) for value in entry["ladder"] if _is_number(value)] + eps
        words.append("--ladder")
    return _Step(f"rb-attack {attack}", tuple(words), {"eps": eps})


def _noise(entry: Mapping[str, Any]) -> _Step | None:
    if "particles" in entry:  # splitting
        words = ["--rare"]
        for name in ("noise", "norm", "clip", "particles", "moves", "runs", "floor"):
            words += option(name, entry.get(name))
        return _Step("rb-pr", tuple(words), {"gamma": [radius(entry["gamma"])]})
    words = []
    for name in PR:
        if not (name == "denominator" and entry.get(name) == "correct"):
            words += option(name, entry.get(name))
    if str(entry.get("criterion", "")).startswith("PR > "):
        words += ["--passes", "above"]
    stopping = str(entry.get("stopping", ""))
    if stopping:
        words += ["--adaptive"] if stopping.startswith("sequential") else ["--only", "probacc"]
    lists = {"gamma": [radius(entry["gamma"])]}
    if _is_number(entry.get("rho")):
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


_NAMED = (
    (re.compile(r"(fgsm|aa|square|fab|fab-t|apgd-ce|apgd-dlr|apgd-t)(\.l2)?\.(\d+(?:\.\d+)?)"), "rb-attack"),
    (re.compile(r"(pgd|cw)(\d+)(\.l2)?\.(\d+(?:\.\d+)?)"), "rb-attack"),
    (re.compile(r"pr\.(uniform|gaussian|laplace)\.(\d+(?:\.\d+)?)"), "rb-pr"),
    (re.compile(r"probacc\.(uniform|gaussian|laplace)\.(\d+\.\d+|\d+)\.(\d+\.\d+|\d+)"), "rb-pr"),
    (re.compile(r"corrupt\.([a-z_]+)\.([1-5])"), "rb-corrupt"),
)


@cache
def _by_name(name: str) -> _Step | None:
    """The command that a metric's name alone suggests, None for a name that says too little."""
    difference = name.startswith("ge.")
    plain = metrics.without_split(name.removeprefix("ge."))
    for place, (pattern, tool) in enumerate(_NAMED):
        found = pattern.fullmatch(plain)
        if found is None:
            continue
        first, *others = found.groups()
        if tool == "rb-attack":
            norm = ("--norm", "l2") if ".l2" in others else ()
            steps = ("--steps", others[0]) if place == 1 else ()
            step = _Step(f"rb-attack {first}", (*steps, *norm), {"eps": [others[-1]]})
        elif tool == "rb-pr":
            lists = {"gamma": [_of255(others[0])], **({"rho": others[1:]} if others[1:] else {})}
            step = _Step("rb-pr", ("--noise", first), lists)
        else:
            step = _Step("rb-corrupt", (), {"": [first], "severity": [others[0]]})
        if difference:
            return step._replace(command=step.command.replace("rb-", "rb-ge ", 1))
        split = name.removesuffix(plain).removesuffix(".")
        return step._replace(rest=(*step.rest, *(option("split", split) if split else ())))
    return None


def _of255(text: str) -> str:
    """A radius of a name, which has six digits, as the one that was meant."""
    value = float(text) * 255
    return f"{value:.0f}/255" if len(text) > 6 and abs(value - round(value)) < 1e-3 else text
