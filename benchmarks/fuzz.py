"""Feed every reader of files with damaged and made-up input: no traceback, no hang, bounded memory.

    python -m benchmarks.fuzz [--inputs 100000] [--seed 0] [--only NAME] [--failures DIR]

An input is a reader's whole files with one of them damaged, or replaced by what a grammar made up.
Of each the reader must make a value or one of bertflow's errors: one line, naming a file. Nothing
may be printed or warned of. Prints a table, a line as each reader is through; what fails lies in
DIR, and the exit code is 1. The same seed gives the same inputs, whichever readers are asked for.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO

from benchmarks.fuzz_readers import Reader, readers
from benchmarks.mutations import GRAMMARS, mutated
from bertflow.errors import BertflowError

# Of the processor's time, so that other work on the machine does not count; and a hang that waits.
SECONDS, WAITED = 5.0, 120.0
# Above what the process has mapped when it begins, and what the largest read may take of it.
MEMORY = 2**31
# Of those with one cause as many are kept.
KEPT = 1
MADE_UP = 0.15


class OverdueError(BaseException):
    """An input takes too long; no reader may catch it."""


@dataclass
class Tally:
    """What came of one reader's inputs.

    Attributes:
        inputs: How many there were.
        accepted: Those that gave a value.
        refused: Those that gave one of bertflow's errors.
        seconds: All together, of the processor's time.
        slowest: The longest one.
        peak: By how many bytes the process grew above what it had held before.
        failures: What must not be, by cause.
    """

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0
    failures: Counter[str] = field(default_factory=Counter)


def fuzz(
    readers: Sequence[Reader],
    inputs: int,
    seed: int = 0,
    failures: Path | None = None,
    *,
    told: Callable[[str, Tally], None] = lambda name, tally: None,
) -> dict[str, Tally]:
    """Feed readers.

    Args:
        readers: Which.
        inputs: How many inputs they share by their `share`.
        seed: Of all choices.
        failures: Folder for the input and the traceback of what fails.
        told: Called with each reader's name and tally once it is through.

    Returns:
        What came of it, by reader.
    """
    total = sum(reader.share for reader in readers)
    found = {}
    for reader in readers:
        count = max(1, round(inputs * reader.share / total))
        found[reader.name] = _fed(reader, count, Random(f"{seed} {reader.name}"), failures)
        told(reader.name, found[reader.name])
    return found


def _fed(reader: Reader, count: int, random: Random, failures: Path | None) -> Tally:
    tally = Tally()
    others = list(reader.files.values())
    names = [name for name in reader.files if name not in reader.kept]
    with tempfile.TemporaryDirectory(dir=_place()) as home, _listening() as heard:
        folder = Path(home) / "given"
        _write(folder, reader.files)
        before = _largest()
        for number in range(count):
            files = dict(reader.files)
            if number:  # The first input is whole, and must be taken.
                name = random.choice(names)
                if random.random() < MADE_UP:
                    files[name] = random.choice(GRAMMARS)(random)
                else:
                    files[name] = mutated(random, files[name], others)
                _write(folder, {name: files[name]})
            fault = _try(reader, folder, tally, heard, whole=not number)
            if fault is not None:
                _keep(fault, reader, files, tally, failures)
            if reader.changes:
                shutil.rmtree(folder)
                _write(folder, reader.files)
            elif number:
                _write(folder, {name: reader.files[name]})
        tally.peak = _largest() - before
    return tally


def _try(
    reader: Reader, folder: Path, tally: Tally, heard: IO[bytes], *, whole: bool
) -> tuple[str, str] | None:
    """Read once; the cause and the traceback of what must not be."""
    tally.inputs += 1
    fault: tuple[str, str] | None = None
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITED)
    try:
        reader.read(folder)
        tally.accepted += 1
    except BertflowError as error:
        tally.refused += 1
        wrong = _wrong(str(error), folder if reader.named else None)
        if wrong or whole:
            fault = (wrong or "a whole file is refused", traceback.format_exc())
    except (Exception, OverdueError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = (f"{type(error).__name__} in {place.name}", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.process_time() - began
    tally.seconds += seconds
    tally.slowest = max(tally.slowest, seconds)
    if fault is None and (said := _said(heard)):
        fault = ("something was printed", said)
    return fault


def _wrong(message: str, folder: Path | None) -> str | None:
    """What is wrong with an error's message."""
    if not message.strip():
        return "an error without a message"
    if any(ord(c) < 32 or c in "\x7f\x85\u2028\u2029" for c in message):
        return "an error of more than a line"
    if folder is not None and str(folder) not in message:
        return "an error that names no file"
    inside = [word for word in ("object at 0x", "<class", "Traceback", "Posix") if word in message]
    return f"an error that shows {inside[0]!r}" if inside else None


def _keep(
    fault: tuple[str, str],
    reader: Reader,
    files: dict[str, bytes],
    tally: Tally,
    failures: Path | None,
) -> None:
    cause, told = fault
    tally.failures[cause] += 1
    if failures is None or tally.failures[cause] > KEPT:
        return
    place = failures / f"{reader.name} {cause}".replace("/", "-").replace(" ", "-")[:100]
    _write(place, files)
    (place / "traceback.txt").write_text(told, encoding="utf-8", errors="backslashreplace")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _place() -> str | None:
    """A file system in memory, if there is one: most of the time goes into files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _largest() -> int:
    """The most memory the process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _listening() -> Iterator[IO[bytes]]:
    """Put a file in the place of standard output and error while inside."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as heard:
        try:
            for number in (1, 2):
                os.dup2(heard.fileno(), number)
            yield heard
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in enumerate(kept, 1):
                os.dup2(old, number)
                os.close(old)


def _said(heard: IO[bytes]) -> str:
    """What was printed since the last call."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not os.fstat(heard.fileno()).st_size:
        return ""
    heard.seek(0)
    lines = heard.read().decode("utf-8", "replace").splitlines(keepends=True)
    # tokenizers prints what it does not know of an added token.
    said = "".join(line for line in lines if not line.startswith("Ignored unknown kwarg"))
    heard.seek(0)
    heard.truncate()
    return said


@contextmanager
def bounded() -> Iterator[None]:
    """Bound time and memory of what is read inside, and take warnings for errors."""

    def overdue(*_: object) -> None:
        raise OverdueError(f"more than {SECONDS} s of work, or {WAITED} s in all")

    before = [signal.signal(one, overdue) for one in (signal.SIGPROF, signal.SIGALRM)]
    limits = resource.getrlimit(resource.RLIMIT_AS)
    mapped = Path("/proc/self/statm")
    if mapped.exists():
        pages = int(mapped.read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limits[1]))
    # What hangs in code that is not Python's ends the process, and says where.
    faulthandler.dump_traceback_later(3600, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for one, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(one, handler)


HEAD = (
    f"{'reader':<30}{'inputs':>8}{'accepted':>10}{'refused':>9}{'failed':>8}{'seconds':>9}"
    f"{'slowest':>10}{'peak':>10}"
)


def line(name: str, one: Tally) -> str:
    """A tally as a line of the table."""
    return (
        f"{name[:29]:<30}{one.inputs:>8,}{one.accepted:>10,}{one.refused:>9,}"
        f"{one.failures.total():>8,}{one.seconds:>9.1f}{1e3 * one.slowest:>7.0f} ms"
        f"{one.peak / 1e6:>7.0f} MB"
    )


def summed(found: dict[str, Tally]) -> Tally:
    """All tallies together."""
    sums = Tally(
        inputs=sum(one.inputs for one in found.values()),
        accepted=sum(one.accepted for one in found.values()),
        refused=sum(one.refused for one in found.values()),
        seconds=sum(one.seconds for one in found.values()),
        slowest=max(one.slowest for one in found.values()),
        peak=max(one.peak for one in found.values()),
    )
    for one in found.values():
        sums.failures += one.failures
    return sums


def main() -> None:
    """Run, print, and exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="readers whose name holds this")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    given = parser.parse_args()
    chosen = [one for one in readers() if given.only is None or given.only in one.name]
    began = time.perf_counter()
    print(HEAD)
    with bounded():
        found = fuzz(
            chosen,
            given.inputs,
            given.seed,
            given.failures,
            told=lambda name, one: print(line(name, one), flush=True),
        )
    print(line("all", summed(found)))
    print(f"{time.perf_counter() - began:.0f} s in all, seed {given.seed}")
    failed = {name: one.failures for name, one in found.items() if one.failures}
    for name, causes in failed.items():
        for cause, count in causes.items():
            print(f"FAILED {name}: {cause} ({count:,} times; see {given.failures})")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
