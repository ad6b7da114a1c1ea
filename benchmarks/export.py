"""What an exported model is worth: its speed against torch, one sentence's latency, int8.

Each model is encoded by `SentenceTransformer.encode`, by its modules without that function's own
work (the quickest that torch can be), and by its graph in onnxruntime, tokens included, on the
same number of threads. All are timed in turn; median ratios are printed with the lowest and
highest. Then one sentence's p50 and p99, of the encoder alone and calibrated, and what int8 changes
on STS-B.

    python -m benchmarks.export [--repeats 7] [--only minilm]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from benchmarks.measuring import DATA, in_turn, machine, medians, minilm, seconds, table_line
from bertflow import AdaptiveWhitening, calibrate, export_onnx, load_encoder
from bertflow.data import read_task, sample_sentences
from bertflow.demo import default_encoder

Encode = Callable[[Sequence[str]], np.ndarray]
BATCH, BATCHES, SINGLE, ROUNDS = 32, 8, 200, 5


def main() -> None:
    """Export, time and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=("minilm", "smollm2"))
    given = parser.parse_args()
    gguf, pooling = default_encoder(None)
    models = {"minilm": (minilm(), None), "smollm2": (gguf, pooling)}
    print(machine())
    for name, (path, pooling) in models.items():
        if given.only in (None, name):
            encoder = load_encoder(path, pooling=pooling, device="cpu")
            with tempfile.TemporaryDirectory() as folder:
                measure(name, encoder, Path(folder), given.repeats)


def measure(name: str, encoder: SentenceTransformer, folder: Path, repeats: int) -> None:
    """Print what there is to say of one model."""
    model = calibrate(encoder, sample_sentences(), AdaptiveWhitening())
    sizes = {}
    for kind, quantize in (("float32", None), ("int8", "int8")):
        found = export_onnx(model, folder / kind, quantize=quantize)
        sizes[kind] = sum(found.graphs.values()) / 1e6
    export_onnx(encoder, folder / "raw")
    runs = {kind: runtime(folder / kind) for kind in ("float32", "int8", "raw")}
    print(f"\n{name}: times as fast as torch\n")
    print(table_line(["sentences a call", "graph", "against", "ratio", "graph's", "torch's"]))
    print(table_line(["---"] * 6))
    for count in (1, BATCH):
        batches = some_batches(count)
        for other, torchs in (("encode", by_encode(model)), ("modules", by_modules(model))):
            for kind in ("float32", "int8"):
                compare(count, kind, other, runs[kind], torchs, batches, repeats)
    print(f"\n{name}: milliseconds for one sentence\n")
    print(table_line(["by", "raw p50", "raw p99", "calibrated p50", "calibrated p99"]))
    print(table_line(["---"] * 5))
    ways = {
        "encode": (by_encode(encoder), by_encode(model)),
        "torch's modules": (by_modules(encoder), by_modules(model)),
        "graph": (runs["raw"], runs["float32"]),
    }
    for way, (raw, calibrated) in ways.items():
        print(table_line([way, *latencies(raw, calibrated)]))
    print(f"\n{name}: STS-B (test)\n")
    print(table_line(["graph", "MB", "sentences a second", "Spearman x 100"]))
    print(table_line(["---"] * 4))
    quick = speeds(runs)
    for kind, run in runs.items():
        size = f"{sizes[kind]:.1f}" if kind in sizes else ""
        print(table_line([kind, size, f"{quick[kind]:,.0f}", f"{on_stsb(run):.2f}"]))


def compare(
    count: int,
    kind: str,
    other: str,
    graph: Encode,
    torchs: Encode,
    batches: list[list[str]],
    repeats: int,
) -> None:
    """Time both on the same batches in turn, and print a line."""

    def timed(run: Encode) -> Callable[[], float]:
        return lambda: seconds(lambda: [run(batch) for batch in batches])

    for run in (graph, torchs):
        run(batches[0])
    pairs = in_turn(timed(torchs), timed(graph), repeats)
    ratios = [theirs / ours for theirs, ours in pairs]
    theirs, ours = (f"{1e3 * one / len(batches):.1f} ms" for one in medians(pairs))
    span = f"**{np.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
    print(table_line([count, kind, other, span, ours, theirs]))


def some_batches(count: int) -> list[list[str]]:
    """Batches of the sentences that come along, in their order."""
    sentences = sample_sentences()
    number = BATCHES if count > 1 else 4 * BATCHES
    return [sentences[n * count : (n + 1) * count] for n in range(number)]


def by_encode(model: SentenceTransformer) -> Encode:
    """The usual way in torch."""
    return lambda batch: model.encode(list(batch), batch_size=BATCH, show_progress_bar=False)


def by_modules(model: SentenceTransformer) -> Encode:
    """The modules alone, without what `encode` does around them."""

    def run(batch: Sequence[str]) -> np.ndarray:
        with torch.inference_mode():
            features: Any = model(model.preprocess(list(batch)))
            return features["sentence_embedding"].numpy()

    return run


def runtime(folder: Path) -> Encode:
    """A graph in onnxruntime, with its tokenizer."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    (path,) = folder.glob("onnx/*.onnx")
    session = onnxruntime.InferenceSession(str(path), options)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def run(batch: Sequence[str]) -> np.ndarray:
        tokens = tokenizer.encode_batch(list(batch))
        ids, mask = np.array([t.ids for t in tokens]), np.array([t.attention_mask for t in tokens])
        return np.asarray(session.run(None, {"input_ids": ids, "attention_mask": mask})[0])

    return run


def latencies(*runs: Encode) -> list[str]:
    """Of each, the median and the 99th percentile of one sentence's time, taken in turn."""
    times: list[list[float]] = [[] for _ in runs]
    for sentence in sample_sentences()[:SINGLE]:
        for run, own in zip(runs, times, strict=True):
            began = time.perf_counter()
            run([sentence])
            own.append(1e3 * (time.perf_counter() - began))
    return [f"{np.percentile(own, share):.1f}" for own in times for share in (50, 99)]


def stsb_batches() -> list[list[str]]:
    """The distinct sentences of STS-B by length, in batches."""
    pairs = read_task("stsb", DATA)
    texts = sorted({*pairs.first, *pairs.second}, key=lambda text: (len(text), text))
    return [texts[n : n + BATCH] for n in range(0, len(texts), BATCH)]


def speeds(runs: Mapping[str, Encode]) -> dict[str, float]:
    """Sentences a second of each, on every fourth batch: the median of rounds taken in turn."""
    batches = stsb_batches()[::4]
    count, found = sum(map(len, batches)), {kind: [] for kind in runs}
    for _ in range(ROUNDS):
        for kind, run in runs.items():
            found[kind].append(count / seconds(lambda run=run: [run(one) for one in batches]))
    return {kind: float(np.median(own)) for kind, own in found.items()}


def on_stsb(run: Encode) -> float:
    """Spearman's correlation x 100 of cosines with the grades."""
    pairs, batches = read_task("stsb", DATA), stsb_batches()
    rows = np.concatenate([run(batch) for batch in batches])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    place = {text: row for row, text in enumerate(chain.from_iterable(batches))}
    first, second = (rows[[place[t] for t in side]] for side in (pairs.first, pairs.second))
    return 100 * float(spearmanr((first * second).sum(axis=1), pairs.gold).statistic)


if __name__ == "__main__":
    main()
