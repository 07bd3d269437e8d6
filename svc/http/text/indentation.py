"""The end of an answer at the first of its lines that leaves the block it is in: llama-server's `n_indent`, for completing code."""

_SPACE = " \t"


class IndentationCheck:
    """Sees the text that is shown, in any pieces. The line that the answer begins in is not looked at."""

    def __init__(self, width: int) -> None:
        """Lines are to begin with `width` characters of white space; an empty line has none."""
        self.hit = False
        self._width = width
        self._column: int | None = None  # white space of the current line so far; None: something else has come

    def push(self, text: str) -> str:
        """What is shown of `text`: nothing from the first character on that is not far enough to the right."""
        if self.hit:
            return ""
        for at, char in enumerate(text):
            if self._column is not None and char in _SPACE:
                self._column += 1
                continue
            if self._column is not None and self._column < self._width:
                self.hit = True
                return text[:at]
            self._column = 0 if char == "\n" else None
        return text
