"""The whole paper: tables by name, computed as far as they are not yet, and read from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertflow.errors import InputError, MissingDataError
from bertflow.paper.analyses import Scatter, lexical_table, scatter, sweep_table, words_table
from bertflow.paper.jobs import Job
from bertflow.paper.names import NAMES
from bertflow.paper.planning import Plan, Planner
from bertflow.paper.results import TableResult
from bertflow.paper.running import run_jobs
from bertflow.paper.score_tables import score_table
from bertflow.paper.subjects import Subject
from bertflow.paper.tables import SCORE_TABLES
from bertflow.paper.workplace import Progress, Workplace

FIGURE = "figure2"
WORDS = "table1"
LEXICAL = "table6"
SWEEP = "table7"


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
    absent: Mapping[str, str]
    ran: int


def reproduce(
    names: Sequence[str],
    subjects: Sequence[Subject],
    planner: Planner,
    place: Workplace,
    *,
    progress: Progress | None = None,
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

    Returns:
        The tables. One whose data are nowhere is absent, with the reason.

    Raises:
        InputError: A name is unknown, no encoder is given, two have the same label, or one is a
            file of word vectors.
        MissingDataError: None of the tables can be had; the message is the first one's reason.
        MissingDependencyError: A package is lacking; the message is the pip line.

    Source:
        Paper, Tables 1 to 8 and Figure 2.

    Example:
        ``reproduce(["table2"], [identify("bert-base-uncased")], Planner(Material("data"),
        Options()), Workplace(folder=Path("runs")))``
    """
    if unknown := [name for name in names if name not in (*NAMES, "all")]:
        raise InputError(f"unknown table {unknown[0]!r}; expected some of {', '.join(NAMES)}, all")
    if not subjects:
        raise InputError("no encoder is given")
    labels = [subject.label for subject in subjects]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"two encoders are called {twice[0]}; give a copy under another name")
    if words := [subject.name for subject in subjects if subject.words]:
        raise InputError(f"{words[0]} is a file of word vectors, not an encoder")
    wanted = [name for name in NAMES if name in names or "all" in names]
    plans: dict[str, list[Plan]] = {}
    absent: dict[str, str] = {}
    jobs: list[Job] = []
    for name in wanted:
        if name == WORDS:
            jobs += [planner.words_job(subject) for subject in subjects]
            continue
        table = SCORE_TABLES[LEXICAL if name == FIGURE else name]
        planned = [
            planner.plan(table, subject, first=not place_of)
            for place_of, subject in enumerate(subjects)
        ]
        found = [job for plan in planned for cell in plan.cells.values() for job in cell.jobs]
        if not found:
            reasons = [cell.reason for plan in planned for cell in plan.cells.values()]
            absent[name] = next(
                one for one in reasons if one is not None and not one.startswith("as published")
            )
            continue
        plans[name] = planned
        jobs += found
        # Their accuracy stands beside the table.
        jobs += [job.encoding.tuning for job in found if job.encoding.tuning is not None]
    if absent and not jobs:
        raise MissingDataError(next(iter(absent.values())))
    ran = run_jobs(jobs, planner, place, progress=progress)
    records = place.records
    tables: dict[str, TableResult] = {}
    scatters: list[Scatter] = []
    for name in wanted:
        if name == WORDS:
            tables[name] = words_table([planner.words_job(s) for s in subjects], records)
        elif name in (LEXICAL, FIGURE) and name in plans:
            pairs = planner.material.pairs("stsb", "dev")
            seen = [scatter(plan, pairs, records) for plan in plans[name]]
            if name == FIGURE:
                scatters = seen
            else:
                tables[name] = lexical_table(
                    seen, [subject.size if subject.papers else None for subject in subjects]
                )
        elif name in plans:
            make = sweep_table if name == SWEEP else score_table
            tables[name] = make(plans[name], records)
    return Reproduction(tables=tables, scatters=scatters, absent=absent, ran=ran)
