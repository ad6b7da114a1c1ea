"""Every architecture of transformers that can be built small: right, or refused in one line?

Random encoders of a few blocks are made on the spot. Of each, with the default pooling and with
hidden state 1, what bertflow fits is compared with the model's own hidden states, pooled by hand,
and with what the calibrated model encodes, alone, in a batch, and saved and loaded by plain
sentence-transformers.

    python -m benchmarks.architectures [NAME ...]
"""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from bertflow import BertflowError, Whitening, calibrate, load_encoder
from bertflow.display.grid import Grid
from bertflow.encoders import embed

WORDS = (
    "a the man woman cat dog plays guitar runs in park eats red apple on table sits under tree two "
    "three people walk down street is cooking food kitchen bird flies over river sleeping"
).split()
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
POOLINGS = (None, "layers:1")
# What counts as the same vector; the most numbers of a small model, and the seconds of a forward.
SAME, LARGEST, SLOW = 1e-3, 2 * 10**6, 1.0
# Sizes by the names that configurations have for them.
SIZES: dict[int, str] = {
    32: "hidden_size d_model n_embd dim emb_dim embedding_size attention_hidden_size embed_dim "
    "word_embed_proj_dim d_embed",
    4: "num_hidden_layers n_layer n_layers num_layers encoder_layers num_encoder_layers "
    "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads attention_heads state_size rotary_dim "
    "num_local_experts num_experts n_routed_experts num_buckets",
    2: "num_key_value_heads decoder_layers num_decoder_layers num_experts_per_tok n_groups",
    8: "head_dim d_kv attention_window",
    64: "intermediate_size d_ff dff ffn_dim hidden_dim encoder_ffn_dim decoder_ffn_dim n_inner "
    "d_inner moe_intermediate_size feed_forward_size",
    128: "max_position_embeddings n_positions max_seq_len max_encoder_position_embeddings "
    "max_decoder_position_embeddings max_seq_length",
    0: "bos_token_id",
    1: "pad_token_id",
}
OTHERS: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "big_bird": {"attention_type": "original_full"},
    "esm": {"mask_token_id": 4},
}


@dataclass(frozen=True)
class Verdict:
    """What became of an architecture with a pooling.

    Attributes:
        name: Of the architecture.
        pooling: As `load_encoder` takes it.
        kind: "right", "refused" or "wrong".
        line: The message of a refusal, or what is wrong.
    """

    name: str
    pooling: str | None
    kind: str
    line: str


def sentences(count: int) -> list[str]:
    """Sentences of different lengths."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(3, 10))) for _ in range(count)]


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of whole words and letters."""
    letters = [chr(n) for n in range(33, 127)]
    tokens = [*SPECIALS, *dict.fromkeys([*letters, *(f"##{one}" for one in letters), *WORDS])]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    roles = {"cls": 0, "bos": 0, "pad": 1, "sep": 2, "eos": 2, "unk": 3, "mask": 4}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=64,
        **{f"{role}_token": SPECIALS[n] for role, n in roles.items()},
    )


def made(name: str, folder: Path) -> str:
    """Make a small random encoder; why not, where that cannot be done."""
    words = tokenizer()
    try:
        kind = type(AutoConfig.for_model(name))
        known = inspect.signature(kind).parameters
        if "vocab_size" not in known or kind.sub_configs:
            return "no text alone"
        sizes = {key: size for size, keys in SIZES.items() for key in keys.split() if key in known}
        sizes |= {"vocab_size": len(words), **OTHERS.get(name, {})}
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **sizes)
        config.architectures = config.architectures or []
        with torch.device("meta"):
            count = sum(one.numel() for one in AutoModel.from_config(config).parameters())
        if count > LARGEST:
            return f"not small: {count:,} numbers"
        model = AutoModel.from_config(config).eval()
        if "input_ids" not in inspect.signature(model.forward).parameters:
            return "reads no text"
        for weight in model.parameters():  # Far from the small numbers that a start has.
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.3)
        began = time.perf_counter()
        with torch.no_grad():
            reader_of(model)(input_ids=torch.ones(1, 8, dtype=torch.long))
        if time.perf_counter() - began > SLOW:
            return "too slow without kernels of its own"
        model.save_pretrained(folder)
        words.save_pretrained(folder)
    except Exception as error:  # What cannot be built is not what is looked at.
        return f"{type(error).__name__} {' '.join(str(error).split())[:60]}"
    return ""


def reader_of(model: Any) -> Any:
    """What reads the text: of an encoder-decoder its encoder."""
    return model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model


@torch.no_grad()
def by_hand(folder: Path, texts: list[str], pooling: str | None) -> np.ndarray:
    """The model's own hidden states, one sentence at a time, averaged."""
    model = AutoModel.from_pretrained(folder).eval()
    model.config.use_cache = False  # As sentence-transformers has it; some models differ by it.
    words = AutoTokenizer.from_pretrained(folder)
    reader = reader_of(model)
    taken = inspect.signature(reader.forward).parameters
    vectors = []
    for text in texts:
        inputs = {k: v for k, v in words(text, return_tensors="pt").items() if k in taken}
        states = reader(**inputs, output_hidden_states=True).hidden_states
        layers = (1,) if pooling else (1, len(states) - 1)
        vectors.append(np.mean([states[n][0].mean(0).numpy() for n in layers], axis=0))
    return np.array(vectors)


def judged(name: str, folder: Path, pooling: str | None) -> Verdict:
    """Calibrate an encoder, and compare all ways to its vectors."""
    texts = sentences(30)
    try:
        encoder = load_encoder(folder, pooling=pooling, device="cpu")
        model = calibrate(encoder, texts, Whitening(dim=3, shrinkage=0.0))
        with tempfile.TemporaryDirectory() as saved:
            model.save_pretrained(saved)
            plain = SentenceTransformer(saved, device="cpu")
            ways = {"saved": plain.encode(texts), "saved, alone": alone(plain, texts)}
        expected = model.calibrator.transform(by_hand(folder, texts, pooling))
        ways["fitted"] = model.calibrator.transform(embed(encoder, texts).rows())
        ways |= {"in memory": model.encode(texts), "alone": alone(model, texts)}
    except BertflowError as error:
        return Verdict(name, pooling, "refused", str(error).replace(f"{folder}", name))
    except Exception as error:
        return Verdict(name, pooling, "wrong", f"{type(error).__name__}: {error}")
    size = np.abs(expected).max()
    off = {way: float(np.abs(got - expected).max() / size) for way, got in ways.items()}
    bad = [f"{way} by {much:.1g}" for way, much in off.items() if not much < SAME]
    return Verdict(name, pooling, "wrong" if bad else "right", ", ".join(bad))


def alone(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    """The vectors of sentences, each encoded by itself."""
    return np.concatenate([model.encode([text]) for text in texts])


def names() -> list[str]:
    """All architectures that transformers has a bare model of."""
    return sorted(name for name in MODEL_MAPPING_NAMES if not re.search(r"_(vision|audio)", name))


def swept(chosen: list[str]) -> Iterator[Verdict | str]:
    """The verdicts on architectures; of one that cannot be built small its name and why."""
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if why := made(name, Path(folder)):
                yield f"{name}: {why}"
                continue
            for pooling in POOLINGS:
                yield judged(name, Path(folder), pooling)


def main(chosen: list[str]) -> int:
    """Print the table; 1 where anything is wrong."""
    found: list[Verdict] = []
    left = 0
    for one in swept(chosen or names()):
        if isinstance(one, str):
            left += 1
            print(f"- not built: {one}", flush=True)
            continue
        found.append(one)
        print(f"{one.name} {one.pooling or 'default'}: {one.kind} {one.line[:200]}", flush=True)
    rows = [
        (kind, *(str(sum((v.kind, v.pooling) == (kind, one) for v in found)) for one in POOLINGS))
        for kind in ("right", "refused", "wrong")
    ]
    print(Grid("architectures", ("", "first-last-avg", "layers:1"), rows).text())
    print(f"{left} more are not built small")
    return int(any(one.kind == "wrong" for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
