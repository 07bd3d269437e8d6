"""One way to read a grammar: which of its parts are lexemes, and whether always taking the longest one is right."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from svc.http.text.grammar.gbnf.nodes import Chain, Chars, Choice, Node, Ref, Repeat
from svc.http.text.grammar.gbnf.positions import Alphabet, Lexer, Positions
from svc.http.text.grammar.gbnf.syntax import names_in


@dataclass(frozen=True, slots=True)
class Lexeme:
    """One place of a lexeme in the grammar."""

    number: int


@dataclass(frozen=True, slots=True)
class Group:
    """Items one after the other, or (`choice`) one of them."""

    items: tuple["Tree", ...]
    choice: bool = False


@dataclass(frozen=True, slots=True)
class Repeated:
    item: "Tree"
    least: int
    most: int | None


Tree = Lexeme | Group | Repeated | Ref  # a rule, its regular parts replaced by lexemes


class Reading:
    """Lexemes are the largest parts without references, but for those in `apart`, of which the parts are; None: all are."""

    def __init__(self, rules: Mapping[str, Node], apart: set[Node] | None) -> None:
        self._apart = apart
        self._lexemes: list[Node] = []  # by number
        self._rules = {name: self._tree(node) for name, node in rules.items()}

    # -- lexemes ------------------------------------------------------------------------------------------------------------------
    def _tree(self, node: Node) -> Tree:
        if not names_in(node):
            return self._regular(node)
        match node:
            case Ref():
                return node
            case Repeat(inside, least, most):
                return Repeated(self._tree(inside), least, most)
            case Chain(items):
                return Group(tuple(self._grouped(items, Chain)))
            case Choice(options):
                return Group(tuple(self._grouped(options, Choice)), choice=True)
            case Chars():
                raise AssertionError("characters refer to no rule")

    def _grouped(self, items: Iterable[Node], kind: type[Chain] | type[Choice]) -> Iterable[Tree]:
        """Neighbours without references together."""
        for refers, group in groupby(items, lambda item: bool(names_in(item))):
            members = tuple(group)
            if refers or len(members) == 1:
                yield from map(self._tree, members)
            else:
                yield self._regular(kind(members))

    def _regular(self, node: Node) -> Tree:
        if next(_chars_in(node), None) is None:
            return Group(())  # nothing but the empty text
        if isinstance(node, Chars) or (self._apart is not None and node not in self._apart):
            lexeme = Lexeme(len(self._lexemes))
            self._lexemes.append(node)
            return Repeated(lexeme, 0, 1) if _is_nullable(node) else lexeme
        match node:
            case Repeat(inside, least, most):
                return Repeated(self._regular(inside), least, most)
            case Chain(items):
                return Group(tuple(map(self._regular, items)))
            case Choice(options):
                return Group(tuple(map(self._regular, options)), choice=True)
            case Ref():
                raise AssertionError("a regular part refers to no rule")

    # -- what may follow ----------------------------------------------------------------------------------------------------------
    def overlong(self) -> set[Node]:
        """Lexemes that must be taken apart, because they or others could be read too long. TooLargeError if there is too much."""
        positions = Positions(Alphabet(chars for node in self._lexemes for chars in _chars_in(node)))
        for node in self._lexemes:
            positions.add(node)
        order = _Order(self._rules, len(self._lexemes))
        lexer = Lexer(positions, order.first, order.following)
        lexer.run()
        return {self._lexemes[number] for number in lexer.overlong if not isinstance(self._lexemes[number], Chars)}

    # -- notation -----------------------------------------------------------------------------------------------------------------
    def written(self) -> str:
        """The grammar in llguidance's Lark."""
        rules = {name: f"r{n}" for n, name in enumerate(self._rules)}
        terminals = {node: f"T{n}" for n, node in enumerate(dict.fromkeys(self._lexemes))}
        lines = [f"start: {rules['root']}"]
        lines += [f"{rules[name]}: {self._lark(tree, rules, terminals)}" for name, tree in self._rules.items()]
        lines += [f"{name}: {_terminal(node)}" for node, name in terminals.items()]
        return "\n".join(lines)

    def _lark(self, tree: Tree, rules: Mapping[str, str], terminals: Mapping[Node, str]) -> str:
        match tree:
            case Lexeme(number):
                return terminals[self._lexemes[number]]
            case Ref(name):
                return rules[name]
            case Repeated(item, least, most):
                written = self._lark(item, rules, terminals)
                return (f"({written})" if isinstance(item, Repeated) else written) + _quantifier(least, most)
            case Group(items, choice):
                members = [self._lark(item, rules, terminals) for item in items]
                return f"({(' | ' if choice else ' ').join(members)})" if members else '""'


class _Order:
    """Which lexemes, as bits, may come first, and which behind each."""

    def __init__(self, rules: Mapping[str, Tree], num_lexemes: int) -> None:
        self._begins = dict.fromkeys(rules, (0, False))  # of rules, and whether they may be empty
        self._behind = dict.fromkeys(rules, 0)
        self.following = [0] * num_lexemes
        before: object = None
        while before != self._begins:
            before = dict(self._begins)
            self._begins = {name: self._begin(tree) for name, tree in rules.items()}
        before = None
        while before != self._behind:
            before = dict(self._behind)
            for name, tree in rules.items():
                self._note_behind(tree, self._behind[name])
        self.first = self._begins["root"][0]

    def _begin(self, tree: Tree) -> tuple[int, bool]:
        match tree:
            case Lexeme(number):
                return 1 << number, False
            case Ref(name):
                return self._begins[name]
            case Repeated(item, least, _):
                lexemes, nullable = self._begin(item)
                return lexemes, nullable or not least
            case Group(items, choice):
                lexemes, nullable = 0, not choice
                for item in items:
                    more, empty = self._begin(item)
                    lexemes |= more if choice or nullable else 0
                    nullable = nullable or empty if choice else nullable and empty
                return lexemes, nullable

    def _note_behind(self, tree: Tree, behind: int) -> None:
        match tree:
            case Lexeme(number):
                self.following[number] |= behind
            case Ref(name):
                self._behind[name] |= behind
            case Repeated(item, _, most):
                self._note_behind(item, behind if most == 1 else behind | self._begin(item)[0])
            case Group(items, choice):
                for item in reversed(items):
                    self._note_behind(item, behind)
                    if not choice:
                        begins, nullable = self._begin(item)
                        behind = begins | behind if nullable else begins


# -- nodes ----------------------------------------------------------------------------------------------------------------------
def _chars_in(node: Node) -> Iterator[Chars]:
    match node:
        case Chars():
            yield node
        case Chain(parts) | Choice(parts):
            for part in parts:
                yield from _chars_in(part)
        case Repeat(inside):
            yield from _chars_in(inside)
        case Ref():
            raise AssertionError("a lexeme refers to no rule")


def _is_nullable(node: Node) -> bool:
    match node:
        case Chars():
            return False
        case Chain(items):
            return all(map(_is_nullable, items))
        case Choice(options):
            return any(map(_is_nullable, options))
        case Repeat(inside, least, _):
            return least == 0 or _is_nullable(inside)
        case Ref():
            raise AssertionError("a lexeme refers to no rule")


# -- notation --------------------------------------------------------------------------------------------------------------------
def _terminal(node: Node) -> str:
    """A lexeme is never empty: where it may be, the rule says so."""
    return f"/{_regex(node)}/ & /(?s:.+)/" if _is_nullable(node) else f"/{_regex(node)}/"


def _regex(node: Node) -> str:
    match node:
        case Chars(ranges):
            return f"[{''.join(_code(first) + '-' + _code(last) for first, last in ranges)}]"
        case Chain(items):
            return "".join(map(_regex, items))
        case Choice(options):
            return f"(?:{'|'.join(map(_regex, options))})"
        case Repeat(inside, least, most):
            return f"(?:{_regex(inside)}){_quantifier(least, most)}"
        case Ref():
            raise AssertionError("a lexeme refers to no rule")


def _code(char: int) -> str:
    return f"\\x{{{char:X}}}"


def _quantifier(least: int, most: int | None) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return known.get((least, most)) or f"{{{least},{'' if most is None else most}}}"
