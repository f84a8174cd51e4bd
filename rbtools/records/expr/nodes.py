"""The compiled form of an expression, which is created once and then called for every record.

Python's parser reads the text. Before that, each metric name in the text is replaced by a valid Python name.
"""

from __future__ import annotations

import ast
import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from rbtools.errors import RbError, near, shown
from rbtools.records.expr import values
from rbtools.records.expr.names import MissingName, Record, expand, is_glob, lookup, metrics_of
from rbtools.records.expr.syntax import KEYWORDS, NAMES_RULE, Token, tokens

Node = Callable[[Record], Any]

_SIGNS: dict[type, str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.UAdd: "+", ast.USub: "-"},
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.In: "in", ast.NotIn: "not in", ast.And: "and", ast.Or: "or", ast.Not: "not"},
}
_DEEPEST = 100
_EXPECTED = (
    "Expected names, numbers, quoted strings, functions, + - * /, == != < <= > >=, in [...], and, or, not,"
    " such as acc > 0.8 and `F1 score` > 0.5"
)


class Builder:
    """Compiles an expression to `node`; `names` contains names and globs in order. Raises RbError."""

    def __init__(self, text: str, known: Sequence[str] = ()) -> None:
        self.names: dict[str, None] = {}
        self.functions: set[str] = set()
        self._text, self._tokens = text, tokens(text, known)
        self._exact = {token.text for token in self._tokens if token.kind == "exact"}
        self._starts: list[int] = []  # positions of tokens in the text that Python parses
        self._named: dict[str, str] = {}  # maps Python's names to the names that they replace
        self._depth = 0
        self.node = self._node(self._parsed())

    def _parsed(self) -> ast.expr:
        words, at = [], 0
        for kind, word, _ in self._tokens:
            if kind in ("name", "exact"):
                name = f"_{len(self._named)}"
                self._named[name] = word
                word = name
            word = "$" if word == "#" else word  # "#" would begin a comment
            words.append(ascii(word[1:-1]) if kind == "text" else KEYWORDS.get(word, word))
            self._starts.append(at)
            at += len(words[-1]) + 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(" ".join(words), mode="eval").body
        except SyntaxError as wrong:
            offset = wrong.offset or 0
            where = f"'{self._token(offset - 1).text}'" if 0 < offset < at else "the end"
            raise self._error(f"found {where}: {wrong.msg}") from None
        except (ValueError, RecursionError, MemoryError):
            raise self._error("it is too long or nested too deeply") from None

    def _token(self, place: int) -> Token:
        return self._tokens[bisect_right(self._starts, place) - 1]

    def _name(self, tree: ast.AST) -> str:
        return self._named[tree.id] if isinstance(tree, ast.Name) else ""

    def _error(self, message: str) -> RbError:
        return RbError(f"Expression '{shown(self._text)}' cannot be parsed: {message}. {_EXPECTED}.")

    def _node(self, tree: ast.expr) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("it is too long or nested too deeply")
        node = self._of(tree, _SIGNS.get(type(getattr(tree, "op", None)), ""))
        self._depth -= 1
        return node

    def _of(self, tree: ast.expr, sign: str) -> Node:
        match tree:
            case ast.Constant(value=value) if not isinstance(value, float) or math.isfinite(value):
                return lambda record: value
            case ast.Name():
                return self._field(self._name(tree))
            case ast.UnaryOp(operand=inner) if sign:
                one = self._node(inner)
                if sign == "not":
                    return lambda record: not values.truth(one(record), "'not'")
                factor = -1 if sign == "-" else 1
                return lambda record: factor * values.number(one(record), f"'{sign}'")
            case ast.BinOp(left=first, right=second) if sign:
                left, right = self._node(first), self._node(second)
                return lambda record: values.calculate(sign, left(record), right(record))
            case ast.BoolOp(values=parts):
                conditions = [self._node(part) for part in parts]
                decide = any if sign == "or" else all
                return lambda record: decide(values.truth(node(record), f"'{sign}'") for node in conditions)
            case ast.Compare(left=first, ops=ops, comparators=others):
                start = self._node(first)
                signs = [_SIGNS.get(type(op), "") for op in ops]
                return _comparison(start, list(zip(signs, map(self._right, signs, others), strict=True)))
            case ast.Call(func=ast.Name(), args=arguments, keywords=[]):
                return self._call(self._name(tree.func), arguments)
        begin, end = self._token(tree.col_offset), self._token((tree.end_col_offset or 1) - 1)
        raise self._error(f"found '{self._text[begin.at : end.at + len(end.text)]}'")

    def _field(self, name: str) -> Node:
        if is_glob(name) and name not in self._exact:
            raise self._error(
                f"'{name}' stands for many metrics, so it must be the argument of a function, such as"
                f" mean({name}). {NAMES_RULE}"
            )
        self.names[name] = None
        return lambda record: lookup(record, name)

    def _right(self, sign: str, tree: ast.expr) -> Node:
        """The right side of a comparison, which is a list after `in`."""
        if sign not in ("in", "not in"):
            return self._node(tree)
        if not isinstance(tree, ast.List):
            raise self._error(f"'{sign}' needs a list such as ['pgd', 'trades']")
        elements = [self._node(element) for element in tree.elts]
        return lambda record: [element(record) for element in elements]

    def _call(self, function: str, arguments: list[ast.expr]) -> Node:
        """A metric counts once, even if several arguments name or match the metric."""
        if function not in values.FUNCTIONS:
            hint, known = near(function, values.FUNCTIONS), ", ".join(values.FUNCTIONS)
            raise self._error(f"there is no function '{function}'.{hint} The functions are: {known}")
        self.functions.add(function)
        words = [self._name(argument) for argument in arguments]
        one = values.takes_one(function)
        if not words or (one and (len(words) > 1 or is_glob(words[0]))):
            what = "one value, not a list or a glob" if one else "at least one value"
            raise self._error(f"{function}() takes {what}")
        nodes: list[Node | None] = []
        for word, argument in zip(words, arguments, strict=True):
            self.names |= {word: None} if word else {}
            nodes.append(None if is_glob(word) else self._node(argument))
        if function in values.OF_METRICS:
            of_metrics = values.of_record(function)
            if "" in words:
                raise self._error(f"{function}() takes names of metrics and globs")
            return lambda record: of_metrics(record, words)
        if function in values.OF_RECORD:
            of_record, inner = values.of_record(function), nodes[0]
            assert inner is not None
            return lambda record: of_record(record, inner(record))
        return _function(function, list(zip(words, nodes, strict=True)))


def _function(function: str, arguments: list[tuple[str, Node | None]]) -> Node:
    named = {word for word, node in arguments if node}

    def evaluate(record: Record) -> values.Number:
        inputs: list[Any] = []
        taken = set(named)
        metrics = metrics_of(record)
        for word, node in arguments:
            if node:
                inputs.append(node(record))
                continue
            matching = expand(word, metrics)
            if not matching and function != "count":
                raise MissingName(word, record)
            inputs += [metrics[name] for name in matching if name not in taken]
            taken.update(matching)
        return values.call(function, inputs)

    return evaluate


def _comparison(first: Node, row: list[tuple[str, Node]]) -> Node:
    """A chain such as `0.2 < acc < 0.7`; all pairs of neighbours must satisfy their comparison."""

    def evaluate(record: Record) -> bool:
        left = first(record)
        for sign, node in row:
            try:
                right = node(record)
            except MissingName as missing:
                missing.beside_text = isinstance(left, str)
                raise
            if not values.compare(sign, left, right):
                return False
            left = right
        return True

    return evaluate
