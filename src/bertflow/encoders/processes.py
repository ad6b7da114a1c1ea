"""Encoding on several devices at once, each by a process of its own."""

from __future__ import annotations

import copy
import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

import torch
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array, check_device
from bertflow.encoders.encoding import Encoding, G, Group, Precision
from bertflow.errors import BertflowError, InputError, ModelError

# How many groups a process has: one that it encodes, and one for when that is done.
AHEAD = 2
# How long a process may take to end once it has nothing to do.
PATIENCE = 5.0


class GroupEncoder(Protocol):
    """What gives the vectors of groups of sentences: `Encoding`, `DevicesEncoding`."""

    def each(self, groups: Iterable[G]) -> Iterator[tuple[G, Array, Array]]:
        """Parts, as `Encoding.each` gives them; those of several groups in any order."""


def parse_devices(text: str) -> list[str]:
    """The devices that an option names.

    Args:
        text: "all" for every GPU; a number for so many GPUs or, on a machine without, processes on
            the processor; or names with commas between them, such as "cuda:0,cuda:1".

    Raises:
        InputError: There are none of these.

    Example:
        >>> parse_devices("cpu,cpu")
        ['cpu', 'cpu']
    """
    text = text.strip()
    there = torch.cuda.device_count()
    if text == "all":
        if not there:
            raise InputError("there is no GPU for devices 'all'; give a number of processes")
        return [f"cuda:{number}" for number in range(there)]
    if text.isdecimal():
        if not (count := int(text)):
            raise InputError("devices must be at least 1, got 0")
        if there and count > there:
            raise InputError(f"there are {there} GPUs, but devices is {count}")
        return [f"cuda:{number}" for number in range(count)] if there else ["cpu"] * count
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise InputError(f"devices takes all, a number, or names with commas, got {text!r}")
        check_device(name)
    return names


def group_encoder(
    encoder: SentenceTransformer,
    devices: Sequence[str] | None,
    *,
    batch_size: int,
    precision: Precision,
) -> GroupEncoder:
    """What encodes on these devices; None and a single one are the encoder's own."""
    if devices is None or len(devices) < 2:
        return Encoding(encoder, batch_size=batch_size, precision=precision)
    return DevicesEncoding(encoder, devices, batch_size=batch_size, precision=precision)


class DevicesEncoding:
    """`Encoding` by several processes: groups go to whoever is free; parts are given as they come.

    Processes are spawned, so a script that uses this needs `if __name__ == "__main__":`. On the
    processor they share its threads and the encoder's memory.

    Args:
        encoder: As in `Encoding`.
        devices: The device of each process, such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"].
        batch_size: As in `Encoding`.
        precision: As in `Encoding`.
    """

    def __init__(
        self,
        encoder: SentenceTransformer,
        devices: Sequence[str],
        *,
        batch_size: int = 32,
        precision: Precision = "float32",
    ) -> None:
        self.encoder, self.devices = encoder, list(devices)
        self.batch_size, self.precision = batch_size, precision

    def each(self, groups: Iterable[G]) -> Iterator[tuple[G, Array, Array]]:
        """Encode groups of sentences, several at a time.

        Args:
            groups: Taken some ahead of what is given.

        Returns:
            Parts, see `Encoding.each`, of several groups at a time.

        Raises:
            ModelError: A process has ended before its work; the message names it. Parts that were
                given are not lost.
        """
        workers: list[_Worker] = []
        try:
            for number, device in enumerate(self.devices):
                workers.append(self._started(number, device))
            yield from _as_they_come(iter(groups), workers)
        finally:
            _end(workers)

    def _started(self, number: int, device: str) -> _Worker:
        encoder = self.encoder
        if encoder.device.type != "cpu":  # Memory of a GPU is not shared.
            encoder = copy.deepcopy(encoder).to("cpu")
        threads = max(1, torch.get_num_threads() // len(self.devices))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(theirs, encoder, device, self.batch_size, self.precision, threads),
            name=f"encode-{number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Worker(number, device, process, ours)


@dataclass
class _Worker:
    """A process, and how many sentences it owes of each group that it has, by number."""

    number: int
    device: str
    process: BaseProcess
    connection: Connection
    owes: dict[int, int] = field(default_factory=dict)

    def has_died(self) -> Exception:
        with suppress(EOFError, OSError):  # It may have said why.
            while self.connection.poll():
                if isinstance(said := self.connection.recv(), Exception):
                    return said
        self.process.join(PATIENCE)
        code = self.process.exitcode
        why = "did not say why" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            why = f"was ended by {signal.Signals(-code).name}"
        return ModelError(
            f"worker {self.number} on {self.device} (process {self.process.pid}) {why}; "
            "what was finished is kept, and the same command goes on from there"
        )


def _as_they_come(
    groups: Iterator[G], workers: Sequence[_Worker]
) -> Iterator[tuple[G, Array, Array]]:
    begun: dict[int, G] = {}
    taken = 0
    while True:
        while len(begun) < AHEAD * len(workers) and (group := next(groups, None)) is not None:
            if not len(group.lacking):
                continue
            worker = min(workers, key=lambda one: len(one.owes))
            try:
                worker.connection.send((taken, list(group.sentences), group.lacking))
            except OSError:
                raise worker.has_died() from None
            begun[taken], worker.owes[taken] = group, len(group.lacking)
            taken += 1
        if not begun:
            return
        ready = wait([worker.connection for worker in workers])
        for worker in workers:
            if worker.connection not in ready:
                continue
            try:
                result = worker.connection.recv()
            except (EOFError, OSError):
                raise worker.has_died() from None
            if isinstance(result, Exception):
                raise result
            number, rows, vectors = result
            yield begun[number], rows, vectors
            worker.owes[number] -= len(rows)
            if not worker.owes[number]:
                del worker.owes[number], begun[number]


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        if worker.owes:  # Nobody waits for these any more.
            worker.process.terminate()
        worker.process.join(PATIENCE)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        worker.process.close()


class _Numbered(Group):
    """A group that came from another process."""

    def __init__(self, sentences: Sequence[str], number: int) -> None:
        super().__init__(sentences)
        self.number = number


def _work(
    connection: Connection,
    encoder: SentenceTransformer,
    device: str,
    batch_size: int,
    precision: Precision,
    threads: int,
) -> None:
    """What a process does: encode the groups that come, until none do."""
    # Ctrl-C reaches all processes of a terminal; the first of them decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    coming: SimpleQueue[tuple[int, list[str], Array] | None] = SimpleQueue()
    Thread(target=_listen, args=(connection, coming), daemon=True).start()

    def groups() -> Iterator[_Numbered]:
        while True:
            try:
                item = coming.get_nowait()
            except Empty:
                # A group without a sentence has those before it given, which may be waited for.
                yield _Numbered([], -1)
                item = coming.get()
            if item is None:
                return
            number, sentences, lacking = item
            group = _Numbered(sentences, number)
            group.lacking = lacking
            yield group

    try:
        torch.set_num_threads(threads)
        encode = Encoding(encoder.to(device), batch_size=batch_size, precision=precision)
        for group, rows, vectors in encode.each(groups()):
            connection.send((group.number, rows, vectors))
    except (BrokenPipeError, ConnectionResetError):
        return
    except BertflowError as error:
        _say(connection, error)
    except Exception as error:
        _say(connection, ModelError(f"encoding on {device} failed: {error}"))


def _say(connection: Connection, error: Exception) -> None:
    try:
        connection.send(error)
    except OSError:
        return


def _listen(connection: Connection, coming: SimpleQueue[Any]) -> None:
    try:
        while True:
            coming.put(connection.recv())
    except (EOFError, OSError):
        coming.put(None)
