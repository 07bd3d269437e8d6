"""The table on standard output, printed row by row: an interrupted run leaves its results so far."""

from svc.cli.bench.render import closing_lines, column_line, header_lines, result_line
from svc.cli.bench.report import Report, Result


class Table:
    """Prints the report as it grows."""

    def __init__(self, names: list[str]) -> None:
        """`names` of all tests, for the width of the first column."""
        self._width = max(map(len, names))

    def begin(self, report: Report) -> None:
        """`report` without results."""
        print("\n".join([*header_lines(report), "", column_line(self._width)]), flush=True)

    def add(self, result: Result) -> None:
        print(result_line(result, self._width), flush=True)

    def end(self, report: Report) -> None:
        closing = closing_lines(report)
        if closing:
            print("\n".join(["", *closing]), flush=True)
