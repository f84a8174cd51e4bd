"""rb-verify: checks whether the numbers in records are correct."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rbtools.cli import options, shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import counted
from rbtools.cli.source import name_of
from rbtools.errors import UsageError
from rbtools.records import Line, dumps
from rbtools.registry import param
from rbtools.scoring import remeasured

if TYPE_CHECKING:
    from rbtools.jobs.evidence import EvidenceJob
    from rbtools.jobs.verification import VerifyJob


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    inconsistent: bool = param(
        False,
        "Only check whether the numbers of each record agree with each other, and measure nothing.",
        flags=("--inconsistent",),
    )
    sample: int | None = param(
        None, "Measure only N random entries of each record.  [default: all]", bounds="[1, inf)"
    )
    adv: str | None = param(
        None,
        "Check adversarial images that rb-attack --save-adv wrote, in one file or in all files of a folder.",
        metavar="FILE.npz|DIR",
    )


@shared.command()
@shared.takes("typed", VerifyOptions)
@options.checkpoint_options
# Entries that are measured again contain their split and images; results never come from the store.
@options.takes_run(
    without="split indices defend backward draws precision prepare name_as replace plan".split(),
    n=param(None, "Use N random images of each entry.", bounds="[1, inf)", metavar="N"),
    store=options.store_param,
)
def main(typed: VerifyOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Repeat the measurements of records, and compare the results.

    Every entry of "evals" is measured again with the settings in the entry, and the two values are compared.
    The verdict is match, differs (with the difference, the test and its p-value), or cannot be told (with the
    reason). Scores and expressions are computed again from the record's metrics. With --n, each entry is
    measured on a random part of its images, which depends on --seed. Each image has its own random numbers,
    so a correct accuracy can differ only because of the choice of images and because of rounding. Rounding is
    allowed to change the answers on up to 0.2 % of the images, or up to 1 % if the result depends on a search
    or on noise. If device, precision and environment are the same as in the entry, the answers may change on
    only a tenth of these shares of images. Results in the store are not used.

    In addition, the tool always checks whether the numbers of a record agree with each other. The tool
    reports values outside their intervals; shares that are not a multiple of 1/n for n images; metrics
    without entries and entries without metrics; entries that were changed after they were written; and
    distances in the wrong unit. Changed entries are found by the checksums that rbtools writes. An accuracy
    under attack is also reported if it is above the clean accuracy, above the accuracy under the same attack
    at a smaller distance or, for AutoAttack, above the accuracy under another attack at the same distance,
    and if chance and rounding do not explain this.

    The weights are read from the store, where the record's hash identifies them, or from --checkpoint FILE.
    If the file has another hash, the verdict is differs. With --checkpoint, a record without weights, such as
    a row of a leaderboard (rb-convert), is measured with the network in FILE. Settings that the entries of
    such a record lack are assumed, and the record lists the assumed settings. Such an entry matches if the
    difference is within the rounding and the sampling error of both numbers.

    --adv checks saved adversarial images by a forward pass: each image has to be inside the ball and the box,
    and the record's checkpoint has to misclassify as many images as claimed. The images prove an upper bound
    of the accuracy, for any attack.

    The record is written with "verify"; on a terminal, a table is written instead. The exit status is 1 if a
    result differs or is inconsistent (each case is a line on stderr), or if no result could be judged.

    \b
    Examples:
      rb-verify --inconsistent results.jsonl
      rb-verify --n 50 --sample 3 trained.jsonl
      rb-attack pgd --steps 5 --n 50 --save-adv adv trained.jsonl | rb-verify --adv adv
    """
    from rbtools.cli import tables

    heard = _Verdicts(work.screen)
    work.screen.listeners.append(heard.hear)
    source = dataclasses.replace(source, table=tables.verify_table)
    return functools.partial(_judged, _status(typed, source, work), heard)


def _status(typed: VerifyOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Check the records as the options say."""
    from rbtools.jobs.evidence import EvidenceJob
    from rbtools.jobs.verification import ConsistencyJob, VerifyJob

    if typed.inconsistent:
        others = (typed.sample, work.run.selection.n, typed.adv, source.checkpoint)
        if any(value is not None for value in others):
            raise UsageError(
                "--inconsistent measures nothing. Leave out --sample, --n, --adv and --checkpoint."
            )
        return shared.filter_records(source, [ConsistencyJob()], work)
    if typed.adv is not None:
        if typed.sample is not None or work.run.selection.n is not None:
            raise UsageError("--adv checks all images of its files. Leave out --sample and --n.")
        return _with_file(source, work, EvidenceJob(typed.adv), alone=True)
    run = work.run
    return _with_file(source, work, VerifyJob(run.selection.n, typed.sample, run.settings.seed))


def _judged(status: shared.Status, heard: _Verdicts) -> int:
    """Do the work. The exit status is 1 if a result is wrong, or if none could be judged."""
    done = status() if callable(status) else status
    any_verdict = heard.tell()
    return done or (shared.FAILED if heard.wrong or not any_verdict else shared.DONE)


def _with_file(
    source: shared.RecordSource,
    work: shared.CommandContext,
    job: VerifyJob | EvidenceJob,
    alone: bool = False,
) -> shared.Status:
    """Run a job on every record; with --checkpoint, use the weights in the file. If `alone` is true and there
    are no records, the job runs on a record made from the file."""
    from rbtools.inputs import checkpoints

    if work.run.selection.weights is not None:
        raise UsageError(f"{work.run.selection.weights} is a folder. Expected a file.")
    if source.checkpoint is None:
        return shared.filter_models(source, work, job)
    path = shared.file_path(source.checkpoint)
    hints = checkpoints.CheckpointHints(source.arch, source.normalize)
    shared.checked(hints, work.run)
    if alone and not source.files:
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            return shared.filter_models(source, work, job)
        own = {**vars(source), "allow_empty": True}
        source = _OrItsOwn(**own, start=lambda: checkpoints.record_of(path, hints, work.run))
    return shared.filter_records(source, [dataclasses.replace(job, file=path, hints=hints)], work)


@dataclasses.dataclass(frozen=True)
class _OrItsOwn(shared.RecordSource):
    """The records of the input; if there are none, the record that `start` makes from a file."""

    start: Callable[[], dict[str, Any]] | None = None

    def lines(self, screen: shared.Terminal, output: RecordWriter, *, results: int = 1) -> Iterator[Line]:
        came = False
        for line in super().lines(screen, output, results=results):
            came = True
            yield line
        if not came and self.start is not None:
            record = self.start()
            yield Line("--checkpoint", 1, dumps(record), record, None)


class _Verdicts:
    def __init__(self, screen: shared.Terminal) -> None:
        self.screen = screen
        self.wrong = self.durations = 0
        self.count = Counter({verdict: 0 for verdict in ("match", "differs", "cannot be told")})

    def hear(self, event: dict[str, Any], record: dict[str, Any] | None) -> None:
        verify = (record or {}).get("verify")
        if event["event"] != "record" or record is None or not isinstance(verify, dict):
            return
        name = f"{event['place']} ({name_of(record)})" if "place" in event else name_of(record)
        for finding in verify["inconsistent"]:
            self.wrong += 1
            self.screen.warn(f"{name}: {finding['says']}")
        if unknown := verify.get("without_checksum"):
            words = counted(len(unknown), "result")
            self.screen.say(f"{name}: {words} without a checksum, so changes cannot be detected.")
        entries = verify.get("entries", {})
        self.count.update(verdict["verdict"] for verdict in entries.values())
        self.durations += sum(remeasured.is_duration(metric) for metric in entries)
        width = max(map(len, entries), default=0)
        for metric, verdict in entries.items():
            if verdict["verdict"] == "differs":
                self.wrong += 1
                self.screen.warn(f"{name}: {in_words(f'{metric:{width}}', verdict)}")
            elif verdict["verdict"] == "match" and "assumed" in verdict:
                self.screen.say(f"{name}: {in_words(f'{metric:{width}}', verdict)}")
        for reason, metrics in remeasured.unknown_by_reason(entries).items():
            self.screen.say(f"{name}: {', '.join(metrics)} cannot be told: {reason}")

    def tell(self) -> bool:
        """Report how many results match; False if there are results, but none could be judged."""
        match, differs, unknown = self.count.values()
        if not self.count.total():
            return True
        self.screen.say(f"{match} match, {differs} differ, {unknown} cannot be told.")
        return match + differs > 0 or unknown == self.durations


def in_words(metric: str, verdict: dict[str, Any]) -> str:
    """A verdict as one line, such as `pgd20.8 match claimed 0.5000 measured 0.4980 n 500 p 0.93 (...)`."""
    parts = [metric, f"{verdict['verdict']:{len('differs')}}"]
    for side in ("claimed", "measured"):
        if isinstance(verdict.get(side), int | float):
            parts.append(f"{side} {verdict[side]:.4f}")
    parts += [f"n {verdict['n']}"] if verdict.get("n") is not None else []
    parts += [f"p {verdict['p']:.2g}"] if "p" in verdict else []
    parts += [f"({verdict[key]})" for key in ("test", "reason") if key in verdict]
    parts += [f"(assumed: {verdict['assumed']})"] if "assumed" in verdict else []
    return "  ".join(parts)


if __name__ == "__main__":
    main()
