"""The reference of `rb-rank --paired`, and the comparison of all ranked records with the reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rbtools.cli import streams
from rbtools.cli.image_answers import ImageAnswers
from rbtools.cli.sink import counted
from rbtools.cli.source import name_of
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import answers
from rbtools.scoring import bootstrap, paired
from rbtools.scoring.ranking import Contender

if TYPE_CHECKING:
    from rbtools.cli.rank_options import RankOptions
    from rbtools.cli.rank_output import Ranking

Record = Mapping[str, Any]


def is_meant(text: str, position: int, record: Record) -> bool:
    """True if the text of a reference is the position (counted from 1) or the name of the record."""
    if text.isdecimal():
        return int(text) == position
    return text in ((record.get("arch") or {}).get("name"), name_of(record))


def reference(text: str, meant: Sequence[Contender], join: Callable[[Record], Record]) -> Contender:
    """The only record in `meant` or, if `meant` is empty, the record in the file `text`.

    `meant` contains the ranked records with the name or position `text`. `join` adds the unions in the sort
    keys to a record from a file. Raises UsageError.
    """
    if len(meant) > 1:
        names = ", ".join(dict.fromkeys(name_of(one.record) for one in meant[:5]))
        raise UsageError(
            f"--paired: {len(meant)} records are named {text} ({names}). Give the position of one of them."
        )
    if meant:
        return meant[0]
    if text.isdecimal() or not os.path.exists(text):
        raise UsageError(
            f"--paired: there is no record {text}. Expected the name of a ranked record, its position in the"
            " input, or a file with one record."
        )
    try:
        record = join(streams.of_command().one_record(text, "compare with"))
    except RbError as wrong:
        raise UsageError(f"--paired: {wrong}") from None
    return Contender(record, [record])


def compare(ranking: Ranking, options: RankOptions, screen: Terminal) -> None:
    """Set `paired` for each ranked record that has answers; the reference only gets its name."""
    chosen = ranking.reference
    assert chosen is not None
    option = "--baseline" if options.paired is None else "--paired"
    per_image = ImageAnswers(screen)
    draws = bootstrap.BootstrapDraws(options.bootstrap, options.seed, per_image.shares)
    keys = [key.text for key in ranking.keys if key.text in (chosen.record.get("metrics") or {})]
    others = [entry.record for group in ranking.groups for entry in group if entry.record is not chosen]
    members = [(name_of(one.members[0]), one.members) for one in others]

    def warn(message: str) -> None:
        screen.warn(f"{option}: {message} It is not compared.")

    try:
        rows, lacking = paired.compare(
            chosen.members, members, per_image.counted, draws, keys, raw=options.paired_raw, warn=warn
        )
    except RbError as wrong:
        raise UsageError(f"{option}: {wrong}") from None
    if lacking:
        screen.warn(
            f"{counted(lacking, 'record')} without per-image results, not compared with the reference."
            f" {answers.HOW}"
        )
    chosen.paired = {"reference": name_of(chosen.record)}
    for one, metrics in zip(others, rows, strict=True):
        one.paired = {**chosen.paired, "metrics": metrics} if metrics else None
