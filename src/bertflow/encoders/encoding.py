"""Distinct sentences to vectors: batches without padding, in one process or several."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import Empty
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from bertflow.arrays import Array, check_device
from bertflow.encoders.checks import readable
from bertflow.encoders.encoder import encoder_of, is_usual, prompt_of
from bertflow.encoders.precision import Precision, in_precision, raised, resolved_precision
from bertflow.encoders.probe import check_own_encoding, name_of
from bertflow.errors import BertflowError, InputError, ModelError, check_number
from bertflow.process_state import pinned, set_own_threads, usual_threads

Batch = tuple[Tensor, dict[str, Any]]
# Places of sentences in their group, and their vectors.
Part = tuple[Array, Array]
NOTHING: Array = np.empty((0, 0), dtype=np.float32)

# A slow encoder's vectors are handed on after so many seconds, so that a kill costs no more.
PART_SECONDS = 5.0
# Sentences given to the tokenizer at a time, of about one length because it pads to the longest.
TOKENIZED = 512
# A batch of more tokens is no faster on a processor, and does not fit into its caches.
CPU_TOKENS = 2048
# With fewer tokens in a batch, a GPU waits for Python.
GPU_TOKENS = 32768
# One more batch costs a GPU about as much as so many tokens of padding.
GPU_PADDING = 16384
# At most so many batches at a time; more would wait for Python.
WORKERS = 8
# A group of fewer sentences a worker has too few batches to keep all workers busy.
FILLING = 16
# Groups for each process of several: one that it encodes, and one for when that is done.
AHEAD = 2
# How long a process that has closed its connection may take to end.
PATIENCE = 5.0


class Group:
    """Distinct sentences that are put into batches together, so vectors do not depend on others.

    `lacking` are the places of those that are to be encoded, in order, and `numbers` the caller's.
    """

    def __init__(self, sentences: Sequence[str], numbers: Array | None = None) -> None:
        self.sentences = sentences
        self.lacking = np.arange(len(sentences))
        self.numbers = self.lacking if numbers is None else numbers

    def texts(self, places: Array) -> list[str]:
        """The sentences at these places."""
        return [self.sentences[n] for n in places.tolist()]


# A group, places in it, shape (n,), and the vectors of the sentences there, shape (n, D).
GroupPart = tuple[Group, Array, Array]


def collected(parts: Iterable[GroupPart], count: int) -> Array:
    """The vectors of all parts, each at its sentence's number, shape (count, D)."""
    vectors = NOTHING
    for group, places, part in parts:
        if not len(vectors):
            vectors = np.empty((count, part.shape[1]), dtype=np.float32)
        vectors[group.numbers[places]] = part
    return vectors


class Encoding:
    """Encode sentences as `SentenceTransformer.encode` does, but faster.

    Between calls the encoder's weights must not change.

    Args:
        encoder: Any SentenceTransformer.
        batch_size: At most so many sentences of the encoder's maximum length, and more of shorter
            ones. On a GPU batches are larger, and halved where memory runs out.
        precision: Of the transformer, see `resolved_precision`. Pooling and calibrator keep theirs.
    """

    def __init__(
        self,
        encoder: SentenceTransformer,
        *,
        batch_size: int = 32,
        precision: Precision = "float32",
    ) -> None:
        check_number("batch_size", batch_size, 1, integer=True)
        self.encoder, self.batch_size = encoder, batch_size
        self.kind = resolved_precision(precision, encoder)
        self._model: SentenceTransformer | None = encoder if self.kind == "float32" else None
        self._tried = False

    @pinned()
    def __call__(self, sentences: Sequence[str]) -> Array:
        """Encode sentences as one group, shape (N, D), float32."""
        return collected(self.each([Group(sentences)]), len(sentences))

    def each(self, groups: Iterable[Group]) -> Iterator[GroupPart]:
        """Encode groups of sentences; the next group is begun while one is being finished.

        A part of a group comes after `PART_SECONDS`, or at its end. It is whole batches, so the
        other vectors are the same without it. The one part of a group that lacks nothing is empty.

        Raises:
            ModelError: The vectors are others than of `encode`, or a library fails on a sentence.
        """
        if not self._tried:
            self._tried = True
            # The encoder without its calibrator, which would enlarge roundings.
            bare, own = encoder_of(self.encoder), self
            if bare is not self.encoder:
                own = Encoding(bare, batch_size=self.batch_size, precision=self.kind)
                own._tried = True
            check_own_encoding(bare, own, exact=self.kind == "float32")
        try:
            yield from self._each(groups)
        except Exception as error:
            with readable(lambda said: f"{name_of(self.encoder)} cannot encode a corpus: {said}"):
                raise error

    def _each(self, groups: Iterable[Group]) -> Iterator[GroupPart]:
        if not is_usual(self.encoder):
            for group in groups:
                yield from _parts(group, self._slices(self.encoder, group))
            return
        self.encoder.eval()
        if self._model is None:
            self._model = in_precision(self.encoder, self.kind)
        threads = usual_threads()
        count = min(threads, WORKERS) if _may_run_beside_itself(self._model) else 1
        # Its threads start with the first batch that is handed to them.
        workers = ThreadPoolExecutor(count, "encode", set_own_threads, (threads // count,))
        before: Iterator[GroupPart] = iter(())
        try:
            for group in groups:
                beside = count > 1 and len(group.sentences) >= FILLING * count
                computed = self._begin(self._model, group, workers if beside else None)
                yield from before
                before = _parts(group, computed)
                # Otherwise batches are computed by this thread, and not while workers are busy.
                if not beside and self._model.device.type != "cuda":
                    yield from before
            yield from before
        finally:
            workers.shutdown(cancel_futures=True)

    def _begin(
        self, model: SentenceTransformer, group: Group, workers: ThreadPoolExecutor | None
    ) -> Iterator[Part]:
        """Tokenize the lacking sentences of a group, and give vectors batch by batch."""
        # Workers or a GPU begin at once; otherwise a batch is computed when it is asked for.
        if not len(group.lacking):
            return iter(())
        features = _tokenized(model, group.texts(group.lacking), prompt_of(self.encoder))
        if features is None:
            return self._slices(model, group)
        tokens = self.batch_size * (model.max_seq_length or CPU_TOKENS)
        if model.device.type == "cuda":
            return self._launch(model, group, features, max(tokens, GPU_TOKENS))
        if model.device.type == "cpu":
            tokens = min(tokens, CPU_TOKENS)
        batches = list(_batches(features, tokens))
        places = (group.lacking[rows.numpy()] for rows, _ in batches)
        computed: Iterable[Tensor]
        if workers is not None:
            begun = [workers.submit(_forward, model, batch, self.kind) for _, batch in batches]
            computed = (future.result() for future in begun)
        else:
            computed = (_forward(model, batch, self.kind) for _, batch in batches)
        return zip(places, (vectors.numpy() for vectors in computed), strict=True)

    def _slices(self, model: SentenceTransformer, group: Group) -> Iterator[Part]:
        """Have a model encode by itself, a batch at a time, the longest sentences first."""
        lengths = np.array([-len(text) for text in group.texts(group.lacking)], dtype=np.int64)
        order = group.lacking[lengths.argsort(kind="stable")]
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            encoded: Array = model.encode(
                group.texts(rows),
                batch_size=self.batch_size,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
            yield rows, encoded.astype(np.float32, copy=False)

    def _launch(
        self, model: SentenceTransformer, group: Group, features: dict[str, Any], tokens: int
    ) -> Iterator[Part]:
        """Have a GPU compute a group, without waiting for it; the group is one part."""
        moved = _of_tensors(features, lambda values: values.to(model.device))
        batches = list(_batches(moved, tokens, GPU_PADDING))
        results = [_within_memory(model, batch, self.kind) for _, batch in batches]
        rows = group.lacking[torch.cat([rows for rows, _ in batches]).numpy()]
        return ((rows, torch.cat(part).cpu().numpy()) for part in [results])


def _parts(group: Group, computed: Iterable[Part]) -> Iterator[GroupPart]:
    """Batches put together until `PART_SECONDS` are over."""
    begun, left = monotonic(), len(group.lacking)
    if not left:
        yield group, group.lacking, NOTHING
    batches: list[Part] = []
    for batch in computed:
        batches.append(batch)
        left -= len(batch[0])
        if not left or monotonic() - begun >= PART_SECONDS:
            places, vectors = zip(*batches, strict=True)
            yield group, np.concatenate(places), np.concatenate(vectors)
            begun, batches = monotonic(), []


def _may_run_beside_itself(model: SentenceTransformer) -> bool:
    """Whether threads may share a model: on a CPU, if its code is known to keep nothing on it."""
    transformer: Any = getattr(model[0], "model", None)
    modules: list[Any] = list(getattr(transformer, "modules", list)())
    ropes = [getattr(module, "rope_type", "default") for module in modules]
    return (
        model.device.type == "cpu"
        and type(transformer).__module__.startswith("transformers.")
        and all(
            type(module).__module__.startswith(("sentence_transformers.", "bertflow."))
            for module in model
        )
        # These rotary embeddings adapt to the longest sentence so far.
        and not any("dynamic" in rope or "longrope" in rope for rope in ropes)
    )


def _tokenized(
    model: SentenceTransformer, sentences: Sequence[str], prompt: str | None
) -> dict[str, Any] | None:
    """Tokens of sentences and their mask, padded; None where something else comes out."""
    order = sorted(range(len(sentences)), key=lambda n: len(sentences[n]))
    parts = []
    for start in range(0, len(order), TOKENIZED):
        rows = order[start : start + TOKENIZED]
        features = model.preprocess([sentences[n] for n in rows], prompt=prompt)
        if not _is_padded_text(features, len(rows)):
            return None
        parts.append((np.array(rows), features))
    mask = "attention_mask"
    width = max(1, *(part[mask].shape[1] for _, part in parts))
    # The tokenizer pads on the left, or no row is padded.
    left = all(bool((part[mask][:, -1:] == 1).all()) for _, part in parts)
    together: dict[str, Any] = dict(parts[0][1])
    for name, first in parts[0][1].items():
        if isinstance(first, Tensor):
            # numpy copies, because torch would wake its threads for each of these small copies.
            values = np.zeros((len(order), width), dtype=first.numpy().dtype)
            for places, part in parts:
                own = part[name].shape[1]
                span = slice(width - own, None) if left else slice(own)
                values[places, span] = part[name].numpy()
            together[name] = torch.from_numpy(values)
    return together


def _is_padded_text(features: dict[str, Any], count: int) -> bool:
    """Whether these are rows of tokens with a mask, and nothing else that has rows."""
    mask = features.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != count:
        return False
    tensors = [value for value in features.values() if isinstance(value, Tensor)]
    return all(value.shape == mask.shape for value in tensors)


def _of_tensors(features: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {n: change(v) if isinstance(v, Tensor) else v for n, v in features.items()}


def _batches(features: dict[str, Any], tokens: int, padding: int = 0) -> Iterator[Batch]:
    """Rows of like length, the longest first, of so many tokens, of which `padding` are empty."""
    mask = features["attention_mask"]
    order = mask.sum(dim=1).argsort(descending=True, stable=True)
    left = bool((mask[:, -1] == 1).all())  # Padded on the left, or not at all.
    placed = _of_tensors(features, lambda values: values[order])
    lengths = [max(1, n) for n in placed["attention_mask"].sum(dim=1).tolist()]
    order = order.cpu()
    start = 0
    while start < len(lengths):
        length = lengths[start]
        # `spare` is how much padding may still be added; on the left it would change positions.
        end, spare = min(len(lengths), start + max(1, tokens // length)), 0 if left else padding
        stop = start
        while stop < end and (spare := spare - length + lengths[stop]) >= 0:
            stop += 1
        span = slice(-length, None) if left else slice(length)
        part = _of_tensors(placed, lambda values: values[start:stop, span])  # noqa: B023
        yield order[start:stop], part
        start = stop


def _within_memory(model: SentenceTransformer, batch: dict[str, Any], kind: str) -> Tensor:
    """Vectors of a batch, in halves where a GPU has too little memory for the whole."""
    try:
        return _forward(model, batch, kind)
    except torch.OutOfMemoryError:
        half = len(batch["attention_mask"]) // 2
        if not half:
            raise
    # Not in the handler, because the error holds the tensors computed so far.
    first = _of_tensors(batch, lambda values: values[:half])
    second = _of_tensors(batch, lambda values: values[half:])
    return torch.cat([_within_memory(model, part, kind) for part in (first, second)])


def _forward(model: SentenceTransformer, batch: dict[str, Any], kind: str) -> Tensor:
    """Vectors of a batch, on the model's device."""
    device = model.device
    moved = _of_tensors(batch, lambda values: values.to(device))
    transformer, *others = model
    with torch.inference_mode():
        # Inputs of products are cast; the residual stream and norms stay float32.
        with torch.autocast(device.type, torch.bfloat16, enabled=kind == "mixed"):
            moved = transformer(moved)
        if kind != "float32":
            moved = {name: raised(value) for name, value in moved.items()}
        vectors = sentence_vectors(model, others, moved)
    return vectors if device.type == "cuda" else vectors.cpu()


def sentence_vectors(
    model: SentenceTransformer, modules: Iterable[Any], features: dict[str, Any]
) -> Tensor:
    """The vectors that the last modules of a model give, at its width, in float32."""
    for module in modules:
        features = module(features)
    vectors: Tensor = features["sentence_embedding"]
    return vectors[:, : model.truncate_dim].float()


# Several processes.


def parse_devices(text: str) -> list[str]:
    """The devices that an option names; an InputError if there are none of these.

    "all" is every GPU; a number so many GPUs or, on a machine without, processes on the processor;
    or the text is names with commas between them, such as "cuda:0,cuda:1".

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

    `devices` are those of the processes, such as ["cpu", "cpu"]. They are spawned, so a script that
    uses this needs `if __name__ == "__main__":`. On the processor they share its threads and the
    encoder's memory.
    """

    encoder: SentenceTransformer
    devices: Sequence[str]
    _: KW_ONLY
    batch_size: int = 32
    precision: Precision = "float32"

    def each(self, groups: Iterable[Group]) -> Iterator[GroupPart]:
        """As `Encoding.each`, groups mixed; a ModelError names a process that has ended early."""
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
            yield from _handed_out(groups, tasks, workers)
        finally:
            for connection, (_, worker) in workers.items():
                worker.kill()  # It has nothing to finish and nothing to tidy up.
                worker.join()
                connection.close()
            tasks.cancel_join_thread()
            tasks.close()


def _handed_out(
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
