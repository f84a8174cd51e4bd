"""The target `fields` of `fuzz.py`: records as every tool writes them, with a field that is something else.

An input is the number of a command line, and a stream of records of which CHANGED are changed: a field is
absent, of another kind, or a number that nobody expects. The command must end without a traceback and with a
status of its own; the records beside the changed ones must come out as they do without them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fuzz_targets import Chance, Finding, deep, last_of_trace

from rbtools.cli import tools

Path_ = tuple[str | int, ...]
GOOD = 3  # records that stand beside the changed ones
CHANGED = 20  # in one input
MOST = 8  # numbers of an object whose fields are all looked at
ASKED = ("acc", "fgsm.8", "params", "score", "seconds_per_epoch")  # metrics that COMMANDS name
ABSENT = object()
TOKEN = "\x01token "  # a text that stands for a word that JSON has not
VALUES: tuple[Any, ...] = (
    ABSENT,
    None,
    True,
    False,
    -1,
    0,
    2,
    0.5,
    10**30,
    -(10**30),
    2**63,
    1e308,
    -1e308,
    "",
    "x",
    "nan",
    "0.5",
    "a\nb",
    "é\u2028",
    [],
    [None],
    [1, "a"],
    [[1]],
    [1e308, -1e308],
    {},
    {"a": 1},
    {"": [{}]},
    deep(20, "list"),
    deep(20, "dict"),
    TOKEN + "NaN",
    TOKEN + "-Infinity",
    TOKEN + "1e999",
    TOKEN + "1" + "0" * 400,
)

EVALUATES = (
    "attack fgsm --eps 4,8 --n 10",
    "attack pgd --steps 2 --n 10 --replace",
    "attack pgd --steps 2 --n 10 --detail --as mine",
    "attack check --n 10 --steps 2 --queries 4 --samples 4",
    "attack transfer --n 4 --from @one.jsonl",
    "attack transfer --n 4 --from @alone.jsonl",
    "corrupt contrast --severity 1,2 --n 10",
    "corrupt all --n 2 --reference @alone.jsonl --dry-run",
    "pr --gamma 0.1 --samples 20 --n 10",
    "pr --rare --gamma 0.1 --n 2 --particles 20 --moves 1 --runs 2",
    "pr --adaptive --samples 40 --n 4 --gamma 0.1",
    "ge acc --n 10",
    "ge attack fgsm --n 10",
    "ge loss attack pgd --steps 2 --n 10",
    "ge pr --gamma 0.1 --samples 20 --n 10",
    "measure params,macs",
    "measure jacobian,margin --batches 2 --batch-size 4",
    "measure wci --probes 2 --attack-steps 1 --batches 1 --batch-size 4",
    "measure ntk,naswot,synflow --batches 1 --batch-size 4",
    "measure bound --paper prbench --batches 1 --batch-size 4",
    "measure bound --paper wci --probes 2 --batches 1 --batch-size 4",
    "attack fgsm --n 10 --dry-run",
    "attack fgsm --n 10 --retry-errors",
    "train --method erm --epochs 0",
    "train --method pgd --epochs 0 --seed 0,1",
    "train --method erm --epochs 0 --init checkpoint",
    "train --method trades --epochs 1 --dry-run",
)
READS = (
    "score",
    "score --metric acc,fgsm.8:2,params:lower",
    "score --add x=mean(acc,fgsm.*)",
    "score --add x=acc-arch.params/1e6 --replace",
    "score --within dataset,train.method --missing worst --metric acc,fgsm.8",
    "score --within arch.name --missing renormalise --metric acc,seconds_per_epoch",
    "rank",
    "rank --by score --higher",
    "rank --by mean(fgsm.*,acc) --where acc>0.01 --format jsonl",
    "rank --by acc --where arch.params>3 --format csv",
    "rank --by acc --where 'arch.cells > 0 or train.epochs in [1, 2]' --format md",
    "rank --by acc --within dataset,train.method --format latex",
    "rank --by acc --aggregate seed",
    "rank --by acc --aggregate train.method,dataset --format table",
    "rank --by acc --group dataset",
    "rank --by acc --group train.config.eps --format csv",
    "rank --by acc --pareto acc,fgsm.8,params --format table",
    "rank --by acc --ci --bootstrap 20",
    "rank --by acc --ci --bootstrap 20 --within dataset",
    "rank --by fgsm.8 --ci --bootstrap 20 --aggregate seed --format table",
    "rank --by acc --pivot train.method --metric acc,fgsm.8 --format table",
    "rank --by acc --pivot train.config.epochs --metric acc --format md",
    "rank --by acc --metric fgsm.*,params --format table",
    "corr",
    "corr --metric acc,fgsm.*,params --kind kendall,spearman",
    "corr --rows acc --cols fgsm.8,score --bootstrap 20",
    "corr --by train.method --on dataset,arch.name --metric acc",
    "corr --aggregate seed --metric acc,fgsm.8 --format table",
    "corr --where train.epochs>0 --metric acc,fgsm.8",
    "plot box -o o.svg",
    "plot hist --metric acc,fgsm.* -o o.svg",
    "plot scatter --x acc --y fgsm.8 --pareto -o o.svg",
    "plot scatter --x arch.params --y acc --colour train.method -o o.svg",
    "plot curves --over eps -o o.svg",
    "plot curves --over gamma -o o.svg",
    "plot curves --over severity -o o.svg",
    "plot curves --over epoch -o o.svg",
    "plot ranks --metric acc,fgsm.8 --view own -o o.svg",
    "plot heatmap -o o.svg",
    "plot heatmap --rows acc --cols fgsm.* --kind kendall -o o.svg",
    "plot bars --metric acc,fgsm.8 -o o.svg",
    "plot bars --metric acc,fgsm.8 --group train.method --within dataset -o o.svg",
    "plot radar --metric acc,fgsm.8,params:lower --missing worst -o o.svg",
    "plot confidence -o o.svg",
    "plot confusion -o o.svg",
    "plot cells --by acc -o o.svg",
    "plot cells --by acc --view graph --top 2 -o o.svg",
    "plot leaderboard -o o.html",
    "convert csv --write o.csv",
    "convert prbench --write o.json",
    "convert nares --write o.jsonl",
    "convert nasrobbench201 --write o.json",
    "convert robustbench --threat Linf --write o.d",
    "convert jung2023 --write o.d",
)
SEARCHES = (
    "search random --objective acc --budget 4 --runs 2",
    "search local --objective mean(acc,fgsm.*) --budget 4 --runs 2",
    "search evolution --objective acc --budget 12 --runs 1",
    "search nsga2 --objective acc,params:lower --budget 40 --runs 1",
    "search random --objective acc --budget 4 --runs 1 --report-table @changed",
    "search random --objective acc --budget 4 --runs 2 --table @one.jsonl --each",
)
SAME_TRAINING = " --where \"train.method=='pgd'\""
COMMANDS = tuple(
    tuple(shlex.split(one)) for one in (*EVALUATES, *READS, *(some + SAME_TRAINING for some in SEARCHES))
)
# Figures take a second to draw, other things a tenth of that.
RARELY = tuple(n for n, words in enumerate(COMMANDS) if words[0] == "plot" and words[1] != "leaderboard")
OFTEN = tuple(n for n in range(len(COMMANDS)) if n not in RARELY)
# Refusals that are about records that do not go together, though each may be right.
OF_ALL = (
    "results of several kinds",
    "A search needs one space",
    "--missing renormalise",
    "There is no metric that all",
)
ONE_FOR_ONE = ("attack", "corrupt", "pr", "ge", "measure", "train")


class Fields:
    """Every tool, on records of which one has a field that is none."""

    name = "fields"
    kinds = 1

    def __init__(self, pool: Sequence[Any] | None = None, folder: Path | None = None) -> None:
        """With a `pool` of records nothing is trained; its first stand beside the changed ones."""
        self.folder = Path(tempfile.gettempdir(), "fields") if folder is None else folder
        self.folder.mkdir(exist_ok=True)
        self.pool = self.made() if pool is None else pool
        self.good = [{**record, "mark": "good"} for record in self.pool[:GOOD]]
        self.usual: dict[int, tuple[int, int]] = {}

    def made(self) -> Any:
        """Records as the tools write them, in their store; a process after the first finds them there."""
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        os.environ["RB_STORE"] = str(self.folder / "store")
        os.chdir(self.folder)
        file = Path("records.json")
        if not file.exists():
            file.write_text(json.dumps(rich_records()), "utf-8")
        return json.loads(file.read_text("utf-8"))

    def seeds(self) -> list[bytes]:
        return [self.input(number, []) for number in range(len(COMMANDS))]

    def known(self) -> list[bytes]:
        return self.seeds()

    def from_bytes(self, kind: int, data: bytes) -> bytes:
        return data

    def input(self, number: int, changed: Sequence[bytes]) -> bytes:
        """The bytes of an input: the number of a command, good records, and in their middle the changed."""
        first, *rest = [json.dumps(record).encode() for record in self.good]
        return b"\n".join([str(number).encode(), first, *changed, *rest]) + b"\n"

    def make(self, chance: Chance) -> bytes:
        number = chance.pick(RARELY if chance.integer(0, 9) == 0 else OFTEN)
        return self.input(number, [self.changed(chance) for _ in range(CHANGED)])

    def changed(self, chance: Chance) -> bytes:
        """A record with something else in one or two of its fields, as JSON or nearly."""
        record = chance.pick(self.pool)
        for _ in range(chance.pick((1, 1, 1, 2))):
            path = somewhere(record, chance)
            record = put(record, path, self.value(record, path, chance))
        return as_text(record)

    def every(self) -> Iterator[bytes]:
        """Each field of each record of the pool with each of VALUES, one at a time."""
        for record in self.pool:
            for path in paths_of(record, ()):
                for value in VALUES:
                    yield as_text(put(record, path, value))

    def value(self, record: Any, path: Path_, chance: Chance) -> Any:
        """What stands in a field's place: one of VALUES, another field's, or its own as something else."""
        how = chance.integer(0, 9)
        if how == 0:
            return at(record, somewhere(record, chance))
        if how == 1:
            own = at(record, path)
            return chance.pick(([own], {"value": own}, str(own), [own, own]))
        return chance.pick(VALUES)

    def check(self, data: bytes) -> None:
        head, _, stream = data.partition(b"\n")
        if not head.isdigit() or int(head) >= len(COMMANDS):
            return
        number = int(head)
        if number not in self.usual:
            self.usual[number] = self.run(COMMANDS[number], self.input(0, []).partition(b"\n")[2])
        status, kept = self.run(COMMANDS[number], stream)
        usual_status, usual_kept = self.usual[number]
        words = f"rb-{' '.join(COMMANDS[number])}"
        if status == 2 and usual_status != 2 and "@" not in words and not any(w in self.said for w in OF_ALL):
            raise Finding(f"{words} is refused as a whole: {self.said[-400:]}")
        # A model to attack that is none costs every record, each in words.
        if kept < usual_kept and status != 2 and "@alone" not in words:
            raise Finding(f"{words} loses {usual_kept - kept} records: {self.said[-400:]}")

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
        main = tools.tool(words[0]).command
        result = CliRunner().invoke(main, words[1:], input=stream)
        self.said = result.stderr
        status = result.exit_code
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if "Traceback" in result.stderr or "bug in rbtools" in result.stderr:
            raise Finding(f"{last_of_trace(result.stderr)} [rb-{' '.join(command)}]")
        if status not in (0, 1, 2):
            raise Finding(f"rb-{' '.join(command)} ends with status {status}: {self.said[-300:]}")
        return status, self.kept(words, result.stdout_bytes, stream) if status < 2 else 0

    def kept(self, words: Sequence[str], out: bytes, stream: bytes) -> int:
        """How many good records are in the output; of a tool that writes a file, whether it did."""
        from rbtools.records import lines

        if words[0] in ("plot", "convert"):
            name = words[-1]
            there = os.path.exists(name)
            if os.path.isfile(name):
                os.remove(name)
            return int(there)
        merges = {"--format", "--aggregate", "--group"}  # or writes something else than the records
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


def as_text(record: Any) -> bytes:
    """JSON, but for the words in VALUES that JSON has not."""
    return re.sub(r'"\\u0001token ([^"]*)"', r"\1", json.dumps(record)).encode()


def somewhere(record: Any, chance: Chance) -> Path_:
    """The path of a field: at each depth all are as likely, so that a long history is not most of them."""
    path: Path_ = ()
    inner = record
    while isinstance(inner, (dict, list)) and inner and (not path or chance.integer(0, 3)):
        step = chance.pick(list(inner)) if isinstance(inner, dict) else chance.integer(0, len(inner) - 1)
        path, inner = (*path, step), inner[step]
    return path


def paths_of(value: Any, path: Path_) -> Iterator[Path_]:
    """The paths of all fields that differ in more than their place: of a list the first and the last item, of
    entries one of each kind, and of many metrics some.
    """
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
        if len(items) > MOST and all(isinstance(item, (int, float)) for item in value.values()):
            items = [*items[:2], *((name, value[name]) for name in ASKED if name in value), *items[-2:]]
    elif path == ("evals",):
        items = list({tuple(entry): (place, entry) for place, entry in enumerate(value)}.values())
    elif isinstance(value, list):
        items = list(enumerate(value))
        items = [*items[:1], *items[1:][-1:]]
    for key, item in items:
        yield (*path, key)
        yield from paths_of(item, (*path, key))


def at(value: Any, path: Path_) -> Any:
    try:
        for step in path:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        return None
    return value


def put(value: Any, path: Path_, new: Any) -> Any:
    """The value with something else at a path; where the path is no longer there, as it was."""
    step, *rest = path
    if isinstance(value, dict) and step in value:
        if not rest and new is ABSENT:
            return {key: item for key, item in value.items() if key != step}
        return {**value, step: put(value[step], tuple(rest), new) if rest else new}
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        middle = [] if not rest and new is ABSENT else [put(value[step], tuple(rest), new) if rest else new]
        return [*value[:step], *middle, *value[step + 1 :]]
    return value


# ---- records as the tools write them --------------------------------------------------------------


def written(words: str, stream: bytes = b"") -> bytes:
    """What a command writes. Its work is of the smallest size."""
    from click.testing import CliRunner

    tool, *rest = shlex.split(words)
    result = CliRunner().invoke(tools.tool(tool).command, rest, input=stream)
    if result.exit_code != 0:
        raise RuntimeError(f"rb-{words}: {result.stderr}")
    return result.stdout_bytes


def rich_records() -> list[Any]:
    """What each tool writes; the first are of trained networks, with everything measured."""
    listed = written("arch --index 13714,4 --cells 1 --channels 4 --dataset digits")
    stream = written(
        "train --method pgd --attack-steps 1 --epochs 1 --val 0.1 --track robust --every 1", listed
    )
    stream += written("train --method erm --epochs 1 --seed 1 --val 0.1", listed)
    for words in (
        "attack fgsm --eps 4,8 --n 10 --detail",
        "attack pgd --steps 2 --n 10 --detail",
        "corrupt contrast --severity 1-5 --n 10",
        "pr --gamma 0.1,0.2 --samples 20 --n 10",
        "pr --rare --gamma 0.1 --n 2 --particles 20 --moves 1 --runs 2",
        "ge acc --n 10",
        "ge attack fgsm --n 10",
        "ge loss attack pgd --steps 2 --n 10",
        "measure params,macs,margin --batches 1 --batch-size 4",
        "measure wci --probes 2 --attack-steps 1 --batches 1 --batch-size 4",
        "measure jacobian --batches 2 --batch-size 4",
        "score --metric acc,fgsm.8",
        "score --add both=mean(acc,fgsm.8)",
    ):
        stream = written(words, stream)
    ranked = written("rank --by acc --ci --bootstrap 20 --pareto acc,fgsm.8", stream)
    merged = written("rank --by acc --aggregate seed", stream)
    searched = written(SEARCHES[0] + SAME_TRAINING, stream)
    file = next(Path(os.environ["RB_STORE"]).glob("objects/*/*"))
    Path("weights.pt").write_bytes(file.read_bytes())
    seen = written("attack fgsm --n 10 --checkpoint weights.pt --dataset digits")
    zoo = written("measure params", written("arch --arch simplecnn,fcnn:relu/tanh+skip --dataset digits"))
    deep_and_wide = {f"{letter}{stage}": size for letter, size in (("D", 5), ("W", 8)) for stage in (1, 2, 3)}
    line = {"arch_id": 1, "arch": deep_and_wide, "train": [{"seed": 0, "best_epoch": 1, "val_acc": [50.0]}]}
    nares = written("convert nares", json.dumps({**line, "test_best": [{"test_clean_acc": 88.5}]}).encode())
    evaluated = records_of(written("score --add aa.8=fgsm.8", stream))
    singles = (ranked, merged, searched, seen, nares)
    return [*evaluated, *(records_of(some)[0] for some in singles), *records_of(zoo)]


def records_of(stream: bytes) -> list[Any]:
    return [json.loads(line) for line in stream.splitlines()]
