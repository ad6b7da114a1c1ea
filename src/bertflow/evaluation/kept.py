"""What a comparison has finished, kept by content: the same command after a kill goes on there.

A trial's key is a hash of all that its outcome depends on: the values of the rows, the calibrator
with its arguments and seed, the code and the libraries. So whatever has changed is done anew, and
comparisons of other tasks share what they have in common.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np

import bertflow
from bertflow.calibrators.base import Array
from bertflow.data import Pairs
from bertflow.encoders.result_cache import ResultCache
from bertflow.errors import BertflowError
from bertflow.evaluation.methods import METHODS
from bertflow.evaluation.scores import Estimate, Figures, figures, gold_of
from bertflow.evaluation.trials import Judge, Outcome, Trial, run_trial
from bertflow.threads import usual_threads

FORMAT = 1
LENGTH = 16
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")
# Those of bertflow's parts whose code an outcome depends on.
PARTS = ("flows", "calibrators", "data", "evaluation")


def trial_keys(vectors: Array, trials: Iterable[Trial]) -> list[str]:
    """Of each trial, a hash of all that its outcome depends on, as 32 hexadecimal digits.

    Args:
        vectors: Shape (sentences, D).
        trials: Whose rows they are.
    """
    rows = np.ascontiguousarray(vectors)
    marks = np.frombuffer(b"".join(_hash(row.data) for row in rows), dtype=f"S{LENGTH}")

    def of_judge(judge: Judge | None) -> list[Array]:
        return [] if judge is None else [marks[judge.first], marks[judge.second]]

    keys = []
    for trial in trials:
        method = METHODS[trial.method]
        calibrator = None if method.build is None else method.build(rows.shape[1], trial.seed)
        about = {
            "method": method.name,
            "tuned": method.tuned,
            "calibrator": None if calibrator is None else repr(calibrator.get_params(deep=False)),
            "seed": trial.seed,
            "width": rows.shape[1],
            "type": str(rows.dtype),
        }
        parts = [marks[trial.corpus]] if calibrator is not None else []
        parts += [part for judge in trial.tests for part in of_judge(judge)]
        if trial.dev is not None and method.tuned:
            parts += [*of_judge(trial.dev), trial.dev.gold]
            parts += [] if trial.dev_corpus is None else [marks[trial.dev_corpus]]
        keys.append(_key(about, parts))
    return keys


def figures_key(pairs: Pairs, cosines: Array) -> str:
    """A hash of all that the scores of some cosines depend on."""
    about = {"task": pairs.task, "split": pairs.split, "binary": pairs.binary}
    about["subset"] = list(pairs.subset) if pairs.subset else None
    return _key(about, [gold_of(pairs), cosines])


def run_kept(
    number: int, vectors: Array, trial: Trial, results: ResultCache | None, key: str
) -> tuple[int, Outcome, str | None]:
    """Run a trial and keep its outcome.

    Returns:
        The number, the outcome, and why it could not be kept, or None.
    """
    outcome = run_trial(vectors, trial)
    facts = {name: getattr(outcome, name) for name in ("seconds", "bytes", "components")}
    arrays = {f"cosines_{place}": one for place, one in enumerate(outcome.cosines)}
    return number, outcome, _keep(results, key, facts, arrays)


def kept_outcome(results: ResultCache | None, key: str) -> Outcome | None:
    """The outcome of a trial that was finished before, or None."""
    found = None if results is None else results.get(key)
    if found is None:
        return None
    facts, arrays = found
    try:
        return Outcome([arrays[f"cosines_{place}"] for place in range(len(arrays))], **facts)
    except (KeyError, TypeError):
        return None


def score_kept(
    number: int, pairs: Pairs, cosines: Array, results: ResultCache | None, key: str
) -> tuple[int, list[Figures], str | None]:
    """Score the cosines of several models on the same pairs, and keep what comes of it.

    Returns:
        The number, the figures of each model, and why they could not be kept, or None.
    """
    found = figures(pairs, cosines)
    facts: dict[str, Any] = {"models": [_plain(one) for one in found]}
    arrays = {
        f"{model} {name}": drawn
        for model, one in enumerate(found)
        for name, drawn in one.replicates.items()
    }
    return number, found, _keep(results, key, facts, arrays)


def kept_figures(results: ResultCache | None, key: str) -> list[Figures] | None:
    """The figures of cosines that were scored before, or None."""
    found = None if results is None else results.get(key)
    if found is None:
        return None
    facts, arrays = found
    try:
        return [
            Figures(
                measure=one["measure"],
                aggregations=_estimates(one["aggregations"]),
                subsets=_estimates(one["subsets"]),
                scored=one["scored"],
                replicates={name: arrays[f"{model} {name}"] for name in one["drawn"]},
            )
            for model, one in enumerate(facts["models"])
        ]
    except (KeyError, TypeError, AttributeError):
        return None


def _keep(
    results: ResultCache | None, key: str, facts: Mapping[str, Any], arrays: Mapping[str, Array]
) -> str | None:
    if results is not None:
        try:
            results.put(key, facts, arrays)
        except BertflowError as error:  # The work does not depend on it.
            return str(error)
    return None


def _plain(one: Figures) -> dict[str, Any]:
    return {
        "measure": one.measure,
        "aggregations": _as_facts(one.aggregations),
        "subsets": _as_facts(one.subsets),
        "scored": dict(one.scored),
        "drawn": list(one.replicates),
    }


def _as_facts(estimates: Mapping[str, Mapping[str, Estimate]]) -> dict[str, dict[str, Any]]:
    return {
        name: {measure: asdict(estimate) for measure, estimate in found.items()}
        for name, found in estimates.items()
    }


def _estimates(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Estimate]]:
    return {
        name: {measure: Estimate(**estimate) for measure, estimate in found.items()}
        for name, found in facts.items()
    }


def _key(about: Mapping[str, Any], parts: Sequence[Array]) -> str:
    whole = {
        **about,
        "format": FORMAT,
        "shapes": [part.shape for part in parts],
        "bertflow": bertflow.__version__,
        "code": _code(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "threads": usual_threads(),
    }
    digest = hashlib.blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=LENGTH)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def _hash(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=LENGTH).digest()


@cache
def _code() -> str:
    """A hash of the code that outcomes depend on: a version stands for many states of it."""
    sources = [
        (f"{part}/{source.name}", source.read_bytes())
        for part in PARTS
        for source in files(f"bertflow.{part}").iterdir()
        if source.name.endswith(".py")
    ]
    return _hash(repr(sorted(sources)).encode()).hex()
