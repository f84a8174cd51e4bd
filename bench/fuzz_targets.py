"""What `fuzz.py` makes, and what must hold of it: a value or a sentence for the user, and nothing else.

A target has `make(chance)`, the bytes of one input, and `check(bytes)`, which raises where rbtools does not
do what it says: another exception than RbError, a message that is no sentence, code that runs, a file
outside its folder.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import io
import json
import math
import os
import pickle
import shlex
import struct
import sys
import tempfile
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz_grammar import NAMES, Chance, checked_png, pickles

from rbtools.cli import tools
from rbtools.errors import RbError

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/golden"))
import make as golden

LONGEST_MESSAGE = 1500  # characters; what a person reads
INFLATED = 20_000_000  # numbers of a tensor that is made whole
LARGEST_RUN = 500_000  # parameters of a network that is run on an image, too
HASH, OUTSIDE = "ab" * 32, "outside"


class Finding(AssertionError):
    """What must hold does not."""


def told(message: str) -> None:
    """Raise Finding for a message that does not help: a finished sentence on one line is expected."""
    if not message or len(message) > LONGEST_MESSAGE or "\n" in message or message[-1] not in ".)":
        raise Finding(f"a message that does not help: {message[:300]!r}")
    if "Traceback" in message or "bug in rbtools" in message or "allocate" in message:
        raise Finding(f"a message of an accident: {message[:300]!r}")


class Watch:
    """Refuses, while it is on, what reading a file has no need of; other programs and the network."""

    REFUSED = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
    CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree")

    def __init__(self, writes: bool = False) -> None:
        self.on, self.refused = False, self.REFUSED + (() if writes else self.CHANGES)
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: Any) -> None:
        if self.on and event in self.refused:
            self.on, self.met = False, f"{event} {arguments!r:.100}"

    def __enter__(self) -> None:
        self.on, self.met = True, ""

    def __exit__(self, *_: Any) -> None:
        self.on = False
        if self.met:
            raise Finding(f"reading the file did {self.met}")


class Files:
    """The base of the targets that read files: a folder an input, beside which a file stays as it is."""

    slow, greedy = 2.0, 500 * 10**6  # seconds and bytes
    writes = False  # whether reading writes files, into the folder of the input

    def __init__(self) -> None:
        self.top = Path(tempfile.mkdtemp())
        (self.top / OUTSIDE).write_text("as it was")
        self.watch = Watch(self.writes)
        with contextlib.suppress(RbError):
            self.read(self.make(First()), Path(tempfile.mkdtemp(dir=self.top)))  # imports what is used
        self.left = set(os.listdir(self.top))

    def make(self, chance: Chance) -> bytes:
        raise NotImplementedError

    def read(self, data: bytes, folder: Path) -> None:
        raise NotImplementedError

    def check(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self.top, ignore_cleanup_errors=True) as name:
            try:
                with self.watch:
                    self.read(data, Path(name))
            except RbError as wrong:
                told(str(wrong))
            finally:
                self.watch.on = False
            others = set(os.listdir(self.top)) - self.left - {Path(name).name}
        if others or (self.top / OUTSIDE).read_text() != "as it was":
            raise Finding(f"files outside its folder were written: {sorted(others)}")


class First(Chance):
    """The first of all choices: an input as it should be, or nearly."""

    def __init__(self) -> None:
        super().__init__(0)
        self.integer = lambda low, high: low
        self.pick = lambda options: options[0]
        self.often = lambda one_in: False  # type: ignore[method-assign]
        self.data = lambda longest: b""  # type: ignore[method-assign]


# ---- records ---------------------------------------------------------------------------------------

# Command lines that read records, beside those of the golden set. @changed is a file of the whole stream,
# @alone.jsonl one of its first changed record.
EXTRA = """
<results: rank --by acc
<results: attack transfer --n 4 --from @alone.jsonl
<results: corrupt all --n 2 --reference @alone.jsonl --dry-run
<results: search random --objective acc --budget 4 --runs 1 --report-table @changed
<results: train --method erm --epochs 0 --init checkpoint
<results: plot cells --by acc -o o.svg
<results: plot bars --metric acc,fgsm.8 --group train.method --within dataset -o o.svg
"""
ELSEWHERE = ("stop", "--jobs", "--live", "--save-adv", "--log", "bananas", "nasi", "attack aa")


def commands(*groups: str) -> list[list[str]]:
    steps = [line.partition(":") for line in "\n".join(groups).splitlines() if "<" in line]
    return [shlex.split(words) for _, _, words in steps if not any(word in words for word in ELSEWHERE)]


COMMANDS = commands(golden.STEPS.read_text("utf-8"), EXTRA)
LIGHT = [n for n, words in enumerate(COMMANDS) if words[0] in ("rank", "corr", "score", "convert", "search")]
# What makes the records of the pool, one after another.
POOL = (
    "attack fgsm --eps 4,8 --n 10 --detail",
    "attack pgd --steps 2 --n 10",
    "corrupt contrast --severity 1-5 --n 10",
    "pr --gamma 0.1,0.2 --samples 20 --n 10",
    "ge acc --n 10",
    "measure params,macs,margin --batches 1 --batch-size 4",
)
# Figures take a second to draw, other things a tenth of that.
RARELY = [n for n, words in enumerate(COMMANDS) if words[0] == "plot" and words[1] != "leaderboard"]
OFTEN = [n for n in range(len(COMMANDS)) if n not in RARELY]
GOOD, CHANGED = 3, 20  # records that stand beside the changed ones, and those
# Refusals that are about records that do not go together, though each may be right.
OF_ALL = (
    "results of several kinds",
    "A search needs one space",
    "--missing renormalise",
    "There is no metric that all",
)
ONE_FOR_ONE = ("attack", "corrupt", "pr", "ge", "measure", "train")
# Fields that tools look at, for values in places where they are not expected.
FIELDS = (
    "schema arch metrics evals train error dataset checkpoint checkpoint_file recognised score class_map"
    " space name str index channels cells width depth params metric value n ci95 eps norm steps split"
    " method seed epochs config history seconds_per_epoch normalize member tool message on acc pgd20.8"
    " pr.uniform.0.08"
).split()


class Records:
    """Every tool on records of which some have a field that is absent or something else, or are no JSON.

    An input is the number of a command line, and a stream of records. The command must end without a
    traceback and with a status of its own; the records beside the changed ones come out as they do without
    them.
    """

    def __init__(self, pool: Sequence[Any] | None = None, folder: Path | None = None) -> None:
        """With a `pool` of records nothing is trained; its first stand beside the changed ones."""
        self.folder = Path(tempfile.gettempdir(), "records") if folder is None else folder
        self.folder.mkdir(exist_ok=True)
        self.pool = self.kept_pool() if pool is None else pool
        self.good = [{**record, "mark": "good"} for record in self.pool[:GOOD]]
        self.usual: dict[int, tuple[int, int]] = {}

    def kept_pool(self) -> Any:
        """Records as the tools write them, in their store; a process after the first finds them there."""
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        os.environ["RB_STORE"] = str(self.folder / "store")
        os.chdir(self.folder)
        file = Path("records.json")
        if not file.exists():
            from click.testing import CliRunner

            text = golden.inputs(self.folder)["both"]
            written = []
            for words in POOL:
                tool, *more = words.split()
                text = CliRunner().invoke(tools.tool(tool).command, more, input=text).stdout
                written += [json.loads(line) for line in text.splitlines()]
            file.write_text(json.dumps(written[::-1] + golden.table()), "utf-8")
        return json.loads(file.read_text("utf-8"))

    def input(self, number: int, changed: Sequence[bytes]) -> bytes:
        first, *others = [json.dumps(record).encode() for record in self.good]
        return b"\n".join([str(number).encode(), first, *changed, *others]) + b"\n"

    def make(self, chance: Chance) -> bytes:
        number = chance.pick(RARELY if chance.often(10) else OFTEN)
        return self.input(number, [self.changed(chance) for _ in range(CHANGED)])

    def changed(self, chance: Chance) -> bytes:
        record = chance.pick(self.pool)
        for _ in range(chance.pick((1, 1, 1, 2))):
            record = chance.changed(record, FIELDS)
        text = chance.json(record)
        return chance.damaged(text) if chance.often(20) else text

    def check(self, data: bytes) -> None:
        head, _, stream = data.partition(b"\n")
        number, words = int(head), COMMANDS[int(head)]
        self.reading(stream)
        if number not in self.usual:
            self.usual[number] = self.run(words, self.input(0, []).partition(b"\n")[2])
        status, kept = self.run(words, stream)
        usual_status, usual_kept = self.usual[number]
        text = f"rb-{' '.join(words)}"
        if (
            status == 2
            and usual_status != 2
            and "@" not in text
            and not any(some in self.said for some in OF_ALL)
        ):
            raise Finding(f"{text} is refused as a whole: {self.said[-400:]}")
        # A model to attack that is none costs every record, each in words.
        if kept < usual_kept and status != 2 and "@alone" not in text:
            raise Finding(f"{text} loses {usual_kept - kept} records: {self.said[-400:]}")

    def reading(self, stream: bytes) -> None:
        """Every line is a record that survives writing, or has a problem that is told."""
        from rbtools.records import dumps, lines, parse, parse_again

        for line in lines(io.BytesIO(stream)):
            if line.record is None:
                told(f"Line {line.number} {line.problem}")
                continue
            text = dumps(line.record)
            if b"\n" in text:
                raise Finding("a record is written on two lines")
            for again in (parse(text), parse_again(line.text), parse_again(text)):
                if repr(again) != repr(line.record):  # 1 is not 1.0, and not true
                    raise Finding(f"read again, a record is another: {again!r:.200} {line.record!r:.200}")

    def run(self, command: Sequence[str], stream: bytes) -> tuple[int, int]:
        """Run a command; its status, and how many of the good records come out of it without an error.

        In its words @changed is a file of the whole stream, @alone.jsonl one of the changed record (the
        second line) and @one.jsonl one of a good record.
        """
        from click.testing import CliRunner

        first, second = [*stream.split(b"\n"), b""][:2]
        for name, text in (("changed", stream), ("one.jsonl", first), ("alone.jsonl", second)):
            (self.folder / name).write_bytes(text)
        words = [word.replace("@", f"{self.folder}/") for word in command]
        result = CliRunner().invoke(tools.tool(words[0]).command, words[1:], input=stream)
        self.said = result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if "Traceback" in result.stderr or "bug in rbtools" in result.stderr:
            raise Finding(f"{last_of_trace(result.stderr)} [rb-{' '.join(command)}]")
        if result.exit_code not in (0, 1, 2):
            raise Finding(f"rb-{' '.join(command)} ends with status {result.exit_code}: {self.said[-300:]}")
        kept = self.kept(words, result.stdout_bytes, stream) if result.exit_code < 2 else 0
        return result.exit_code, kept

    def kept(self, words: Sequence[str], out: bytes, stream: bytes) -> int:
        """How many good records are in the output; of a tool that writes a file, whether it did."""
        from rbtools.records import lines

        if words[0] in ("plot", "convert"):
            there = os.path.exists(words[-1])
            if os.path.isfile(words[-1]):
                os.remove(words[-1])
            return int(there)
        merges = {"--format", "--aggregate"}  # or writes something else than the records
        if words[0] == "corr" or merges & set(words):
            return int(bool(out.strip()))
        came = list(lines(io.BytesIO(out)))
        if any(line.record is None for line in came):
            raise Finding(f"rb-{' '.join(words)} writes a line that is no record: {out[:200]!r}")
        if words[0] in ONE_FOR_ONE and len(came) < len(list(lines(io.BytesIO(stream)))):
            raise Finding(f"rb-{' '.join(words)} writes {len(came)} lines: {self.said[:200]}")
        if words[0] in (*ONE_FOR_ONE, "score", "rank"):
            marks = [line.record.get("mark") for line in came if line.record and "error" not in line.record]
            return marks.count("good")
        return int(bool(out.strip()))


def last_of_trace(text: str) -> str:
    """The place and the message of a traceback, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ") and "rbtools" in line]
    errors = [line for line in lines if "Error" in line and not line.startswith("rb-")]
    return f"{(places or ['?'])[-1]} {(errors or lines)[-1]}"


# ---- checkpoints -----------------------------------------------------------------------------------

OBJECT_MARK = b"object\n"  # an input that is given to the recogniser as an object: a pickle follows
TENSORS = (
    "stem.0.weight lastact.0.weight classifier.weight cells.1.conv_a.op.1.weight"
    " cells.99999999.conv_a.op.1.weight conv1.weight bn1.weight layer1.0.conv1.weight linear.weight"
    " fc.weight fc1.weight features.0.weight features.1.running_mean block1.layer.0.conv1.weight"
    " conv_proj.weight encoder.pos_embedding heads.head.weight encoder.layers.encoder_layer_0.mlp.0.weight"
    " pos_embed patch_embed.proj.weight blocks.0.mlp.fc1.weight mean std normalize.mean mu sigma"
    " n_averaged num_batches_tracked module.fc.weight attacker.x AuxLogits.fc.weight"
    " features.denseblock1.denselayer1.norm.1.weight state_dict model net ema best optimizer arch args"
    " config normalization full 200 all_results net_state_dict arch_str rbtools epoch history module"
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
    {"space": "python", "name": "os:system"},
    {"space": "timm", "name": "hf-hub:a/b"},
)
SHAPES = (0, 1, 3, 10, 64, 100, 512, 10**5, 2**31, 2**40)


class Checkpoints:
    """The recogniser: from a file to a network that takes images, with its facts, or to a message."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # of torch, about the tensors that are made here
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "weights.pt"
        self.states = small_states()
        self.files = saved_files(self.states, self.folder)
        self.watch = Watch()

    def make(self, chance: Chance) -> bytes:
        """A file or a pickle that is damaged, or what a training script may have saved, or nobody."""
        kind = chance.integer(0, 9)
        if kind == 0:
            return chance.damaged(chance.pick(self.files))
        if kind < 6:
            return self.repacked(chance.pick(self.files), chance)
        value = self.object(chance)
        stream = io.BytesIO()
        if kind < 8:
            import torch

            torch.save(value, stream)
            return stream.getvalue()
        pickle.dump(value, stream)
        return OBJECT_MARK + stream.getvalue()

    def repacked(self, data: bytes, chance: Chance) -> bytes:
        """The file with other opcodes in its pickle, and now and then a member that is changed."""
        if data[:2] == b"PK":
            stream = io.BytesIO()
            with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
                for name in old.namelist():
                    inner = old.read(name)
                    new.writestr(name, chance.pickle(inner) if name.endswith("data.pkl") else inner)
                if chance.often(9):
                    field = chance.pick(
                        ("file_size", "compress_size", "header_offset", "flag_bits", "compress_type")
                    )
                    small = field in ("flag_bits", "compress_type")
                    setattr(
                        chance.pick(new.infolist()),
                        field,
                        chance.pick((0, 1, 8) if small else (0, 40, 2**31)),
                    )
            return stream.getvalue()
        packed = data[:3] == b"BZh"
        parts = [*pickles(bz2.decompress(data) if packed else data)]
        longest = max(range(len(parts)), key=lambda n: len(parts[n]) * (parts[n][:1] == b"\x80"))
        if parts[longest][:1] == b"\x80":
            parts[longest] = chance.pickle(parts[longest])
        return bz2.compress(b"".join(parts)) if packed else b"".join(parts)

    def object(self, chance: Chance) -> Any:
        chance.extra = lambda: self.tensor(chance)
        state: Any = dict(chance.pick(self.states))
        if chance.often(5):
            prefix = chance.pick(("module.", "model.", "0.", "ema.", "é", "."))
            state = {f"{prefix}{key}": value for key, value in state.items()}
        if chance.often(7):  # the layout of NAS-Bench-201's archives
            runs = {("cifar10", 777): {"net_state_dict": state, "arch_config": {"arch_str": "|none~0|"}}}
            state = {
                "full": {"all_results": runs, "arch_str": "|x~0|", "other": Hostile(self.folder / "ran")}
            }
        for _ in range(chance.integer(0, 3)):
            state = chance.changed(state, TENSORS)
        for _ in range(chance.integer(0, 2)):
            noted = chance.changed(dict(chance.pick(ARCHES) or {"x": 1}), TENSORS)
            state = {chance.pick(TENSORS): state, chance.pick(TENSORS): noted}
            how, key = chance.integer(0, 5), chance.pick(TENSORS)
            if how == 0:
                state[key] = state  # a pickle can hold itself
            elif how == 1:
                state[key] = argparse.Namespace(**{key.replace(".", "_"): chance.odd()})
            elif how == 2:  # a list of lists, of which every level is the same one again and again
                for _ in range(chance.pick((1, 3, 5))):
                    state[key] = [state.get(key, 0)] * chance.pick((2, 50))
        return state

    def tensor(self, chance: Chance) -> Any:
        """A tensor of any shape and type; a large one is one number, expanded."""
        import torch

        kinds = (torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)
        kinds += (torch.bfloat16, torch.float8_e4m3fn, torch.uint8)
        how = chance.integer(0, 9)
        if how == 0:
            return torch.eye(3).to_sparse()
        if how == 1:
            return torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8)
        if how == 2:
            return torch.nn.Parameter(torch.zeros(2))
        shape = [chance.pick(SHAPES) for _ in range(chance.integer(0, 4))]
        one = torch.zeros((), dtype=chance.pick(kinds))
        return one.expand(shape) if math.prod(shape) < 2**60 else one

    def check(self, data: bytes) -> None:
        import torch

        from rbtools.models import checkpoint, weights_file

        arch = ARCHES[sum(data[-64:]) % len(ARCHES)]
        classes, shape = ((None, None), (10, (3, 32, 32)), (10, (1, 28, 28)))[len(data) % 3]
        known = {"none": None, "cifar10": ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))}
        known |= {} if shape is None else {"dataset": ((0.5,) * shape[0], (0.2,) * shape[0])}
        known = {k: v for k, v in known.items() if v is None or shape is None or len(v[0]) == shape[0]}
        hints = checkpoint.NormalizationHints(known=known)
        reader = weights_file.read
        if data.startswith(OBJECT_MARK):
            try:
                raw = inflated(pickle.loads(data[len(OBJECT_MARK) :]))  # made by `make`
            except (AttributeError, OSError, RuntimeError):  # some tensors do not come back, or it is code
                return
            weights_file.read = lambda path: (raw, {}, "torch")
            data = b""
        self.path.unlink(missing_ok=True)  # some file systems wait for the disk where a file is overwritten
        self.path.write_bytes(data)
        ran = self.folder / "ran"
        with contextlib.suppress(OSError):
            ran.rmdir()
        try:
            with self.watch:
                network, arch, facts = checkpoint.load(
                    self.path, arch, classes=classes, shape=shape, hints=hints
                )
                self.usable(network, arch, facts)
        except RbError as wrong:
            told(str(wrong))
        finally:
            weights_file.read = reader
            torch.manual_seed(0)
        if ran.exists():
            raise Finding("code in the file ran")

    def usable(self, network: Any, arch: Any, facts: Any) -> None:
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


def small_states() -> list[dict[str, Any]]:
    """State dicts of small networks of every kind; larger ones as one number, expanded."""
    import torch

    from rbtools import models
    from rbtools.models.meta import meta_init

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


# ---- other files ------------------------------------------------------------------------------------


def png() -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "png")
    return stream.getvalue()


def load_images(name: str) -> None:
    """The images of a data set, as an evaluation gets them."""
    from rbtools import datasets

    data = datasets.load(name, "test")
    images = data.images[data.labels.new_tensor(range(min(len(data), 4)))]
    if images.shape[0] != min(len(data), 4) or int(data.labels.max()) >= data.classes:
        raise Finding(f"a data set that does not fit itself: {images.shape} {data.classes}")


class Safetensors(Files):
    """A header of claims before a few bytes."""

    def make(self, chance: Chance) -> bytes:
        about = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
        notes = json.dumps({"arch": {"space": "zoo", "name": "simplecnn"}, "x": chance.text(9)})
        names = chance.pick((("fc.weight",), ("conv1.weight", "bn1.running_mean"), (*NAMES, "x" * 10**6)))
        header: Any = {
            "__metadata__": {"rbtools": chance.pick((notes, "[" * 9999))},
            **dict.fromkeys(names, about),
        }
        for _ in range(chance.integer(0, 3)):
            header = chance.changed(header, ("F16", "F8_E4M3", "C64", "F4", *TENSORS))
        text = json.dumps(header, default=str).encode()
        text = chance.damaged(text) if chance.often(4) else text
        length = chance.pick((len(text), len(text), len(text), 0, 1, 2**31, 2**40))
        return struct.pack("<Q", length) + text + bytes(256)

    def read(self, data: bytes, folder: Path) -> None:
        from rbtools.models import checkpoint

        (folder / "w.safetensors").write_bytes(data)
        checkpoint.load(folder / "w.safetensors", None, classes=10, shape=(3, 32, 32))


class Images(Files):
    """One image of each of seven formats, damaged, beside a whole one."""

    writes = True  # its own whole image

    def make(self, chance: Chance) -> bytes:
        from PIL import Image

        stream = io.BytesIO()
        mode = chance.pick(("RGB", "L", "P", "1", "CMYK", "RGBA", "I;16"))
        form = chance.pick(("PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP"))
        try:
            Image.new(mode, (chance.integer(8, 40), 8)).save(stream, form)
        except (OSError, KeyError, ValueError):  # a mode that the format does not have
            Image.new("RGB", (8, 8)).save(stream, form)
        data = stream.getvalue()
        for _ in range(chance.integer(0, 3)):  # numbers of its header: sizes, offsets, counts
            start = chance.integer(0, min(len(data), 400))
            field = chance.pick(
                (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x00\x01\x00\x00", b"\x10\x00")
            )
            data = data[:start] + field + data[start + len(field) :]
        data = chance.damaged(data) if chance.integer(0, 1) else data
        return checked_png(data) if chance.integer(0, 2) and form == "PNG" else data

    def read(self, data: bytes, folder: Path) -> None:
        images = folder / "photos/test/a"
        images.mkdir(parents=True)
        (images / "0.png").write_bytes(data)
        (images / "1.png").write_bytes(png())
        load_images(f"imagefolder:{folder}/photos")


class Parquet(Files):
    """Tables of other types and packings, and with other bytes in their pages and footers."""

    writes = True

    def make(self, chance: Chance) -> bytes:
        import pyarrow as pa
        from pyarrow import parquet

        count = chance.pick((2, 1, 5, 40))
        images: Any = [png()] * (count - 1) + [chance.pick((png(), b"", b"x", chance.damaged(png()), None))]
        if chance.integer(0, 1):
            images = [None if image is None else {"bytes": image, "path": chance.text(5)} for image in images]
        labels = [chance.pick((0, 1, 2, 255, 2**31, 2**40, None)) for _ in range(count)]
        label = chance.pick((pa.int64(), pa.int8(), pa.float64(), pa.string(), pa.list_(pa.int64())))
        try:
            table = pa.table({"image": images, "label": pa.array(labels, pa.int64()).cast(label, safe=False)})
        except (pa.ArrowException, OverflowError):
            table = pa.table({"image": images, "label": [0] * count})
        if chance.often(3):
            notes = {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
            table = table.replace_schema_metadata(
                {"huggingface": json.dumps(chance.changed(notes), default=str)}
            )
        stream = io.BytesIO()
        packing = chance.pick(("none", "snappy", "gzip", "zstd"))
        parquet.write_table(table, stream, compression=packing, use_dictionary=bool(chance.integer(0, 1)))
        data = stream.getvalue()
        if chance.integer(0, 2):
            start = chance.integer(4, len(data) - 8)
            data = data[:start] + chance.pick((b"\xff", b"\x00", b"\x7f\xff")) + data[start + 1 :]
        return chance.damaged(data) if chance.often(3) else data

    def read(self, data: bytes, folder: Path) -> None:
        (folder / "x.parquet").write_bytes(data)
        load_images(f"parquet:{folder}/x.parquet")


TARGETS: dict[str, Callable[[], Any]] = {
    "records": Records,
    "checkpoints": Checkpoints,
    "safetensors": Safetensors,
    "images": Images,
    "parquet": Parquet,
}
