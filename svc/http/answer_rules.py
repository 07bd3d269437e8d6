"""What the answers to a prompt are made of, and what their tokens must obey."""

from dataclasses import dataclass

from svc.http.fields import naming
from svc.http.grammar_fields import AnswerGrammar
from svc.http.text.answer_format import NO_FORMAT, AnswerFormat
from svc.http.text.answer_parser import AnswerParser
from svc.http.text.answer_text import TextParser
from svc.http.text.grammar.compiler import CompiledGrammar, GrammarCompiler
from svc.http.text.reasoning import ReasoningTags
from svc.http.text.reasoning_in_content import ReasoningInContent
from svc.http.text.thinking_budget import ThinkingBudget
from svc.http.text.tokenizer import Tokenizer
from svc.http.text.tool_calls.offered_tools import OfferedTools
from svc.slots.request import Constraint


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """The same for all answers; each gets a parser and a constraint of its own."""

    format: AnswerFormat = NO_FORMAT  # what is parted from the content
    tools: OfferedTools | None = None
    max_calls: int | None = None  # the answer ends with the last of them
    tags: ReasoningTags | None = None  # what the model reasons in, parted or not; None: it does not
    inside: bool = False  # the prompt has opened the reasoning
    reasoning_in_content: bool = False  # as well as parted from it
    grammar: CompiledGrammar | None = None  # of what follows the reasoning
    thinking_budget: int | None = None

    @property
    def text_ends(self) -> bool:
        """Whether the text may end the answer."""
        return self.max_calls is not None and self.format.calls is not None

    def parser(self) -> TextParser | None:
        if self.format.reasoning is None and self.format.calls is None:
            return None
        parser = AnswerParser(
            reasoning=self.format.reasoning,
            inside=self.inside,
            calls=self.format.calls,
            tools=self.tools,
            max_calls=self.max_calls,
        )
        if self.reasoning_in_content and self.format.reasoning is not None:
            return ReasoningInContent(parser, self.format.reasoning)
        return parser

    def shown(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Control tokens that are tags for the parser, and therefore text."""
        ids = (tokenizer.token_id(tag) for tag in self.format.tags)
        return frozenset(i for i in ids if i is not None)

    def constraint(self, tokenizer: Tokenizer, num_logits: int) -> Constraint | None:
        matcher = self.grammar.matcher(reasoning=self.tags, inside=self.inside) if self.grammar else None
        if self.thinking_budget is None or self.tags is None:
            return matcher
        tags = self.tags
        close = tags.close.encode()

        def closes(tokens: list[int]) -> bool:
            return close in tokenizer.decode_known(tokens[-len(close) :]).encode()

        return ThinkingBudget(
            self.thinking_budget,
            close=tokenizer.encode(tags.close, parse_special=True),
            open_id=tokenizer.token_id(tags.open),
            inside=self.inside,
            num_tokens=num_logits,
            closes=closes,
            inner=matcher,
        )


FREE = AnswerRules()
"""Nothing is parted, and any token may come."""


def held_to(grammar: AnswerGrammar, compiler: GrammarCompiler) -> AnswerRules:
    """Answers that are text of a form. Takes milliseconds; RequestError for a grammar that cannot be enforced."""
    with naming(grammar.param):
        return AnswerRules(grammar=compiler.compile(grammar.spec))
