"""Collections to search in: documents, queries, and which documents are relevant to which."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertflow.data.pairs import counted, score, text_of
from bertflow.data.tables import PACKED, listed, name_of, read_lines, read_objects
from bertflow.errors import InputError, shown, unknown
from bertflow.io.reading import path_of

log = logging.getLogger(__name__)

LAYOUT = "corpus.jsonl, queries.jsonl and qrels/*.tsv, as BEIR has them"


@dataclass(frozen=True)
class Collection:
    """Documents, each behind its title, and the queries that have relevant ones among them.

    Attributes:
        relevant: For each query, grades above 0 by the document's number in `documents`.
        source: The file of the qrels.
        skipped: What is in none of these, counted by reason.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    relevant: Sequence[Mapping[int, float]]
    source: str
    skipped: Mapping[str, int]


def read_collection(folder: str | Path, *, split: str | None = None) -> Collection:
    r"""Read documents, queries and qrels in the layout of BEIR; qrels may be TREC's, too.

    corpus.jsonl has objects with _id, text and perhaps title, queries.jsonl with _id and text.
    Qrels lie in the folder qrels, or beside it in a file whose name begins so. A line has the ids
    of query and document and a grade between tabs, perhaps after a header; or as in TREC topic,
    iteration, document and grade. A document is relevant if its grade is above 0. Each file may be
    packed (.gz, .bz2, .xz, .zst). A judgement of a query or document that is not there is skipped,
    so recall is of the documents that are there.

    Args:
        folder: The folder.
        split: The name of the file of qrels without its ending; None takes "test", else the only
            one.

    Raises:
        InputError: A file is missing or not readable, a line is malformed, an _id is there twice or
            a document is judged twice with different grades (named by line), it is open which
            qrels are meant, or no query has a relevant document.

    Source: the layout is that of BEIR (Thakur et al. 2021, arXiv 2104.08663).

    Example:
        >>> from tempfile import mkdtemp
        >>> folder = Path(mkdtemp())
        >>> _ = (folder / "corpus.jsonl").write_text('{"_id": "d", "title": "", "text": "Cats"}')
        >>> _ = (folder / "queries.jsonl").write_text('{"_id": "q", "text": "What purrs?"}')
        >>> _ = (folder / "qrels.txt").write_text("q 0 d 2\n")
        >>> found = read_collection(folder)
        >>> found.documents, found.relevant
        (['Cats'], [{0: 2.0}])
    """
    folder = path_of(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; expected one with {LAYOUT}")
    qrels = _qrels(folder, split)
    skipped: Counter[str] = Counter()
    documents = _texts(folder, "corpus", "document", ("title", "text"), skipped)
    queries = _texts(folder, "queries", "query", ("text",), skipped)
    numbers = {name: number for number, name in enumerate(documents)}
    grades: dict[str, dict[int, float]] = {}
    for place, query, document, grade in _judgements(qrels):
        if query not in queries:
            skipped["judgements of a query that is unknown or has no text"] += 1
            continue
        judged = grades.setdefault(query, {})
        if document not in numbers:
            skipped["judgements of a document that is unknown or has no text"] += 1
        elif judged.setdefault(numbers[document], grade) != grade:
            raise InputError(
                f"{place}: document {shown(document)} has another grade for query {shown(query)} "
                "in a line before; keep one of the two"
            )
    relevant = {
        query: {document: grade for document, grade in those.items() if grade > 0}
        for query, those in grades.items()
    }
    kept = [query for query in queries if relevant.get(query)]
    skipped["queries that the qrels do not name"] = len(queries) - len(grades)
    skipped["queries without a relevant document"] = len(grades) - len(kept)
    left_out = {reason: count for reason, count in skipped.items() if count}
    if not kept:
        raise InputError(
            f"{qrels} gives no query a relevant document; expected the ids of queries.jsonl and "
            f"corpus.jsonl, and grades above 0{counted(left_out)}"
        )
    log.info("%s: %d queries, %d documents", qrels, len(kept), len(documents))
    return Collection(
        queries=[queries[query] for query in kept],
        documents=list(documents.values()),
        relevant=[relevant[query] for query in kept],
        source=str(qrels),
        skipped=left_out,
    )


def _qrels(folder: Path, split: str | None) -> Path:
    paths = sorted([*folder.glob("qrels*"), *folder.glob("qrels/*")])
    files = {name_of(path): path for path in paths if path.is_file() and path.name[0] != "."}
    if not files:
        raise InputError(f"{folder} has no qrels; expected {LAYOUT}, or qrels.txt as TREC has it")
    if split is None:
        split = "test" if "test" in files else next(iter(files))
        if len(files) > 1 and split != "test":
            raise InputError(
                f"{folder} has several qrels ({listed(files)}); name one by split, such as "
                f"split={split!r}"
            )
    if split not in files:
        raise unknown(f"split of {folder}", str(split), files)
    return files[split]


def _texts(
    folder: Path, name: str, what: str, fields: Sequence[str], skipped: Counter[str]
) -> dict[str, str]:
    """The texts of a file of objects by their _id; those without text are counted."""
    paths = [folder / f"{name}.jsonl{packing}" for packing in ("", *PACKED)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise InputError(f"{folder} has no {name}.jsonl; expected {LAYOUT}")
    texts: dict[str, str] = {}
    for _, place, row in read_objects(path, "expected an object a line"):
        if not isinstance(row, dict) or not {"_id", "text"} <= row.keys():
            said = f"an object with {listed(row)}" if isinstance(row, dict) else shown(row)
            raise InputError(f"{place}: got {said}; expected an object with '_id' and 'text'")
        known = row["_id"]
        identity = str(known).strip() if type(known) in (str, int) else ""
        if not identity:
            raise InputError(f"{place}: _id {shown(known)} is neither text nor a whole number")
        if identity in texts:
            raise InputError(f"{place}: _id {shown(identity)} is there twice; make each one unique")
        texts[identity] = " ".join(text_of(row.get(field), place) for field in fields).strip()
    kept = {identity: text for identity, text in texts.items() if text}
    if not kept:
        raise InputError(f"{path} holds no {what} with text; expected {LAYOUT}")
    skipped[f"{what} without text"] = len(texts) - len(kept)
    return kept


def _judgements(path: Path) -> Iterator[tuple[str, str, str, float]]:
    """Place, query, document and grade of every line."""
    for number, line in read_lines(path):
        place = f"{path}, line {number}"
        cells = [cell.strip() for cell in line.strip().split("\t")]
        if len(cells) not in (3, 4):  # Ids may hold spaces where there are tabs.
            cells = line.split()
        fits = len(cells) in (3, 4)
        header = fits and number == 1 and not any(map(str.isdigit, cells[-1]))
        if not cells or header:
            continue
        grade = score(cells[-1], place) if fits else None
        if grade is None:
            raise InputError(
                f"{place}: got {shown(line)}; expected query-id, corpus-id and score between tabs, "
                "or TREC's topic, iteration, document and relevance"
            )
        yield place, cells[0], cells[-2], grade
