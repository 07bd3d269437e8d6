"""The report as a picture: generation by number of sequences, and what a past costs. Drawn by matplotlib, an extra."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from svc.cli.bench.render import subtitle
from svc.cli.bench.report import Report, Result
from svc.errors import ConfigError

SUFFIXES = (".svg", ".png", ".pdf")
PANEL_INCHES = (4.4, 3.6)
COLOURS = ("#1f5f8b", "#c8553d", "#3d7a4a", "#7a5195")

Curve = tuple[str, Sequence[tuple[int, Result]]]  # what it is of, and its points by x
Panel = tuple[str, str, Sequence[Curve]]  # title, x axis, curves


def check_plot(path: Path) -> None:
    """ConfigError where no picture could be drawn: to be asked before anything is measured."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot must name a file that ends with {', '.join(SUFFIXES)}, not {str(path)!r}")
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install 'headrace[bench]'") from None


def draw(report: Report, path: Path) -> None:
    """A panel for each question that the results answer, side by side; medians with the extremes as bars."""
    from matplotlib.figure import Figure  # no window system is asked for

    panels = [panel for panel in panels_of(report) if panel[2]] or [("nothing to draw", "", ())]
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(panels), height + 0.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, *panel)
    figure.suptitle(f"{report.model.name}\n{subtitle(report)}", fontsize=9)
    figure.savefig(path, dpi=150)


def panels_of(report: Report) -> list[Panel]:
    """Those without points have no curves."""
    together = _curves(report, lambda r: bool(r.generated_tokens) and not r.depth_tokens, lambda r: r.num_sequences, "generate")
    prompt = _curves(report, lambda r: bool(r.prompt_tokens), lambda r: r.depth_tokens, "prompt")
    alone = _curves(report, lambda r: bool(r.generated_tokens) and r.num_sequences == 1, lambda r: r.depth_tokens, "generate")
    return [
        ("generation, all sequences together", "sequences at once", together),
        ("generation behind a past", "tokens before", _long(alone)),
        ("prompt processing behind a past", "tokens before", prompt),
    ]


def _curves(report: Report, wanted: Callable[[Result], bool], x: Callable[[Result], int], word: str) -> list[Curve]:
    """One for each length."""
    points: dict[int, list[tuple[int, Result]]] = {}
    for one in filter(wanted, report.results):
        points.setdefault(one.prompt_tokens or one.generated_tokens, []).append((x(one), one))
    return [(f"{word} {length}", sorted(curve, key=lambda point: point[0])) for length, curve in points.items()]


def _long(curves: list[Curve]) -> list[Curve]:
    """Without those of a single point: the other panel has it."""
    return [curve for curve in curves if len(curve[1]) > 1]


def _draw_panel(axis: Any, title: str, x_label: str, curves: Sequence[Curve]) -> None:
    for (label, points), colour in zip(curves, COLOURS * len(curves), strict=False):
        middle = [one.median for _, one in points]
        bars = ([one.median - one.smallest for _, one in points], [one.largest - one.median for _, one in points])
        places = [x for x, _ in points]
        axis.errorbar(places, middle, yerr=bars, label=label, color=colour, marker="o", markersize=4, capsize=3, linewidth=1.4)
    places = sorted({x for _, points in curves for x, _ in points})
    if x_label == "sequences at once":
        axis.set_xscale("log", base=2)
    axis.set_xticks(places, [f"{place:,}" for place in places])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set(title=title, xlabel=x_label, ylabel="tokens/s")
    axis.title.set_fontsize(10)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if curves:
        axis.legend(frameon=False, fontsize=8)
