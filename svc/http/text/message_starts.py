"""Where messages begin in a prompt: at the control tokens with which the template opens them, learned from a small conversation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from svc.errors import RequestError
from svc.http.text.template_habits import Message
from svc.http.text.tokenizer import Tokenizer
from svc.memory.placement import Boundary, BoundaryKind

Piece = int | str  # of a prompt: a control token of the template, or a text between two of them
Render = Callable[[list[Message]], str]  # without a generation prompt

_SYSTEM, _USER, _ASSISTANT, _AGAIN = _CONTENTS = ("probesystem", "probeuser", "probeassistant", "probeagain")
_ROLES = {_SYSTEM: "system", _USER: "user", _ASSISTANT: "assistant", _AGAIN: "user"}


@dataclass(frozen=True, slots=True)
class Headers:
    """`openers` are the control tokens that open messages: one for all roles, or several.

    `speakers` are how user and assistant messages open: the token, and the text behind it to the end of its line.
    """

    openers: frozenset[int] = frozenset()
    speakers: tuple[tuple[int, str], ...] = ()

    def opens_dialog(self, token: int, following: Piece) -> bool:
        """Whether a message of the user or the assistant opens with `token` and the piece behind it."""
        text = following if isinstance(following, str) else ""
        return any(token == opener and text.startswith(header) for opener, header in self.speakers)


def boundaries(starts: list[int], dialog: list[bool], num_opening: int) -> Iterator[Boundary]:
    """MESSAGE_START at each of `starts`, and SYSTEM_END at the first that opens a message of the user or the assistant (`dialog`),
    if there is something before it: more tokens than the `num_opening` that begin every prompt.
    """
    system_end = next((start for start, speaks in zip(starts, dialog, strict=True) if speaks), 0)
    for start in starts:
        if start == system_end > num_opening:
            yield Boundary(start, BoundaryKind.SYSTEM_END)
        yield Boundary(start, BoundaryKind.MESSAGE_START)


def probe_headers(render: Render, tokenizer: Tokenizer) -> Headers:
    """The headers of the template behind `render`, which raises RequestError when it refuses a conversation."""

    def gaps(*contents: str) -> list[list[Piece]]:
        """What the template writes before each of `contents`, and behind the last; empty when it does not write them all."""
        messages = [{"role": _ROLES[content], "content": content} for content in contents]
        try:
            return _gaps(render(messages), contents, tokenizer)
        except RequestError:
            return []

    asked, answered, going_on = gaps(_USER), gaps(_USER, _ASSISTANT), gaps(_USER, _ASSISTANT, _AGAIN)
    if not (asked and answered and going_on):
        return Headers()
    first, answer, again = going_on[:3]
    no_openers = {*_tokens(asked[-1])[:1], *_tokens(answered[-1])[:1], tokenizer.bos_id}  # what ends messages, or begins a prompt
    user = next((token for token in _tokens(again) if token in first and token not in no_openers), None)
    if user is None:
        return Headers()
    assistant = next((token for token in _tokens(answer) if token not in no_openers), None)
    speakers = [(user, _behind(user, again))] + ([] if assistant is None else [(assistant, _behind(assistant, answer))])
    openers = {token for token, _ in speakers}
    with_system = gaps(*_CONTENTS)
    system = [token for token in _tokens(with_system[0]) if token != tokenizer.bos_id] if with_system else []
    if openers.isdisjoint(system):  # a token of its own, or none
        openers.update(system[:1])
    return Headers(frozenset(openers), tuple(speakers))


def _gaps(text: str, contents: tuple[str, ...], tokenizer: Tokenizer) -> list[list[Piece]]:
    """The pieces before each of `contents`, and behind the last; empty unless all of them occur in this order."""
    gaps: list[list[Piece]] = []
    start = 0
    for content in contents:
        at = text.find(content, start)
        if at < 0:
            return []
        gaps.append(tokenizer.split_control(text[start:at]))
        start = at + len(content)
    return [*gaps, tokenizer.split_control(text[start:])]


def _tokens(gap: list[Piece]) -> list[int]:
    return [piece for piece in gap if isinstance(piece, int)]


def _behind(token: int, gap: list[Piece]) -> str:
    """The text right behind the last `token` in `gap`, to the end of its line."""
    last = len(gap) - 1 - gap[::-1].index(token)
    following = gap[last + 1] if last + 1 < len(gap) else ""
    return following.splitlines(keepends=True)[0] if isinstance(following, str) and following else ""
