"""Pages of the analyses of an encoder."""

from __future__ import annotations

from collections.abc import Mapping

from bertflow.analysis import Isotropy, Lexical, WordStatistics
from bertflow.analysis.frequency import Mean
from bertflow.cli.pages import Page
from bertflow.cli.score_pages import counts, side_of
from bertflow.data import Pairs
from bertflow.display import Grid
from bertflow.display.numbers import fixed, with_interval
from bertflow.evaluation import Score


def words_page(encoder: str, language: str, found: WordStatistics) -> Page:
    """Word embeddings by frequency."""
    groups = found.groups
    columns = [f"[{group.low:,}, {group.high:,})" for group in groups]
    rows = [
        ["words of one piece", *(f"{group.words:,}" for group in groups)],
        ["mean ℓ2 norm", *(_mean(group.norm) for group in groups)],
    ]
    for measure in ("distance", "dot"):
        title = {"distance": "ℓ2 distance", "dot": "dot product"}[measure]
        for k in getattr(groups[0], measure):
            means = (_mean(getattr(group, measure)[k]) for group in groups)
            rows.append([f"mean k-NN {title}, k = {k}", *means])
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


def lexical_page(pairs: Pairs, unit: str, found: Lexical, scores: Mapping[str, Score]) -> Page:
    """How similarities go with edit distance; scores are by model."""
    columns = (found.edit, found.gold, found.short_edit, found.short_gold)
    rows = [[name, *(with_interval(one[name]) for one in columns)] for name in found.edit]
    near = f"≤ {found.short} apart"
    heads = ["similarity", "edit distance", "gold", f"edit, {near}", f"gold, {near}"]
    cut = max(score.cut for score in scores.values())
    facts = {
        "pairs": f"{pairs.task} {pairs.split}: {found.pairs:,} from {pairs.source}; "
        f"{found.short_pairs:,} at most {found.short} {unit} apart",
        "cut": f"{cut:,} distinct texts are longer than the encoder takes",
    }
    notes = [side_of(name, score) for name, score in scores.items()]
    notes.append(
        f"edit distance: Levenshtein over {unit}; negative, since distant pairs are less alike"
    )
    if len(set(pairs.subset)) > 1:
        notes.append("over all pairs together, of whichever subset (all)")
    for name in list(found.edit)[1:]:
        apart = found.difference(name, "gold")
        if apart.value is not None:
            more = "more" if apart.value < 0 else "less"
            sure = "" if apart.real else "; chance is enough to explain it"
            notes.append(
                f"{name} goes with edit distance {more} than gold does: "
                f"{with_interval(apart, signed=True)}{sure}"
            )
    if found.skipped:
        notes.append(f"{found.skipped:,} pairs left out: without gold or without a cosine")
    for name, score in scores.items():
        if skipped := counts(score.skipped):
            notes.append(f"{name}: not scored: {skipped}")
    return Page(facts, [Grid("Spearman × 100, 95 % interval", heads, rows)], notes)


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
