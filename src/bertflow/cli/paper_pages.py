"""What the analyses of an encoder look like."""

from __future__ import annotations

from collections.abc import Mapping

from bertflow.analysis import Isotropy, Lexical, WordStatistics
from bertflow.analysis.frequency import Mean
from bertflow.cli.results import Page
from bertflow.data import Pairs
from bertflow.display import Grid
from bertflow.display.numbers import fixed, with_interval


def words_page(encoder: str, language: str, found: WordStatistics) -> Page:
    """Word embeddings by frequency."""
    groups = found.groups
    columns = [f"[{group.low:,}, {group.high:,})" for group in groups]
    rows = [
        ["words of one piece", *(f"{group.words:,}" for group in groups)],
        ["mean ℓ2 norm", *(_mean(group.norm) for group in groups)],
    ]
    rows += [
        [f"mean k-NN ℓ2 distance, k = {k}", *(_mean(group.distance[k]) for group in groups)]
        for k in groups[0].distance
    ]
    rows += [
        [f"mean k-NN dot product, k = {k}", *(_mean(group.dot[k]) for group in groups)]
        for k in groups[0].dot
    ]
    facts = {
        "encoder": f"{encoder}: {found.vocabulary:,} word embeddings of {found.width} dimensions",
        "ranks": f"by frequency, wordfreq, {language}; words of one whole piece",
    }
    notes = [
        "neighbours among all word embeddings; ± 1.96 standard errors of the mean over words",
        "norms and distances that grow with the rank are what the paper finds in BERT: frequent "
        "words near the origin and dense, rare ones far out and sparse",
    ]
    return Page(facts, [Grid("rank of the word", ["", *columns], rows)], notes)


def lexical_page(
    pairs: Pairs, unit: str, found: Lexical, skipped: Mapping[str, Mapping[str, int]], cut: int
) -> Page:
    """How similarities go with edit distance; `skipped` is by model and by reason."""
    names = list(found.edit)
    rows = [
        [
            name,
            with_interval(found.edit[name]),
            with_interval(found.gold[name]),
            with_interval(found.short_edit[name]),
            with_interval(found.short_gold[name]),
        ]
        for name in names
    ]
    columns = [
        "similarity",
        "edit distance",
        "gold",
        f"edit, ≤ {found.short} apart",
        f"gold, ≤ {found.short} apart",
    ]
    facts = {
        "pairs": f"{pairs.task} {pairs.split}: {found.pairs:,} from {pairs.source}; "
        f"{found.short_pairs:,} at most {found.short} {unit} apart",
        "cut": f"{cut:,} distinct texts are longer than the encoder takes",
    }
    notes = [
        f"edit distance: Levenshtein over {unit}; negative, since distant pairs are less alike",
    ]
    if len(set(pairs.subset)) > 1:
        notes.append("over all pairs together, of whichever subset (all)")
    for name in names[1:]:
        one = found.difference(name, "gold")
        if one.value is not None:
            more = "more" if one.value < 0 else "less"
            sure = "" if one.real else "; chance is enough to explain it"
            notes.append(
                f"{name} goes with edit distance {more} than gold does: "
                f"{with_interval(one, signed=True)}{sure}"
            )
    if found.skipped:
        notes.append(f"{found.skipped:,} pairs left out: without gold or without a cosine")
    for name, counts in skipped.items():
        if told := [f"{count:,} {reason}" for reason, count in counts.items() if count]:
            notes.append(f"{name}: not scored: {', '.join(told)}")
    return Page(facts, [Grid("Spearman × 100, 95 % interval", columns, rows)], notes)


def isotropy_page(encoder: str, found: Mapping[str, Isotropy], cut: int) -> Page:
    """Isotropy pooling by pooling."""
    rows = [
        [
            name,
            f"{one.mean_cosine:.3f}",
            f"{one.partition_isotropy:.3f}",
            f"{one.isoscore:.3f}",
            f"{one.effective_rank:.0f}",
            f"{100 * one.leading_share:.0f} %",
        ]
        for name, one in found.items()
    ]
    first = next(iter(found.values()))
    columns = [
        "pooling",
        "mean cosine",
        "partition isotropy",
        "IsoScore",
        "effective rank",
        "leading dimension",
    ]
    rows.append(["at best", "0", "1", "1", f"{min(first.width, first.rows - 1)}", ""])
    facts = {
        "encoder": encoder,
        "vectors": f"{first.rows:,} sentences, {first.width} dimensions",
        "cut": f"{cut:,} sentences are longer than the encoder takes",
    }
    notes = [
        "layers:0 is the embeddings, the highest the last block; leading dimension: its share of "
        "the mean cosine",
        "the most isotropic pooling is not always the best one: bertflow compare tells",
    ]
    return Page(facts, [Grid("isotropy", columns, rows)], notes)


def _mean(one: Mean | None) -> str:
    if one is None or one.value is None:
        return ""
    if one.low is None or one.high is None:
        return fixed(one.value, 3)
    return f"{fixed(one.value, 3)} ± {fixed((one.high - one.low) / 2, 3)}"
