"""The cache of sentence vectors: what commands use of it, and the command that shows and clears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bertflow.cli.opening import show

if TYPE_CHECKING:
    from bertflow.encoders import Precision, SentenceCache


def users_cache(no_cache: bool) -> SentenceCache | None:
    """The cache that a command uses.

    Raises:
        InputError: The environment asks for a size that is none.
    """
    from bertflow.encoders import SentenceCache

    return None if no_cache else SentenceCache()


def as_precision(name: str) -> Precision:
    """What was given for --precision.

    Raises:
        InputError: It is none of the choices.
    """
    from bertflow.encoders.encoding import check_precision

    return check_precision(name)


def found_in(cache: SentenceCache | None) -> str:
    """How many sentences were in the cache, as part of a list; nothing if none were."""
    return f"{cache}, " if cache is not None and cache.found else ""


def tell_found(cache: SentenceCache | None) -> None:
    """Say on standard error, if that is a terminal, how many sentences were in the cache."""
    from rich.console import Console

    terminal = Console(stderr=True, highlight=False)
    if cache is not None and cache.found and terminal.is_terminal:
        terminal.print(f"{cache.found + cache.encoded:,} sentences, {cache}")


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove what bertflow has written there.")
    ] = False,
) -> None:
    """Show or clear the cache of sentence vectors and of what was read of .gguf files.

    It lies in $BERTFLOW_CACHE, else bertflow/ in $XDG_CACHE_HOME or ~/.cache, and holds
    $BERTFLOW_CACHE_SIZE (10GB) at most: what was used least recently goes first, and what compare
    has finished has a small part of it.
    """
    from bertflow.encoders import SentenceCache

    found = SentenceCache()
    before = found.contents()
    encoders = [one for one in before if not one.gguf]
    results, room = len(found.results.keys()), found.results.bytes()
    if clear:
        left = found.clear()
        freed = sum(one.bytes for one in before) - sum(one.bytes for one in left)
        freed += room - found.results.bytes()
        gone = len(encoders) - sum(not one.gguf for one in left)
        show(f"removed {gone:,} encoders, {freed / 1e6:,.1f} MB")
        if left:
            show(f"{len(left):,} are in use, or hold what bertflow did not write: {found.folder}")
        return
    show(
        f"{found.folder}\n{len(encoders):,} encoders, "
        f"{sum(one.sentences for one in before):,} sentences, "
        f"{(sum(one.bytes for one in before) + room) / 1e6:,.1f} MB of at most "
        f"{found.size / 1e6:,.0f} MB"
    )
    if read := [one.bytes for one in before if one.gguf]:
        show(f"{len(read):,} .gguf files as they were read, {sum(read) / 1e6:,.1f} MB of that")
    if results:
        show(f"{results:,} fits and scores of comparisons, {room / 1e6:,.1f} MB of that")
