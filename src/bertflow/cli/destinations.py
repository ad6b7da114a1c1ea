"""Where a command writes: outputs that are impossible or would cost the input are refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bertflow.errors import InputError, ModelError
from bertflow.io.files import check_apart, check_replaceable, check_writable, is_within

STDOUT = 1
Given = str | Path | Sequence[str | Path] | None
# Our results may lie in a folder of data: its readers do not look at these.
RESULTS = (".json", ".md", ".html", ".htm", ".svg", ".png", ".pdf")


def is_output(path: Path | None) -> bool:
    """Whether a result goes to standard output: by -, or by a name of it such as /dev/stdout."""
    if path is None:
        return False
    if str(path) == "-":
        return True
    with suppress(OSError, ValueError):
        return path.exists() and os.path.samestat(path.stat(), os.fstat(STDOUT))
    return False


def check_results(
    outputs: Mapping[str, Path | None],
    reads: Mapping[str, Given] | None = None,
    *,
    data: Path | None = None,
) -> None:
    """Refuse files of results, which may be standard output, as `check_files` does.

    Raises:
        InputError: As there; or standard output is closed, or asked for by two.
        ModelError: As there.
    """
    shown = [name for name, path in outputs.items() if is_output(path)]
    if shown and sys.__stdout__ is None:
        raise InputError(f"{shown[0]} is standard output, which is closed; give a file")
    if len(shown) > 1:
        raise InputError(f"{' and '.join(shown)} are both standard output; give a file for one")
    check_files(
        {name: path for name, path in outputs.items() if name not in shown}, reads, data=data
    )


def check_files(
    outputs: Mapping[str, Path | None],
    reads: Mapping[str, Given] | None = None,
    *,
    data: Path | None = None,
    rows: bool = False,
) -> None:
    """Refuse files that cannot be written, or are what is read, before any work is done for them.

    Args:
        outputs: Files by their options; None is none.
        reads: What is read, by option: models, files, corpora.
        data: Folder of the data; None takes the environment variable BERTFLOW_DATA.
        rows: Whether they are written row by row.

    Raises:
        InputError: Two are the same, or one is what is read.
        ModelError: One cannot be written.
    """
    from bertflow.data import DATA_VARIABLE

    given = {name: path for name, path in outputs.items() if path is not None}
    for path in given.values():
        check_writable(path, rows=rows)
    if not given:
        return
    check_apart(given, _listed(reads or {}))
    folder = data or os.environ.get(DATA_VARIABLE)
    for name, path in given.items():
        result = not path.is_file() or path.name.lower().endswith(RESULTS)
        if folder and not result and is_within(path, Path(folder)):
            raise InputError(
                f"{name} {path} is in the folder of the data ({folder}); give another, or it would "
                "be lost"
            )


def check_folder(output: Path, reads: Mapping[str, Given] | None = None) -> None:
    """Refuse --output that cannot be replaced, or is, holds or lies in what is read.

    Raises:
        InputError: It is what is read.
        ModelError: It holds what bertflow did not write, or cannot be written.
    """
    check_folder_apart(output, reads or {})
    check_replaceable(output)


def check_folder_apart(output: Path, reads: Mapping[str, Given]) -> None:
    """Refuse a folder to write that is, holds or lies in what is read.

    Raises:
        InputError: It is.
        ModelError: It is standard output.
    """
    if str(output) == "-":
        raise ModelError("cannot write -: it stands for standard output; give a folder")
    check_apart({"--output": output}, _listed(reads))


def _listed(reads: Mapping[str, Given]) -> Iterator[tuple[str, str | Path]]:
    """What is read on this machine, one by one; patterns and folders of text as their files."""
    for name, given in reads.items():
        if given is None:
            continue
        if isinstance(given, str | Path):
            yield name, given
            continue
        for source in given:
            yield from ((name, path) for path in _files_of(source))


def _files_of(source: str | Path) -> Iterator[str | Path]:
    from bertflow.data.sources import HUB, STANDARD_INPUT, located

    text = str(source)
    if text == STANDARD_INPUT or text.startswith(HUB) or "://" in text:
        return
    try:
        yield from map(str, located([source]))
    except InputError:  # Said by the reader, in its turn, unless --format says what it is.
        yield text
