"""The messages of a chat, and the edits a person can make. No I/O."""

from typing import Literal, NamedTuple


class Message(NamedTuple):
    role: Literal["system", "user", "assistant"]
    content: str


class Conversation:
    """Pairs of question and answer, after an optional system message."""

    def __init__(self, system: str = "") -> None:
        self.system = system  # empty: none
        self._turns: list[tuple[str, str | None]] = []  # the answer is None while it is awaited

    def __len__(self) -> int:
        """Number of turns."""
        return len(self._turns)

    @property
    def messages(self) -> list[Message]:
        """All messages, in the order that the model gets them."""
        found = [Message("system", self.system)] if self.system else []
        for question, answer in self._turns:
            found.append(Message("user", question))
            if answer is not None:
                found.append(Message("assistant", answer))
        return found

    def ask(self, question: str) -> None:
        assert not self._turns or self._turns[-1][1] is not None, "a question is open already"
        self._turns.append((question, None))

    def answer(self, text: str) -> None:
        """Stores the answer to the open question, complete or cut off. An empty answer removes the question."""
        question, answer = self._turns.pop()
        assert answer is None, "no question is open"
        if text:
            self._turns.append((question, text))

    def reopen(self) -> bool:
        """Drops the last answer, so that its question is open again; False if there is none."""
        if not self._turns:
            return False
        self._turns[-1] = self._turns[-1][0], None
        return True

    def undo(self) -> bool:
        """Drops the last turn; False if there is none."""
        return bool(self._turns and self._turns.pop())

    def clear(self) -> None:
        """Drops all turns; the system message stays."""
        self._turns.clear()
