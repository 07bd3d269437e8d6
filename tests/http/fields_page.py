"""The table of request fields in docs/operations.md, made from `svc/http/known_fields.py`.

`python -m tests.http.fields_page` writes it into the page; a test compares.
"""

from pathlib import Path

from svc.http.known_fields import KNOWN_FIELDS, PATHS, Known

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BEGIN, END = "<!-- fields: made by tests/http/fields_page.py -->\n", "<!-- end of fields -->\n"


def table() -> str:
    """Fields that every route handles alike share a row; in parentheses what a route that refuses a field accepts of it."""
    by_name: dict[str, list[Known]] = {}
    for known in KNOWN_FIELDS:
        by_name.setdefault(known.name, []).append(known)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, rows in by_name.items():
        groups.setdefault(tuple(_handling(rows)), []).append(_cell(name, rows))
    lines = [f"| field (accepted values) | {' | '.join(f'`{path}`' for path in PATHS.values())} |", "|---" * (len(PATHS) + 1) + "|"]
    lines += [f"| {', '.join(cells)} | {' | '.join(handling)} |" for handling, cells in groups.items()]
    return "\n".join(lines) + "\n"


def _handling(rows: list[Known]) -> list[str]:
    return [
        "done" if any(route in row.done for row in rows) else "refused" if any(route in row.refused for row in rows) else "ignored"
        for route in PATHS
    ]


def _cell(name: str, rows: list[Known]) -> str:
    accepted = " or ".join(dict.fromkeys(row.unless.text for row in rows if row.refused and row.unless.text))
    return f"`{name}`" + (f" ({accepted})" if accepted else "")


def with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
