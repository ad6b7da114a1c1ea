"""Scores of what one set of weights gives: encoded once, every calibrator fitted once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sentence_transformers import SentenceTransformer
from sklearn.base import clone

from bertflow.calibrators import Calibrator
from bertflow.calibrators.base import Array
from bertflow.data import Pairs
from bertflow.encoders import VectorCache, fill, load_poolings, load_word_vectors
from bertflow.errors import ModelError
from bertflow.evaluation import as_json, describe_calibrator, figures
from bertflow.evaluation.scores import gold_of
from bertflow.evaluation.trials import Judge, Outcome, judged
from bertflow.io.files import remove_stale, staged
from bertflow.paper.cuts import note_cuts, noted_cut
from bertflow.paper.jobs import Encoding, Fitting, Score
from bertflow.paper.material import Material
from bertflow.paper.records import Record, Records
from bertflow.paper.workplace import Progress, Steps, Workplace, about_subject

# Rows of a corpus above this many bytes are fitted from a memory-mapped file, not from memory.
IN_MEMORY = 1 << 29
SPREAD_ROWS = 65536


@dataclass(frozen=True)
class _Unit:
    """One fit, or none, and all that is scored on it; rows are rows of the encoding's cache."""

    number: int
    calibrator: Calibrator | None
    rows: Array | None
    tests: Sequence[Judge]
    dev: Judge | None


def score_group(
    group: Sequence[Score],
    material: Material,
    place: Workplace,
    records: Records,
    report: Progress,
    steps: Steps,
) -> None:
    """Score what one set of weights gives, under all its poolings."""
    encodings = {score.encoding.key: score.encoding for score in group}
    caches = {key: _cache(one, place) for key, one in encodings.items()}
    _encode(group, encodings, caches, material, place, report)
    for key, encoding in encodings.items():
        mine = [score for score in group if score.encoding.key == key]
        units: dict[str, list[Score]] = {}
        for score in mine:
            units.setdefault(score.unit, []).append(score)
        batches = list(units.values())
        with _corpora(mine, caches[key], material) as rows:
            plans = [
                _unit(number, batch, caches[key], rows, material)
                for number, batch in enumerate(batches)
            ]
            for number, outcome in _outcomes(caches[key].vectors(), plans, place.processes()):
                for score, cosines in zip(batches[number], outcome.cosines, strict=True):
                    cut = noted_cut(
                        caches[key].folder,
                        cut_name(("pairs", score.task, score.split), material),
                    )
                    _record(score, cosines, outcome, encoding, material, records, cut)
                    steps.one()


def _encode(
    group: Sequence[Score],
    encodings: Mapping[str, Encoding],
    caches: Mapping[str, VectorCache],
    material: Material,
    place: Workplace,
    report: Progress,
) -> None:
    """Encode all sentences that are needed: those that several poolings need in one pass."""
    users: dict[tuple[str, ...], set[str]] = {}
    for score in group:
        for name in _texts_of(score):
            users.setdefault(name, set()).add(score.encoding.key)
    passes: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name, keys in users.items():
        passes.setdefault(tuple(key for key in encodings if key in keys), []).append(name)
    for several, names in passes.items():
        named = {cut_name(name, material): _texts(name, material) for name in names}
        texts = [text for part in named.values() for text in part]
        # Another pooling, where one pass lacks nothing, is not computed again.
        lacking = [key for key in several if caches[key].missing(texts)]

        def load(lacking: list[str] = lacking, named: dict[str, list[str]] = named) -> Any:
            loaded = _load([encodings[key] for key in lacking], place)
            note_cuts(loaded, named, [caches[key].folder for key in lacking])
            return loaded

        fill(
            [caches[key] for key in lacking],
            texts,
            load,
            batch_size=place.batch_size,
            progress=lambda done, total: report("encode", done, total),
        )


def _texts_of(score: Score) -> list[tuple[str, ...]]:
    """Names of the texts that a score needs."""
    names: list[tuple[str, ...]] = [("pairs", score.task, score.split)]
    if score.fitting is not None:
        names.append(("corpus", score.fitting.corpus))
        if score.fitting.dev is not None:
            names.append(("pairs", score.task, "dev"))
    return names


def cut_name(name: tuple[str, ...], material: Material) -> str:
    """What a text is called where it is noted how much of it was cut."""
    return " ".join([*name, *([] if material.limit is None else [f"limit {material.limit}"])])


def _texts(name: tuple[str, ...], material: Material) -> list[str]:
    if name[0] == "corpus":
        return material.corpus(name[1])
    first, second, _ = material.pairs(*name[1:]).graded()
    return [*first, *second]


def _load(encodings: Sequence[Encoding], place: Workplace) -> SentenceTransformer:
    """The encoder of several encodings that differ in their pooling alone."""
    subject, tuning = encodings[0].subject, encodings[0].tuning
    if subject.words:
        return load_word_vectors(subject.name)
    return load_poolings(
        subject.name if tuning is None else place.model(tuning),
        [encoding.pooling for encoding in encodings],
        max_length=subject.max_length,
        revision=subject.revision if tuning is None else None,
        device=place.device,
        trust_remote_code=place.trust_remote_code,
    )


def _cache(encoding: Encoding, place: Workplace) -> VectorCache:
    return VectorCache(place.folder / "vectors" / encoding.key, encoding.recipe())


@contextmanager
def _corpora(
    scores: Sequence[Score], cache: VectorCache, material: Material
) -> Iterator[dict[str, Array]]:
    """By corpus, its rows: numbers of the cache's or, of a large one, a memory-mapped copy.

    Repeats count as often as they occur, so a large corpus is written out with its repeats, to be
    read by all its fits, and removed after them.
    """
    names = {one.fitting.corpus: one.fitting.corpus_digest for one in scores if one.fitting}
    rows: dict[str, Array] = {}
    remove_stale(cache.folder, r"corpus-[0-9a-f]{16}\.f32")
    with ExitStack() as written:
        for name, digest in names.items():
            rows[name] = numbers = cache.rows(material.corpus(name))
            vectors = cache.vectors()
            if len(numbers) * vectors.shape[1] * vectors.itemsize > IN_MEMORY:
                target = cache.folder / f"corpus-{digest[:16]}.f32"
                try:
                    path = written.enter_context(staged(target))
                    rows[name] = _spread(vectors, numbers, path)
                except OSError as error:
                    raise ModelError(f"cannot write {target}: {error.strerror or error}") from None
        try:
            yield rows
        finally:
            rows.clear()  # Before their files go.


def _spread(vectors: Array, numbers: Array, path: Path) -> Array:
    """Write rows to a file, and map it: to fill a map would end the process on a full disk."""
    with path.open("wb") as file:
        for start in range(0, len(numbers), SPREAD_ROWS):
            rows = vectors[numbers[start : start + SPREAD_ROWS]]
            file.write(np.ascontiguousarray(rows, dtype="<f4").data)
    return np.memmap(path, dtype="<f4", mode="r", shape=(len(numbers), vectors.shape[1]))


def _unit(
    number: int,
    batch: Sequence[Score],
    cache: VectorCache,
    rows: Mapping[str, Array],
    material: Material,
) -> _Unit:
    fitting = batch[0].fitting
    tests = [_judge(material.pairs(one.task, one.split), cache) for one in batch]
    if fitting is None:
        return _Unit(number, None, None, tests, None)
    calibrator = clone(fitting.calibrator)
    if "device" in calibrator.get_params():
        # So that several run at a time, and the bits are no device's.
        calibrator.set_params(device="cpu")
    dev = None
    if fitting.dev is not None:
        dev = _judge(material.pairs(batch[0].task, "dev"), cache)
    return _Unit(number, calibrator, rows[fitting.corpus], tests, dev)


def _judge(pairs: Pairs, cache: VectorCache) -> Judge:
    first, second, gold = pairs.graded()
    return Judge(pairs.task, cache.rows(first), cache.rows(second), np.array(gold))


def _outcomes(
    vectors: Array, units: Sequence[_Unit], processes: int
) -> Iterator[tuple[int, Outcome]]:
    """Run the units, and give each outcome as it comes."""
    if processes == 1 or len(units) == 1:
        for unit in units:
            yield _run(vectors, unit)
        return
    workers = Parallel(n_jobs=min(processes, len(units)), return_as="generator_unordered")
    yield from workers(delayed(_run)(vectors, unit) for unit in units)


def _run(vectors: Array, unit: _Unit) -> tuple[int, Outcome]:
    rows = vectors
    if unit.rows is not None:
        rows = vectors[unit.rows] if unit.rows.ndim == 1 else unit.rows
    return unit.number, judged(vectors, rows, unit.calibrator, unit.tests, dev=unit.dev)


def _record(
    score: Score,
    cosines: Array,
    outcome: Outcome,
    encoding: Encoding,
    material: Material,
    records: Records,
    cut: int | None,
) -> None:
    pairs = material.pairs(score.task, score.split)
    full = np.full(len(pairs), np.nan)
    graded = ~np.isnan(gold_of(pairs))
    full[graded] = cosines
    found = figures(pairs, full[None, :])[0]
    fitting = score.fitting
    records.put(
        Record(
            kind=score.kind,
            key=score.key,
            recipe=score.recipe(),
            about={
                **about_subject(encoding.subject),
                "pooling": encoding.pooling,
                "fine_tuned": None
                if encoding.tuning is None
                else {"model": encoding.tuning.key, "seed": encoding.tuning.seed},
                "task": score.task,
                "split": score.split,
                "data": pairs.source,
                "calibrator": None if fitting is None else _described(fitting, outcome),
                "fitted_on": None if fitting is None else fitting.corpus,
                "nli": dict(material.found_nli) if fitting and fitting.corpus == "nli" else None,
                "sentences": None if fitting is None else len(material.corpus(fitting.corpus)),
                "seed": None if fitting is None else fitting.seed,
                "n_components": outcome.components,
            },
            result={
                "measure": found.measure,
                "figures": {
                    aggregation: as_json(measures[found.measure])
                    for aggregation, measures in found.aggregations.items()
                },
                "pairs": len(pairs) + sum(pairs.skipped.values()),
                "cut": cut,
                "scored": dict(found.scored),
                "skipped": {
                    **pairs.skipped,
                    "no gold score": int((~graded).sum()),
                    "no cosine": int(np.isnan(cosines).sum()),
                },
            },
            seconds=outcome.seconds,
        ),
        {"cosines": full, **{f"replicates_{k}": v for k, v in found.replicates.items()}},
    )


def _described(fitting: Fitting, outcome: Outcome) -> dict[str, Any]:
    found = describe_calibrator(fitting.calibrator)
    return found if outcome.components is None else {**found, "n_components": outcome.components}
