"""Encoding on several devices at once, each by a process of its own."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import Empty
from threading import Thread
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertflow.arrays import check_device
from bertflow.encoders.encoding import NOTHING, Encoding, Group, GroupPart
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
    if text == "all" or text.isdecimal():
        count = there if text == "all" else int(text)
        if not count or 0 < there < count:
            raise InputError(f"there are {there} GPUs, but devices is {text}; give a number")
        return [f"cuda:{number}" for number in range(count)] if there else ["cpu"] * count
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(f"devices takes all, a number, or names with commas, got {text!r}")
    for name in names:
        check_device(name)
    return names


@dataclass(frozen=True)
class DevicesEncoding:
    """`Encoding` by several processes: each takes a group when it is free, and sends back parts.

    The arguments are those of `Encoding`, and the device of each process, such as ["cpu", "cpu"].
    Processes are spawned, so a script that uses this needs `if __name__ == "__main__":`. On the
    processor they share its threads and the encoder's memory.
    """

    encoder: SentenceTransformer
    devices: Sequence[str]
    _: KW_ONLY
    batch_size: int = 32
    precision: Precision = "float32"

    def each(self, groups: Iterable[Group]) -> Iterator[GroupPart]:
        """Encode groups: parts as of `Encoding.each`, those of several groups mixed.

        Raises:
            ModelError: A process has ended before its work; the message names its device.
        """
        how = self
        if self.encoder.device.type != "cpu":  # Memory of a GPU is not shared.
            how = replace(self, encoder=copy.deepcopy(self.encoder).to("cpu"))
        threads = max(1, torch.get_num_threads() // len(self.devices))
        context = multiprocessing.get_context("spawn")
        tasks: Any = context.Queue()
        workers: dict[Connection, tuple[str, BaseProcess]] = {}
        try:
            for device in self.devices:
                ours, theirs = context.Pipe(duplex=False)
                given = (tasks, theirs, how, device, threads)
                process = context.Process(target=_work, args=given, daemon=True)
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
) -> Iterator[GroupPart]:
    """Hand out groups and give the parts that come back, a bounded number of groups at a time."""
    waiting = enumerate(groups)
    begun: dict[int, Group] = {}
    left: dict[int, int] = {}
    while True:
        while len(begun) < AHEAD * len(workers) and (following := next(waiting, None)):
            number, group = following
            if not len(group.lacking):
                yield group, group.lacking, NOTHING
                continue
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


def _work(tasks: Any, results: Connection, how: DevicesEncoding, device: str, threads: int) -> None:
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
        encoder = how.encoder.to(device)
        encoding = Encoding(encoder, batch_size=how.batch_size, precision=how.precision)
        for group, places, vectors in encoding.each(groups()):
            if len(places):
                results.send((int(group.numbers[0]), places, vectors))
    except OSError:
        return  # Nobody is there to read any more.
    except BertflowError as error:
        results.send(error)
    except Exception as error:
        results.send(ModelError(f"encoding on {device} failed: {error}"))
