"""Make a BERT checkpoint of the true layout without a hub: its weights are random.

`python -m benchmarks.bert_checkpoint FOLDER [--size base|large]` writes FOLDER/bert-SIZE-uncased,
on which `bertflow reproduce all` goes the way it goes on the real one. Its scores mean nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from benchmarks.measuring import minilm

# Blocks, width, heads.
SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}


def make(folder: Path, size: str) -> Path:
    """Write a checkpoint, as transformers does, and give its folder."""
    # It has BERT's uncased word pieces.
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    tokenizer.model_max_length = 512
    blocks, width, heads = SIZES[size]
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        )
    )
    target = folder / f"bert-{size}-uncased"
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="base")
    given = parser.parse_args()
    print(make(given.folder, given.size))
