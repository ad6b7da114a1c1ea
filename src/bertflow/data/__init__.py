"""Files to sentences and pairs."""

from bertflow.data.corpus import check_corpus, read_corpus
from bertflow.data.pairs import DATA_VARIABLE, Pairs, read_stsb, sample_pairs, sample_sentences

__all__ = [
    "DATA_VARIABLE",
    "Pairs",
    "check_corpus",
    "read_corpus",
    "read_stsb",
    "sample_pairs",
    "sample_sentences",
]
