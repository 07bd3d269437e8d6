"""Draws docs/reuse.png from what `tests.bench.peers.reuse --json FILE` has saved.

    python -m tests.bench.peers.draw_reuse FILE [--out docs/reuse.png]

Needs matplotlib (`pip install 'headrace[bench]'`).
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from tests.bench.peers.build import LLAMA

OUT = Path(__file__).parents[3] / "docs" / "reuse.png"
COLOURS = ("#0b7285", "#adb5bd", "#ced4da")
BAR = 0.38  # height of one bar; a case has the height 1


def draw(saved: dict[str, Any], out: Path) -> None:
    """A group of bars for each case, the first one on top; a bar's number stands at its end."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    cases = saved["cases"]
    servers = list(cases[0]["evaluated"])[:2]  # the server itself and the peer as it comes
    figure, axes = pyplot.subplots(figsize=(9, 4.6), layout="constrained")
    for number, server in enumerate(servers):
        values = [statistics.median(case["evaluated"][server]) for case in cases]
        places = [row + (number - 0.5) * BAR for row in range(len(cases))]
        bars = axes.barh(places, values, BAR * 0.92, color=COLOURS[number], label={LLAMA.name: "llama-server"}.get(server, server))
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=9)
    axes.set_yticks(range(len(cases)), [case["name"] for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel("prompt tokens evaluated (fewer is better)")
    axes.margins(x=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    axes.set_title(f"A chat of six turns and four agents: {saved['model']}, {saved['time']}", loc="left", fontsize=10)
    figure.savefig(out, dpi=110, bbox_inches="tight", pad_inches=0.15)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the JSON of a run")
    parser.add_argument("--out", type=Path, default=OUT, help="default: %(default)s")
    arguments = parser.parse_args()
    draw(json.loads(arguments.file.read_text()), arguments.out)


if __name__ == "__main__":
    main()
