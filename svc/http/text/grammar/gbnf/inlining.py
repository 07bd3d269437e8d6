"""Rules that do not refer to themselves, put where others refer to them."""

from collections import defaultdict
from collections.abc import Mapping

from svc.errors import RequestError
from svc.http.text.grammar.gbnf.nodes import Chain, Chars, Choice, Node, Ref, Repeat
from svc.http.text.grammar.gbnf.syntax import names_in

MAX_INLINED = 2000  # nodes that one rule may stand for, or it stays a rule
MAX_NODES = 200_000  # of all rules together


def with_regular_rules_inlined(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The root, and the rules that are left in it: those that refer to themselves in the end. RequestError if that is too much."""
    sizes: dict[str, int] = {}
    known: dict[str, Node] = {}
    open_names = {name: names_in(node) for name, node in rules.items()}
    users: dict[str, list[str]] = defaultdict(list)
    for name, needed in open_names.items():
        for other in needed:
            users[other].append(name)
    ready = [name for name, needed in open_names.items() if not needed]
    while ready:
        name = ready.pop()
        size = _size(rules[name], sizes)
        if size > MAX_INLINED:
            continue
        known[name], sizes[name] = _replaced(rules[name], known), size
        for user in users[name]:
            open_names[user].discard(name)
            if not open_names[user]:
                ready.append(user)
    left = _reachable({name: known.get(name) or _replaced(node, known) for name, node in rules.items()})
    if sum(_size(node, dict.fromkeys(rules, 1)) for node in left.values()) > MAX_NODES:
        raise RequestError("the grammar is too large")
    return left


def _reachable(rules: Mapping[str, Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    waiting = ["root"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = rules[name]
            waiting += sorted(names_in(rules[name]))
    return found


def _size(node: Node, known: Mapping[str, int]) -> int:
    match node:
        case Chars():
            return 1
        case Chain(parts) | Choice(parts):
            return 1 + sum(_size(part, known) for part in parts)
        case Repeat(inside):
            return 1 + _size(inside, known)
        case Ref(name):
            return known[name]


def _replaced(node: Node, known: Mapping[str, Node]) -> Node:
    match node:
        case Chars():
            return node
        case Chain(items):
            return Chain(tuple(_replaced(item, known) for item in items))
        case Choice(options):
            return Choice(tuple(_replaced(option, known) for option in options))
        case Repeat(inside, least, most):
            return Repeat(_replaced(inside, known), least, most)
        case Ref(name):
            return known.get(name, node)
