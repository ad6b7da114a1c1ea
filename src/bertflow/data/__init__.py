"""Files and the hub to sentences and pairs."""

from bertflow.data.catalog import CATALOG, STS_TASKS, TASKS
from bertflow.data.collection import Collection, read_collection
from bertflow.data.pairs import (
    DATA_VARIABLE,
    NLI_LABELS,
    LabelledTexts,
    NliPairs,
    Pairs,
    read_labelled,
    read_pairs,
    sample_pairs,
    sample_sentences,
    sample_texts,
)
from bertflow.data.readers import read_nli, read_sentences, read_task
from bertflow.data.sources import checked_corpus, read_corpus, stream_corpus

__all__ = [
    "CATALOG",
    "DATA_VARIABLE",
    "NLI_LABELS",
    "STS_TASKS",
    "TASKS",
    "Collection",
    "LabelledTexts",
    "NliPairs",
    "Pairs",
    "checked_corpus",
    "read_collection",
    "read_corpus",
    "read_labelled",
    "read_nli",
    "read_pairs",
    "read_sentences",
    "read_task",
    "sample_pairs",
    "sample_sentences",
    "sample_texts",
    "stream_corpus",
]
