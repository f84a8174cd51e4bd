"""The reference of `rb-rank --paired`, and the comparisons of all ranked records with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.cli import streams
from rbtools.cli.image_answers import ImageAnswers
from rbtools.cli.sink import counted
from rbtools.cli.source import name_of
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import answers, parse_again
from rbtools.scoring import bootstrap, paired_records

if TYPE_CHECKING:
    from rbtools.cli.rank_output import Ranking, RankOptions

Record = dict[str, Any]


@dataclass(frozen=True)
class PairedReference:
    """The record that others are compared with. line: its text, if it is ranked as well. members: the records
    that it averages, or itself."""

    record: Record
    line: bytes | None
    members: list[Record]


def is_meant(text: str, position: int, record: Record) -> bool:
    """Whether a reference is the record at a position, from 1, by that position or its name."""
    if text.isdecimal():
        return int(text) == position
    return text in ((record.get("arch") or {}).get("name"), name_of(record))


def reference(
    text: str,
    lines: Sequence[bytes],
    members: Mapping[bytes, list[Record]],
    join: Callable[[Record], Record],
) -> PairedReference:
    """The reference; lines: of the ranked records that are meant. Raises UsageError unless it is one.

    join: adds the unions that are ranked by to a record that comes from a file.
    """
    if len(lines) > 1:
        names = ", ".join(dict.fromkeys(name_of(parse_again(line)) for line in lines[:5]))
        raise UsageError(
            f"--paired: {len(lines)} records are called {text} ({names}). Give its position in the input."
        )
    if lines:
        record = parse_again(lines[0])
        return PairedReference(record, lines[0], members.get(lines[0]) or [record])
    if text.isdecimal() or not os.path.exists(text):
        raise UsageError(
            f"--paired: there is no record {text}. Expected the name of a ranked record, its position in the"
            " input, or a file of one record."
        )
    try:
        record = join(streams.of_command().one_record(text, "compare with"))
    except RbError as wrong:
        raise UsageError(f"--paired: {wrong}") from None
    return PairedReference(record, None, [record])


def compared(ranking: Ranking, choice: RankOptions, *, raw: bool, screen: Terminal) -> dict[bytes, Record]:
    """The field `paired` of each ranked line that has answers; the reference's only names itself."""
    chosen = ranking.reference
    assert chosen is not None
    option = "--baseline" if choice.paired is None else "--paired"
    per_image = ImageAnswers(screen)
    draws = bootstrap.BootstrapDraws(choice.bootstrap, choice.seed, per_image.shares)
    keys = [key.text for key in ranking.keys if key.text in (chosen.record.get("metrics") or {})]
    lines = [entry.record.text for group in ranking.groups for entry in group]
    others = [line for line in lines if line != chosen.line]
    lacking = 0
    try:
        comparison = paired_records.PairedComparison(chosen.members, per_image.counted, draws, keys)
    except RbError as wrong:
        raise UsageError(f"{option}: {wrong}") from None
    for line in others:
        members = ranking.members_of(line)
        try:
            lacking += not comparison.add(name_of(members[0]), members)
        except RbError as wrong:
            screen.warn(f"{option}: {wrong} It is not compared.")
    if lacking:
        screen.warn(
            f"{counted(lacking, 'record')} without answers of single images, not compared with the reference."
            f" {answers.HOW}"
        )
    about = {"reference": name_of(chosen.record)}
    fields = {
        line: {**about, "metrics": row}
        for line, row in zip(others, comparison.results(raw=raw), strict=True)
        if row
    }
    return fields if chosen.line is None else {**fields, chosen.line: about}
