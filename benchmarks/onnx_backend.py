"""Where `SentenceTransformer(path, backend="onnx")` opens a saved calibrated model, and how near.

sentence-transformers makes a graph of the transformer alone, by optimum-onnx, which wants older
libraries than bertflow. So models are saved here, and opened in an environment of its own below
`.cache/onnx-backend`, which is made the first time. A line for each model: how far its vectors are
from those of torch there, as a part of their length, or why it is refused.

    python -m benchmarks.onnx_backend [--torch torch==2.13.0]

Needs both packaged encoders, a package registry and 3 GB of disk.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import minilm
from bertflow import calibrate, load_encoder
from bertflow.data import sample_sentences
from bertflow.demo import default_encoder

HOME = Path(__file__).resolve().parent.parent / ".cache" / "onnx-backend"
# The newest that go together, without bertflow.
PACKAGES = [
    "sentence-transformers==5.7.0",
    "transformers==4.57.6",
    "optimum-onnx[onnxruntime]==0.1.0",
]
CALIBRATORS = [
    *("adaptive-whitening", "search-whitening", "standardization", "soft-standardization"),
    *("all-but-the-top", "flow", "tempered-flow"),
]
OPENED = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from sentence_transformers import SentenceTransformer
texts = ["A man plays.", "The train to the coast was late again this morning.", "Soup"]
for path in sys.argv[1:]:
    try:
        exact = SentenceTransformer(path, device="cpu").encode(texts)
        found = SentenceTransformer(path, device="cpu", backend="onnx").encode(texts)
        off = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
        print(f"> {path}\\t{off.max():.1e} from torch")
    except Exception as error:
        print(f"> {path}\\trefused: {type(error).__name__}: {str(error).splitlines()[0][:150]}")
"""


def environment(torch: str) -> Path:
    """The interpreter of an environment with optimum-onnx."""
    python = HOME / "bin" / "python"
    if not (HOME / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(HOME)], check=True)
        # torch first and alone: as another package's wish it may bring gigabytes for a GPU.
        for packages in ([torch], PACKAGES):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (HOME / "made").touch()
    return python


def saved(folder: Path) -> Iterator[Path]:
    """Calibrated models of both encoders, in folders that are named for what they are."""
    sentences = sample_sentences()[:400]
    gguf, state = default_encoder(None)
    models = {f"minilm-{name}": (minilm(), None, {"calibrator": name}) for name in CALIBRATORS}
    for pooling in ("cls", "layers:3", "first-last-avg", "last2avg", "layers:1,3"):
        models[f"minilm-{pooling.replace(':', '-')}"] = (minilm(), pooling, {})
    models["minilm-queries"] = (minilm(), None, {"queries": sentences[:50]})
    models["minilm-not-portable"] = (minilm(), None, {"portable": False})
    models["smollm2"] = (gguf, state, {})
    for name, (path, pooling, how) in models.items():
        encoder = load_encoder(path, pooling=pooling, device="cpu")
        calibrate(encoder, sentences, **how).save_pretrained(str(folder / name))
        yield folder / name


def main() -> None:
    """Save the models, open each there, and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default="torch==2.13.0")
    python = environment(parser.parse_args().torch)
    with tempfile.TemporaryDirectory() as place:
        for path in saved(Path(place)):
            command = [str(python), "-c", OPENED, path.name]
            ran = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
            lines = [line[2:] for line in ran.stdout.splitlines() if line.startswith("> ")]
            print("\n".join(lines) or f"{path.name}\tended: {ran.stderr[-200:]}", flush=True)


if __name__ == "__main__":
    main()
