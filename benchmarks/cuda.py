"""What a GPU gives: fit, encode and transform there against what people have, in one run.

    python -m benchmarks.cuda [--device cuda] [--repeats 5] [--rows 1000000]

Prints a Markdown table under the card's name; where there is no such device it says so and ends
with status 2.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.measuring import HEADER, Row, in_turn, machine, medians, minilm, seconds
from benchmarks.speed import VECTORS, sentences_of_stsb
from bertflow import Flow, Whitening
from bertflow.calibrators import training
from bertflow.calibrators.base import Calibrator
from bertflow.encoders import EncodeOptions, embed, load_encoder
from bertflow.encoders.precision import Precision


def steps(device: str, repeats: int, recorded: bool) -> Row:
    """Steps a second once they run, with each step launched or recorded."""
    rows = np.load(VECTORS)

    def rate(where: str) -> float:
        times: list[float] = []
        Flow.released(batch_size=32, epochs=4, device=where).fit(
            rows, progress=lambda done, of, loss: times.append(time.perf_counter())
        )
        # Steps are reported in groups on a GPU; the first are not recorded yet.
        return (len(times) - 193) / (times[-1] - times[192])

    recording = training.recorded
    if not recorded:
        training.recorded = lambda compute, device: compute
    try:
        pairs = in_turn(lambda: rate("cpu"), lambda: rate(device), repeats)
    finally:
        training.recorded = recording
    theirs, mine = medians(pairs)
    how = "recorded as CUDA graphs" if recorded else "each operation launched"
    return Row(
        f"flow fit, steps a second, 576 dimensions, batches of 32, 3 levels x 3, {how}",
        "the same on the processor",
        "none",
        [b / a for a, b in pairs],
        f"{mine:.0f} steps/s",
        f"{theirs:.0f} steps/s",
    )


def fit(device: str, repeats: int) -> Row:
    """Everything that fit does in an epoch, vectors in memory."""
    rows = np.load(VECTORS)

    def whole(where: str) -> float:
        return seconds(lambda: Flow.released(batch_size=32, device=where).fit(rows))

    whole(device)
    pairs = in_turn(lambda: whole("cpu"), lambda: whole(device), repeats)
    theirs, mine = medians(pairs)
    return Row(
        f"one epoch of {len(rows)} x {rows.shape[1]}, all that fit does",
        "the same on the processor",
        "none",
        [a / b for a, b in pairs],
        f"{mine:.2f} s",
        f"{theirs:.2f} s",
    )


def encode(name: str, folder: str, device: str, precision: Precision, repeats: int) -> Row:
    """Sentences a second, the arguments those that commands have."""
    sentences = sentences_of_stsb()
    encoder = load_encoder(folder, max_length=64, device=device)
    plain = SentenceTransformer(folder, device=device)
    plain.max_seq_length = 64
    how: EncodeOptions = {"precision": precision}
    embed(encoder, sentences, **how)  # Warm.
    plain.encode(sentences[:2048], show_progress_bar=False)
    found: list[np.ndarray] = []
    pairs = in_turn(
        lambda: seconds(lambda: found.append(plain.encode(sentences, show_progress_bar=False))),
        lambda: seconds(
            lambda: found.append(embed(encoder, sentences, count_cut=False, **how).rows())
        ),
        repeats,
    )
    theirs, mine = medians(pairs)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in found[:2])
    return Row(
        f"encode, {name}, STS-B: {precision}",
        "SentenceTransformer.encode there, its defaults",
        "none",
        [a / b for a, b in pairs],
        f"{len(sentences) / mine:.0f} sentences/s",
        f"{len(sentences) / theirs:.0f} sentences/s",
        {"smallest cosine": f"{(a * b).sum(axis=1).min():.4f}"},
    )


def transform(calibrator: Calibrator, rows: torch.Tensor, repeats: int) -> Row:
    """Rows that are there already."""

    def timed(x: torch.Tensor) -> Callable[[], float]:
        def call() -> None:
            calibrator.transform(x)
            if x.is_cuda:
                torch.cuda.synchronize()

        call()
        return lambda: seconds(call)

    pairs = in_turn(timed(rows.cpu()), timed(rows), repeats)
    theirs, mine = medians(pairs)
    return Row(
        f"transform of {len(rows):,} x {rows.shape[1]}, {type(calibrator).__name__}",
        "the same on the processor",
        "none",
        [a / b for a, b in pairs],
        f"{mine:.3f} s",
        f"{theirs:.2f} s",
    )


def bert_base(place: Path) -> str:
    """An encoder of BERT-base's size, with random weights: what it costs is the same."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(place / "bert")
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(place / "bert")
    transformer = Transformer(str(place / "bert"))
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling]).save_pretrained(str(place / "model"))
    return str(place / "model")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device on this machine")
    card = torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device
    about = {"device": card, **machine()}
    print(", ".join(f"{name} {value}" for name, value in about.items()), HEADER, sep="\n\n")
    for recorded in (False, True):
        print(steps(given.device, given.repeats, recorded).markdown(), flush=True)
    print(fit(given.device, given.repeats).markdown(), flush=True)
    precisions: tuple[Precision, ...] = ("float32", "mixed", "fast")
    with tempfile.TemporaryDirectory() as place:
        base = bert_base(Path(place))
        for name, folder in (("all-MiniLM-L6-v2", minilm()), ("BERT-base, random weights", base)):
            for precision in precisions:
                row = encode(name, folder, given.device, precision, given.repeats)
                print(row.markdown(), flush=True)
    x = torch.randn(given.rows, 768, device=given.device)
    for calibrator in (Flow(device=given.device), Whitening()):
        calibrator.fit(x[:20_000])
        print(transform(calibrator, x, given.repeats).markdown(), flush=True)


if __name__ == "__main__":
    main()
