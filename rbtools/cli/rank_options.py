"""The options of rb-rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from rbtools.cli.against import check_source
from rbtools.cli.sink import FORMATS, compiled, names, where_param
from rbtools.errors import UsageError
from rbtools.records import expr
from rbtools.registry import param
from rbtools.scoring.assertions import Assertion, assertion
from rbtools.scoring.rank_order import Directions, SortKey
from rbtools.scoring.table_style import Style

_LISTS = {
    "by": "--by",
    "pareto": "--pareto",
    "within": "--within",
    "aggregate": "--aggregate",
    "group": "--aggregate-by",
    "pivot": "--pivot",
    "columns": "--columns",
}


@dataclass(frozen=True, kw_only=True)
class RankOptions(Directions):
    """The options of rb-rank. The lists of fields are split into their names."""

    by: tuple[str, ...] = param(
        (),
        "Metric to sort by, or an expression such as 'mean(pgd20.*)'. In a list, later items break ties.",
        metavar="LIST",
    )
    top: int | None = param(None, "Write the first N records per group.", bounds="[1, inf)", metavar="N")
    where: str | None = where_param()
    within: tuple[str, ...] = param(
        (), "Rank within groups of records that have equal values in these fields.", metavar="LIST"
    )
    aggregate: tuple[str, ...] = param(
        (),
        "Merge records that differ only in these fields, such as seed, into one record with means and"
        " standard deviations.",
        metavar="LIST",
    )
    group: tuple[str, ...] = param(
        (),
        "Merge all records that have equal values in these fields, after --aggregate.",
        metavar="LIST",
        flags=("--aggregate-by",),
    )
    pareto: tuple[str, ...] = param(
        (), "Mark the Pareto front of these metrics: acc,pgd20.8,params.", metavar="LIST"
    )
    ci: bool = param(
        False,
        "Add 95 % intervals of the ranks, and rank bands of records whose intervals overlap. Each record is"
        " compared with all others on resampled test images (and over seeds).",
        flags=("--ci",),
    )
    bootstrap: int = param(1000, "Number of resamples for --ci.", bounds="[20, inf)", metavar="N")
    seed: int = param(0, "Seed of --ci.", bounds="[0, inf)", group="Running")
    pivot: tuple[str, ...] = param(
        (),
        "Write a table with a row for each value of these fields; the best values are bold.",
        metavar="LIST",
    )
    shown: str | None = param(
        None,
        "Columns of the table, in this order: metric names, globs and expressions. The metric of --by is the"
        " first column if the list does not contain it.",
        metavar="LIST",
        flags=("--metric", "--metrics"),
    )
    columns: tuple[str, ...] = param(
        (),
        "Columns of the table before the metrics: rank, name, dataset, method, seed, checkpoint, records, or"
        " fields such as train.eps.  [default: rank, name, and the fields that distinguish records]",
        metavar="LIST",
    )
    percent: bool = param(False, "In a table, show shares of images in percent.", flags=("--percent",))
    digits: int | None = param(
        None, "Decimals in a table.  [default: 4 for shares, 2 in percent]", bounds="[0, 15]", metavar="N"
    )
    plus_minus: bool = param(
        False,
        "Show each interval by half of its length: 0.53 ± 0.01. An interval whose middle is far from the"
        " value is shown in brackets.",
        flags=("--plus-minus",),
    )
    labels: tuple[str, ...] = param(
        (),
        "Show TEXT instead of the name of a column or the content of a cell (such as a path): pgd20.8=PGD."
        " The option can be repeated.",
        metavar="NAME=TEXT",
        flags=("--label",),
    )
    paired: str | None = param(
        None,
        "Compare each record on the same images with this record (a name, a position in the input, or a file"
        " with one record); add the differences of metrics with 95 % intervals, and McNemar's p. Implies"
        " --ci.",
        metavar="REFERENCE",
    )
    paired_raw: bool = param(
        False, "Also add p_raw, which is not corrected for the number of models.", flags=("--paired-raw",)
    )
    per_class: str | None = param(
        None,
        "Add the accuracy of each class and of the worst class, computed from per-image results.",
        metavar="METRIC",
    )
    asserts: tuple[str, ...] = param(
        (),
        "Exit with status 1 unless every written record meets this condition, such as 'aa.8 >= .4', even at"
        " the worse end of its interval. With --paired, a condition may refer to the reference: 'aa.8 >="
        " reference - .01'. The option can be repeated.",
        metavar="'METRIC >= X'",
        flags=("--assert",),
    )
    assert_point: tuple[str, ...] = param(
        (), "Like --assert, but compare the value itself, without its interval.", metavar="'METRIC >= X'"
    )
    baseline: str | None = param(
        None,
        "Use the last accepted record as the reference of --assert; if there is none yet, conditions with"
        " 'reference' count as met. The record is kept in FILE or in the store (one record for each data set"
        " and --baseline-label).",
        metavar="FILE|store",
    )
    baseline_label: str | None = param(
        None, "With --baseline store, use the record with this label, such as nightly.", metavar="TEXT"
    )
    update: bool = param(
        False,
        "Replace the record of --baseline with the first record of the ranking if all conditions hold.",
        flags=("--update-baseline",),
    )
    against: str | None = param(
        None,
        "Show the published values of robustbench, prbench, jung2023 or nasrobbench201 next to the values in"
        " the records.",
        metavar="SOURCE",
    )
    against_file: str | None = param(
        None,
        "The published file of --against, as for rb-convert; robustbench without this option uses the values"
        " that are part of rbtools.",
        metavar="FILE",
    )
    form: str | None = param(
        None,
        "Output format; junit reports the conditions of --assert for continuous integration.  [default: table"
        " on a terminal, else jsonl]",
        choices=(*FORMATS, "junit"),
        flags=("--format",),
    )

    def __post_init__(self) -> None:
        """Split the lists of fields. Raises UsageError if options are invalid, or exclude each other."""
        for name in ("within", "aggregate", "group", "pivot", "columns"):
            object.__setattr__(self, name, tuple(self._listed(name)))
            for field in getattr(self, name):
                compiled(field, _LISTS[name])
        if self.against is not None:
            check_source(self.against, self.against_file)
        elif self.against_file is not None:
            raise UsageError("--against-file only applies to --against. Add --against SOURCE.")
        comparisons = {"--against": self.against, "--paired": self.paired, "--baseline": self.baseline}
        for option, other in comparisons.items():
            if other is not None and (self.pivot or self.group):
                raise UsageError(
                    f"{option} compares models, but --pivot and --aggregate-by merge them. Leave them out."
                )
        if self.pivot and self.group:
            raise UsageError("--pivot and --aggregate-by both define the rows. Give one of them.")
        if self.intervals and any(
            "class.min" in expr.Expression(key.text, any_name=True).functions for key in self.keys
        ):
            raise UsageError(
                "class.min has no rank intervals. Rank by another metric, or leave out --ci and --paired."
            )
        for option, given in (("--top", self.top), ("--ci", self.ci)):
            if given and self.pivot and not self.keys:
                raise UsageError(f"{option} needs a ranking, but --pivot keeps the order. Add --by METRIC.")
        self._check_conditions()
        _ = self.keys, self.front, self.style  # wrong values are refused before records are read

    def _check_conditions(self) -> None:
        if self.form == "junit" and not self.conditions:
            raise UsageError(
                "--format junit reports assertions, but none is given. Add --assert 'aa.8 >= .4'."
            )
        if self.update and self.baseline is None:
            raise UsageError("--update-baseline replaces the record of --baseline. Add --baseline FILE.")
        if self.baseline is None:
            if self.baseline_label is not None:
                raise UsageError("--baseline-label names a record of --baseline. Add --baseline store.")
            if self.paired is None and any(one.relative for one in self.conditions):
                raise UsageError(
                    "--assert: 'reference' means the record of --paired. Add --paired REFERENCE or --baseline"
                    " FILE."
                )
            return
        if not self.conditions:
            raise UsageError("--baseline needs conditions. Add --assert 'aa.8 >= reference - .01'.")
        if self.paired is not None or self.within:
            other = "--paired" if self.paired is not None else "--within"
            raise UsageError(f"--baseline needs a single ranking. Leave out {other}.")

    @cached_property
    def keys(self) -> list[SortKey]:
        return self.sort_keys(self._listed("by"), "--by or --pareto", self._listed("pareto"))

    @cached_property
    def front(self) -> list[SortKey]:
        return self.sort_keys(self._listed("pareto"), "--by or --pareto", self._listed("by"))

    def _listed(self, name: str) -> list[str]:
        given = getattr(self, name)
        return names(",".join(given), _LISTS[name]) if given else []

    @property
    def merges(self) -> bool:
        return bool(self.aggregate or self.group or self.pivot)

    @cached_property
    def conditions(self) -> list[Assertion]:
        return [*map(assertion, self.asserts), *(assertion(text, point=True) for text in self.assert_point)]

    @property
    def compares(self) -> bool:
        """Whether answers on single images are compared; conditions on the values alone do not need them."""
        return self.paired is not None or any(one.relative and not one.point for one in self.conditions)

    @property
    def intervals(self) -> bool:
        return self.ci or self.compares

    @cached_property
    def style(self) -> Style:
        if several := next((text for text in self.labels if re.search(";[^;=]+=", text)), None):
            raise UsageError(f"--label is '{several}'. Give the option once for each name.")
        pairs = [text.partition("=") for text in self.labels]
        if wrong := [name + sign for name, sign, text in pairs if not (name.strip() and text.strip())]:
            raise UsageError(f"--label is '{wrong[0]}'. Expected NAME=TEXT, such as pgd20.8=PGD-20.")
        labels = {name.strip(): text.strip() for name, _, text in pairs}
        return Style(self.percent, self.digits, self.plus_minus, labels)
