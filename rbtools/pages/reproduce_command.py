"""The command line that reproduces a record, as far as the record has its settings. Every word may come from
an untrusted file and be pasted into a shell: see `shell_words`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.pages.evaluation_commands import evaluations
from rbtools.pages.shell_words import Unsayable, is_number, joined, number, option, own_options, word
from rbtools.training import METHODS

Record = Mapping[str, Any]

# The options of rb-train itself that `train.config` has; a test compares them with the command's.
RECIPE = (
    "epochs batch_size lr optimizer momentum nesterov weight_decay schedule milestones decay augment val"
    " micro_batch regularize cutout_length mixup_alpha awp_gamma awp_warmup l2 label_smoothing ema filter"
    " filter_rule warm_steps patience clean_pass deterministic"
).split()


class Reproduction(NamedTuple):
    """The commands of a pipe, and a sentence for each thing that the record does not say."""

    steps: list[str]
    lacking: list[str]


def reproduce_command(record: Record) -> Reproduction:
    """The pipe that reproduces this record. Never raises: `lacking` lists what the record does not say."""
    lacking: dict[str, None] = {}
    try:
        steps = [*_source(record, lacking), *_training(record, lacking), *evaluations(record, lacking)]
    except Unsayable as wrong:
        return Reproduction([], [f"No command line is shown: {wrong}"])
    if _runs_program(record):
        lacking["Programs run: --allow-code lets them. Paste it only if you trust them."] = None
        steps = [f"{step} --allow-code" for step in steps]
    return Reproduction(steps, list(lacking))


def _runs_program(record: Record) -> bool:
    """Whether the network or the data set is a program, which every step then runs."""
    arch, data = record.get("arch") or {}, record.get("dataset")
    if isinstance(data, str) and data.startswith("python:"):
        return True
    return arch.get("space") == "python" or _facts(record).get("arch_from") == "program"


def _facts(record: Record) -> Record:
    """What the record says of a file of weights."""
    facts = record.get("recognised")
    return facts if isinstance(facts, Mapping) else {}


def _source(record: Record, lacking: dict[str, None]) -> list[str]:
    arch = record.get("arch") or {}
    space, name = arch.get("space"), arch.get("name")
    file = record.get("checkpoint_file")
    if isinstance(file, str) and not record.get("train"):
        words = _named(arch, _facts(record).get("arch_from"))
        if _facts(record).get("normalize_from") == "--normalize":
            words += _normalize(arch.get("normalize"))
        if space == "python":  # its weights may not show the number of classes
            words += option("dataset", record.get("dataset"))
        lacking["The file of weights is named as on the machine that evaluated it."] = None
        return [joined("rb-arch", option("from_checkpoint", file), words)]
    if not record.get("train"):
        lacking["The record does not say how its weights came to be: it has no training and no file."] = None
    sizes = [*option("channels", arch.get("channels")), *option("cells", arch.get("cells"))]
    if space == "nasbench201" and isinstance(arch.get("index"), int):
        return [joined("rb-arch", option("index", arch["index"]), sizes)]
    if space == "zoo" and isinstance(name, str):
        fields = ("stem", "pool") if "pool" in arch else ()  # the stem alone follows from the images
        return [
            joined("rb-arch", option("arch", ":".join([name, *(f"{key}={arch.get(key)}" for key in fields)])))
        ]
    if space in ("torchvision", "timm") and isinstance(name, str):
        return [joined("rb-arch", option("arch", ":".join([space, name, *_sides(arch)])))]
    if space == "python" and isinstance(name, str):
        return [joined("rb-arch", option("arch", f"python:{name}"))]
    lacking["The record does not say which architecture this is in a way that rb-arch knows."] = None
    return []


def _named(arch: Record, source: object) -> list[str]:
    """The architecture of a file of weights as an option, where its user may have named it. `source` is how
    it became known.
    """
    space, name = arch.get("space"), arch.get("name")
    if not isinstance(name, str):
        return []
    if space == "zoo":
        return option("arch", name)
    if space == "python" or (space in ("torchvision", "timm", "repo") and source == "given"):
        return option("arch", ":".join([space, name, *_sides(arch)]))
    return []


def _sides(arch: Record) -> list[str]:
    return [f"{key}={arch[key]}" for key in ("side", "patch") if isinstance(arch.get(key), int)]


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
        return [joined("rb-train --method", word(method), option("seed", train.get("seed")), data, known)]
    words = []
    own = own_options(METHODS.load(method))
    idle = _idle(method, {name: config[name] for name in own if name in config})
    for name in [*own, *RECIPE]:
        if name in config and name not in idle and not _unused(name, config):
            words += option(name, config[name], of=METHODS.load(method))
    words += _normalize(config.get("normalize"))
    start = train.get("init")
    if config.get("init") == "timm" and isinstance(start, Mapping) and "file" not in start:
        words += [*option("init", "timm"), *option("resample", config.get("resample"))]
    elif config.get("init") is not None:
        lacking["The training went on from other weights, of which the record knows no more."] = None
    if train.get("processes", 1) != 1:
        lacking["Several processes trained the network together (torchrun)."] = None
    if train.get("precision") in ("fp32", "bf16"):
        words += option("precision", train["precision"])
    checkpoints = train.get("checkpoints")
    if isinstance(checkpoints, Mapping) and checkpoints.get("selected") == "best":
        words += option("select", "best")
    seed = option("seed", train.get("seed"))
    return [joined("rb-train --method", word(method), seed, data, words)]


def _unused(name: str, config: Mapping[str, Any]) -> bool:
    """Whether the configuration has a value whose option would be refused."""
    return name == "momentum" and config.get("schedule") == "onecycle"


def _idle(method: str, params: Mapping[str, Any]) -> Collection[str]:
    """The method's own parameters that would be refused."""
    try:
        unused: Mapping[str, str] = METHODS.build(method, **params).unused
    except (RbError, TypeError):  # a record may say anything
        return ()
    return unused


def _normalize(setting: object) -> list[str]:
    if setting is None:
        return ["--normalize none"]
    if setting in ("none", "per-image"):
        return option("normalize", setting)
    if isinstance(setting, list) and len(setting) == 2 and all(isinstance(side, list) for side in setting):
        return ["--normalize", *(word(",".join(map(number, filter(is_number, side)))) for side in setting)]
    return []
