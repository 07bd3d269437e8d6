"""Reasoning that is told twice, in parts of its own and in the content between its tags: llama-server's format deepseek-legacy."""

from collections.abc import Iterable, Iterator, Sequence

from svc.http.text.answer_parts import ContentText, Part, ReasoningText, joined
from svc.http.text.answer_text import TextParser
from svc.http.text.reasoning import ReasoningTags


class ReasoningInContent:
    """A parser whose reasoning is repeated as content. Reasoning that the end of the answer cuts off has no closing tag there."""

    def __init__(self, parser: TextParser, tags: ReasoningTags) -> None:
        self._parser = parser
        self._tags = tags
        self._is_open = False

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning

    @property
    def num_calls(self) -> int:
        return self._parser.num_calls

    @property
    def has_all_calls(self) -> bool:
        return self._parser.has_all_calls

    def push(self, text: str) -> Sequence[Part]:
        return joined(self._repeated(self._parser.push(text)))

    def end(self) -> Sequence[Part]:
        return joined(self._repeated(self._parser.end()))

    def _repeated(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, ReasoningText):
                yield part
                yield ContentText(part.text if self._is_open else self._tags.open + part.text)
                self._is_open = True
                continue
            if self._is_open:
                yield ContentText(self._tags.close)
                self._is_open = False
            yield part
