"""The compiled form of an expression: functions of a record, made once and called for every record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rbtools.records.expr import values
from rbtools.records.expr.names import MissingName, Record, lookup, matcher, metrics_of
from rbtools.records.expr.tokens import Token, value_error

Node = Callable[[Record], Any]
Row = list[tuple[Token, Node]]
"""Consecutive operators of one level, each with its right operand."""


class Argument(NamedTuple):
    """A glob (no node), or a node and, if it is a plain name, that name."""

    word: str
    node: Node | None


def constant(value: object) -> Node:
    return lambda record: value


def field(name: str) -> Node:
    return lambda record: lookup(record, name)


def items(nodes: list[Node]) -> Node:
    return lambda record: [node(record) for node in nodes]


def negation(token: Token, node: Node) -> Node:
    return _pointing(token, lambda record: not values.truth(node(record), "'not'"))


def signed(token: Token, node: Node) -> Node:
    factor = -1 if token.text == "-" else 1
    return _pointing(token, lambda record: factor * values.number(node(record), f"'{token.text}'"))


def _pointing(token: Token, node: Node) -> Node:
    """The node, with errors that point at the token."""

    def evaluate(record: Record) -> Any:
        try:
            return node(record)
        except values.NoValue as reason:
            raise value_error(token, str(reason)) from None

    return evaluate


def logic(first: Node, row: Row) -> Node:
    """`and`, `or`: the value of the first condition that decides; later ones are not evaluated."""

    def condition(token: Token, node: Node) -> Node:
        return _pointing(token, lambda record: values.truth(node(record), f"'{token.text}'"))

    conditions = [condition(row[0][0], first), *(condition(token, node) for token, node in row)]
    decide = any if row[0][0].text == "or" else all
    return lambda record: decide(node(record) for node in conditions)


def comparison(first: Node, row: Row) -> Node:
    """`0.2 < acc < 0.7` holds if each neighbouring pair does."""

    def evaluate(record: Record) -> bool:
        left = first(record)
        for token, node in row:
            try:
                right = node(record)
            except MissingName as missing:
                missing.beside_text = isinstance(left, str)
                raise
            try:
                if not values.compare(token.text, left, right):
                    return False
            except values.NoValue as reason:
                raise value_error(token, str(reason)) from None
            left = right
        return True

    return evaluate


def arithmetic(first: Node, row: Row) -> Node:
    """Operators of one level, from left to right."""

    def evaluate(record: Record) -> Any:
        result = first(record)
        for token, node in row:
            right = node(record)
            try:
                result = values.calculate(token.text, result, right)
            except values.NoValue as reason:
                raise value_error(token, str(reason)) from None
        return result

    return evaluate


def function(token: Token, arguments: list[Argument]) -> Node:
    """A function call; a metric that is named or was matched by an earlier glob counts once.

    Raises RbError for an unknown function, or a number of arguments that it does not take.
    """
    if token.text in values.OF_RECORD:
        of_record, inner = values.of_record(token.text), arguments[0].node
        assert inner is not None
        return lambda record: of_record(record, inner(record))
    if token.text in values.OF_METRICS:
        of_metrics, words = values.of_record(token.text), [argument.word for argument in arguments]
        if "" in words:
            raise value_error(token, f"{token.text}() takes names of metrics and globs")
        return lambda record: of_metrics(record, words)
    named = {argument.word for argument in arguments if argument.node}
    places = [(argument.word, argument.node, matcher(argument.word)) for argument in arguments]

    def evaluate(record: Record) -> values.Number:
        inputs: list[Any] = []
        taken = set(named)
        for word, node, matches in places:
            if node:
                inputs.append(node(record))
                continue
            metrics = metrics_of(record)
            matching = [name for name in metrics if matches(name)]
            if not matching and token.text != "count":
                raise MissingName(word, record)
            inputs += [metrics[name] for name in matching if name not in taken]
            taken.update(matching)
        return values.call(token.text, inputs)

    return _pointing(token, evaluate)
