"""Calls written inside of reasoning: plans and examples, unless the answer ends with them."""

from svc.http.text.answer_parts import PartWriter
from svc.http.text.tool_calls.call_format import CallFormat
from svc.http.text.tool_calls.call_parser import CallParser
from svc.http.text.tool_calls.offered_tools import OfferedTools


class CallsInReasoning:
    """Passes reasoning on to `writer`, and holds calls in it back until it shows what they are.

    They are part of the reasoning if anything follows: more of it, or its closing tag. They are calls if the answer ends with them,
    all of them complete: the model has forgotten to close its reasoning first, as models do.
    """

    def __init__(self, form: CallFormat, tools: OfferedTools, writer: PartWriter) -> None:
        self._writer = writer
        self._parser = CallParser(form, tools, self)
        self._pieces: list[str] = []  # of the reasoning, not passed on
        self._start = 0  # where they begin in it
        self._calls: list[_Call] = []  # found in the pieces

    def push(self, text: str) -> None:
        """More of the reasoning."""
        self._pieces.append(text)
        self._parser.push(text)

    def close(self) -> None:
        """The reasoning's closing tag follows."""
        self._writer.text("".join(self._pieces))

    def end(self) -> None:
        """The answer ends in its reasoning."""
        self._parser.end()
        if not self._calls or not all(call.complete for call in self._calls):
            self.close()
            return
        self._writer.end_reasoning()
        for call in self._calls:
            self._writer.call(call.name)
            self._writer.arguments("".join(call.arguments))
            self._writer.end_call(complete=True)

    # -- what the parser finds ----------------------------------------------------------------------------------------------------
    def text(self, text: str) -> None:
        """Whatever came before, calls too, is reasoning, but white space alone does not decide that."""
        if self._calls and text.isspace():
            return
        held = "".join(self._pieces)
        known = self._parser.position - self._start
        self._pieces, self._start, self._calls = [held[known:]], self._parser.position, []
        self._writer.text(held[:known])

    def call(self, name: str) -> None:
        self._calls.append(_Call(name))

    def arguments(self, text: str) -> None:
        self._calls[-1].arguments.append(text)

    def end_call(self, *, complete: bool) -> None:
        self._calls[-1].complete = complete


class _Call:
    """A call that may be one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments: list[str] = []
        self.complete = False
