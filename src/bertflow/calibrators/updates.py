"""What is noted of a calibrator that has learned from more rows, and how far it has moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bertflow.arrays import unit_length
from bertflow.calibrators.base import Calibrator, Vectors
from bertflow.calibrators.reference import sample_of


def note_update(
    calibrator: Calibrator, before: Calibrator, rows: Vectors, about: Mapping[str, Any]
) -> None:
    """Note in the provenance that a calibrator has learned from more rows than before.

    Counts become those of all, lists of files get longer, and "updates" gets what is told about
    these rows, with how far they have moved the map.
    """
    told = dict(getattr(calibrator, "provenance_", {}))
    told |= {key: calibrator.n_samples_ for key in ("sentences", "rows") if key in told}
    # How many are distinct among all is not known.
    for key in ("distinct", "drawn_from"):
        told.pop(key, None)
    for key in ("corpus", "vectors"):
        if key in about:
            told[key] = [*_listed(told.get(key)), *_listed(about[key])]
    if "cut_to_max_length" in told:
        told["cut_to_max_length"] += about.get("cut_to_max_length", 0)
    moved = cosine_change(before, calibrator, rows)
    told["updates"] = [*told.get("updates", []), {**about, "moved": moved}]
    calibrator.provenance_ = told


def cosine_change(before: Calibrator, after: Calibrator, rows: Vectors) -> float | None:
    """By how much the cosine of two rows differs between two calibrators, the median of a sample.

    Neither the order of axes nor their signs matter. Of fewer than two rows it is None.
    """
    if len(rows) < 2:
        return None
    sample = sample_of(rows)
    old, new = (unit_length(one._transform(sample)) for one in (before, after))
    change = (old @ old.T - new @ new.T).abs()
    pairs = torch.triu_indices(len(sample), len(sample), offset=1)
    return float(change[pairs[0], pairs[1]].median())


def _listed(names: Any) -> list[Any]:
    return list(names) if isinstance(names, list | tuple) else [] if names is None else [names]
