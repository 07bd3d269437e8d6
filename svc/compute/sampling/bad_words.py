"""Token sequences that an answer must not contain."""

from collections.abc import Sequence

from svc.compute.backend import History


def completions(words: Sequence[tuple[int, ...]], history: History | None) -> tuple[int, ...]:
    """The last token of each of `words` (two tokens or more) whose other tokens the answer ends with."""
    if not words:
        return ()
    assert history is not None
    answer = history.tokens[history.num_prompt :]
    end = tuple(answer[-max(map(len, words)) :].tolist())
    return tuple(word[-1] for word in words if end[1 - len(word) :] == word[:-1])
