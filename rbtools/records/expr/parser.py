"""From tokens to nodes: operator precedence parsing (Pratt, POPL 1973). Consecutive operators of one level
become one node with a loop, so only parentheses and leading signs deepen the stack, in parsing and in
evaluating; their depth is limited.
"""

from __future__ import annotations

from typing import NoReturn

from rbtools.errors import near
from rbtools.records.expr import nodes
from rbtools.records.expr.nodes import Argument, Node
from rbtools.records.expr.tokens import NAMES_RULE, Token, syntax_error, tokenize
from rbtools.records.expr.values import FUNCTIONS, takes_one

OR, AND, NOT, COMPARE, ADD, MULTIPLY, SIGN = range(1, 8)
_LEVELS = {
    **{"or": OR, "and": AND},
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in", "not"), COMPARE),
    **{"+": ADD, "-": ADD, "*": MULTIPLY, "/": MULTIPLY},
}
_CONSTANTS = {"true": True, "false": False, "null": None}
_DEEPEST = 60


class Parser:
    """Parses one expression; afterwards `names` holds its names and globs, in order, and `functions` what it
    calls."""

    def __init__(self, text: str) -> None:
        self.names: dict[str, None] = {}
        self.functions: set[str] = set()
        self._tokens = tokenize(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        """The node of the whole expression. Raises RbError at the place that does not parse."""
        node = self._expression(OR)
        if self._token.kind != "end":
            self._unexpected("an operator or the end")
        return node

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _advance(self) -> Token:
        token = self._token
        self._at += token.kind != "end"
        return token

    def _take(self, sign: str) -> bool:
        """Whether the next token is this sign; if so, it is consumed."""
        is_next = self._token.kind == "sign" and self._token.text == sign
        self._at += is_next
        return is_next

    def _expect(self, sign: str, wanted: str) -> None:
        if not self._take(sign):
            self._unexpected(wanted)

    def _unexpected(self, wanted: str, token: Token | None = None) -> NoReturn:
        token = token or self._token
        actual = "the end" if token.kind == "end" else f"'{token.text}'"
        hint = f". Write '{token.text.lower()}'" if token.text in ("AND", "OR", "NOT", "IN") else ""
        raise syntax_error(token, f"found {actual}, expected {wanted}{hint}")

    def _expression(self, level: int) -> Node:
        """An operand and all operators after it that bind at least as tightly as `level`."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise syntax_error(self._token, f"it nests deeper than {_DEEPEST} levels")
        node = self._operand(level)
        while (met := self._level()) >= level:
            node = self._row(met, node)
        self._depth -= 1
        return node

    def _level(self) -> int:
        return _LEVELS.get(self._token.text, 0) if self._token.kind == "sign" else 0

    def _row(self, level: int, first: Node) -> Node:
        """Consecutive operators of one level; `first` is the left operand."""
        row: nodes.Row = []
        while self._level() == level:
            token = self._advance()
            if token.text == "not":
                self._expect("in", "'in', for 'not in [...]'")
                token = token._replace(text="not in")
            listed = token.text in ("in", "not in")
            row.append((token, self._list() if listed else self._expression(level + 1)))
        if level in (OR, AND):
            return nodes.logic(first, row)
        return nodes.comparison(first, row) if level == COMPARE else nodes.arithmetic(first, row)

    def _operand(self, level: int) -> Node:
        token = self._advance()
        if token.kind == "number":
            return nodes.constant(int(token.text) if token.text.isdigit() else float(token.text))
        if token.kind == "text":
            return nodes.constant(token.text)
        if token.kind == "name":
            return self._call(token) if self._take("(") else self._name(token)
        if token.kind == "glob":
            raise syntax_error(
                token,
                f"'{token.text}' stands for many metrics, so it must be an argument of its own, such as"
                f" mean({token.text}). {NAMES_RULE}",
            )
        if token.kind == "sign":
            if token.text == "(":
                node = self._expression(OR)
                self._expect(")", "an operator or ')'")
                return node
            if token.text in _CONSTANTS:
                return nodes.constant(_CONSTANTS[token.text])
            if token.text in ("-", "+"):
                return nodes.signed(token, self._expression(SIGN))
            if token.text == "not" and level <= NOT:
                return nodes.negation(token, self._expression(NOT))
        self._unexpected("a number, a name, a quoted text or '('", token)

    def _name(self, token: Token) -> Node:
        self.names[token.text] = None
        return nodes.field(token.text)

    def _list(self) -> Node:
        self._expect("[", "a list such as ['pgd', 'trades']")
        elements: list[Node] = []
        while not self._take("]"):
            if elements:
                self._expect(",", "',' or ']'")
            elements.append(self._expression(OR))
        return nodes.items(elements)

    def _call(self, token: Token) -> Node:
        function = token.text
        if function not in FUNCTIONS:
            hint, known = near(function, FUNCTIONS), ", ".join(FUNCTIONS)
            raise syntax_error(token, f"there is no function '{function}'.{hint} There are: {known}")
        self.functions.add(function)
        arguments = [self._argument()]
        while self._take(","):
            arguments.append(self._argument())
        self._expect(")", "an operator, ',' or ')'")
        if takes_one(function) and (len(arguments) > 1 or arguments[0].node is None):
            raise syntax_error(token, f"{function}() takes one value; a list or a glob is many")
        return nodes.function(token, arguments)

    def _argument(self) -> Argument:
        token = self._token
        following = self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        alone = following.kind == "sign" and following.text in (",", ")")
        if token.kind == "glob" and alone:
            self.names[self._advance().text] = None
            return Argument(token.text, None)
        return Argument(token.text if token.kind == "name" and alone else "", self._expression(OR))
