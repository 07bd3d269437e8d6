"""The Jinja environment that chat templates of model repositories are written for: Hugging Face's, sandboxed."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusal(TemplateError):
    """The template called `raise_exception`: it does not accept this conversation, and says why."""


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's way to declare it

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own, as the tag has it elsewhere."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def template_environment(now: Callable[[], datetime] = datetime.now) -> ImmutableSandboxedEnvironment:
    """A fresh environment; `now` is the clock behind `strftime_now`."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], cache_size=0
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda format: now().strftime(format)
    return env


def names_read(source: str) -> frozenset[str]:
    """What `source`, which compiles, may read by name: variables, attributes and keys."""
    tree = template_environment().parse(source)
    names = {node.name for node in tree.find_all(nodes.Name)} | {node.attr for node in tree.find_all(nodes.Getattr)}
    return frozenset(names | {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)})


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML and sorts keys; models were trained on neither."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))
