"""What `fuzz.py` makes, and what must hold of it: streams of records, and files of weights.

A target has seeds for an engine that mutates bytes, `make(chance)` for a structured input (the choices come
from the engine), and `check(bytes)`, which raises where rbtools does not do what it says. An input is always
the bytes of a file, so that a finding can be kept and looked at again.
"""

from __future__ import annotations

import argparse
import bz2
import io
import json
import math
import os
import pickle
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import fuzz_pickles

from rbtools.cli import tools
from rbtools.errors import RbError

LONGEST_MESSAGE = 1500  # characters; what a person reads
INFLATED = 20_000_000  # numbers of a tensor that is made whole
LARGEST_RUN = 500_000  # parameters of a network that is run on an image, too


class Chance(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int: ...
    def pick(self, options: Sequence[Any]) -> Any: ...
    def text(self, longest: int) -> str: ...
    def data(self, longest: int) -> bytes: ...
    def real(self) -> float: ...


class Finding(AssertionError):
    """What must hold does not."""


def told(message: str) -> None:
    """Raise Finding for a message that does not help: a finished sentence on one line is expected."""
    if not message or len(message) > LONGEST_MESSAGE or "\n" in message or message[-1] not in ".)":
        raise Finding(f"a message that does not help: {message[:300]!r}")
    if "Traceback" in message or "bug in rbtools" in message or "allocate" in message:
        raise Finding(f"a message of an accident: {message[:300]!r}")


# ---- any value -------------------------------------------------------------------------------------

ODD = (
    None,
    True,
    -1,
    0,
    10**6,
    2**63,
    2**70,
    -(10**30),
    1e308,
    -0.0,
    math.nan,
    math.inf,
    "",
    "\x00",
    "é\u2028|",
    "../x",
    [],
    {},
    [[]],
    [None],
    {"": 0},
    {"a": {"b": []}},
)


def odd(chance: Chance) -> Any:
    """A value that nobody expects there."""
    kind = chance.integer(0, 6)
    if kind == 0:
        return chance.text(12)
    if kind == 1:
        return chance.integer(-3, 300)
    if kind == 2:
        return chance.real()
    if kind == 3:
        return deep(chance.pick((2, 20, 99, 250, 300)), chance.pick(("list", "dict")))
    return chance.pick(ODD)


def deep(depth: int, kind: str) -> Any:
    """A list in a list in a list, or objects likewise."""
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def changed(value: Any, chance: Chance, words: Sequence[str], depth: int = 0) -> Any:
    """The value with one thing inside it replaced, left out, renamed or added."""
    if not isinstance(value, (dict, list)) or not value or (depth and chance.integer(0, 3) == 0):
        return odd(chance)
    how = chance.integer(0, 5)
    if isinstance(value, list):
        place = chance.integer(0, len(value) - 1)
        if how == 0:
            return value[:place] + value[place + 1 :]
        return [*value[:place], changed(value[place], chance, words, depth + 1), *value[place + 1 :]]
    key = chance.pick(list(value))
    if how == 0:
        return {name: item for name, item in value.items() if name != key}
    if how == 1:
        return {**value, chance.pick(words): odd(chance)}
    if how == 2:
        return {chance.text(8) if name == key else name: item for name, item in value.items()}
    return {**value, key: changed(value[key], chance, words, depth + 1)}


def damaged(data: bytes, chance: Chance) -> bytes:
    """The bytes with a few of them changed, cut out, repeated or put in."""
    for _ in range(chance.integer(0, 4)):
        start = chance.integer(0, len(data))
        end = min(len(data), start + chance.pick((0, 1, 1, 4, 64, len(data))))
        new = chance.pick((b"", b"\xff", data[start:end] * 2, b"\n", b'"', None))
        data = data[:start] + (chance.data(8) if new is None else new) + data[end:]
    return data


# ---- records ---------------------------------------------------------------------------------------

# Fields of records that tools look at, for values in places where they are not expected.
FIELDS = (
    "schema arch metrics evals train error dataset checkpoint checkpoint_file recognised score class_map"
    " space name str index channels cells width depth params metric value n ci95 eps norm steps split method"
    " seed epochs config history seconds_per_epoch normalize member tool message on acc"
    " pgd20.8 pr.uniform.0.08"
).split()

TOOLS: tuple[tuple[str, ...], ...] = (
    ("score",),
    ("score", "--add", "x=mean(acc,pgd20.*)"),
    ("score", "--within", "dataset,arch.name", "--missing", "worst", "--metric", "acc,pgd20.8"),
    ("rank",),
    ("rank", "--format", "md"),
    ("rank", "--format", "csv", "--where", "acc > 0.1", "--by", "mean(acc, pgd20.*)"),
    ("rank", "--pareto", "acc,pgd20.8"),
    ("rank", "--aggregate", "seed", "--ci", "--bootstrap", "20", "--by", "acc"),
    ("rank", "--pivot", "train.method", "--metric", "acc,pgd20.8", "--format", "latex"),
    ("corr", "--kind", "kendall,spearman"),
    ("corr", "--by", "train.method", "--on", "arch.name", "--metric", "acc"),
    ("convert", "csv", "--write", "-"),
    ("convert", "prbench", "--write", "-"),
    ("plot", "leaderboard", "-o", "page.html"),
    ("attack", "fgsm", "--eps", "8", "--n", "2", "--no-store"),
    ("measure", "params", "--no-store"),
)
ONE_FOR_ONE = ("score", "attack", "measure")  # write a line for every line
BUILDS = ("attack", "measure")


class Records:
    """The reader of JSON Lines, and what tools do with what comes of it."""

    name = "records"

    def __init__(self) -> None:
        os.environ.pop("RB_STORE", None)
        self.pool = real_records()

    def seeds(self) -> list[bytes]:
        return [b"".join(json.dumps(record).encode() + b"\n" for record in self.pool)] + [
            json.dumps(record).encode() + b"\n" for record in self.pool
        ]

    def known(self) -> list[bytes]:
        """Inputs that are as they should be, or are refused in words."""
        return [self.seeds()[0] + b"\n" * blanks for blanks in range(4 * len(TOOLS))]

    def from_bytes(self, kind: int, data: bytes) -> bytes:
        return data

    kinds = 1

    def make(self, chance: Chance) -> bytes:
        """A few records with odd things in them, in one of the spellings of JSON, here and there broken."""
        lines = []
        for _ in range(chance.integer(1, 4)):
            record = chance.pick(self.pool)
            for _ in range(chance.integer(0, 3)):
                record = changed(record, chance, FIELDS)
            text = json.dumps(
                record,
                ensure_ascii=chance.pick((True, False)),
                separators=chance.pick((None, (",", ":"), (" ,  ", "\t:"))),
            ).encode("utf-8", "surrogatepass")
            if chance.integer(0, 3) == 0:
                text = damaged(text, chance)
            lines.append(text + chance.pick((b"\n", b"\n", b"\r\n", b"")))
        return chance.pick((b"", b"", b"\xef\xbb\xbf")) + b"".join(lines)

    def check(self, data: bytes) -> None:
        self._reading(data)
        self._tool(TOOLS[zlib.crc32(data) % len(TOOLS)], data)

    def _reading(self, data: bytes) -> None:
        """Every line is a record that survives writing, or has a problem that is told."""
        from rbtools.records import dumps, lines, parse, parse_again

        for line in lines(io.BytesIO(data)):
            if line.record is None:
                told(f"Line {line.number} {line.problem}")
                continue
            text = dumps(line.record)
            if b"\n" in text:
                raise Finding("a record is written on two lines")
            for again in (parse(text), parse_again(line.text), parse_again(text)):
                if repr(again) != repr(line.record):  # 1 is not 1.0, and not true
                    raise Finding(f"read again, a record is another: {again!r:.200} {line.record!r:.200}")

    def _tool(self, words: Sequence[str], data: bytes) -> None:
        """The tool ends with a status of its own; one that goes line by line loses none."""
        from click.testing import CliRunner

        from rbtools.records import lines

        if words[0] in BUILDS and b"0000" in data:  # networks of any size may be asked for
            return
        main = tools.tool(words[0]).command
        result = CliRunner().invoke(main, [*words[1:], "-q"], input=data)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if "Traceback" in result.stderr or "bug in rbtools" in result.stderr:
            raise Finding(f"rb-{words[0]}: {last_of_trace(result.stderr)}")
        if result.exit_code not in (0, 1, 2):
            raise Finding(f"rb-{words[0]} ends with status {result.exit_code}: {result.stderr[-300:]}")
        if words[0] in ONE_FOR_ONE and result.exit_code < 2:
            there, given = list(lines(io.BytesIO(result.stdout_bytes))), list(lines(io.BytesIO(data)))
            if len(there) != len(given) or any(line.record is None for line in there):
                raise Finding(
                    f"rb-{words[0]} writes {len(there)} lines for {len(given)}: {result.stdout[:200]}"
                )


def last_of_trace(text: str) -> str:
    """The place and the message of a traceback, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ") and "rbtools" in line]
    errors = [line for line in lines if "Error" in line and not line.startswith("rb-")]
    return f"{(places or ['?'])[-1]} {(errors or lines)[-1]}"


def real_records() -> list[Any]:
    """Records as the tools write them: listed, evaluated, and with a training's section."""
    from click.testing import CliRunner

    from rbtools.commands import arch, measure

    made = CliRunner().invoke(arch.main, ["--sample", "3", "--seed", "1", "--cells", "1", "--channels", "4"])
    listed = made.stdout + CliRunner().invoke(arch.main, ["--space", "zoo", "--arch", "simplecnn"]).stdout
    counted = CliRunner().invoke(measure.main, ["params,macs", "--no-store"], input=listed).stdout
    found = [json.loads(line) for line in counted.splitlines()]
    assert len(found) >= 3, made.stderr
    for number, record in enumerate(found):
        for metric, value in (("acc", 0.9 - number / 10), ("pgd20.8", 0.3 + number / 20)):
            entry = {"tool": "rb-attack", "metric": metric, "value": value, "n": 100, "split": "test"}
            record.setdefault("evals", []).append({**entry, "ci95": [value - 0.1, value + 0.1], "seconds": 1})
            record.setdefault("metrics", {})[metric] = value
        record["dataset"] = "digits"
        record["train"] = {
            "method": ("erm", "pgd")[number % 2],
            "seed": number,
            "epochs": 2,
            "config": {"lr": 0.1},
            "history": {"loss": [2.0, 1.0]},
        }
    plain: dict[str, Any] = {"schema": 1, "arch": {"name": "x"}, "metrics": {"acc": 0.5}}
    return [*found, plain, {"schema": 1, "error": {"tool": "rb-attack", "message": "It failed."}}]


# ---- checkpoints -----------------------------------------------------------------------------------

FILE, PICKLE, SAFETENSORS, BZIP2, OBJECT = range(5)
OBJECT_MARK = b"object\n"  # an input that is given to the recogniser as an object: a pickle follows
CIFAR_MARK = b"cifar\n"  # an input that is a batch of CIFAR: a pickle follows
NAMES = (
    "stem.0.weight lastact.0.weight classifier.weight cells.1.conv_a.op.1.weight cells.3.conv_a.op.1.weight"
    " conv1.weight bn1.weight bn.weight layer1.0.conv1.weight layer1.0.conv2.weight layer1.0.bn1.weight"
    " linear.weight fc.weight fc1.weight fc2.weight features.0.weight features.1.running_mean"
    " block1.layer.0.conv1.weight conv_proj.weight encoder.pos_embedding heads.head.weight"
    " encoder.layers.encoder_layer_0.mlp.0.weight encoder.layers.encoder_layer_0.ln_1.weight pos_embed"
    " patch_embed.proj.weight head.weight blocks.0.mlp.fc1.weight blocks.0.norm1.weight mean std"
    " normalize.mean normalize.std mu sigma n_averaged num_batches_tracked layers.0.weight last.weight"
    " module.fc.weight attacker.x ema.x cells.99999999.conv_a.op.1.weight cells.199999999.conv_a.op.1.weight"
    " AuxLogits.fc.weight features.denseblock1.denselayer1.norm.1.weight"
).split()
NESTINGS = (
    "state_dict model net ema best last optimizer arch args config normalize normalization mean std full 200"
    " all_results net_state_dict arch_str rbtools epoch history module"
).split()
ARCHES: tuple[Any, ...] = (
    None,
    None,
    {"space": "zoo", "name": "simplecnn"},
    {"space": "zoo", "name": "resnet18"},
    {
        "space": "nasbench201",
        "str": "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|",
    },
    {"member": "cifar10"},
    {"normalize": [[0.5], [0.25]]},
    {"normalize": "none"},
    {"space": "torchvision", "name": "alexnet"},
    {"space": "fcnn", "str": "relu/tanh"},
)
SIZES = (0, 1, 3, 10, 64, 100, 512, 10**5, 2**31, 2**40)


class Checkpoints:
    """The recogniser: from a file to a network, or to a message."""

    name = "checkpoints"
    kinds = 4  # of raw bytes: files, and what stands inside a file of a known layout

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # of torch, about the tensors that are made here
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "weights.pt"
        self.states = small_states()
        self.files = saved_files(self.states, self.folder)
        self.watch = Watch()

    def seeds(self) -> list[bytes]:
        return [bytes([FILE]) + data for data in self.files] + [
            bytes([PICKLE]) + inside(data) for data in self.files if data[:2] == b"PK"
        ]

    def known(self) -> list[bytes]:
        """Inputs that are as they should be, or are refused in words."""
        return self.files

    def from_bytes(self, kind: int, data: bytes) -> bytes:
        """A file of that layout around the bytes."""
        if kind == PICKLE:
            return around(data)
        if kind == SAFETENSORS:
            return len(data).to_bytes(8, "little") + data + bytes(256)
        return bz2.compress(data) if kind == BZIP2 else data

    def make(self, chance: Chance) -> bytes:
        kind = chance.integer(0, 17)
        if kind > 9:
            reader, data = fuzz_pickles.made(fuzz_pickles.Rolled(chance.integer(0, 2**63)))
            return CIFAR_MARK + data if reader == "cifar" else data
        if kind == FILE:
            return damaged(chance.pick(self.files), chance)
        if kind == PICKLE:
            data = inside(chance.pick([data for data in self.files if data[:2] == b"PK"]))
            return around(damaged(data, chance))
        if kind == SAFETENSORS:
            header = {"__metadata__": {"rbtools": json.dumps({"arch": self._noted(chance)})}}
            for _ in range(chance.integer(0, 4)):
                about = {
                    "dtype": chance.pick(("F32", "I64", "BOOL", "F8_E4M3", "?")),
                    "shape": self._shape(chance),
                }
                about["data_offsets"] = [chance.integer(0, 64), chance.integer(0, 256)]
                header[chance.pick(NAMES)] = about
            return self.from_bytes(kind, damaged(json.dumps(header).encode(), chance))
        if kind == BZIP2:
            return self.from_bytes(kind, damaged(pickle.dumps(self._published(chance, hostile=True)), chance))
        raw = self._object(chance)
        stream = io.BytesIO()
        import torch

        if kind < 7:
            torch.save(raw, stream)
            return stream.getvalue()
        pickle.dump(raw, stream)
        return OBJECT_MARK + stream.getvalue()

    def _object(self, chance: Chance) -> Any:
        """What a training script may have saved, or nobody."""
        state: Any = dict(chance.pick(self.states))
        for _ in range(chance.integer(0, 3)):
            how = chance.integer(0, 4)
            if how == 0 and state:
                state.pop(chance.pick(list(state)))
            elif how == 1 and state:
                old = chance.pick(list(state))
                state = {chance.pick(NAMES) if key == old else key: value for key, value in state.items()}
            elif how == 2:
                prefix = chance.pick(("module.", "model.", "0.", "ema.", "é", "."))
                state = {f"{prefix}{key}": value for key, value in state.items()}
            else:
                key = chance.pick(NAMES + list(state))
                state[key] = self._tensor(chance) if how == 3 else odd(chance)
        if chance.integer(0, 7) == 0:
            state = self._published(chance, state)
        if chance.integer(0, 9) == 0 and isinstance(state, dict):
            state[chance.pick((0, (1, 2), b"x", None, 1.5))] = self._tensor(chance)
        for _ in range(chance.integer(0, 2)):
            state = self._wrapped(state, chance)
        return state

    def _wrapped(self, state: Any, chance: Chance) -> Any:
        raw: Any = {chance.pick(NESTINGS): state}
        for _ in range(chance.integer(0, 3)):
            key = chance.pick(NESTINGS)
            how = chance.integer(0, 5)
            if how == 0:
                raw[key] = raw  # a pickle can hold itself
            elif how == 1:
                raw[key] = self._noted(chance)
            elif how == 2:
                raw[key] = argparse.Namespace(**{chance.pick(NESTINGS): odd(chance)})
            elif how == 3:
                raw[key] = laughs(chance.pick((1, 3, 5)), chance.pick((2, 50)))
            elif how == 4:
                raw[key] = [chance.real() for _ in range(chance.integer(0, 5))]
            else:
                raw[key] = odd(chance)
        return raw

    def _noted(self, chance: Chance) -> Any:
        """An architecture as a file may note it."""
        noted: Any = dict(chance.pick([arch for arch in ARCHES if arch and "space" in arch]))
        if chance.integer(0, 3) == 0:
            noted["space"] = chance.pick(("python", "timm", "checkpoint", "rescnn", "nasbench201", "zoo"))
            noted["name"] = chance.pick(
                ("os:system", "hf-hub:a/b", "vit_tiny", "wrn-28-10", "preactresnet18")
            )
        for _ in range(chance.integer(0, 2)):
            field = chance.pick(
                "channels cells width stem patch side normalize member name str index space".split()
            )
            noted[field] = odd(chance)
        return noted

    def _published(self, chance: Chance, state: Any = None, hostile: bool = False) -> Any:
        """The layout of NAS-Bench-201's archives, with something odd in it."""
        state = dict(chance.pick(self.states)) if state is None else state
        run = {"net_state_dict": state, "arch_config": {"arch_str": "|none~0|"}, "epochs": 200}
        runs: Any = {("cifar10", 777): run, ("cifar100", chance.pick((888, "x", None))): run}
        for _ in range(chance.integer(0, 2)):
            runs[chance.pick((("cifar10", 1), "cifar10", 3, ("a",)))] = chance.pick((run, None, 1, [], {}))
        raw = {"full": {"all_results": runs, "arch_str": "|x~0|"}}
        if hostile and chance.integer(0, 2) == 0:
            raw["full"]["other"] = Hostile(self.folder / "ran")
        return changed(raw, chance, NESTINGS) if chance.integer(0, 2) == 0 else raw

    def _shape(self, chance: Chance) -> list[int]:
        return [chance.pick(SIZES) for _ in range(chance.integer(0, 4))]

    def _tensor(self, chance: Chance) -> Any:
        """A tensor of any shape and type; a large one is one number, expanded."""
        import torch

        kinds = (torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)
        kinds += (torch.bfloat16, torch.float8_e4m3fn, torch.uint8)
        one = torch.zeros((), dtype=chance.pick(kinds))
        how = chance.integer(0, 9)
        if how == 0:
            return torch.eye(3).to_sparse()
        if how == 1:
            return torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8)
        if how == 2:
            return torch.full((chance.integer(1, 4),), chance.real(), dtype=torch.float64)
        if how == 3:
            return torch.nn.Parameter(torch.zeros(2))
        shape = self._shape(chance)
        return one.expand(shape) if math.prod(shape) < 2**60 else one

    def check(self, data: bytes) -> None:
        """A network that takes images and facts that can be written down, or a message; and nothing ran."""
        import torch

        from rbtools.models import checkpoint, weights_file

        arch = ARCHES[sum(data[-64:]) % len(ARCHES)]
        classes, shape = ((None, None), (10, (3, 32, 32)), (10, (1, 28, 28)))[len(data) % 3]
        known = {"none": None, "cifar10": ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))}
        known |= {} if shape is None else {"dataset": ((0.5,) * shape[0], (0.2,) * shape[0])}
        known = {k: v for k, v in known.items() if v is None or shape is None or len(v[0]) == shape[0]}
        if data.startswith(CIFAR_MARK):
            self._check_batch(data[len(CIFAR_MARK) :])
            return
        hints = checkpoint.NormalizationHints(known=known)
        reader = weights_file.read
        if data.startswith(OBJECT_MARK):
            try:
                raw = inflated(pickle.loads(data[len(OBJECT_MARK) :]))  # made by `make`
            except (AttributeError, RuntimeError):  # some tensors do not come back, or not whole
                return
            weights_file.read = lambda path: (raw, {}, "torch")
            data = b""
        self.path.unlink(missing_ok=True)  # some file systems wait for the disk where a file is overwritten
        self.path.write_bytes(data)
        try:
            with self.watch:
                network, arch, facts = checkpoint.load(
                    self.path, arch, classes=classes, shape=shape, hints=hints
                )
                self._usable(network, arch, facts)
        except RbError as wrong:
            told(str(wrong))
        finally:
            weights_file.read = reader
            torch.manual_seed(0)
        if (self.folder / "ran").exists():
            raise Finding("code in the file ran")

    def _check_batch(self, data: bytes) -> None:
        """Arrays and lists, or one of two errors."""
        from rbtools.datasets import cifar
        from rbtools.unpickle import Refused

        with self.watch:
            try:
                cifar.read_pickle(io.BytesIO(data))
            except (Refused, ValueError) as wrong:
                told(f"{wrong}.")

    def _usable(self, network: Any, arch: Any, facts: Any) -> None:
        import torch

        from rbtools import spaces
        from rbtools.store import canonical

        canonical({"arch": arch, "facts": facts})
        spaces.describe(arch, facts["classes"], facts["shape"])
        if sum(value.numel() for value in network.parameters()) < LARGEST_RUN and max(facts["shape"]) <= 64:
            with torch.no_grad():
                logits = network(torch.zeros(2, *facts["shape"]))
            if logits.shape != (2, facts["classes"]):
                raise Finding(f"a network with logits {tuple(logits.shape)} for {facts}")


class Hostile:
    """Unpickled, it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


class Watch:
    """Refuses, while it is on, what reading a file has no need of; other programs and the network."""

    REFUSED = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
    CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree")

    def __init__(self) -> None:
        self.on = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: Any) -> None:
        if self.on and event in (*self.REFUSED, *self.CHANGES):
            self.on, self.met = False, f"{event} {arguments!r:.100}"

    def __enter__(self) -> None:
        self.on, self.met = True, ""

    def __exit__(self, *_: Any) -> None:
        self.on = False
        if self.met:
            raise Finding(f"reading the file did {self.met}")


def inflated(value: Any, depth: int = 3) -> Any:
    """The object with every expanded tensor of a bearable size made whole: of zeros, which cost nothing."""
    import torch

    from rbtools.unpickle import UnusualTensor

    if isinstance(value, dict) and depth:
        whole = {key: inflated(item, depth - 1) for key, item in value.items()}
        value.clear()
        value.update(whole)
    if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_quantized):
        return UnusualTensor("sparse or quantized")  # as a file would give it
    if isinstance(value, torch.Tensor) and value.numel() < INFLATED:
        return torch.zeros(value.shape, dtype=value.dtype) if 0 in value.stride() else value
    return value


def laughs(depth: int, width: int) -> Any:
    """A list of lists of lists, of which every level is the same one again and again."""
    value: Any = 0
    for _ in range(depth):
        value = [value] * width
    return value


def small_states() -> list[dict[str, Any]]:
    """State dicts of small networks of every kind; larger ones as one number, expanded."""
    import torch

    from rbtools import models
    from rbtools.models.load_weights import meta_init

    def state(arch: dict[str, Any], shape: tuple[int, int, int]) -> dict[str, Any]:
        with meta_init():
            network = models.build(arch, classes=10, shape=shape)
        shapes = {key: (value.shape, value.dtype) for key, value in network.state_dict().items()}
        return {
            key: (torch.rand(size, dtype=kind) if kind.is_floating_point else torch.zeros(size, dtype=kind))
            if math.prod(size) < 600
            else torch.full((), 0.01, dtype=kind).expand(size)
            for key, (size, kind) in shapes.items()
        }

    cell = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|nor_conv_3x3~0|{}~1|nor_conv_1x1~2|"
    small = {"space": "nasbench201", "channels": 4, "cells": 1}
    found = [
        state({**small, "str": cell.format("nor_conv_1x1")}, (3, 32, 32)),
        state({**small, "str": cell.format("skip_connect")}, (1, 32, 32)),
        state({"space": "zoo", "name": "simplecnn"}, (1, 28, 28)),
        state({"space": "fcnn", "str": "relu/tanh", "width": 8}, (1, 8, 8)),
        state({"space": "rescnn", "str": "relu3/tanh3+skip", "width": 4}, (3, 8, 8)),
    ]
    for name in ("resnet18", "preactresnet18", "wrn-16-4", "vgg11", "deit-ti"):
        found.append(state({"space": "zoo", "name": name}, (3, 32, 32)))
    found.append(state({"space": "torchvision", "name": "squeezenet1_1"}, (3, 64, 64)))
    return found


def saved_files(states: Sequence[dict[str, Any]], folder: Path) -> list[bytes]:
    """Small states as files, in each of the formats and with what scripts put beside the weights."""
    import torch
    from safetensors.torch import save

    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :10]

    def saved(value: Any, **how: Any) -> bytes:
        stream = io.BytesIO()
        torch.save(value, stream, **how)
        return stream.getvalue()

    one, two = states[0], {"fc1.weight": torch.zeros(2, 3), "fc1.bias": torch.zeros(2)}
    run = {("cifar10", 777): {"net_state_dict": two, "arch_config": {"arch_str": "|none~0|"}}}
    plain = {key: value.contiguous() for key, value in two.items()}
    program = folder / "program.pt"
    torch.jit.script(Two()).save(str(program))
    beside = {"epoch": 3, "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {0: {"step": 1}}}}
    return [
        saved(two),
        saved({"state_dict": OrderedDict(two), **beside, "mean": [0.5], "std": [0.25]}),
        saved(two, _use_new_zipfile_serialization=False),
        saved({"full": {"all_results": run}}),
        saved({f"module.{key}": value for key, value in one.items() if value.numel() < 600}),
        saved({"x": Hostile(folder / "ran")}),
        save(plain, {"rbtools": json.dumps({"arch": {"space": "zoo", "name": "simplecnn"}})}),
        bz2.compress(pickle.dumps({"full": {"all_results": run}})),
        program.read_bytes(),
        b"<!doctype html><title>404</title>",
    ]


def inside(data: bytes) -> bytes:
    """The pickle in a file of torch.save."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return next((archive.read(name) for name in archive.namelist() if name.endswith("data.pkl")), b"")


def around(data: bytes) -> bytes:
    """A file of torch.save around a pickle, with a little storage for its tensors."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/byteorder", "little")
        archive.writestr("a/version", "3\n")
        for number in range(4):
            archive.writestr(f"a/data/{number}", bytes(64))
    return stream.getvalue()


TARGETS: dict[str, Callable[[], Records | Checkpoints]] = {"records": Records, "checkpoints": Checkpoints}
