"""What the portable form of the default flow costs: size, and share of a 12-block encoder's time.

The encoder has the shape of BERT-base with random weights, and is timed on batches of 32 sentences
of 13 tokens, the average of STS-B. The two are timed in turn, and the median share is printed.

    python -m benchmarks.portable_cost [--repeats 15]
"""

from __future__ import annotations

import argparse
import os
from functools import partial

import numpy as np
import torch
from transformers import BertConfig, BertModel

from benchmarks.measuring import seconds, versions
from bertflow.calibrators import Calibrator, Flow, Whitening
from bertflow.models import to_modules

WIDTH, BATCH, TOKENS = 768, 32, 13


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    encoder = BertModel(BertConfig()).eval()
    ids = torch.randint(1000, 30000, (BATCH, TOKENS))
    rows = np.random.default_rng(0).normal(size=(2048, WIDTH)).astype(np.float32)
    calibrators: dict[str, Calibrator] = {"Flow()": Flow(), "Whitening()": Whitening()}
    print(f"{torch.get_num_threads()} threads, {os.cpu_count()} CPUs, batch {BATCH} x {TOKENS}")
    for name, calibrator in calibrators.items():
        modules = to_modules(calibrator.fit(rows), WIDTH)
        weights = sum(p.numel() for module in modules for p in module.parameters())
        chain = torch.nn.Sequential(*modules)
        features = torch.from_numpy(rows[:BATCH])
        shares = []
        with torch.inference_mode():
            for _ in range(repeats + 2):
                base = seconds(partial(encoder, ids))
                extra = seconds(partial(chain, {"sentence_embedding": features}))
                shares.append(extra / base)
        share = 100 * float(np.median(shares[2:]))
        print(
            f"{name}: {len(modules)} modules, {weights * 4 / 1e6:.1f} MB in float32, "
            f"{share:.2f} % of the encoder's time (median of {repeats})"
        )
    print(versions())


if __name__ == "__main__":
    main()
