"""Fuzz what reads other people's bytes: a record or a message, a network or a message, and nothing else.

    python bench/fuzz.py records --engine hypothesis [--seconds 600] [--seed 0] [--out fuzz-findings]
    python bench/fuzz.py fields --engine random
    python bench/fuzz.py checkpoints --engine atheris
    python bench/fuzz.py safetensors --engine random --cases 200
    python bench/fuzz.py checkpoints --replay fuzz-findings/checkpoints-1a2b3c4d

`hypothesis` makes structured inputs, `random` too, with nothing to install; `atheris` (pip install
'rbtools[fuzz]') lets the lines that were reached guide it, on raw bytes that begin as real records and small
checkpoints, and on structured inputs. One JSON line says how many inputs were tried, and for each kind of
finding what it is and the file in `--out` that has the shortest input met. Status 1 where there are
findings. A process of its own runs the inputs: one that dies, takes long or eats memory is a finding too, and
another goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILES = ("safetensors", "images", "parquet", "shards", "adv", "archives", "leases")  # fuzz_files.py
SLOW = 10  # seconds of processor time: what reads a small file has no right to more
GREEDY = 2**31  # bytes of memory that one input may take beyond what the process has
ROOM = 4 * 2**20  # bytes of an input that outlive a process that dies
HEAD = 32  # bytes before it: inputs tried, its length, the most seconds and bytes of memory


class TooSlow(BaseException):
    """An input has used up its time; no `except Exception` may swallow this."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=["records", "fields", "checkpoints", *FILES])
    parser.add_argument(
        "--engine", choices=["hypothesis", "atheris", "random"], default="hypothesis", help="[hypothesis]"
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long [600]")
    parser.add_argument("--cases", type=int, default=2**62, help="how many inputs at most [no limit]")
    parser.add_argument("--seed", type=int, default=0, help="of the first process [0]")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="for inputs [fuzz-findings]")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="only try this input again")
    options = parser.parse_args()
    options.out = options.out.absolute()
    if options.replay is not None:
        file = options.replay.absolute()
        with tempfile.TemporaryDirectory(prefix="rb-fuzz-", ignore_cleanup_errors=True) as folder:
            tempfile.tempdir = folder
            os.chdir(folder)
            target(options.target).check(file.read_bytes())
        return
    try:
        __import__(options.engine)
    except ImportError:
        extra = "fuzz" if options.engine == "atheris" else "test"
        raise SystemExit(
            f"{options.engine} is not installed. Install it with pip install 'rbtools[{extra}]'."
        ) from None
    sys.exit(fuzz(options))


def target(name: str) -> Any:
    import fuzz_fields
    import fuzz_files
    import fuzz_targets

    targets: dict[str, Any] = {**fuzz_targets.TARGETS, **fuzz_files.TARGETS, "fields": fuzz_fields.Fields}
    return targets[name]()


def fuzz(options: argparse.Namespace) -> int:
    """Let processes try inputs until the time is over; print the figures."""
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rb-fuzz-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder  # of the processes, too, which have no time to clear up
        line = attempts(options)
    print(json.dumps(line))
    return bool(line["findings"])


def attempts(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of the processes that try inputs one after another."""
    shared = Shared()
    start, died = time.monotonic(), 0
    while (left := options.seconds - (time.monotonic() - start)) > 1:
        child = os.fork()
        if not child:
            work(options, shared, left, options.seed + 1_000_000_007 * died)
        ended = status(child, left + 60)
        if not ended and shared.count() >= options.cases:
            break
        if ended:
            died += 1
            if shared.running():
                Findings(options).keep(shared.input(), "Death", f"the process died of it (status {ended})")
            shared.clear()
    findings = Findings(options).known()
    return {
        "figure": f"fuzzing {options.target}",
        "engine": options.engine,
        "executions": shared.count(),
        "seconds": round(time.monotonic() - start),
        "slowest_s": round(shared.most()[0], 2),
        "most_MB": round(shared.most()[1] / 1e6),
        "seed": options.seed,
        "processes that died": died,
        "findings": findings,
    }


def status(child: int, seconds: float) -> int:
    """The exit status of a process, which is ended where it takes longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, found = os.waitpid(child, os.WNOHANG)
        if pid:
            return found
        time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


class Shared:
    """What outlives a process: how many inputs were tried, and the one that is being tried."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, HEAD + ROOM)

    def count(self) -> int:
        return int(struct.unpack("<q", self.map[:8])[0])

    def begin(self, data: bytes) -> None:
        self.map[:8] = struct.pack("<q", self.count() + 1)
        kept = data[:ROOM]
        self.map[HEAD : HEAD + len(kept)] = kept
        self.map[8:16] = struct.pack("<q", len(kept) + 1)

    def clear(self) -> None:
        self.map[8:16] = bytes(8)

    def running(self) -> bool:
        return self.map[8:16] != bytes(8)

    def input(self) -> bytes:
        (size,) = struct.unpack("<q", self.map[8:16])
        return self.map[HEAD : HEAD - 1 + size]

    def most(self) -> tuple[float, float]:
        """The most processor seconds, and bytes of memory, that an input took."""
        seconds, size = struct.unpack("<2d", self.map[16:HEAD])
        return float(seconds), float(size)

    def took(self, seconds: float, size: float) -> None:
        old = self.most()
        self.map[16:HEAD] = struct.pack("<2d", max(seconds, old[0]), max(size, old[1]))


class Findings:
    """The folder of findings: an input and what it does, one pair for each place in the code."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.prefix = options.out, f"{options.target}-{options.engine}-"

    def keep(self, data: bytes, where: str, what: str) -> None:
        path = self.out / f"{self.prefix}{hashlib.sha256(where.encode()).hexdigest()[:8]}"
        if not path.exists() or len(data) < path.stat().st_size:
            path.write_bytes(data)
            path.with_name(path.name + ".txt").write_text(f"{where}\n{what}\n", "utf-8", "replace")

    def known(self) -> list[dict[str, str]]:
        found = []
        for path in sorted(self.out.glob(f"{self.prefix}*.txt")):
            where, _, what = path.read_text("utf-8").partition("\n")
            found.append(
                {"where": where, "what": what.strip()[:300], "input": path.name.removesuffix(".txt")}
            )
        return found


def work(options: argparse.Namespace, shared: Shared, seconds: float, seed: int) -> None:
    """Try inputs in this process until the time is over; never returns."""
    end = time.monotonic() + seconds
    os.chdir(tempfile.mkdtemp())
    os.dup2(2, 1)  # standard output is for the figures alone
    try:
        ENGINES[options.engine](options, shared, end, seed)
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def tried(goal: Any, shared: Shared, findings: Findings) -> Callable[[bytes], None]:
    """The target's `check` with limits, whose failures are kept and not raised."""
    slow, greedy = getattr(goal, "slow", SLOW), getattr(goal, "greedy", GREEDY / 2)

    def one(data: bytes) -> None:
        shared.begin(data)
        before, held = time.process_time(), memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        try:
            with limited():
                goal.check(data)
        except (Exception, TooSlow) as wrong:
            findings.keep(data, place(wrong), f"{type(wrong).__name__}: {wrong}")
        seconds = time.process_time() - before
        more = memory("VmHWM") - held
        shared.took(seconds, more)
        if seconds > slow:
            findings.keep(data, "Slow", f"{seconds:.1f} s of processor time")
        if more > greedy:
            findings.keep(data, "Greedy", f"{more / 2**20:.0f} MiB of memory")
        shared.clear()

    return one


def memory(name: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def made(goal: Any, chance: Any, one: Callable[[bytes], None]) -> None:
    """Try a structured input, where torch and pickle are ready to make such a thing."""
    try:
        data = goal.make(chance)
    except (RuntimeError, OverflowError):
        return
    one(data)


@contextmanager
def limited() -> Iterator[None]:
    """Ends what takes more than `SLOW` seconds or `GREEDY` bytes of address space."""

    def over(number: int, frame: Any) -> None:
        raise TooSlow(f"more than {SLOW} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GREEDY, old[1]))
    former = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, SLOW)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
        resource.setrlimit(resource.RLIMIT_AS, old)


def place(wrong: BaseException) -> str:
    """The kind of an error and the innermost line of rbtools that it came through."""
    frames = traceback.extract_tb(wrong.__traceback__)
    own = [frame for frame in frames if f"{os.sep}rbtools{os.sep}" in frame.filename] or frames[-1:]
    if type(wrong).__name__ == "Finding":
        return f"Finding {str(wrong)[:60]}"
    where = f"{os.path.basename(own[-1].filename)}:{own[-1].name}:{own[-1].lineno}" if own else "?"
    return f"{type(wrong).__name__} {where}"


# ---- the engines -----------------------------------------------------------------------------------


def with_hypothesis(options: argparse.Namespace, shared: Shared, end: float, seed: int) -> None:
    import hypothesis
    from hypothesis import strategies as st

    goal = target(options.target)
    one = tried(goal, shared, Findings(options))
    settings = hypothesis.settings(
        max_examples=500,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def attempt(data: st.DataObject) -> None:
        made(goal, Drawn(data.draw), one)
        if time.monotonic() > end or shared.count() >= options.cases:
            os._exit(0)

    while True:
        hypothesis.seed(seed)(settings(hypothesis.given(st.data())(attempt)))()
        seed += 1_000_003


def with_random(options: argparse.Namespace, shared: Shared, end: float, seed: int) -> None:
    from fuzz_pickles import Rolled

    goal = target(options.target)
    one = tried(goal, shared, Findings(options))
    while time.monotonic() < end and shared.count() < options.cases:
        made(goal, Rolled(seed), one)
        seed += 1


class Drawn:
    """Choices of hypothesis."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        from hypothesis import strategies

        self.draw, self.st = draw, strategies

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(self.st.integers(low, high)))

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def text(self, longest: int) -> str:
        return str(self.draw(self.st.text(max_size=longest)))

    def data(self, longest: int) -> bytes:
        return bytes(self.draw(self.st.binary(max_size=longest)))

    def real(self) -> float:
        return float(self.draw(self.st.floats()))


def with_atheris(options: argparse.Namespace, shared: Shared, end: float, seed: int) -> None:
    import atheris  # type: ignore[import-not-found,unused-ignore]
    import torch  # noqa: F401  (before, because it takes minutes to instrument)

    with atheris.instrument_imports(include=["rbtools"]):
        goal = target(options.target)
        for data in goal.known():  # imports what is used
            goal.check(data)
    one = tried(goal, shared, Findings(options))

    def attempt(data: bytes) -> None:
        """The first byte says whether the rest is a file, or what a structured one is made of."""
        kind = data[0] % (2 * goal.kinds) if data else 0
        if kind < goal.kinds:
            one(goal.from_bytes(kind, data[1:]))
        else:
            made(goal, Consumed(atheris.FuzzedDataProvider(data[1:])), one)

    corpus = Path(tempfile.mkdtemp())
    for number, data in enumerate(goal.seeds()):
        (corpus / f"real-{number}").write_bytes(data if goal.kinds > 1 else b"\0" + data)
    for number in range(20):
        mixed = b"".join(hashlib.sha256(bytes([number, part])).digest() for part in range(8))
        (corpus / f"made-{number}").write_bytes(bytes([goal.kinds]) + mixed)
    limits = [f"-max_total_time={max(1, int(end - time.monotonic()))}", f"-seed={seed + 1}"]
    limits += [
        "-rss_limit_mb=0",
        "-timeout=120",
        "-max_len=16384",
        f"-artifact_prefix={corpus}/",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], attempt)
    atheris.Fuzz()


class Consumed:
    """Choices out of the bytes of atheris; the least one where there are none left."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    def integer(self, low: int, high: int) -> int:
        return int(self.provider.ConsumeIntInRange(low, high))

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def text(self, longest: int) -> str:
        return str(self.provider.ConsumeUnicodeNoSurrogates(self.integer(0, longest)))

    def data(self, longest: int) -> bytes:
        return bytes(self.provider.ConsumeBytes(self.integer(0, longest)))

    def real(self) -> float:
        return float(self.provider.ConsumeFloat())


ENGINES = {"hypothesis": with_hypothesis, "atheris": with_atheris, "random": with_random}


if __name__ == "__main__":
    main()
