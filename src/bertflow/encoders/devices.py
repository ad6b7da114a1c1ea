"""Encoding on several devices at once, each by a process of its own."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import Empty
from threading import Thread
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array, check_device
from bertflow.encoders.encoding import Encoding, Group
from bertflow.encoders.precision import Precision
from bertflow.errors import BertflowError, InputError, ModelError

# Groups for each process: one that it encodes, and one for when that is done.
AHEAD = 2
# How long a process that has closed its connection may take to end.
PATIENCE = 5.0


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
    if text == "all" and not there:
        raise InputError("there is no GPU for devices 'all'; give a number of processes")
    if text == "all" or text.isdecimal():
        count = there if text == "all" else int(text)
        if not count:
            raise InputError("devices must be at least 1, got 0")
        if there and count > there:
            raise InputError(f"there are {there} GPUs, but devices is {count}")
        return [f"cuda:{number}" for number in range(count)] if there else ["cpu"] * count
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(f"devices takes all, a number, or names with commas, got {text!r}")
    for name in names:
        check_device(name)
    return names


class DevicesEncoding:
    """`Encoding` by several processes: each takes a group when it is free, and sends back parts.

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

    def each(self, groups: Iterable[Group]) -> Iterator[tuple[Group, Array, Array]]:
        """Encode groups of sentences, several at a time.

        Returns:
            Parts as of `Encoding.each`, those of several groups mixed.

        Raises:
            ModelError: A process has ended before its work; the message names its device.
        """
        encoder = self.encoder
        if encoder.device.type != "cpu":  # Memory of a GPU is not shared.
            encoder = copy.deepcopy(encoder).to("cpu")
        threads = max(1, torch.get_num_threads() // len(self.devices))
        context = multiprocessing.get_context("spawn")
        tasks: Any = context.Queue()
        workers: dict[Connection, tuple[str, BaseProcess]] = {}
        try:
            for device in self.devices:
                ours, theirs = context.Pipe(duplex=False)
                how = (encoder, device, self.batch_size, self.precision, threads)
                process = context.Process(target=_work, args=(tasks, theirs, *how), daemon=True)
                process.start()
                theirs.close()
                workers[ours] = device, process
            yield from _parts(groups, tasks, workers)
        finally:
            for connection, (_, worker) in workers.items():
                worker.kill()  # It has nothing to finish and nothing to tidy up.
                worker.join()
                connection.close()
            tasks.cancel_join_thread()
            tasks.close()


def _parts(
    groups: Iterable[Group], tasks: Any, workers: dict[Connection, tuple[str, BaseProcess]]
) -> Iterator[tuple[Group, Array, Array]]:
    """Hand out groups and give the parts that come back, a bounded number of groups at a time."""
    waiting = enumerate(group for group in groups if len(group.lacking))
    begun: dict[int, Group] = {}
    left: dict[int, int] = {}
    while True:
        for number, group in islice(waiting, AHEAD * len(workers) - len(begun)):
            begun[number], left[number] = group, len(group.lacking)
            tasks.put((number, list(group.sentences), group.lacking))
        if not begun:
            return
        for connection in wait(list(workers)):
            assert isinstance(connection, Connection)
            try:
                result = connection.recv()
            except (EOFError, OSError):
                device, process = workers[connection]
                process.join(PATIENCE)
                raise ModelError(
                    f"the process on {device} ({process.pid}) ended with status "
                    f"{process.exitcode}; what was finished is kept, and the same command goes on "
                    "from there"
                ) from None
            if isinstance(result, Exception):
                raise result
            number, places, vectors = result
            yield begun[number], places, vectors
            left[number] -= len(places)
            if not left[number]:
                del begun[number], left[number]


def _end_with_parent() -> None:
    """Wait for the process that started this one to end, however it does, and end as well."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(
    tasks: Any,
    results: Connection,
    encoder: SentenceTransformer,
    device: str,
    batch_size: int,
    precision: Precision,
    threads: int,
) -> None:
    """Encode the groups that come, until the process is killed."""
    # Ctrl-C reaches all processes of a terminal; the first of them decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()

    def groups() -> Iterator[Group]:
        while True:
            try:
                number, sentences, lacking = tasks.get_nowait()
            except Empty:
                # A group without a sentence has those before it given, which may be waited for.
                yield Group([])
                number, sentences, lacking = tasks.get()
            group = Group(sentences, np.full(len(sentences), number))
            group.lacking = lacking
            yield group

    try:
        torch.set_num_threads(threads)
        encoding = Encoding(encoder.to(device), batch_size=batch_size, precision=precision)
        for group, places, vectors in encoding.each(groups()):
            results.send((int(group.numbers[0]), places, vectors))
    except OSError:
        return  # Nobody is there to read any more.
    except BertflowError as error:
        results.send(error)
    except Exception as error:
        results.send(ModelError(f"encoding on {device} failed: {error}"))
