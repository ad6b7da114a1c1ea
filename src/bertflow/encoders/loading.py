"""Loading encoders: hub names, folders, sentence-transformers models, GGUF files, word vectors."""

from __future__ import annotations

import gzip
import logging
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from sentence_transformers.util import is_sentence_transformer_model, load_file_path

from bertflow.arrays import Array, check_device
from bertflow.encoders import gguf
from bertflow.encoders.checks import check_files, check_weights, read_modules, readable
from bertflow.encoders.description import library_versions
from bertflow.encoders.encoder import Encoder, keep_picklable
from bertflow.encoders.pooling import ANY_BLOCKS, cut_to, hidden_states, pooled, side_by_side
from bertflow.encoders.probe import check_encoder, positions
from bertflow.encoders.sentence_cache import SentenceCache
from bertflow.errors import InputError, ModelError, check_number, need, shown, unknown
from bertflow.io.reading import hub_answers, hub_names, not_on_hub, read_json
from bertflow.io.result_store import Result, key_of
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

DEFAULT_POOLING = "first-last-avg"
DEFAULT_MAX_LENGTH = 64
# Without this, an instruction-tuned model's sentences would be wrapped in its chat template:
# dozens of tokens that are the same for every sentence.
TEXT_ONLY: Any = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
# An entry of a word vector may not be larger.
LARGEST = float(np.finfo(np.float32).max)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pinned(seed=True)
def load_encoder(
    name: str | Path,
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str | None = None,
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    cache: SentenceCache | None = None,
) -> SentenceTransformer:
    """Load an encoder as a SentenceTransformer of built-in modules, in evaluation mode.

    Blocks that the pooling does not need are removed. Causal models get right padding and, if they
    have none, a padding token.

    Args:
        name: A hub name, a folder of either library, a .gguf file, or a folder that holds one.
        pooling: How token states become a sentence vector, i counting hidden states from 0, the
            embeddings, to L, the last block:

            - "cls": state L of the first token; "mean": mean over the tokens of state L;
            - "last2avg": of states L − 1 and L; "first-last-avg": of states 1 and L;
              "embed-last-avg": of states 0 and L;
            - "layers:1,12": of any states.

            None keeps a sentence-transformers model's own; others get "first-last-avg".
        max_length: Tokens a sentence is cut to, at most as many as the tokenizer takes. None keeps
            a sentence-transformers model's own; others get 64, as in the paper.
        device: Where it runs, such as "cpu" or "cuda:0"; None takes a GPU if there is one.
        dtype: "float32", "float16" or "bfloat16".
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Whether code that comes with the encoder may run.
        cache: Keeps the content of a .gguf, so that it opens quickly the next time.

    Raises:
        InputError: A pooling or length that the encoder cannot have.
        ModelError: The encoder cannot be found, is damaged, lacks weights, is no function of the
            text, or comes with code that is not trusted.
        MissingDependencyError: A .gguf without its packages; the message is the pip line.
    """
    if pooling is not None:
        hidden_states(pooling, ANY_BLOCKS)
    if dtype not in DTYPES:
        raise unknown("dtype", str(dtype), DTYPES)
    if max_length is not None:
        check_number("max_length", max_length, 1, integer=True)
    if device is not None:
        check_device(device)
    began = time.perf_counter()
    source = _Source(str(name))
    with readable(lambda said: _explanation(name, said, source)):
        source = _locate(name, revision)
        if source.modules:
            # Another pooling is tried out on the processor.
            place = device if pooling is None else "cpu"
            model = _load_modules(source, place, DTYPES[dtype], trust_remote_code)
            transformer: Any = model[0]
        else:
            about: Mapping[str, Any] = {}
            if source.gguf is not None and cache is not None:
                about = gguf.describe_gguf(source.gguf, dtype)
            transformer = _load_transformer(source, dtype, about, cache, trust_remote_code)
        _limit(transformer, max_length, None if source.modules else DEFAULT_MAX_LENGTH)
        if source.modules and pooling is None:
            check_encoder(model.eval(), str(name))
        else:
            pooling = pooling or DEFAULT_POOLING
            _make_poolable(transformer, pooling, name)
            if source.gguf is None or cache is None:
                model = pooled(transformer, pooling, str(name), device)
            else:
                recipe = {
                    **about,
                    "pooling": pooling,
                    "max_length": transformer.max_seq_length,
                    "device": device,
                    "libraries": library_versions(),
                }
                model = _remembered(transformer, str(name), recipe, cache)
        keep_picklable(model)
    if source.gguf is not None and (licence := gguf.licence_of(source.gguf)):
        # The model keeps no trace of the .gguf, where it could be found later.
        model.model_card_data.license = licence
    if source.hub:
        model.model_card_data.base_model = source.name
    log.info(
        "%s loaded in %.1f s: %s; %s on %s, at most %s tokens",
        *(name, time.perf_counter() - began, ", ".join(type(module).__name__ for module in model)),
        *(model.dtype, model.device, model.max_seq_length),
    )
    return model


def load_poolings(
    name: str | Path, poolings: Sequence[str | None], **how: Any
) -> SentenceTransformer:
    """Load an encoder that gives the vectors of several poolings side by side, (poolings · D,).

    It takes one forward pass, and cannot be saved. Arguments and errors are those of
    `load_encoder`; a pooling that is None must be alone.
    """
    if len(poolings) == 1:
        return load_encoder(name, pooling=poolings[0], **how)
    named = [pooling for pooling in poolings if pooling is not None]
    if len(named) < max(1, len(poolings)):
        raise InputError(f"several poolings must each be named, got {list(poolings)}")
    states = sorted({state for one in named for state in hidden_states(one, ANY_BLOCKS)})
    # Blocks above the highest state are cut off; recipes by name go up to the last.
    every = states[-1] == ANY_BLOCKS
    widest = "embed-last-avg" if every else f"layers:{','.join(map(str, states))}"
    return side_by_side(load_encoder(name, pooling=widest, **how), named)[0]


def load_layers(name: str | Path, **how: Any) -> tuple[SentenceTransformer, list[str]]:
    """As `load_poolings`, of every hidden state; with their names, "layers:0" to "layers:L"."""
    return side_by_side(load_encoder(name, pooling="embed-last-avg", **how))


def _remembered(
    transformer: Transformer, name: str, recipe: Mapping[str, Any], cache: SentenceCache
) -> Encoder:
    """The encoder of a .gguf, whose number of blocks the cache remembers from an earlier probe."""
    key, pooling, device = key_of(recipe), recipe["pooling"], recipe["device"]
    if (found := cache.results.get(key)) is not None:
        return cut_to(transformer, pooling, found.result["blocks"], device)
    began = time.perf_counter()
    model = pooled(transformer, pooling, name, device)
    config: Any = transformer.model.config
    result = {"blocks": config.get_text_config().num_hidden_layers}
    seconds = time.perf_counter() - began
    try:
        cache.results.put(
            Result(kind="probe", key=key, recipe=recipe, result=result, seconds=seconds)
        )
    except ModelError as error:
        cache.warn(error)
    return model


def _load_transformer(
    source: _Source,
    dtype: str,
    about: Mapping[str, Any],
    cache: SentenceCache | None,
    trusted: bool,
) -> Transformer:
    how: dict[str, Any] = {"trust_remote_code": trusted, **source.hub}
    reading: Any = nullcontext()
    if source.gguf is not None:
        reading, how["gguf_file"] = gguf.quick_gguf(source.gguf, about, cache), source.gguf.name
    with reading:
        transformer: Transformer = Transformer(
            source.name,
            model_kwargs={"dtype": DTYPES[dtype], **how},
            processor_kwargs=dict(how),
            config_kwargs=dict(how),
            modality_config=TEXT_ONLY,
            module_output_name="token_embeddings",
        )
    check_weights([transformer], source.name, [""], **how)
    if source.gguf is not None:
        gguf.forget_gguf(transformer.model, source.gguf.name)
    return transformer


def _load_modules(
    source: _Source, device: str | None, dtype: torch.dtype, trusted: bool
) -> SentenceTransformer:
    """Load a sentence-transformers model, of a folder or of the hub."""
    name, usual = source.name, SentenceTransformer.__name__
    if about := load_file_path(name, "config_sentence_transformers.json", **source.hub):
        # sentence-transformers would take the transformer alone, with a pooling of its own.
        if (kind := read_json(Path(about)).get("model_type") or usual) != usual:
            raise ModelError(
                f"{name} is a {kind}, whose output is no dense sentence vector; give a "
                f"{usual} or a plain transformer"
            )
    listed = Path(load_file_path(name, "modules.json", **source.hub) or name)
    entries = read_modules(listed, trust_remote_code=trusted)
    how: dict[str, Any] = {"trust_remote_code": trusted, **source.hub}
    model = Encoder(name, device=device, model_kwargs={"dtype": dtype}, **how)
    check_weights(model, name, [entry["path"] for entry in entries], **how)
    return model


@dataclass(frozen=True)
class _Source:
    """Where an encoder is: a folder, maybe a .gguf in it, or a name and keywords for the hub."""

    name: str
    gguf: Path | None = None
    modules: bool = False
    hub: Mapping[str, Any] = field(default_factory=dict)


def has_pooling(name: str | Path) -> bool:
    """Whether an encoder is a sentence-transformers model, with a pooling and length of its own."""
    return _locate(name, None).modules


def _locate(name: str | Path, revision: str | None) -> _Source:
    path = Path(name)
    if path.suffix == ".gguf" or path.is_file():
        return _gguf(path)
    if path.is_dir():
        return _in_folder(path)
    text, candidates = str(name), hub_names(str(name))
    where: dict[str, Any] = {"revision": revision, "local_files_only": not hub_answers()}
    hub = _Source(text, hub=where)
    for candidate in candidates:
        with readable(lambda said: _explanation(name, said, hub)):
            if is_sentence_transformer_model(candidate, **where):
                return _Source(candidate, modules=True, hub=where)
    return hub


def _gguf(path: Path) -> _Source:
    if not path.is_file() or path.suffix != ".gguf":
        raise ModelError(f"{path} is no .gguf file; give the path of one, or a folder")
    need(f"reading {path.name}", "gguf", "gguf", "accelerate")
    return _Source(str(path.parent), path)


def _in_folder(path: Path) -> _Source:
    names = ("modules.json", "config.json", "adapter_config.json")
    if there := [name for name in names if (path / name).is_file()]:
        check_files(path)
        head = (path / there[0]).read_bytes()[:4096]
        if there[0] == "config.json" and b'"bertflow": {' in head:
            raise ModelError(f"{path} is an export to ONNX; give the model that it was made of")
        if there[0] == "config.json" and b'"calibrator"' in head:
            raise ModelError(
                f"{path} is a calibrator alone, without an encoder; use it with "
                "`bertflow transform`, or attach it to its encoder"
            )
        return _Source(str(path), modules=there[0] == "modules.json")
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(
            f"{path} is no encoder: it holds none of modules.json, config.json or one .gguf file"
        )
    return _gguf(files[0])


def _explanation(name: str | Path, said: str, source: _Source) -> str:
    if not source.hub:
        return f"{name} cannot be loaded: {said}"
    return not_on_hub(name, None if source.hub["local_files_only"] else said)


def _make_poolable(transformer: Any, pooling: str, name: str | Path) -> None:
    """Let a tokenizer pad on the right, which leaves the positions of tokens as they are."""
    if not isinstance(transformer, Transformer):
        raise InputError(
            f"pooling={pooling!r} needs a transformer, but {name} begins with "
            f"{type(transformer).__name__}; leave pooling out"
        )
    if (tokenizer := cast("Any", transformer.tokenizer)) is None:
        raise ModelError(f"{name} has no tokenizer")
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.bos_token


def _limit(module: Any, max_length: int | None, default: int | None) -> None:
    """Set how many tokens of a text are read, at most as many as tokenizer and model take."""
    own, most = getattr(module, "max_seq_length", None), None
    if isinstance(module, Transformer):
        most = positions(module)
    elif max_length is None:
        return
    elif own is None or math.isinf(own):
        raise InputError(
            f"max_length {max_length} cannot be set: the encoder begins with "
            f"{type(module).__name__}, which reads texts of any length; leave it out"
        )
    if max_length is not None and most is not None and max_length > most:
        raise InputError(f"max_length {max_length} is above the encoder's {most} tokens")
    limits = [max_length or default, own, most]
    module.max_seq_length = min((limit for limit in limits if limit is not None), default=None)


# Averaged word vectors: the baseline that sentence encoders were first measured against.


def load_word_vectors(path: str | Path) -> SentenceTransformer:
    r"""Read word vectors such as GloVe's, and average those of a sentence's words.

    .. math:: s = \frac1n \sum_{i=1}^n w_i

    Words are looked up as they are, without punctuation, or in lower case; stop words and unknown
    words do not count. A sentence without a known word is a zero vector.

    Args:
        path: Text, a word and its numbers a line, also with .gz. A first line of two counts, as
            word2vec writes it, is passed over.

    Raises:
        InputError: The file is missing or holds no word vectors; the message names the line that
            has another width, is not UTF-8, or has an entry that is no finite number.

    Source:
        Pennington, Socher and Manning (2014); paper, Table 2, first row.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "words.txt"
        >>> _ = file.write_text("cat 1 0\ndog 0 1\n")
        >>> load_word_vectors(file).encode(["Cat, dog!"], show_progress_bar=False).tolist()
        [[0.5, 0.5]]
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a text file of word vectors")
    try:
        vectors = dict(_vectors(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if not vectors:
        raise InputError(f"{path} holds no word vectors")
    width = len(next(iter(vectors.values())))
    log.info("%s: %d words of %d dimensions", path, len(vectors), width)
    # Words are padded with row 0.
    table = np.stack([np.zeros(width, dtype=np.float32), *vectors.values()])
    words = WordEmbeddings(WhitespaceTokenizer(["PADDING_TOKEN", *vectors]), table)
    pooling = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[words, pooling]).eval()


def _vectors(path: Path) -> Iterator[tuple[str, Array]]:
    """Each line's word and vector, all of one width."""
    width: int | None = None
    promised = number = 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                # A byte-order mark is no part of the first word.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise InputError(f"{path}, line {number}: it is not UTF-8") from None
            word, *entries = text.rstrip().split(" ")
            # word2vec's text form begins with the number of words and their width.
            if number == 1 and len(entries) == 1 and word.isdecimal() and entries[0].isdecimal():
                promised, width = int(word), int(entries[0])
                continue
            width = width or len(entries)
            # Some of GloVe's words hold spaces.
            while len(entries) > width > 0 and not _is_number(entries[0]):
                word = f"{word} {entries.pop(0)}"
            if not width or len(entries) != width or not all(map(_is_number, entries)):
                raise InputError(
                    f"{path}, line {number}: expected a word and {width or 'its'} finite numbers, "
                    f"got {shown(word)} and {shown(' '.join(entries))}"
                )
            yield word, np.array(entries, dtype=np.float32)
    if promised and number - 1 != promised:
        raise InputError(f"{path} holds {number - 1} of the {promised} words it promises")


def _is_number(text: str) -> bool:
    try:
        finite = abs(float(text)) <= LARGEST
    except ValueError:
        return False
    return finite and "_" not in text  # float() would take 1_0 for 10.
