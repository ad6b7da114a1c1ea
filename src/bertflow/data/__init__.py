"""Files and the hub to sentences and pairs."""

from bertflow.data.catalog import (
    CATALOG,
    STS_TASKS,
    TASKS,
    DataSet,
    HubSource,
    Layout,
    find_data_set,
)
from bertflow.data.pairs import (
    DATA_VARIABLE,
    NLI_LABELS,
    NliPairs,
    Pairs,
    read_pairs,
    sample_pairs,
    sample_sentences,
    sample_texts,
)
from bertflow.data.readers import (
    Texts,
    nli_splits,
    read_nli,
    read_sentences,
    read_task,
    read_texts,
)
from bertflow.data.sources import checked_corpus, read_corpus, stream_corpus

__all__ = [
    "CATALOG",
    "DATA_VARIABLE",
    "NLI_LABELS",
    "STS_TASKS",
    "TASKS",
    "DataSet",
    "HubSource",
    "Layout",
    "NliPairs",
    "Pairs",
    "Texts",
    "checked_corpus",
    "find_data_set",
    "nli_splits",
    "read_corpus",
    "read_nli",
    "read_pairs",
    "read_sentences",
    "read_task",
    "read_texts",
    "sample_pairs",
    "sample_sentences",
    "sample_texts",
    "stream_corpus",
]
