"""The whole paper: tables by name, computed as far as they are not yet, and read from records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from bertflow.encoders import library_versions
from bertflow.errors import (
    BertflowError,
    InputError,
    MissingDataError,
    MissingDependencyError,
    unknown,
)
from bertflow.paper import NAMES
from bertflow.paper.analyses import Scatter, lexical_table, scatter, sweep_table, words_table
from bertflow.paper.declared import SCORE_TABLES
from bertflow.paper.plan import Job, Plan, Planner
from bertflow.paper.results import TableResult
from bertflow.paper.run import Progress, Workplace, run_jobs
from bertflow.paper.score_tables import score_table
from bertflow.paper.subjects import Subject

FIGURE = "figure2"
WORDS = "table1"
LEXICAL = "table6"
SWEEP = "table7"
TUNED = ("table3", "table4", "table8")
# By package, the extra that brings it, and the tables that need it.
PACKAGES = {
    "wordfreq": ("words", (WORDS,)),
    "rapidfuzz": ("words", (LEXICAL, FIGURE)),
    "matplotlib": ("report", (FIGURE,)),
    "accelerate": ("train", TUNED),
    "datasets": ("train", TUNED),
}


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What came of it.

    Attributes:
        tables: By name, in the order they were asked for.
        scatters: What Figure 2 shows, one an encoder, if it was asked for.
        absent: Why a table is not there, by name.
        ran: How many jobs had no record yet.
    """

    tables: Mapping[str, TableResult]
    scatters: Sequence[Scatter]
    absent: Mapping[str, BertflowError]
    ran: int


def reproduce(
    names: Sequence[str],
    subjects: Sequence[Subject],
    planner: Planner,
    place: Workplace,
    *,
    progress: Progress | None = None,
    finished: Callable[[TableResult | Sequence[Scatter]], None] | None = None,
) -> Reproduction:
    """Reproduce tables of the paper for encoders.

    Every finished job leaves a record; what has one is not run again, so that a run that was
    stopped goes on where it was.

    Args:
        names: Some of table1 to table8 and figure2; "all" is every one.
        subjects: The encoders, as `identify` gives them.
        planner: Holds the data and what may vary.
        place: Where records, vectors and fine-tuned models lie.
        progress: As in `run_jobs`.
        finished: Called with each table, or what Figure 2 shows, as soon as it is there.

    Returns:
        The tables. One that cannot be had is absent, with the reason.

    Raises:
        InputError: A name is unknown, no encoder is given, two have the same label, or one is a
            file of word vectors.
        BertflowError: None of the tables can be had: the first one's reason.
        MissingDependencyError: A package is lacking; the message is the pip line.

    Source:
        Paper, Tables 1 to 8 and Figure 2.

    Example:
        ``reproduce(["table2"], [identify("bert-base-uncased")], Planner(Material("data"),
        Options()), Workplace(folder=Path("runs")))``
    """
    wanted = _checked(names, subjects)
    tables: dict[str, TableResult] = {}
    scatters: list[Scatter] = []
    absent: dict[str, BertflowError] = {}
    ran = 0
    for name in wanted:
        try:
            plans = _plans(name, subjects, planner)
            jobs = _jobs(name, plans, subjects, planner)
            ran += run_jobs(jobs, planner, place, progress=progress)
            if name == FIGURE:
                scatters = _scatters(plans, planner, place)
            else:
                tables[name] = _table(name, plans, subjects, planner, place)
        except BertflowError as error:
            # What fails one table, such as an encoder with too few blocks, need not the others.
            absent[name] = error
            continue
        # Outside: a table that cannot be handed on, or written, is no table that is absent.
        if finished is not None:
            finished(scatters if name == FIGURE else tables[name])
    if absent and not tables and not scatters:
        raise next(iter(absent.values()))
    return Reproduction(tables=tables, scatters=scatters, absent=absent, ran=ran)


def _checked(names: Sequence[str], subjects: Sequence[Subject]) -> list[str]:
    """The names of the tables in order, once it is sure that nothing is wrong from the start."""
    for name in names:
        if name not in (*NAMES, "all"):
            raise unknown("table", name, (*NAMES, "all"))
    if not subjects:
        raise InputError("no encoder is given")
    labels = [subject.label for subject in subjects]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"two encoders are called {twice[0]}; give a copy under another name")
    if words := [subject.name for subject in subjects if subject.words]:
        raise InputError(f"{words[0]} is a file of word vectors, not an encoder")
    wanted = [name for name in NAMES if name in names or "all" in names]
    for package, (extra, tables) in PACKAGES.items():
        users = [name for name in wanted if name in tables]
        if users and find_spec(package) is None:
            raise MissingDependencyError(
                f"{' and '.join(users)} needs {package}: pip install 'bertflow[{extra}]'"
            )
    return wanted


def _plans(name: str, subjects: Sequence[Subject], planner: Planner) -> list[Plan]:
    if name == WORDS:
        return []
    table = SCORE_TABLES[LEXICAL if name == FIGURE else name]
    # Rows that are there once are about the paper's base encoder, if that is among them.
    base = next((n for n, subject in enumerate(subjects) if subject.size == "base"), 0)
    plans = [
        planner.plan(table, subject, first=place == base) for place, subject in enumerate(subjects)
    ]
    cells = [cell for plan in plans for cell in plan.cells.values()]
    if not any(cell.jobs for cell in cells):
        raise MissingDataError(
            next(cell.reason for cell in cells if cell.reason and not cell.published_only)
        )
    return plans


def _jobs(
    name: str, plans: Sequence[Plan], subjects: Sequence[Subject], planner: Planner
) -> list[Job]:
    if name == WORDS:
        return [planner.words_job(subject) for subject in subjects]
    # A fine-tuned encoder's accuracy stands beside the table.
    jobs: list[Job] = []
    for plan in plans:
        jobs += [*plan.jobs, *plan.tunings.values()]
    return jobs


def _scatters(plans: Sequence[Plan], planner: Planner, place: Workplace) -> list[Scatter]:
    pairs = planner.material.pairs("stsb", "dev")
    return [scatter(plan, pairs, place.records) for plan in plans]


def _table(
    name: str,
    plans: Sequence[Plan],
    subjects: Sequence[Subject],
    planner: Planner,
    place: Workplace,
) -> TableResult:
    if name == WORDS:
        found = words_table([planner.words_job(subject) for subject in subjects], place.records)
    elif name == LEXICAL:
        sizes = [subject.size if subject.papers else None for subject in subjects]
        found = lexical_table(_scatters(plans, planner, place), sizes)
    else:
        found = (sweep_table if name == SWEEP else score_table)(plans, place.records)
    return replace(found, settings=settings(name, plans, subjects, planner))


def settings(
    name: str, plans: Sequence[Plan], subjects: Sequence[Subject], planner: Planner
) -> dict[str, Any]:
    """What a table depends on besides what its rows say, whatever is made beside it."""
    material = planner.material
    cells = [cell for plan in plans for cell in plan.cells.values()]
    fitted = {job.fitting.corpus for plan in plans for job in plan.jobs if job.fitting}
    flow = "paper" if name == SWEEP else planner.options.flow
    return {
        "encoders": {
            one.label: {
                "name": one.name,
                "revision": one.revision,
                "files": None if one.revision else one.digest[:16],
                "pooling": one.pooling or "the paper's",
                "max_length": one.max_length,
            }
            for one in subjects
        },
        # Table 1 has no flow, Table 6 one fit, and Table 7 the paper's.
        "flow": flow if fitted else None,
        "seeds": max((len(cell.jobs) for cell in cells), default=1),
        "limit": material.limit,
        "nli": dict(material.found_nli) if "nli" in fitted else {},
        "versions": library_versions(),
    }
