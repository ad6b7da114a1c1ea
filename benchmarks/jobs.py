"""Which calibrator helps which job: search, classes and clusters, duplicates.

Calibrators are fitted on the texts of the job, without labels. Vectors are kept in the user's
cache, so the first run takes the longest. Needs BERTFLOW_DATA or ../shared/data, and both packaged
encoders.

    python -m benchmarks.jobs search
    python -m benchmarks.jobs classes
    python -m benchmarks.jobs duplicates
    python -m benchmarks.jobs queries

The last one fits on QNLI's sentences and ever more questions, and searches by other questions.
Marks: + and - are more than chance against the encoder as it is (paired bootstrap, Holm over the
calibrators, p below 0.05), = cannot be told.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.classes import sources
from benchmarks.measuring import DATA, minilm, table_line, versions
from bertflow import SentenceCache, load_encoder
from bertflow.data import Collection, Pairs, read_nli, read_task
from bertflow.demo import default_encoder
from bertflow.evaluation import DuplicatesJob, LabelsJob, RetrievalJob, read_retrieval
from bertflow.evaluation.jobs import Comparison, Job, compare_job, default_methods

FITTED_QUERIES = (0, 10, 30, 100, 300, 1351)
METHODS = ("adaptive-whitening", "standardization", "whitening", "all-but-the-top")
STATES = {"state 1": "layers:1", "state 6": "layers:6", "last two": "last2avg"}
PRECISE = "chosen precision"


def encoders(max_length: int) -> dict[str, Callable[[], SentenceTransformer]]:
    """By the name of a column."""
    raw = partial(load_encoder, default_encoder(None)[0], max_length=max_length)
    return {
        "all-MiniLM-L6-v2": lambda: load_encoder(minilm(), max_length=max_length),
        **{f"SmolLM2 {name}": partial(raw, pooling=pooling) for name, pooling in STATES.items()},
    }


def search() -> Iterator[tuple[str, Job]]:
    """Questions to sentences of Wikipedia, questions to abstracts, statements to captions."""
    qnli = read_task("qnli", DATA)
    yield "QNLI dev", _gathered(qnli.first, qnli.second, [gold == 1 for gold in qnli.gold])
    yield "Cranfield", read_retrieval(DATA / "ir/cranfield")
    snli = read_nli("snli", DATA, "test")
    entailed = [label == "entailment" for label in snli.labels]
    yield "SNLI captions", _gathered(snli.second, snli.first, entailed)


def _gathered(queries: Sequence[str], texts: Sequence[str], relevant: Sequence[bool]) -> Job:
    documents = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    grades: dict[str, dict[int, float]] = {}
    for query, text, is_relevant in zip(queries, texts, relevant, strict=True):
        if is_relevant:
            grades.setdefault(query, {})[documents[text]] = 1.0
    return RetrievalJob(Collection([*grades], [*documents], [*grades.values()], "", {}))


def classes() -> Iterator[tuple[str, Job]]:
    """Sentences by their kind; k-means finds as many clusters."""
    yield "kinds of sentences in STS12 to STS16", LabelsJob(sources())


def duplicates() -> Iterator[tuple[str, Job]]:
    """Entailment against all else."""
    rows: list[dict[str, str]] = []
    for name in ("trial", "train", "test_annotated"):
        path = DATA / f"senteval/SICK/SICK_{name}.txt"
        with path.open(encoding="utf-8", newline="") as file:
            rows += csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    first, second, gold = zip(
        *((r["sentence_A"], r["sentence_B"], r["entailment_judgment"].lower()) for r in rows),
        strict=True,
    )
    yield "SICK", _entailed("SICK", first, second, gold)
    snli = read_nli("snli", DATA, "test")
    yield "SNLI test", _entailed("SNLI", snli.first, snli.second, snli.labels)


def _entailed(name: str, first: Sequence[str], second: Sequence[str], gold: Sequence[str]) -> Job:
    same = [float(label == "entailment") for label in gold]
    return DuplicatesJob(Pairs(name, "all", first, second, same, name, binary=True))


JOBS: dict[str, Callable[[], Iterator[tuple[str, Job]]]] = {
    "search": search,
    "classes": classes,
    "duplicates": duplicates,
}
SHOWN = {
    "search": ("ndcg@10",),
    "classes": ("accuracy", "k-nn accuracy", "v-measure"),
    "duplicates": ("average precision", "best f1"),
}


def print_measures(kind: str, columns: dict[str, Comparison]) -> None:
    """A row a calibrator, a column an encoder."""
    print(f"\n{' / '.join(SHOWN[kind])}, × 100\n")
    print(table_line(["calibrator", *columns]))
    print("|---|" + "---:|" * len(columns))
    for method in next(iter(columns.values())).entries:
        cells = [
            " / ".join(_marked(found, method, measure) for measure in SHOWN[kind])
            for found in columns.values()
        ]
        print(table_line([method, *cells]), flush=True)


def _marked(found: Comparison, method: str, measure: str) -> str:
    value = found.entries[method].overall(measure).value
    shown = "undefined" if value is None else f"{100 * value:.1f}"
    if method == "none":
        return shown
    lead = found.against("none", measure)[method]
    return f"{shown} {'=' if not lead.real else '+' if (lead.value or 0) > 0 else '-'}"


def print_few_labels(columns: dict[str, Comparison]) -> None:
    """Accuracy with few labels a class: of logistic regression, and of k-NN."""
    print("\nlogistic regression / k-nn, accuracy × 100 with few labels a class\n")
    print(table_line(["labels", "calibrator", *columns]))
    print("|---:|---|" + "---:|" * len(columns))
    for place, known in enumerate(next(iter(columns.values())).facts["none"]["few labels"]):
        for method in next(iter(columns.values())).entries:
            points = [found.facts[method]["few labels"][place] for found in columns.values()]
            cells = [
                f"{100 * one['logistic regression']:.1f} / {100 * one['k-nn']:.1f}"
                for one in points
            ]
            print(table_line([known["labels"], method, *cells]))


def print_thresholds(columns: dict[str, Comparison]) -> None:
    """What thresholds do on all pairs, and on the half that they were not chosen on."""
    print("\nthresholds with the best F1, and with precision 0.95 (precision / recall)\n")
    head = ["best F1 from", "F1", "F1 held out", "0.95 from", "all pairs", "held out"]
    print(table_line(["encoder", "calibrator", *head]))
    print("|---|---|" + "---:|" * len(head))
    for encoder, found in columns.items():
        for method in list(found.entries)[:2]:
            facts = found.facts[method]
            best, precise, other = (facts[name] for name in ("best f1", PRECISE, "held out"))
            cells = [_shown(best, "threshold"), _shown(best, "f1"), _shown(other["best f1"], "f1")]
            cells.append(_shown(precise, "threshold"))
            for cut in (precise, other[PRECISE]):
                cells.append(_shown(cut, "precision", "recall"))
            print(table_line([encoder, method, *cells]))


def _shown(cut: dict[str, Any], *names: str) -> str:
    values = [cut.get(name) for name in names]
    return " / ".join("none" if value is None else f"{value:.2f}" for value in values)


def print_queries(how: dict[str, Any]) -> None:
    """The calibrator for search, fitted on documents and some queries, judged by other queries."""
    _, job = next(search())
    assert isinstance(job, RetrievalJob)
    found, half = job.collection, len(job.collection.queries) // 2
    judged = replace(found, queries=found.queries[half:], relevant=found.relevant[half:])
    # Questions about a paragraph follow each other, so those to fit on are drawn.
    fitted = np.random.default_rng(0).permutation(found.queries[:half]).tolist()
    columns = encoders(256)
    print(f"\nQNLI dev, ndcg@10 of {len(judged.queries):,} other queries, × 100\n")
    print(table_line(["queries to fit on", *columns]))
    print("|---:|" + "---:|" * len(columns))
    rows: dict[str, list[str]] = {}
    for load in columns.values():
        encoder = load()
        for count in FITTED_QUERIES:
            result = compare_job(
                encoder,
                RetrievalJob(judged),
                methods=["none", "search-whitening"],
                corpus=found.documents,
                queries=fitted[:count] or None,
                **how,
            )
            values = [one.overall("ndcg@10").value for one in result.entries.values()][:2]
            names = ("not calibrated", f"{count:,}")
            for name, value in list(zip(names, values, strict=True))[min(count, 1) :]:
                rows.setdefault(name, []).append(f"{100 * (value or 0):.1f}")
    for name, cells in rows.items():
        print(table_line([name, *cells]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=[*JOBS, "queries"])
    parser.add_argument("--only", default="", help="encoders with this in their names")
    parser.add_argument("--binary", action="store_true", help="grades of relevance count as 1")
    parser.add_argument("--json", type=Path, help="also write all that was found to this file")
    given = parser.parse_args()
    # Sentences are encoded as benchmarks.classes does, so that it finds their vectors in the cache.
    length, precision = (64, "float32") if given.job == "classes" else (256, "auto")
    how: dict[str, Any] = {"precision": precision, "cache": SentenceCache(), "jobs": 1}
    kept = {}
    if given.job == "queries":
        print_queries(how)
    for name, job in JOBS[given.job]() if given.job in JOBS else ():
        if given.binary and isinstance(job, RetrievalJob):
            relevant = [dict.fromkeys(grades, 1.0) for grades in job.collection.relevant]
            job = RetrievalJob(replace(job.collection, relevant=relevant))
        # None and what `calibrate` takes for the job come first.
        methods = [*dict.fromkeys([*default_methods(job.kind)[:2], *METHODS])]
        columns = {
            encoder: compare_job(load(), job, methods=methods, **how)
            for encoder, load in encoders(length).items()
            if given.only in encoder
        }
        print(
            f"\n**{name}**: {', '.join(f'{count:,} {what}' for what, count in job.counts.items())}"
        )
        print_measures(given.job, columns)
        if given.job == "classes":
            print_few_labels(columns)
        if given.job == "duplicates":
            print_thresholds(columns)
        kept[name] = {encoder: found.to_dict() for encoder, found in columns.items()}
    if given.json:
        given.json.write_text(json.dumps(kept), encoding="utf-8")
    print(f"\n{versions()}")


if __name__ == "__main__":
    main()
