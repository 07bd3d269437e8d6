"""The report as a picture: generation by number of sequences, and the cost of a past. Drawn by matplotlib, an optional package."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from svc.cli.bench.render import device_text, size
from svc.cli.bench.report import Report, Result
from svc.errors import ConfigError

SUFFIXES = (".svg", ".png", ".pdf")
PANEL_INCHES = (4.4, 3.6)
CROWDED = 8  # ratio of the largest to the smallest x: above it, the axis is logarithmic
MAIN_SHARE = 0.05  # of the bytes: types below it are not in the title
COLOURS = ("#1f5f8b", "#c8553d", "#3d7a4a", "#7a5195")

Curve = tuple[str, Sequence[tuple[int, Result]]]  # label, points by x
Panel = tuple[str, str, Sequence[Curve]]  # title, x axis, curves


def check_plot(path: Path) -> None:
    """ConfigError if no picture could be drawn. Called before anything is measured."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot must name a file that ends with {', '.join(SUFFIXES)}, not {str(path)!r}")
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install matplotlib") from None


def draw(report: Report, path: Path) -> None:
    """One panel per question that the results answer: medians, with the extremes as bars."""
    from matplotlib.figure import Figure  # draws without a window system

    panels = [panel for panel in panels_of(report) if panel[2]] or [("nothing to draw", "", ())]
    columns = 2 if len(panels) == 4 else len(panels)
    rows = len(panels) // columns
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    for axis, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        _draw_panel(axis, *panel)
    figure.suptitle(title_of(report), fontsize=9)
    figure.savefig(path, dpi=150)


def panels_of(report: Report) -> list[Panel]:
    """All panels; one without results has no curves."""
    prompts = [one for one in report.results if one.prompt_tokens]
    answers = [one for one in report.results if one.generated_tokens]
    least = min((one.depth_tokens for one in answers), default=0)
    together = _curves([one for one in answers if one.depth_tokens == least], lambda one: one.num_sequences)
    alone = _curves([one for one in answers if one.num_sequences == 1], lambda one: one.depth_tokens)
    return [
        ("generation, all sequences together", "sequences at once" + (f", {least} tokens before" if least else ""), together),
        ("generation behind a past", "tokens before", _long(alone)),
        ("prompt processing behind a past", "tokens before", _long(_curves(prompts, lambda one: one.depth_tokens))),
        ("prompt processing", "tokens of the prompt", _by_length(prompts)),
    ]


def title_of(report: Report) -> str:
    model, machine = report.model, report.machine
    types = ", ".join(kind for kind, share in model.quant_types.items() if share >= MAIN_SHARE)
    return f"{model.name} ({size(model.size_bytes)}, {types})\n{machine.processor}: {device_text(machine)}"


def _curves(results: Sequence[Result], x: Callable[[Result], int]) -> list[Curve]:
    """One curve per length."""
    points: dict[str, list[tuple[int, Result]]] = {}
    for one in results:
        label = f"prompt {one.prompt_tokens}" if one.prompt_tokens else f"generate {one.generated_tokens}"
        points.setdefault(label, []).append((x(one), one))
    return [(label, sorted(curve, key=lambda point: point[0])) for label, curve in points.items()]


def _by_length(prompts: Sequence[Result]) -> list[Curve]:
    """One curve per depth, if there are several lengths."""
    points: dict[str, list[tuple[int, Result]]] = {}
    for one in prompts:
        points.setdefault(f"behind {one.depth_tokens}", []).append((one.prompt_tokens, one))
    return _long(list(points.items()))


def _long(curves: list[Curve]) -> list[Curve]:
    """The curves with more than one point."""
    return [curve for curve in curves if len(curve[1]) > 1]


def _draw_panel(axis: Any, title: str, x_label: str, curves: Sequence[Curve]) -> None:
    for (label, points), colour in zip(curves, COLOURS * len(curves), strict=False):
        middle = [one.median for _, one in points]
        bars = ([one.median - one.smallest for _, one in points], [one.largest - one.median for _, one in points])
        places = [x for x, _ in points]
        axis.errorbar(places, middle, yerr=bars, label=label, color=colour, marker="o", markersize=4, capsize=3, linewidth=1.4)
    places = sorted({x for _, points in curves for x, _ in points})
    above_0 = [place for place in places if place] or [1]
    if above_0[-1] >= CROWDED * above_0[0]:
        axis.set_xscale("symlog", base=2, linthresh=above_0[0])  # unlike "log" it has a place for 0
    axis.set_xticks(places, [f"{place:,}" for place in places])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set(title=title, xlabel=x_label, ylabel="tokens/s")
    axis.title.set_fontsize(10)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if curves:
        axis.legend(loc="lower right", frameon=False, fontsize=8)
