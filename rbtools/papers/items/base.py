"""Every numbered figure and table of four papers: the commands that make it here, or the reason why none
does.

A panel is a command line of pipes with {records} for the file of records, {out} for "-o FILE" and the width,
{to} for both, and the words of `WORDS`, which differ between the scales. `lacks` describes the contents that
are missing at the mini scale. Captions are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Item(NamedTuple):
    """A numbered figure or table: its panels by letter, or the key of its table, or the reason for neither.

    of: the reproduction whose records are drawn, where it is another paper's. maker: the command for the
    records of a table, if it is not the reproduction. note: the page's remark on it at every scale. columns:
    panels in a row. axes: what the paper's item has along its axes, or as rows and columns. verdict: "as in
    the paper", or what differs and why. The page shows both, and ends them with a full stop.
    """

    caption: str
    panels: Mapping[str, str] = {}
    table: str = ""
    reason: str = ""
    lacks: str = ""
    of: str = ""
    maker: str = ""
    note: str = ""
    columns: int = 2
    axes: str = ""
    verdict: str = ""


class Paper(NamedTuple):
    """A paper: its title, the reproduction (reproduce_NAME.py) that has its records, its items by number."""

    title: str
    records: str
    items: Mapping[str, Item]


# Words that differ between scales; {near} and {far} are the distances that replace the paper's.
WORDS: dict[str, dict[str, str]] = {
    "mini": {
        "near": "12",
        "far": "32",
        "one": "16",
        "three": "16",
        "eight": "32",
        "eps": "32",
        "steps": "20",
        "gamma": "0.12549",
        "aa": "ensemble-apgd-ce-apgd-t.32",
        "first": "probacc.uniform.0.12549.*",
        "middle": "0.3",
        "one_set": "",
        "and_set": "",
        "pair": "arch.name == 'nb201-13714'",
        "score": "--metric acc,pgd20.32,pr.uniform.0.3,probacc.uniform.0.12549.0.05,ge.pgd20.32:lower,"
        "ge.pr-all.uniform.0.3:lower,seconds_per_epoch:lower",
        "severity": "3",
        "photograph": "",
    },
    "full": {
        "near": "3",
        "far": "8",
        "one": "1",
        "three": "3",
        "eight": "8",
        "eps": "8",
        "steps": "20",
        "gamma": "0.03",
        "aa": "aa.8",
        "first": "probacc.uniform.0.03.*,probacc.uniform.0.3.*",  # MNIST's
        "middle": "0.08",
        "one_set": "--where \"dataset == 'cifar10'\"",
        "and_set": " and dataset == 'cifar10'",
        "pair": "dataset == 'cifar10' and arch.name == 'resnet18'",
        "score": "--preset prbench-code",
        "severity": "3",
        "photograph": " --dataset cifar10",
    },
}
WORDS["tiny"] = {
    **{word: text.replace("pgd20", "pgd2") for word, text in WORDS["mini"].items()},
    "steps": "2",
    "three": "8",
    "aa": "ensemble-apgd-ce.32",
    "pair": "arch.name == 'nb201-11472'",
}

AS_IN_PAPER = "as in the paper"
"""The verdict on an item that shows what the paper does."""
