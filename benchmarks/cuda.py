"""What a GPU gives: fit and encode there against the same code on the processor, in one run.

    python -m benchmarks.cuda [--device cuda] [--repeats 5]

Prints a Markdown table under the card's name; where there is no such device it says so and ends
with status 2.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from benchmarks.measuring import HEADER, Row, in_turn, machine, medians, seconds
from benchmarks.speed import VECTORS, minilm, sentences_of_stsb
from bertflow import Flow
from bertflow.encoders import load_encoder
from bertflow.encoders.encoding import Precision, encode_distinct


def fit(device: str, repeats: int) -> Row:
    """Steps a second of one epoch, once it runs."""
    rows = np.load(VECTORS)

    def rate(where: str) -> float:
        times: list[float] = []
        Flow.released(batch_size=32, device=where).fit(
            rows, progress=lambda done, of, loss: times.append(time.perf_counter())
        )
        # Steps are reported in groups on a GPU: the first of them is left out.
        return (len(times) - 65) / (times[-1] - times[64])

    pairs = in_turn(lambda: rate("cpu"), lambda: rate(device), repeats)
    theirs, mine = medians(pairs)
    return Row(
        f"flow fit on {device}, steps a second, 576 dimensions, batches of 32, 3 levels x 3",
        "the same on the processor",
        "none",
        [b / a for a, b in pairs],
        f"{mine:.0f} steps/s",
        f"{theirs:.0f} steps/s",
    )


def encode(device: str, precision: Precision, repeats: int) -> Row:
    """Sentences a second of all-MiniLM-L6-v2, batches of 256."""
    sentences = sentences_of_stsb()
    encoder = load_encoder(minilm(), max_length=64, device=device)
    encode_distinct(encoder, sentences[:512], precision=precision)  # Warm.
    pairs = in_turn(
        lambda: seconds(lambda: encoder.encode(sentences, show_progress_bar=False)),
        lambda: seconds(
            lambda: encode_distinct(encoder, sentences, precision=precision, batch_size=256)
        ),
        repeats,
    )
    theirs, mine = medians(pairs)
    return Row(
        f"encode on {device}, all-MiniLM-L6-v2, STS-B: {precision}, batches of 256",
        "SentenceTransformer.encode there, its defaults",
        "none",
        [a / b for a, b in pairs],
        f"{len(sentences) / mine:.0f} sentences/s",
        f"{len(sentences) / theirs:.0f} sentences/s",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device on this machine")
    card = torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device
    about = {"device": card, **machine()}
    print(", ".join(f"{name} {value}" for name, value in about.items()), HEADER, sep="\n\n")
    print(fit(given.device, given.repeats).markdown(), flush=True)
    for precision in ("float32", "mixed", "fast"):
        print(encode(given.device, precision, given.repeats).markdown(), flush=True)


if __name__ == "__main__":
    main()
