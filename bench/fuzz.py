"""Fuzz what reads other people's bytes: a record or a message, a network or a message, and nothing else.

    python bench/fuzz.py records [--seconds 600] [--cases 200] [--seed 0] [--out fuzz-findings]
    python bench/fuzz.py checkpoints --replay fuzz-findings/checkpoints-1a2b3c4d

Targets: records (every tool), checkpoints, safetensors, images, parquet. An input is a valid thing of
which a part is something else (fuzz_grammar.py). One JSON line says how many inputs were tried, and for each
kind of finding what it is and the file in `--out` that has the shortest input met. Status 1 where there are
findings. A process of its own runs the inputs: one that dies, takes long or eats memory is a finding too,
and another goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SLOW = 10  # seconds of processor time: what reads a small file has no right to more
GREEDY = 2**31  # bytes of memory that one input may take beyond what the process has


class TooSlow(BaseException):
    """An input has used up its time; no `except Exception` may swallow this."""


class Findings:
    """The folder of findings: an input and what it does, one pair for each place in the code."""

    def __init__(self, out: Path, name: str) -> None:
        self.out, self.prefix = out, f"{name}-"
        out.mkdir(parents=True, exist_ok=True)

    def keep(self, data: bytes, where: str, message: str) -> None:
        path = self.out / f"{self.prefix}{hashlib.sha256(where.encode()).hexdigest()[:8]}"
        if not path.exists() or len(data) < path.stat().st_size:
            path.write_bytes(data)
            path.with_name(path.name + ".txt").write_text(f"{where}\n{message}\n", "utf-8", "replace")

    def kept(self) -> Iterator[dict[str, str]]:
        for path in sorted(self.out.glob(f"{self.prefix}*.txt")):
            where, _, message = path.read_text("utf-8").partition("\n")
            yield {"where": where, "what": message.strip()[:300], "input": path.name.removesuffix(".txt")}


def work(options: argparse.Namespace, findings: Findings, folder: Path, end: float) -> None:
    """Try inputs until the time is over; the input and the figures outlive this process in `folder`."""
    from fuzz_grammar import Chance
    from fuzz_targets import TARGETS

    goal = TARGETS[options.target]()
    slow, greedy = getattr(goal, "slow", SLOW), getattr(goal, "greedy", GREEDY / 2)
    figures = json.loads((folder / "figures").read_text())
    while time.monotonic() < end and figures["inputs"] < options.cases:
        figures["inputs"] += 1
        try:
            data = goal.make(Chance(options.seed + figures["inputs"]))
        except (RuntimeError, OverflowError):  # torch or pickle cannot make such a thing
            continue
        (folder / "input").write_bytes(data)
        (folder / "figures").write_text(json.dumps(figures))
        before, held = time.process_time(), memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        try:
            with limited():
                goal.check(data)
        except (Exception, TooSlow) as wrong:
            findings.keep(data, place(wrong), f"{type(wrong).__name__}: {wrong}")
        seconds, more = time.process_time() - before, memory("VmHWM") - held
        if seconds > slow:
            findings.keep(data, "Slow", f"{seconds:.1f} s of processor time")
        if more > greedy:
            findings.keep(data, "Greedy", f"{more / 2**20:.0f} MiB of memory")
        figures["slowest_s"] = max(round(seconds, 2), figures["slowest_s"])
        figures["most_MB"] = max(round(more / 1e6), figures["most_MB"])
        (folder / "input").unlink()
    (folder / "figures").write_text(json.dumps(figures))


def memory(name: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


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
    if type(wrong).__name__ == "Finding":
        return f"Finding {str(wrong)[:60]}"
    frames = traceback.extract_tb(wrong.__traceback__)
    inner = [frame for frame in frames if f"{os.sep}rbtools{os.sep}" in frame.filename] or frames
    return (
        f"{type(wrong).__name__} {os.path.basename(inner[-1].filename)}:{inner[-1].name}:{inner[-1].lineno}"
    )


def fuzz(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The figures of the processes that try inputs one after another."""
    findings = Findings(options.out, options.target)
    (folder / "figures").write_text(json.dumps({"inputs": 0, "slowest_s": 0.0, "most_MB": 0}))
    start, died = time.monotonic(), 0
    while (left := options.seconds - (time.monotonic() - start)) > 1:
        child = os.fork()
        if not child:
            os.chdir(tempfile.mkdtemp())
            os.dup2(2, 1)  # standard output is for the figures alone
            try:
                work(options, findings, folder, start + options.seconds)
            except BaseException:
                traceback.print_exc()
                os._exit(70)
            os._exit(0)
        late = time.monotonic() + left + 60
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < late:
            time.sleep(0.2)
        if not ended[0]:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
        if not ended[1]:
            break
        died += 1
        if not (folder / "input").exists():
            raise SystemExit(f"bench/fuzz.py {options.target} itself fails")
        findings.keep((folder / "input").read_bytes(), "Death", f"the process died of it (status {ended[1]})")
        (folder / "input").unlink()
    figures = json.loads((folder / "figures").read_text())
    seconds = round(time.monotonic() - start)
    line = {"figure": f"fuzzing {options.target}", **figures, "seconds": seconds, "seed": options.seed}
    return line | {"processes that died": died, "findings": list(findings.kept())}


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=600, help="how long [600]")
    parser.add_argument("--cases", type=int, default=2**62, help="how many inputs at most [no limit]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="for inputs [fuzz-findings]")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="only try this input again")
    options = parser.parse_args()
    options.out = options.out.absolute()
    replayed = options.replay.read_bytes() if options.replay else None
    with tempfile.TemporaryDirectory(prefix="rb-fuzz-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder  # of the processes, too, which have no time to clear up
        if replayed is not None:
            from fuzz_targets import TARGETS

            os.chdir(folder)
            TARGETS[options.target]().check(replayed)
            return 0
        line = fuzz(options, Path(folder))
    print(json.dumps(line))
    return bool(line["findings"])


if __name__ == "__main__":
    sys.exit(main())
