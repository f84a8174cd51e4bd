"""The cells of NAS-Bench-201: their strings, their published order and their isomorphism classes.

A cell has four nodes; node j is the sum over i < j of an operation on node i; node 3 is the output. It is
stored as `ops`, six indices into `OPS`, one per edge of `EDGES`. The order and the classes follow from rules,
not from a table: Dong & Yang (ICLR 2020, D-X-Y/AutoDL-Projects) shuffled the list of all cells, and Jung et
al. (ICLR 2023, steffen-jung/robustness-dataset) published which are the same graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from random import Random

from rbtools.errors import RbError, near

Ops = tuple[int, ...]

OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
NONE, SKIP, CONV1, CONV3, POOL = range(5)
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
FORM = "|op~0|+|op~0|op~1|+|op~0|op~1|op~2|"
_SEED = 88

_TEXTS = [
    [before + op + after for op in OPS]
    for before, after in [("|", "~0|+"), ("|", "~0"), ("|", "~1|+"), ("|", "~0"), ("|", "~1"), ("|", "~2|")]
]


def to_string(ops: Ops) -> str:
    """The published string of a cell, such as `|none~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|`."""
    a, b, c, d, e, f = ops
    first, second, third, fourth, fifth, sixth = _TEXTS
    return first[a] + second[b] + third[c] + fourth[d] + fifth[e] + sixth[f]


def parse(text: str) -> Ops:
    """Read an architecture string; `~` and `^` (in print) both stand before the source node.

    Raises RbError with the position, counted from 1, of the first error.
    """
    ops, at = [], len(text) - len(text.lstrip())
    for edge, (source, target) in enumerate(EDGES):
        opening = "|" if edge == 0 else "|+|" if source == 0 else "|"
        at = _expect(text, at, opening)
        end = next((i for i in range(at, len(text)) if text[i] in "~^|+"), len(text))
        name = text[at:end]
        if name not in OPS:
            wanted = f"an operation for the edge {source} to {target} ({', '.join(OPS)})"
            raise _no_parse(text, at, wanted, name, near(name, OPS))
        ops.append(OPS.index(name))
        if text[end : end + 1] not in ("~", "^"):
            raise _no_parse(text, end, f"'~{source}', the node that the edge comes from")
        at = _expect(text, end + 1, str(source))
    at = _expect(text, at, "|")
    if text[at:].strip():
        raise _no_parse(text, at, "the end, after six edges")
    return tuple(ops)


def _expect(text: str, at: int, wanted: str) -> int:
    for offset, character in enumerate(wanted):
        if text[at + offset : at + offset + 1] != character:
            raise _no_parse(text, at + offset, f"'{wanted[offset:]}'")
    return at + len(wanted)


def _no_parse(text: str, at: int, wanted: str, actual: str | None = None, hint: str = "") -> RbError:
    rest = text[at:] if actual is None else actual
    seen = f"'{rest[:24]}{'...' if len(rest) > 24 else ''}'" if rest else "nothing"
    if at >= len(text):
        seen = "its end"
    shown = text if len(text) <= 200 else text[:200] + "..."
    return RbError(
        f"Architecture string '{shown}' does not parse at character {at + 1}:"
        f" found {seen}, expected {wanted}.{hint} The form is {FORM}."
    )


@cache
def cells() -> tuple[Ops, ...]:
    """All 15,625 cells in the published order: `cells()[13714]` is architecture 13714."""
    listed = list(itertools.product(range(len(OPS)), repeat=len(EDGES)))
    words = _words()
    for last in range(len(listed) - 1, 0, -1):
        # Fisher-Yates as in `random.shuffle`: a word's top bits, drawn again until in range.
        shift = 27 - (last + 1).bit_length()
        while (chosen := next(words) >> shift) > last:
            pass
        listed[last], listed[chosen] = listed[chosen], listed[last]
    return tuple(listed)


def _words() -> Iterator[int]:
    """The top 27 bits of the generator's words (the last ones: 26 bits and a zero).

    Taken from `random()`, the one method whose sequence Python promises never to change; `shuffle`
    and `getrandbits` carry no such promise. Each float holds two words, 27 and 26 bits of them.
    """
    draw = Random(_SEED).random
    while True:
        both = int(draw() * 9007199254740992.0)  # 2**53: exact
        yield both >> 26
        yield (both & 0x3FFFFFF) << 1


@cache
def index_by_ops() -> dict[Ops, int]:
    """Cell -> published index."""
    return {ops: index for index, ops in enumerate(cells())}


@cache
def classes() -> tuple[int, ...]:
    """For each index the smallest index of a cell that is the same graph: 6,466 different ones."""
    reps = _output_reps()
    first: dict[str, int] = {}
    return tuple(first.setdefault(reps[ops], index) for index, ops in enumerate(cells()))


@cache
def unique() -> tuple[int, ...]:
    """The 6,466 class representatives, each the smallest index of its class, ascending."""
    return tuple(index for index, first in enumerate(classes()) if index == first)


def _output_reps() -> dict[Ops, str]:
    """Each cell's representation by the rule of Dong & Yang, with `#` for a zero node or edge.

    An edge is '#' from a zero node or by `none`, its source's representation by `skip_connect`, else
    '(source)@op'; a node is its sorted edges joined by '+', zeros kept. Nodes 1 and 2 have 5 and 125
    representations, so what cells share is written once.
    """
    rest = range(len(OPS))
    from_0 = [_edge_rep("0", op) for op in rest]
    reps: dict[Ops, str] = {}
    for a in rest:
        from_1 = [_edge_rep(from_0[a], op) for op in rest]
        for b, c in itertools.product(rest, rest):
            node_2 = "+".join(sorted((from_0[b], from_1[c])))
            from_2 = [_edge_rep(node_2, op) for op in rest]
            for d, e, f in itertools.product(rest, rest, rest):
                reps[a, b, c, d, e, f] = "+".join(sorted((from_0[d], from_1[e], from_2[f])))
    return reps


def _edge_rep(source: str, op: int) -> str:
    if op == NONE or source == "#":
        return "#"
    return source if op == SKIP else f"({source})@{OPS[op]}"


def edit_distance(first: Ops, second: Ops) -> int:
    """The number of edges that differ, 0 to 6."""
    return sum(a != b for a, b in zip(first, second, strict=True))


def neighbours(index: int) -> list[int]:
    """The 24 indices at edit distance 1, by edge and then by operation."""
    ops, by_ops = cells()[index], index_by_ops()
    return [
        by_ops[(*ops[:edge], op, *ops[edge + 1 :])]
        for edge in range(len(EDGES))
        for op in range(len(OPS))
        if op != ops[edge]
    ]
