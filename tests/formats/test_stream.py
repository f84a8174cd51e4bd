"""JSON read member by member: the same values as at once, and what is wrong with a text that is none."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools.formats import stream
from rbtools.formats.stream import Broken, NotFinite, members

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


class Trickle(io.BytesIO):
    """A stream that gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self.size = size

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read(self.size)


def leaves(value: Any, depth: int, path: tuple[Any, ...] = ()) -> list[tuple[Any, Any]]:
    if depth == 0 or not isinstance(value, (dict, list)):
        return [(path, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for key, item in items for leaf in leaves(item, depth - 1, (*path, key))]


@given(values, st.integers(0, 3), st.integers(1, 7), st.sampled_from([None, 1]))
def test_members_are_those_of_the_whole_text(value: Any, depth: int, size: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert list(members(Trickle(text, size), depth, exact=False)) == leaves(value, depth)


@settings(max_examples=40)
@given(values, st.integers(1, 5))
def test_a_text_that_is_cut_anywhere_says_so_and_gives_what_was_before(value: Any, size: int) -> None:
    text = json.dumps([value, value, 7]).encode()
    comma = len(json.dumps([value]))
    for end in range(1, len(text)):
        found = []
        with pytest.raises(Broken, match="cut off"):
            for _, member in members(Trickle(text[:end], size), 1, exact=False):
                found.append(member)
        assert found == [value, value, 7][: len(found)]
        # A value is known to be whole once the comma after it is there.
        assert len(found) >= (end >= comma) + (end >= 2 * comma)


def test_numbers_keep_their_zeros_and_words_that_json_lacks_are_named() -> None:
    found = dict(members(io.BytesIO(b'{"a": 0.50, "b": NaN, "c": -Infinity, "d": 3}'), 1))
    assert str(found[("a",)]) == "0.50" and isinstance(found[("a",)], Decimal)
    assert isinstance(found[("b",)], NotFinite) and found[("c",)] == "-Infinity" and found[("d",)] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty: it holds no JSON at all"),
        (b"[1,\n2 3]", "is not JSON: '3' stands where ',' was expected, in line 2"),
        (b'{"a" 1}', "is not JSON: '1' stands where ':' was expected"),
        (b"{1: 2}", "is not JSON: 1 stands where a key was expected"),
        (b"[1,]", "is not JSON: expecting value"),
        (b"[1]\n\nx", "is not JSON: there is text after the end of the JSON value, in line 3"),
        (b'["\xff"]', "is not JSON: it is not UTF-8"),
        (b"[hello]", "is not JSON: expecting value"),
        (b"[[1], [2", "is cut off: it ends after 1 in the middle"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: bytes, message: str) -> None:
    with pytest.raises(Broken) as wrong:
        list(members(io.BytesIO(text), 1))
    assert str(wrong.value) == message


def test_a_byte_order_mark_is_fine() -> None:
    assert list(members(io.BytesIO(b"\xef\xbb\xbf[1]"), 1)) == [((0,), 1)]


def test_no_more_than_a_member_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK", 64)
    text = json.dumps([[number] * 10 for number in range(1000)]).encode()
    source = io.BytesIO(text)
    ahead = [source.tell() - text.index(json.dumps(member).encode()) for _, member in members(source, 1)]
    assert len(ahead) == 1000 and max(ahead) < 1000
