"""Reading GBNF, the notation of llama.cpp's grammars: `root ::= "yes" | [0-9]+ tail`, one rule named root."""

import re

from svc.errors import RequestError
from svc.http.text.grammar.gbnf.nodes import LAST_CHAR, Chain, Chars, Choice, Node, Ref, Repeat

MAX_DEPTH = 100  # of parentheses
MAX_REPEATS = 2000  # of one item, counted out

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_REPEATS = re.compile(r"\{\s*([0-9]*)\s*(,?)\s*([0-9]*)\s*\}")
_CHAR = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|([^\\])", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules by name. RequestError says what is wrong and in which line."""
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip_space()
        while self._at < len(self._text):
            name = self._name()
            if not self._takes("::="):
                raise self._error(f"the rule {name} lacks ::=")
            if name in rules:
                raise self._error(f"there are two rules named {name}")
            rules[name] = self._choice()
        if "root" not in rules:
            raise RequestError("the grammar has no rule named root")
        missing = next((name for node in rules.values() for name in names_in(node) if name not in rules), None)
        if missing:
            raise RequestError(f"the grammar has no rule named {missing}, but refers to it")
        return rules

    def _choice(self) -> Node:
        options = [self._chain()]
        while self._takes("|"):
            options.append(self._chain())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _chain(self) -> Node:
        items: list[Node] = []
        while not self._ends_chain():
            item = self._quantified(self._item())
            items += item.items if isinstance(item, Chain) else [item]
        return items[0] if len(items) == 1 else Chain(tuple(items))

    def _ends_chain(self) -> bool:
        if self._at >= len(self._text) or self._text[self._at] in "|)":
            return True
        name = _NAME.match(self._text, self._at)  # the next rule may begin on any line
        behind = _SPACE.match(self._text, name.end()) if name else None
        return bool(behind and self._text.startswith("::=", behind.end()))

    def _item(self) -> Node:
        match self._text[self._at]:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                self._takes(".")
                return Chars.of([(0, LAST_CHAR)])
            case "<" | "!":
                raise self._error("single tokens (<...>) are not supported here, only text")
            case _:
                return Ref(self._name())

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"the grammar is nested more than {MAX_DEPTH} levels deep")
        self._takes("(")
        inside = self._choice()
        if not self._takes(")"):
            raise self._error("a parenthesis is not closed")
        self._depth -= 1
        return inside

    def _literal(self) -> Node:
        self._at += 1
        chars: list[Node] = []
        while not self._takes('"'):
            code = self._char("a string is not closed")
            chars.append(Chars.of([(code, code)]))
        return chars[0] if len(chars) == 1 else Chain(tuple(chars))

    def _class(self) -> Node:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while not self._takes("]"):
            first = last = self._char("a class of characters is not closed")
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._char("a class of characters is not closed")
                if last < first:
                    raise self._error("a range of characters ends before it begins")
            ranges.append((first, last))
        found = Chars.of(ranges, negated=negated)
        if not found.ranges:
            raise self._error("a class of characters allows none")
        return found

    def _char(self, missing: str) -> int:
        found = _CHAR.match(self._text, self._at)
        if not found:
            raise self._error(missing)
        self._at = found.end()
        code = found[1] or found[2] or found[3]
        if code is not None:
            return min(int(code, 16), LAST_CHAR)
        return ord(found[5] if found[5] is not None else _ESCAPES.get(found[4], found[4]))

    def _quantified(self, item: Node) -> Node:
        """`item` with the quantifier that follows it, if one does."""
        sign = self._text[self._at : self._at + 1]
        if sign in _QUANTIFIERS:
            self._takes(sign)
            return Repeat(item, *_QUANTIFIERS[sign])
        if sign != "{":
            return item
        found = _REPEATS.match(self._text, self._at)
        if not found or not (found[1] or found[3]):
            raise self._error("a number of repetitions cannot be read")
        least = int(found[1] or 0)
        most = int(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
            raise self._error(f"an item can be repeated from 0 to {MAX_REPEATS} times, the lower number first")
        self._at = found.end()
        self._skip_space()
        return Repeat(item, least, most)

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if not found:
            raise self._error("the name of a rule is missing")
        self._at = found.end()
        self._skip_space()
        return found.group()

    def _takes(self, sign: str) -> bool:
        """Whether `sign` was next; it is taken, and the space behind it."""
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        self._skip_space()
        return True

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _error(self, message: str) -> RequestError:
        line = self._text.count("\n", 0, self._at) + 1
        return RequestError(f"line {line} of the grammar: {message}")


def names_in(node: Node) -> set[str]:
    """The rules that `node` refers to."""
    match node:
        case Ref(name):
            return {name}
        case Chain(parts) | Choice(parts):
            return set().union(*map(names_in, parts))
        case Repeat(inside):
            return names_in(inside)
        case Chars():
            return set()
