"""What results look like on a terminal."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from bertflow.calibrators.base import Array
from bertflow.cli.terminal import console
from bertflow.demo import QUERIES, Demonstration
from bertflow.errors import one_line, quoted

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 32


def sparkline(spectrum: Array) -> str:
    """Singular values on a logarithmic scale, four decades high, averaged into columns."""
    logs = np.log10(np.maximum(spectrum, 1e-4)) / 4 + 1
    columns = [part.mean() for part in np.array_split(logs, min(SPARK_WIDTH, len(logs)))]
    return "".join(BARS[round(float(column) * (len(BARS) - 1))] for column in columns)


def show_demo(result: Demonstration) -> None:
    """Print both sides, and how to load the model."""
    out = console()
    before, after = result.before, result.after
    out.print(
        f"\n{result.calibrator} fitted on {result.sentences:,} unlabelled sentences\n", style="bold"
    )
    if result.cut:
        out.print(f"{result.cut:,} distinct sentences are longer than the encoder takes\n")
    table = Table(box=None, pad_edge=False)
    for name in ["", "before", "after"]:
        table.add_column(name, justify="left" if not name else "right")
    table.add_row(
        "mean cosine of random pairs (0 is best)",
        f"{before.mean_cosine:.3f}",
        f"{after.mean_cosine:.3f}",
    )
    table.add_row(
        f"Spearman × 100 on {sum(before.score.scored.values())} graded pairs",
        *[_hundred(side.score.all.value) for side in (before, after)],
    )
    table.add_row(
        "second singular value / first (1 is flat)",
        *[f"{side.spectrum[1]:.3f}" for side in (before, after)],
    )
    out.print(table)
    for label, side in (("before", before), ("after", after)):
        if left := [f"{count:,} {why}" for why, count in side.score.skipped.items() if count]:
            out.print(f"{label}, not scored: {', '.join(left)}")
    one = result.difference
    if one.low is not None and one.high is not None:
        verdict = "more than chance" if one.real else "these few pairs cannot tell them apart"
        out.print(
            f"\ndifference in Spearman × 100: {100 * one.low:+.1f} to {100 * one.high:+.1f} "
            f"(95 %): {verdict}"
        )
    out.print(
        f"\nsingular spectrum   before {sparkline(before.spectrum)}   "
        f"after {sparkline(after.spectrum)}"
    )
    for query, *sides in zip(QUERIES, before.neighbours, after.neighbours, strict=True):
        out.print(f"\nnearest to: {query}", style="bold")
        for label, neighbours in zip(["before", "after"], sides, strict=True):
            for position, (sentence, cosine) in enumerate(neighbours):
                out.print(f"  {label if position == 0 else '':<7}{cosine:6.3f}  {sentence}")
    out.print(f"\nsaved to {one_line(result.output)}; anywhere, with sentence-transformers alone:")
    out.print("  from sentence_transformers import SentenceTransformer")
    out.print(f"  model = SentenceTransformer({str(result.output)!r})")
    out.print('  vectors = model.encode(["Any sentence."])')
    if result.cached:
        page = quoted(f"{result.output.resolve().name}.html")
        out.print("\nbefore and after in pictures, on one page:")
        out.print(f"  bertflow report {quoted(result.output)} --output {page}")


def _hundred(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f}"
