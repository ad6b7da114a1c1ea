"""A tiny encoder in a .gguf file."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_gguf(folder: Path, lost: str | None = None, seed: int = 0) -> Path:
    """Write a causal model of 2 blocks with a licence, some of it quantised, but for one tensor."""
    import gguf

    eight = gguf.GGMLQuantizationType.Q8_0
    random, width, words = np.random.default_rng(seed), 32, ["<unk>", "<s>", "</s>", "the", "dog"]
    file = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_license("apache-2.0")
    writer.add_context_length(32)
    writer.add_embedding_length(width)
    writer.add_block_count(2)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(width // 2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types([2, 3, 3, 1, 1])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (len(words), width), "output": (len(words), width)}
    shapes |= {"output_norm": (width,)}
    for block in range(2):
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"]:
            shapes[f"blk.{block}.{name}"] = (width, width)
        for name in ["attn_norm", "ffn_norm"]:
            shapes[f"blk.{block}.{name}"] = (width,)
        for name in ["ffn_gate", "ffn_up"]:
            shapes[f"blk.{block}.{name}"] = (2 * width, width)
        shapes[f"blk.{block}.ffn_down"] = (width, 2 * width)
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype(np.float32)
        if name != lost and "attn_" in name and "norm" not in name:
            packed = gguf.quants.quantize(values, eight)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=eight)
        elif name != lost:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
