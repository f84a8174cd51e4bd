"""The expression language: its values against Python's own, its errors, and that nothing else comes out."""

from __future__ import annotations

import fnmatch
import math
import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.records import expr
from rbtools.scoring import rank_order, terms

METRICS = {
    "acc": 0.9,
    "fgsm.8": 0.5,
    "fgsm.16": 0.25,
    "pgd20.8": 0.4,
    "pgd20.l2.0.5": 0.6,
    "apgd-ce.8": 0.35,
    "pr.uniform.0.08": 0.97,
    "corrupt.fog.3": 0.7,
    "corrupt.gaussian_noise.3": 0.65,
    "corrupt.gaussian_noise.5": 0.45,
    "seconds_per_epoch": 25.5,
}
RECORD = {
    "schema": 1,
    "arch": {"space": "nasbench201", "class": 7, "none": 0, "count": 3, "kernel_params": 18, "acc": -1},
    "dataset": "cifar10",
    "train": {"method": "trades", "augment": True, "note": None, "config": {"lambda": 6.0, "in.dots": 5}},
    "metrics": METRICS,
    "evals": [],
}


def value(text, record=RECORD):
    return expr.compile(text)(record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acc > 0.8 and arch.none == 0", True),
        ("count (count, none)", 2),
        ("train.augment == true and train.note == null and not false", True),
        ("train.config.lambda / train.config.in.dots", 1.2),
        ("metrics.acc == acc and arch.acc == -1", True),  # a metric before the architecture's field
        ("acc - apgd-ce.8", 0.9 - 0.35),
        ("8/255", 8 / 255),
        ("pr.uniform.0.08 - pgd20.l2.0.5", 0.97 - 0.6),
        ("not acc < 0.5 or missing > 1", True),  # the second condition is not looked at
        ("1 == true or 1 == 'one' or 0 == null", False),
        ("acc in[1]", False),  # a list, no class of a glob
        ("mean(fgsm.*, pgd20.*)", statistics.mean([0.5, 0.25, 0.4, 0.6])),
        ("count(nothing.*)", 0),
        ("count(corrupt.*.[35], [pf]g*.8)", 5),
        ("min(corrupt.*.[!3])", 0.45),
        ("std(fgsm.*, acc)", statistics.stdev([0.5, 0.25, 0.9])),
        ("abs(fgsm.16 - fgsm.8)", 0.25),
        ("log(acc)", math.log(0.9)),
        ("sqrt(mean(acc, 1 - acc))", math.sqrt(0.5)),
        ("sum(fgsm.8, fgsm.*)", 0.75),  # what is named, or was matched, is not counted again
        ("sum(fgsm.*, *.8)", 0.5 + 0.25 + 0.4 + 0.35),
    ],
)
def test_values(text, expected):
    assert value(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acc > > 0.8", "found '>': invalid syntax. Expected names, numbers"),
        ("acc*2", "'acc*2' stands for many metrics"),
        ("meen(fgsm.*)", "Did you mean 'mean'"),
        ("acc in 'x'", "'in' needs a list such as"),
        ("__import__('os')", "no function '__import__'"),
        ("mean(acc).real", "found 'mean(acc).real'"),
    ],
)
def test_what_is_not_of_the_language_is_an_error(text, words):
    with pytest.raises(RbError) as caught:
        expr.compile(text)
    message = str(caught.value)
    assert f"Expression '{text[:80]}" in message
    assert words in message
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acc and true", "'and' takes conditions such as acc > 0.5, found a number"),
        ("acc < 'x'", "'<' compares two numbers or two strings, found the string 'x' and a number"),
        ("1 / (acc - acc)", "division by 0"),
        ("log(acc - acc)", "log() takes a number above 0, found 0.0"),
        ("std(acc)", "at least two values"),
        ("sum(1e308, 1e308)", "not a finite number"),
    ],
)
def test_values_that_do_not_fit(text, words):
    with pytest.raises(RbError, match=re.escape(words)) as caught:
        value(text)
    assert f"Expression '{text}' has no value: " in str(caught.value)


def test_what_a_record_holds_cannot_overflow():
    huge = {"metrics": {"a": 10**400, "b": float("inf"), "c": float("nan"), "d": 10**300}}
    for text in ("a + 1", "1 / a", "mean(a, 1)", "b - b", "c * 1", "d * d", "sqrt(a)", "- b", "std(d, 1)"):
        with pytest.raises(RbError, match="not a finite number"):
            value(text, huge)


def test_a_missing_name_says_what_there_is():
    with pytest.raises(expr.MissingName) as caught:
        value("fgsm.9 > 0.5")
    assert caught.value.name == "fgsm.9"
    assert "There is no metric or field 'fgsm.9'. Did you mean 'fgsm.8'" in str(caught.value)
    with pytest.raises(expr.MissingName, match=r"The record has 'mean\(corrupt\.\*\.3\)'\."):
        value("corrupt.mean", {"metrics": {"corrupt.fog.3": 0.5, "corrupt.snow.3": 0.5}})
    with pytest.raises(expr.MissingName, match="A hyphen or \\* without spaces belongs to the name"):
        value("acc-fgsm.8")


def test_select_reads_lists_of_names_and_globs():
    assert expr.select(METRICS, "fgsm.*, acc,*.8") == ["fgsm.8", "fgsm.16", "acc", "pgd20.8", "apgd-ce.8"]
    assert expr.select(["union(acc,aa.8)", *METRICS], "union(acc,aa.8),acc") == ["union(acc,aa.8)", "acc"]
    assert expr.expand("corrupt.*.3", METRICS) == ["corrupt.fog.3", "corrupt.gaussian_noise.3"]
    assert expr.expand("acc", METRICS) == ["acc"] and expr.expand("nothing", METRICS) == []
    with pytest.raises(expr.MissingName, match=r"No metric matches 'x\.\*'"):
        expr.select(METRICS, "x.*")


@given(st.text("ab.*?[!]", max_size=8), st.lists(st.text("ab.", max_size=8)))
def test_globs_match_as_in_a_shell(pattern, names):
    matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    assert expr.expand(pattern, names) == ([pattern] if pattern in names else matching)


ODD = ("F1 score", "1e3", "Top-5 (%)", "a, b", "x: y", "acc [macro]", "a - b", "acc > 0.5", "true", '"')


@pytest.mark.parametrize("name", ODD)
def test_an_exact_name_comes_before_an_expression(name):
    """As a whole, in backticks and, if the text has no other meaning, inside an expression."""
    record = {"metrics": {name: 0.25, "acc": 0.75}}
    for text in (name, f"`{name}`", f"`{name}` * 2 - 0.25"):
        assert expr.Expression(text, any_name=True)(record) == 0.25
    assert expr.compile(f"`{name}` < 0.3 and mean(acc, `{name}`) == 0.5").holds(record)
    assert expr.items(f"acc, `{name}`") == ["acc", name] and expr.select(record["metrics"], name) == [name]
    (term,) = terms.asked([], rank_order.Directions(lower=f"`{name}`"), [f"`{name}`=2"])
    assert term == (name, 2, False)
    if name in ("F1 score", "1e3", "Top-5 (%)"):
        assert expr.Expression(f"{name} < 0.3", any_name=True).holds(record)
        with pytest.raises(RbError):
            expr.Expression(name, any_name=True)({"metrics": {"acc": 1}})


def test_a_hostile_glob_is_fast():
    assert value("count(" + "a*" * 30 + "b)", {"metrics": {"a" * 5000: 1}}) == 0


@pytest.mark.parametrize("word", ["(", "-", "not ", "mean(", "1 in [", "1 + ", "-2 * ("])
def test_nesting_has_a_limit(word):
    with pytest.raises(RbError, match="cannot be parsed"):
        expr.compile(word * 10_000 + "1")
    close = {"(": ")", "[": "]"}.get(word.strip()[-1], "")
    assert expr.compile(word * 20 + "acc" + close * 20).names


@pytest.mark.slow
def test_long_rows_do_not_nest():
    assert value(" or ".join(f"class == {index}" for index in range(8, 5000)) + " or class == 7") is True
    assert value("1" + " <= 1" * 5000) is True
    assert value(f"7 in [{', '.join(map(str, range(5000)))}]") is True
    assert value("sum(" + ", ".join(["1"] * 5000) + ")") == 5000


_WORDS = (
    "acc fgsm.8 fgsm.* * none count mean( std( abs( sqrt( log( ( ) [ ] , + - * / < <= == != in not and or"
    " true null 'x' 0 2.5 dataset train"
).split()


@given(st.text() | st.text("ab.0189*-+/()[],<>=! '\"eandortif\n") | st.lists(st.sampled_from(_WORDS)))
@settings(max_examples=300)
def test_any_text_gives_a_value_or_an_rberror(text):
    try:
        found = value(text if isinstance(text, str) else " ".join(text))
    except RbError as error:
        assert str(error)
    else:
        if isinstance(found, float):
            assert math.isfinite(found)
        else:  # a list or an object is a field of the record
            assert found is None or isinstance(found, bool | int | str | list | dict)


# Texts that Python reads too, with a, b, c for names. Without parentheses of its own a part takes on
# whatever precedence its neighbours give it, in Python as here.
_NAMES = {"a": "apgd-ce.8", "b": "pr.uniform.0.08", "c": "none"}
_numbers = st.recursive(
    st.sampled_from([*_NAMES, "0", "1", "2.5", "0.125", "7e-1"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        inner.map("abs({})".format),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"max({', '.join(parts)})"),
    ),
    max_leaves=8,
)
_order = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
_conditions = st.recursive(
    st.one_of(
        st.tuples(_numbers, _order, _numbers).map(" ".join),
        st.tuples(_numbers, _order, _numbers, _order, _numbers).map(" ".join),
        st.tuples(_numbers, st.sampled_from(["in", "not in"]), st.lists(_numbers, max_size=3)).map(
            lambda parts: f"{parts[0]} {parts[1]} [{', '.join(parts[2])}]"
        ),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("not {}".format),
    ),
    max_leaves=6,
)


@given(_numbers | _conditions, st.tuples(*[st.sampled_from([0, 1, 3, 0.5, -0.25])] * 3))
@settings(max_examples=300)
@pytest.mark.slow
def test_values_are_those_of_python(text, given_values):
    ours = re.sub(r"\b[abc]\b", lambda found: _NAMES[found[0]], text)
    a, b, c = given_values
    record = {"metrics": {"apgd-ce.8": a, "pr.uniform.0.08": b}, "arch": {"none": c}}
    try:
        expected = eval(
            text, {"__builtins__": {"abs": abs, "max": max}}, dict(zip("abc", given_values, strict=True))
        )
    except ZeroDivisionError:
        with pytest.raises(RbError, match="division by 0"):
            value(ours, record)
    else:
        assert value(ours, record) == expected
        assert isinstance(value(ours, record), bool) == isinstance(expected, bool)


def test_the_distance_of_a_cell_is_the_number_of_edges_that_differ():
    from rbtools.spaces import nasbench201

    def holds(text: str, index: int) -> object:
        return expr.compile(text)({"arch": nasbench201.arch(index)})

    assert holds("distance(13714)", 13714) == 0
    assert holds("distance(13714)", 3456) == holds("distance('nb201-3456')", 13714) == 2
    assert {holds("distance(9)", index) for index in nasbench201.neighbours(9)} == {1}
    with pytest.raises(RbError, match=r"distance\(\) compares cells of NAS-Bench-201"):
        expr.compile("distance(9)")({"arch": {"space": "zoo"}})


def test_number_is_none_where_there_is_none() -> None:
    compiled = expr.compile("acc + fgsm.8")
    assert compiled.number({"metrics": {"acc": 1, "fgsm.8": 2}}) == 3
    assert compiled.number({"metrics": {"acc": 1}}) is None
    assert compiled.number({"metrics": {"acc": 1, "fgsm.8": None}}) is None
    assert expr.compile("acc").number({"metrics": {"acc": None}}) is None
    with pytest.raises(RbError, match="'acc > 0' is true"):
        expr.compile("acc > 0").number({"metrics": {"acc": 1}})
