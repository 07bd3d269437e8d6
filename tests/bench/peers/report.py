"""Medians, spreads and ratios, as Markdown. A figure that could not be had is None and a dash."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

OURS = "headrace"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row: what was measured of each engine, a value for each round."""

    test: str
    samples: Mapping[str, Sequence[float]]
    lower_is_better: bool = False
    bar: float | None = None  # least ratio that is asked for

    def median(self, engine: str) -> float | None:
        values = self.samples.get(engine)
        return statistics.median(values) if values else None

    @property
    def best_peer(self) -> str | None:
        """The one with the better median."""
        medians = {name: median for name in self.samples if name != OURS and (median := self.median(name)) is not None}
        if not medians:
            return None
        return (min if self.lower_is_better else max)(medians, key=lambda name: medians[name])

    @property
    def ratio(self) -> float | None:
        """How many times better ours is than the better peer; above 1 is faster, or smaller."""
        ours, peer = self.median(OURS), self.best_peer
        theirs = self.median(peer) if peer is not None else None
        if not ours or not theirs:
            return None
        return theirs / ours if self.lower_is_better else ours / theirs


def spread(values: Sequence[float] | None) -> str:
    """Median, and in brackets the smallest and the largest."""
    if not values:
        return "-"
    median = shown(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({shown(min(values))}-{shown(max(values))})"


def shown(value: float) -> str:
    """Three digits, more where they are whole."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def table(title: str, rows: Iterable[Comparison], engines: Sequence[str]) -> str:
    """Markdown; `title` names the first column."""
    lines = [f"| {title} | {' | '.join(engines)} | ratio | bar |", f"|---|{'--:|' * (len(engines) + 2)}"]
    for row in rows:
        values = [spread(row.samples.get(name)) for name in engines]
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
        bar = f"{row.bar:.1f}" if row.bar is not None else ""
        lines.append(f"| {row.test} | {' | '.join(values)} | {ratio} | {bar} |")
    return "\n".join(lines)
