"""The compiled form of an expression: functions of a record, made once and called for every record."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from rbtools.errors import near
from rbtools.records.expr import values
from rbtools.records.expr.names import MissingName, Record, expand, is_glob, lookup, metrics_of
from rbtools.records.expr.syntax import NAMES_RULE, ParsedText

Node = Callable[[Record], Any]

_SIGNS: dict[type, str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.UAdd: "+", ast.USub: "-"},
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.In: "in", ast.NotIn: "not in", ast.And: "and", ast.Or: "or", ast.Not: "not"},
}
_DEEPEST = 100


class Builder:
    """Compiles one expression to `node`; `names` holds its names and globs, in order, and `functions` what it
    calls. Raises RbError for what is not of the language."""

    def __init__(self, text: str) -> None:
        self.names: dict[str, None] = {}
        self.functions: set[str] = set()
        self._tree = ParsedText(text)
        self._depth = 0
        self.node = self._node(self._tree.body)

    def _node(self, tree: ast.expr) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._tree.error("it is too long or nests too deep")
        node = self._of(tree, _SIGNS.get(type(getattr(tree, "op", None)), ""))
        self._depth -= 1
        return node

    def _of(self, tree: ast.expr, sign: str) -> Node:
        match tree:
            case ast.Constant(value=value) if not isinstance(value, float) or math.isfinite(value):
                return lambda record: value
            case ast.Name():
                return self._field(self._tree.name(tree))
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
                return self._call(self._tree.name(tree.func), arguments)
        raise self._tree.error(f"found '{self._tree.part(tree)}'")

    def _field(self, name: str) -> Node:
        if is_glob(name):
            raise self._tree.error(
                f"'{name}' stands for many metrics, so it must be an argument of its own, such as"
                f" mean({name}). {NAMES_RULE}"
            )
        self.names[name] = None
        return lambda record: lookup(record, name)

    def _right(self, sign: str, tree: ast.expr) -> Node:
        """The right side of a comparison; of `in` a list."""
        if sign not in ("in", "not in"):
            return self._node(tree)
        if not isinstance(tree, ast.List):
            raise self._tree.error(f"'{sign}' needs a list such as ['pgd', 'trades']")
        elements = [self._node(element) for element in tree.elts]
        return lambda record: [element(record) for element in elements]

    def _call(self, function: str, arguments: list[ast.expr]) -> Node:
        """A function call; a metric that is named or was matched by an earlier glob counts once."""
        if function not in values.FUNCTIONS:
            hint, known = near(function, values.FUNCTIONS), ", ".join(values.FUNCTIONS)
            raise self._tree.error(f"there is no function '{function}'.{hint} There are: {known}")
        self.functions.add(function)
        words = [self._tree.name(argument) for argument in arguments]
        one = values.takes_one(function)
        if not words or (one and (len(words) > 1 or is_glob(words[0]))):
            what = "one value; a list or a glob is many" if one else "one value or more"
            raise self._tree.error(f"{function}() takes {what}")
        nodes: list[Node | None] = []
        for word, argument in zip(words, arguments, strict=True):
            self.names |= {word: None} if word else {}
            nodes.append(None if is_glob(word) else self._node(argument))
        if function in values.OF_METRICS:
            of_metrics = values.of_record(function)
            if "" in words:
                raise self._tree.error(f"{function}() takes names of metrics and globs")
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
    """`0.2 < acc < 0.7` holds if each neighbouring pair does."""

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
