"""How fast it is, each line against a baseline in the same run.

    python -m benchmarks.speed [NAME ...] [--repeats 5] [--output runs/performance]

Prints a Markdown table, and writes it with all measurements as JSON. Without names, all lines are
measured, an hour and a half; docs/performance.md says what limits each.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.measuring import (
    DATA,
    HEADER,
    Row,
    in_turn,
    machine,
    medians,
    minilm,
    python,
    seconds,
)
from bertflow import Flow, calibrate
from bertflow.data import read_task
from bertflow.demo import default_encoder
from bertflow.encoders import EncodeOptions, embed, load_encoder
from bertflow.encoders.precision import Precision, resolved_precision
from bertflow.evaluation import correlate, paired_cosine

PLAIN = DATA.parent / "bench" / "plain_fit.py"
VECTORS = DATA / "embeddings" / "smollm2-135m_first-last-avg.npy"
STEPS = 200


# Fit


def fit_steps(repeats: int) -> Row:
    """Steps a second, once warm: the same objective and optimiser."""
    script = PLAIN.read_text(encoding="utf-8")

    def plain(environment: dict[str, str] | None = None) -> float:
        printed = python(script, str(VECTORS), "--steps", str(STEPS), environment=environment)
        return float(json.loads(printed)["steps_per_second"])

    def ours() -> float:
        times: list[float] = []
        rows = np.load(VECTORS)
        flow = Flow.released(batch_size=32, epochs=0.6)
        flow.fit(rows, progress=lambda done, of, loss: times.append(time.perf_counter()))
        return STEPS / (times[20 + STEPS] - times[20])

    pairs = in_turn(plain, ours, repeats)
    theirs, mine = medians(pairs)
    single = [plain({"OMP_NUM_THREADS": "1"}) for _ in range(3)]
    return Row(
        "flow fit, steps a second, 576 dimensions, batches of 32, 3 levels x 3",
        "plain_fit.py",
        ">= 10 x",
        [b / a for a, b in pairs],
        f"{mine:.0f} steps/s",
        f"{theirs:.0f} steps/s",
        {"plain_fit.py on one thread": f"{np.median(single):.0f} steps/s"},
    )


FIT_OURS = """
import sys, time
import numpy as np
from bertflow import Flow
rows, flow = np.load(sys.argv[1]), Flow.released(batch_size=32)
began = time.perf_counter()
flow.fit(rows)
print(time.perf_counter() - began)
"""


def fit_epoch(repeats: int) -> Row:
    """One epoch of STS-B's vectors: moments, initialisation, every step, the final loss."""
    count = math.ceil(len(np.load(VECTORS, mmap_mode="r")) / 32)
    script = PLAIN.read_text(encoding="utf-8")
    whole: list[tuple[float, float]] = []

    def plain() -> float:
        began = time.perf_counter()
        printed = json.loads(python(script, str(VECTORS), "--steps", str(count - 20)))
        whole.append((time.perf_counter() - began, 0))
        return count / float(printed["steps_per_second"])

    def ours() -> float:
        began = time.perf_counter()
        took = float(python(FIT_OURS, str(VECTORS)))
        whole.append((0, time.perf_counter() - began))
        return took

    pairs = in_turn(plain, ours, repeats)
    theirs, mine = medians(pairs)
    processes = [sorted(max(pair) for pair in whole if pair[n])[repeats // 2] for n in (0, 1)]
    return Row(
        "the same, one epoch of STS-B, everything that fit does",
        "plain_fit.py, its steps alone",
        ">= 4 x",
        [a / b for a, b in pairs],
        f"{mine:.1f} s",
        f"{theirs:.1f} s",
        {"from the start of Python": f"{processes[1]:.1f} against {processes[0]:.1f} s"},
    )


# Encode


def encode(precision: Precision, reach: str, batch_size: int = 32) -> Callable[[int], Row]:
    """Sentences a second of all-MiniLM-L6-v2 on STS-B's sentences."""

    def measure(repeats: int) -> Row:
        encoder = load_encoder(minilm(), max_length=64)
        sentences = sentences_of_stsb()
        found: dict[str, np.ndarray] = {}

        def plain() -> float:
            return seconds(
                lambda: found.update(plain=encoder.encode(sentences, show_progress_bar=False))
            )

        how: EncodeOptions = {"precision": precision, "batch_size": batch_size}

        def ours() -> float:
            return seconds(
                lambda: found.update(ours=embed(encoder, sentences, count_cut=False, **how).rows())
            )

        pairs = in_turn(plain, ours, repeats)
        theirs, mine = medians(pairs)
        cosines = paired_cosine(found["ours"], found["plain"])
        return Row(
            f"encode, all-MiniLM-L6-v2, STS-B: {precision}"
            f" (here {resolved_precision(precision, encoder)}), batches of {batch_size}",
            "SentenceTransformer.encode",
            reach,
            [a / b for a, b in pairs],
            f"{len(sentences) / mine:.0f} sentences/s",
            f"{len(sentences) / theirs:.0f} sentences/s",
            {
                "Spearman x 100 on STS-B (all splits)": " against ".join(
                    f"{stsb(sentences, found[name]):.3f}" for name in ("ours", "plain")
                ),
                "smallest cosine with it": f"{cosines.min():.5f}",
            },
        )

    return measure


def stsb(sentences: list[str], vectors: np.ndarray) -> float:
    """Spearman x 100 over the pairs of all three splits."""
    row = {sentence: n for n, sentence in enumerate(sentences)}
    left, right, gold = [], [], []
    for split in ("train", "dev", "test"):
        first, second, scores = read_task("stsb", DATA, split).graded()
        left += [row[sentence] for sentence in first]
        right += [row[sentence] for sentence in second]
        gold += scores
    found = correlate(paired_cosine(vectors[left], vectors[right]), np.array(gold))
    assert found.spearman is not None
    return 100 * found.spearman


def sentences_of_stsb() -> list[str]:
    """The distinct sentences of STS-B, in its order."""
    text = (DATA / "embeddings" / "stsb_sentences.json").read_text(encoding="utf-8")
    return list(dict.fromkeys(json.loads(text)))


def calibrated_encode(repeats: int) -> Row:
    """What a calibrated model loses against its encoder, with plain sentence-transformers."""
    encoder = load_encoder(minilm(), max_length=64)
    sentences = sentences_of_stsb()
    model = calibrate(encoder, sentences[:4096], Flow())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        plain = SentenceTransformer(folder)
        pairs = in_turn(
            lambda: seconds(lambda: encoder.encode(sentences[::3], show_progress_bar=False)),
            lambda: seconds(lambda: plain.encode(sentences[::3], show_progress_bar=False)),
            max(7, repeats),
        )
    theirs, mine = medians(pairs)
    count = len(sentences[::3])
    return Row(
        "encode with a calibrated model (Flow, built-in modules), all-MiniLM-L6-v2",
        "the same encoder without calibrator",
        ">= 0.97 x",
        [a / b for a, b in pairs],
        f"{count / mine:.0f} sentences/s",
        f"{count / theirs:.0f} sentences/s",
    )


# Transform

TRANSFORM = """
import json, resource, sys, time
import numpy as np
from sklearn.decomposition import PCA
from bertflow import AllButTheTop, Flow, Standardization, Whitening
count, repeats = int(sys.argv[1]), int(sys.argv[2])
random = np.random.default_rng(0)
x = np.empty((count, 768), dtype=np.float32)
for start in range(0, count, 65536):
    x[start : start + 65536] = random.standard_normal(x[start : start + 65536].shape, np.float32)
x *= np.linspace(0.5, 2, 768, dtype=np.float32)
fitted = {"PCA": PCA(whiten=True).fit(x[:20000])}
for kind in (Flow, Whitening, Standardization, AllButTheTop):
    fitted[kind.__name__] = kind().fit(x[:20000])
    fitted[kind.__name__].transform(x[:5000])
fitted["PCA"].transform(x[:5000])

def once(name):
    began = time.perf_counter()
    fitted[name].transform(x)
    return time.perf_counter() - began

times = {name: [] for name in fitted}
for n in range(repeats):
    for name in sorted(fitted, reverse=n % 2):
        times[name].append(once(name))
print(json.dumps(times))
"""

# Prepended to pieces that measure their own memory.
WATCH = """
import threading, time
from contextlib import contextmanager
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20
@contextmanager
def watched():
    peaks, over = [resident()], threading.Event()
    def watch():
        while not over.wait(0.002):
            peaks[0] = max(peaks[0], resident())
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()
"""

MEMORY = (
    WATCH
    + """
import sys
import numpy as np
import bertflow
kind, count = sys.argv[1], int(sys.argv[2])
x = np.random.default_rng(0).standard_normal((count, 768), np.float32)
calibrator = getattr(bertflow, kind)().fit(x[:20000])
calibrator.transform(x[:5000])
before = resident()
with watched() as peaks:
    z = calibrator.transform(x)
print(peaks[0] - before - z.nbytes / 2**20)
"""
)


def transform(repeats: int) -> list[Row]:
    """A million rows of 768 dimensions in float32, all calibrators against whitening by PCA."""
    count = 1_000_000
    times = json.loads(python(TRANSFORM, str(count), str(repeats)))
    rows = []
    for name in ("Flow", "Whitening", "Standardization", "AllButTheTop"):
        memory = float(python(MEMORY, name, str(count)))
        rows.append(
            Row(
                f"transform, 1,000,000 x 768 in float32: {name}",
                "scikit-learn's PCA(whiten=True).transform",
                ">= 1 x",
                [a / b for a, b in zip(times["PCA"], times[name], strict=True)],
                f"{np.median(times[name]):.2f} s",
                f"{np.median(times['PCA']):.2f} s",
                {"memory beyond input and output": f"{memory:.0f} MiB (at most 256)"},
            )
        )
    return rows


# Text to model


def text_to_model(repeats: int) -> Row:
    """From STS-B's pairs to a saved calibrated model, one epoch."""
    pairs_of = [read_task("stsb", DATA, split).graded() for split in ("train", "dev", "test")]
    left = [s for first, _, _ in pairs_of for s in first]
    right = [s for _, second, _ in pairs_of for s in second]
    script = PLAIN.read_text(encoding="utf-8")

    def plain() -> None:
        encoder = SentenceTransformer(minilm())
        encoder.max_seq_length = 64
        parts = []
        for start in range(0, len(left), 32):
            # In the order of the corpus, both sides of every pair: what the epoch of a loop does.
            for side in (left, right):
                parts.append(encoder.encode(side[start : start + 32], show_progress_bar=False))
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/x.npy", np.concatenate(parts))
            steps = len(left) * 2 // 32 - 20
            python(script, f"{folder}/x.npy", "--steps", str(steps))

    def ours() -> None:
        encoder = load_encoder(minilm(), max_length=64)
        with tempfile.TemporaryDirectory() as folder:
            model = calibrate(encoder, left + right, Flow.released(batch_size=32), precision="auto")
            model.save_pretrained(folder)

    pairs = in_turn(lambda: seconds(plain), lambda: seconds(ours), repeats)
    theirs, mine = medians(pairs)
    return Row(
        "text to saved calibrated model, STS-B, all-MiniLM-L6-v2, one epoch",
        "encode both sides of every pair in the order of the corpus, then plain_fit.py",
        ">= 5 x",
        [a / b for a, b in pairs],
        f"{mine:.1f} s",
        f"{theirs:.1f} s",
    )


# Vectors on disk

DISK = (
    WATCH
    + """
import sys
import numpy as np
from bertflow import Flow
from bertflow.io.vectors import read_vectors
Flow().fit(np.random.default_rng(0).normal(size=(64, 384)))
x = read_vectors(sys.argv[1])
before, began = resident(), time.perf_counter()
with watched() as peaks:
    Flow().fit(x)
print(time.perf_counter() - began, peaks[0] - before)
"""
)


def disk_fit(repeats: int) -> Row:
    """Fit on memory-mapped float16 vectors, four million rows against one."""
    counts = (1_000_000, 4_000_000)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        files = [write_rows(Path(folder) / f"{count}.npy", count) for count in counts]
        pairs, memory = [], []
        for _ in range(repeats):
            small, large = (
                [float(part) for part in python(DISK, str(file)).split()] for file in files
            )
            pairs.append((large[0], small[0]))
            memory.append((small[1], large[1]))
    theirs, mine = medians(pairs)
    peaks = [f"{max(sizes):.0f}" for sizes in zip(*memory, strict=True)]
    return Row(
        "fit on 4,000,000 x 384 float16 on disk, one epoch: how many times as long",
        "the same, 1,000,000 rows",
        "<= 4.4 x",
        [a / b for a, b in pairs],
        f"{theirs:.0f} s",
        f"{mine:.0f} s",
        {"peak memory above the idle process": f"{' and '.join(peaks)} MiB (at most 1,024)"},
    )


def write_rows(path: Path, count: int) -> Path:
    """A file of rows that are not normal, of 384 dimensions."""
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(count, 384))
    random = np.random.default_rng(0)
    mixing = random.standard_normal((384, 384), np.float32) / 20
    for start in range(0, count, 100_000):
        part = random.standard_normal((min(100_000, count - start), 384), np.float32)
        out[start : start + 100_000] = part @ mixing
    out.flush()
    return path


# Start


def start(repeats: int) -> list[Row]:
    """How long until Python has bertflow, and until the help is shown."""
    command = str(Path(sys.executable).parent / "bertflow")

    def run(*line: str) -> float:
        return seconds(lambda: subprocess.run(line, check=True, capture_output=True))

    rows = []
    for what, line, reach in [
        ("import bertflow", (sys.executable, "-c", "import bertflow"), "<= 0.15 x"),
        ("bertflow --help", (command, "--help"), "<= 0.25 x"),
    ]:
        pairs = in_turn(
            lambda: run(sys.executable, "-c", "import torch"),
            lambda line=line: run(*line),
            max(7, repeats),
        )
        theirs, mine = medians(pairs)
        rows.append(
            Row(
                f"{what}: how many times as long",
                "python -c 'import torch'",
                reach,
                [b / a for a, b in pairs],
                f"{mine:.3f} s",
                f"{theirs:.3f} s",
            )
        )
    return rows


OPEN = """
import sys, time
from pathlib import Path
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging
from bertflow import SentenceCache, load_encoder
logging.set_verbosity_error()
logging.disable_progress_bar()
file, who, folder = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
cache, how = SentenceCache(folder), {"gguf_file": file.name}
began = time.perf_counter()
if who == "transformers":
    AutoConfig.from_pretrained(file.parent, **how)
    AutoTokenizer.from_pretrained(file.parent, **how)
    AutoModel.from_pretrained(file.parent, dtype=torch.float32, **how)
else:
    load_encoder(file, cache=cache, device="cpu")
print(time.perf_counter() - began)
"""


def open_gguf(repeats: int) -> list[Row]:
    """How long until the packaged SmolLM2-135M is open, the first time and any later one."""
    file = default_encoder(None)[0]

    def first() -> float:
        with tempfile.TemporaryDirectory() as empty:
            return float(python(OPEN, file, "bertflow", empty))

    with tempfile.TemporaryDirectory() as cache:
        python(OPEN, file, "bertflow", cache)
        rows = []
        for what, ours, reach in [
            ("the first time", first, "<= 0.4 x"),
            ("any later time", lambda: float(python(OPEN, file, "bertflow", cache)), "<= 0.08 x"),
        ]:
            pairs = in_turn(lambda: float(python(OPEN, file, "transformers", cache)), ours, repeats)
            theirs, mine = medians(pairs)
            rows.append(
                Row(
                    f"open a .gguf (SmolLM2-135M, Q4_1), {what}: how many times as long",
                    "transformers' configuration, tokenizer and model of it",
                    reach,
                    [b / a for a, b in pairs],
                    f"{mine:.2f} s",
                    f"{theirs:.2f} s",
                )
            )
    return rows


MEASURES: dict[str, Callable[[int], Row | list[Row]]] = {
    "start": start,
    "open": open_gguf,
    "fit-steps": fit_steps,
    "fit-epoch": fit_epoch,
    "encode": encode("auto", ">= 1.9 x, Spearman within 0.05"),
    "encode-fast": encode("fast", ">= 3.5 x, Spearman within 0.3", 64),
    "encode-float32": encode("float32", "none"),
    "calibrated-encode": calibrated_encode,
    "transform": transform,
    "text-to-model": text_to_model,
    "disk-fit": disk_fit,
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/performance"))
    given = parser.parse_args()
    if unknown := set(given.names) - set(MEASURES):
        parser.error(f"no such line: {', '.join(sorted(unknown))}")
    where = machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()), HEADER, sep="\n\n")
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.names or MEASURES:
        found = MEASURES[name](given.repeats)
        rows = found if isinstance(found, list) else [found]
        for row in rows:
            print(row.markdown(), flush=True)
        content = {"machine": where, "rows": [row.as_json() for row in rows]}
        (given.output / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
