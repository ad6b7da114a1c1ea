"""What a comparison holds: every method on every task, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

from bertflow.arrays import Array
from bertflow.display import block, facts_table
from bertflow.encoders import library_versions
from bertflow.errors import InputError
from bertflow.evaluation.bootstrap import Difference, holm, paired_difference
from bertflow.evaluation.score_grids import comparison_grids, comparison_title
from bertflow.evaluation.scores import Estimate, as_json, counted, less


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How a method did.

    Attributes:
        method: Its name.
        label: Its name in a table.
        estimates: By aggregation and task, the mean over seeds with its interval: of pairs and,
            where the method has one, of the seed.
        spread: By aggregation and task, the deviation over seeds; 0 where there is one.
        replicates: By aggregation and task, the main measure in each resample.
        components: By task, the n_components chosen on a dev split.
        fit_seconds: Of one seed, all tasks together.
        megabytes: What one fitted calibrator weighs as it is saved.
    """

    method: str
    label: str
    estimates: Mapping[str, Mapping[str, Estimate]]
    spread: Mapping[str, Mapping[str, float]]
    replicates: Mapping[str, Mapping[str, Array]] = field(repr=False, compare=False)
    components: Mapping[str, int]
    fit_seconds: float
    megabytes: float

    def overall(self, aggregation: str) -> Estimate:
        """The mean over the tasks that count (see `Comparison.counted`)."""
        names = counted(list(self.estimates[aggregation]))
        parts = [self.estimates[aggregation][name] for name in names]
        for name, one in zip(names, parts, strict=True):
            if one.value is None:
                return Estimate(None, undefined=f"{name}: {one.undefined}")
        value = float(np.mean([one.value for one in parts]))
        return Estimate.of(value, self.overall_replicates(aggregation))

    def overall_replicates(self, aggregation: str) -> Array:
        """The same in each resample; the pairs of tasks are drawn independently."""
        names = counted(list(self.estimates[aggregation]))
        mean: Array = np.mean([self.replicates[aggregation][name] for name in names], axis=0)
        return mean


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Calibrators side by side on one encoder.

    Attributes:
        entries: By method, in the order given.
        tasks: By task, what it was scored on: split, pairs, scored, skipped, data, measure.
        absent: Why a task is not among them, by task.
        fitted_on: What was fitted on: kind, data sets of a common corpus, and the number of
            sentences by task or "corpus"; rows that were left out by data set and reason.
        dev: Where n_components was chosen, by task; None where none was there: D // 100.
        encoder: As `describe_encoder` gives it.
        seeds: How many.
        sentences: How many distinct sentences were encoded, once.
        cut: How many of these are longer than the encoder takes, and were cut.
        encode_seconds: How long that took.
        seconds: How long all took.
        versions: Versions of the libraries.
        time: When, UTC.
    """

    entries: Mapping[str, Entry]
    tasks: Mapping[str, Mapping[str, Any]]
    absent: Mapping[str, str]
    fitted_on: Mapping[str, Any]
    dev: Mapping[str, str | None]
    encoder: Mapping[str, Any]
    seeds: int
    sentences: int
    cut: int
    encode_seconds: float
    seconds: float
    versions: Mapping[str, str] = field(default_factory=library_versions)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def aggregations(self) -> list[str]:
        """Both "wmean" and "all", or "all" alone where no task has subsets."""
        return list(next(iter(self.entries.values())).estimates)

    @cached_property
    def best(self) -> dict[str, str | None]:
        """By aggregation, the method with the highest overall value."""
        found: dict[str, str | None] = {}
        for aggregation in self.aggregations:
            values = {
                name: one.value
                for name, entry in self.entries.items()
                if (one := entry.overall(aggregation)).value is not None
            }
            found[aggregation] = max(values, key=lambda name: values[name]) if values else None
        return found

    def against(self, reference: str, aggregation: str) -> dict[str, Difference]:
        """How much higher the other methods are than one, corrected for their number (Holm).

        Args:
            reference: A method that was compared.
            aggregation: "wmean" or "all".

        Raises:
            InputError: The method was not compared, or there is no such aggregation.
        """
        if reference not in self.entries or aggregation not in self.aggregations:
            raise InputError(
                f"no {reference!r} under {aggregation!r}; there are {', '.join(self.entries)} "
                f"under {', '.join(self.aggregations)}"
            )
        base = self.entries[reference]
        start = base.overall(aggregation).value
        raw = {}
        for name, entry in self.entries.items():
            if name == reference:
                continue
            raw[name] = paired_difference(
                less(entry.overall(aggregation).value, start),
                base.overall_replicates(aggregation),
                entry.overall_replicates(aggregation),
            )
        corrected = holm(raw)
        return {name: corrected[name] for name in raw}

    def __repr__(self) -> str:
        grids = [grid.text() for grid in comparison_grids(self)]
        return "\n\n".join([f"Comparison of {comparison_title(self)}", *grids])

    def _repr_html_(self) -> str:
        absent = facts_table({"absent": ", ".join(self.absent)}) if self.absent else ""
        grids = [grid.html() for grid in comparison_grids(self)]
        return block(f"Comparison of {comparison_title(self)}", absent, *grids)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        plain = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "entries"
        }
        return {
            **plain,
            "counted": counted(list(self.tasks)),
            "entries": {name: self._entry(name) for name in self.entries},
        }

    def _entry(self, name: str) -> dict[str, Any]:
        entry = self.entries[name]
        differences = {}
        for aggregation in self.aggregations:
            for reference in dict.fromkeys(["none", self.best[aggregation] or "none"]):
                if reference in self.entries and reference != name:
                    one = self.against(reference, aggregation)[name]
                    differences[f"{aggregation}, against {reference}"] = one.to_dict()
        return {
            "label": entry.label,
            "tasks": {
                aggregation: {
                    task: {**as_json(one), "seed_deviation": entry.spread[aggregation][task]}
                    for task, one in tasks.items()
                }
                for aggregation, tasks in entry.estimates.items()
            },
            "overall": {name: as_json(entry.overall(name)) for name in self.aggregations},
            "differences": differences,
            "components": dict(entry.components),
            "fit_seconds": entry.fit_seconds,
            "megabytes": entry.megabytes,
        }
