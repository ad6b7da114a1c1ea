"""Models and calibrators as ONNX graphs, which run without torch.

A folder has the layout of the model hub: `onnx/model.onnx` maps `input_ids` and `attention_mask`
to `sentence_embedding`, the tokenizer's files make the first two of text, and `config.json` is what
runtimes read. What was written is compared with the torch model before it is moved to its place.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

import bertflow
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator, readme
from bertflow.calibrators.graph import CalibratorGraph
from bertflow.data import sample_sentences
from bertflow.encoders.checks import quietly, readable
from bertflow.encoders.encoder import PROMPTS, Role, calibrating, prompt_of, side_of
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.probe import check_encoder, difference, name_of, positions
from bertflow.errors import InputError, ModelError, check_number, need, shown, unknown
from bertflow.io import files
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

# How far a graph may be from torch on a sentence, as a part of the vector's length.
TOLERANCE = 1e-4
QUANTIZATIONS = ("int8",)
# Of the operator sets, the first that torch writes and the last that was tried.
OPSETS = (18, 23)
# What a tokenizer says of a model that takes texts of any length.
ANY_LENGTH = 1 << 30
# Texts are tried up to this number of tokens, and beyond the model's own limit where that is less.
LONGEST = 512
CHECKED_SENTENCES, CHECKED_ROWS, TOGETHER = 24, 512, 8
OTHERS = ("", " ", "ı ß 日本語 🎈 naïve", "ALL CAPITALS, 3.14 %!", "two\nlines\tand a tab  ")
# A file of ONNX ends at 2 GB. Larger weights lie beside it, by the name that transformers.js knows.
LARGEST_FILE = 1_900_000_000
# Libraries whose logs are of no use to who exports.
CHATTER = ("torch", "onnx_ir", "onnxscript", "root")
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
# From this mean cosine on, vectors of int8 are near enough for all products to be in it.
NEAR = 0.98
# Names of the nodes that calibrate begin with this.
BEHIND = "calibrator/"
GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"


@dataclass(frozen=True)
class Exported:
    """What `export_onnx` has written.

    Attributes:
        graphs: The files of the graphs, by their names in the folder, and their bytes.
        width: Dimensions of the vectors that come out.
        difference: The largest distance of a vector from torch's, as a part of its length.
        checked: How many sentences or rows were compared.
        cosine: Of int8, the mean cosine of its vectors with torch's; else None.
    """

    graphs: dict[str, int]
    width: int
    difference: float
    checked: int
    cosine: float | None = None


@pinned(seed=True)
def export_onnx(
    model: SentenceTransformer | Calibrator,
    folder: str | Path,
    *,
    quantize: str | None = None,
    opset: int | None = None,
    role: Role | None = None,
) -> Exported:
    """Write a model, or a calibrator alone, as an ONNX graph with all that a runtime needs.

    A model becomes one graph from tokens to calibrated sentence vectors, of any number of sentences
    of any length, in float32. A calibrator becomes two, `calibrator.onnx` from vectors to
    calibrated ones and `inverse.onnx` back. The needed packages come with the extra `onnx`.

    Args:
        model: A SentenceTransformer, calibrated or not, or a fitted calibrator.
        folder: Made if it is not there; replaced if it holds an export; else refused.
        quantize: "int8" stores the encoder's weights in 8 bits and multiplies in them. What
            calibrates stays in float32.
        opset: ONNX's operator set, 18 to 23; None leaves it to torch.
        role: The side of a search, whose prompt and map are taken: "query" or "document". None
            takes what the model's `encode` does.

    Returns:
        Sizes, and how near the graph is to torch.

    Raises:
        sklearn.exceptions.NotFittedError: The calibrator has not been fitted.
        InputError: An argument is none of its values, or the model is none of those.
        ModelError: The model has no graph, the graph's vectors differ from torch's by more than
            1e-4 of their length, or the folder holds something else.
        MissingDependencyError: A package is missing.

    Example:
        ``export_onnx(load("my-model"), "my-onnx")``
    """
    check_export(quantize, opset)
    if role is not None and role not in PROMPTS:
        raise unknown("role", role, PROMPTS)
    if isinstance(model, Calibrator):
        check_is_fitted(model)
        if quantize is not None:
            raise InputError("a calibrator alone is small and stays float32; leave quantize out")
    files.check_replaceable(folder)
    if not isinstance(model, Calibrator):
        check_encoder(model)
        model = _prepared(model, role)
    with files.replaced_folder(folder) as staging, _silently():
        if isinstance(model, Calibrator):
            found = _export_calibrator(model, staging, opset, role or "document")
        else:
            found = _export_model(model, staging, quantize, opset, role)
    log.info("wrote %s: off by %.1e", folder, found.difference)
    return found


def check_export(quantize: str | None, opset: int | None) -> None:
    """Refuse arguments that are none of their values, and missing packages."""
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise unknown("quantization", str(quantize), QUANTIZATIONS)
    if opset is not None:
        check_number("opset", opset, *OPSETS, integer=True)
    need("export to ONNX", "onnx", "onnx", "onnxscript", "onnxruntime")


# Models


class _Graph(nn.Module):
    """A model from tokens to sentence vectors; what calibrates has a name of its own."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        behind = calibrating(model)
        self.encoder = nn.ModuleList(module for module in model if module not in behind)
        self.calibrator = nn.ModuleList(_recordable(module) for module in behind)
        self.width = model.truncate_dim

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        for module in [*self.encoder, *self.calibrator]:
            features = module(features)
        return features[OUTPUT][:, : self.width]


class _Recordable(nn.Module):
    """A `CalibratorModule` without the calibrator's own methods."""

    def __init__(self, module: CalibratorModule) -> None:
        super().__init__()
        self.graph = CalibratorGraph(module.calibrator, module.role)
        self.width = module.calibrator.n_features_in_

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**features, OUTPUT: self.graph(features[OUTPUT][:, : self.width])}


def _recordable(module: Any) -> nn.Module:
    found: nn.Module = _Recordable(module) if isinstance(module, CalibratorModule) else module
    return found


def _prepared(model: SentenceTransformer, role: str | None) -> SentenceTransformer:
    """A copy of one side of a model, on the processor in float32; a ModelError if it has none."""
    side, name = side_of(model, role or "document"), name_of(model)
    if role is None:
        side.default_prompt_name = model.default_prompt_name
    if not isinstance(side[0], Transformer):
        raise ModelError(
            f"{name} begins with {type(side[0]).__name__}, but a graph takes the tokens of a "
            "transformer; export another model"
        )
    if not getattr(side.tokenizer, "is_fast", False):
        raise ModelError(f"{name} has no fast tokenizer, so no tokenizer.json; give it one")
    if prompt_of(side) and not all(getattr(module, "include_prompt", True) for module in side):
        raise ModelError(
            f"{name} pools without the tokens of its prompt {prompt_of(side)!r}, which no graph of "
            "tokens can tell; set include_prompt of its pooling, and calibrate it anew"
        )
    with quietly():
        return copy.deepcopy(side).to("cpu").float().eval()


def _export_model(
    model: SentenceTransformer,
    folder: Path,
    quantize: str | None,
    opset: int | None,
    role: str | None,
) -> Exported:
    name = name_of(model)
    tokenizer, limit = _write_tokenizer(model, folder)
    prompt = prompt_of(model) or ""
    texts = [text for text in _texts(limit) if tokenizer.encode(text).ids]
    mixed = [texts[n::TOGETHER] for n in range(TOGETHER)]
    batches = [*([text] for text in texts), *mixed]  # The mixed ones are the last.
    with readable(lambda said: f"{name} cannot encode a sentence: {said}"):
        _check_tokens(model, tokenizer, [prompt + text for text in texts])
        # Before the recording: that leaves transformers' hooks in the model twice.
        exact = [_encoded(model, batch) for batch in batches]
    (folder / "onnx").mkdir()
    graph, path = _Graph(model), folder / GRAPH
    example = torch.ones((3, 14), dtype=torch.long)
    with readable(lambda said: f"{name} cannot be written as a graph: {said}"):
        _record(graph, (example, torch.ones_like(example)), INPUTS, OUTPUT, path, opset)
    run, cosine = _runner(path), None

    def vectors(batch: Sequence[str], of: Callable[..., Array] = run) -> Array:
        tokens = tokenizer.encode_batch([prompt + text for text in batch])
        ids, mask = (np.array([getattr(t, n) for t in tokens]) for n in ("ids", "attention_mask"))
        return of(**dict(zip(INPUTS, (ids, mask), strict=True)))

    with readable(lambda said: f"the graph of {name} cannot be run: {said}"):
        off = max(difference(*pair) for pair in zip(exact, map(vectors, batches), strict=True))
    _check(off, name, opset)
    if quantize is not None:
        with readable(lambda said: f"{name} cannot be quantized: {said}"):
            cosine = _quantize(
                folder,
                lambda quick: np.concatenate([vectors(batch, quick) for batch in mixed]),
                np.concatenate(exact[-TOGETHER:]),
            )
    width = exact[0].shape[1]
    found = Exported(_sizes(folder), width, off, len(texts), cosine)
    _write_config(folder, model, tokenizer, limit, role, found)
    return found


def _check_tokens(model: SentenceTransformer, tokenizer: Any, texts: Sequence[str]) -> None:
    """Refuse a tokenizer.json that alone gives a text other tokens than the model does."""
    for text in texts:
        own = model.preprocess([text])["input_ids"][0].tolist()
        if own != tokenizer.encode(text).ids:
            raise ModelError(
                f"{name_of(model)} makes other tokens of {shown(text)} than its tokenizer.json, "
                "which is all that a runtime has; save its tokenizer as it is used, and load it"
            )


def _encoded(model: SentenceTransformer, texts: Sequence[str]) -> Array:
    how: dict[str, Any] = {"batch_size": len(texts), "show_progress_bar": False}
    return np.asarray(model.encode(list(texts), **how))


def _texts(limit: int) -> list[str]:
    """Real sentences, odd ones, and texts of all lengths up to beyond the limit."""
    sentences = sample_sentences()
    words = " ".join(sentences).split()
    most = min(limit, LONGEST) + 2
    lengths = [2**n for n in range(most.bit_length()) if 2**n < most] + [most]
    return [*sentences[:CHECKED_SENTENCES], *OTHERS, *(" ".join(words[:n]) for n in lengths)]


def _write_tokenizer(model: SentenceTransformer, folder: Path) -> tuple[Any, int]:
    """Write tokenizer.json, which cuts and pads by itself, and what transformers.js reads."""
    from tokenizers import Tokenizer

    own: Any = model.tokenizer
    limit = int(min(model.max_seq_length or positions(model[0]) or ANY_LENGTH, ANY_LENGTH))
    found = Tokenizer.from_str(own.backend_tokenizer.to_str())
    found.no_truncation()
    if limit < ANY_LENGTH:
        found.enable_truncation(limit, direction=own.truncation_side)
    pad, side = own.pad_token or own.eos_token, own.padding_side
    found.enable_padding(pad_id=found.token_to_id(pad), pad_token=pad, direction=side)
    found.save(str(folder / "tokenizer.json"))
    names = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    tokens = {f"{name}_token": getattr(own, f"{name}_token") for name in names}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": limit,
        "padding_side": own.padding_side,
        "truncation_side": own.truncation_side,
        "clean_up_tokenization_spaces": False,
        **{name: str(token) for name, token in tokens.items() if token is not None},
        "pad_token": str(pad),
    }
    _write_json(folder / "tokenizer_config.json", settings)
    return found, limit


def _write_config(
    folder: Path,
    model: SentenceTransformer,
    tokenizer: Any,
    limit: int,
    role: str | None,
    found: Exported,
) -> None:
    calibrator = getattr(model, "calibrator", None)
    _write_json(
        folder / "config.json",
        {
            # To a runtime the graph is what BERT's is: tokens and a mask to vectors. By the name of
            # a decoder, transformers.js would ask it for past key values.
            "model_type": "bert",
            "hidden_size": found.width,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": limit,
            "pad_token_id": tokenizer.padding["pad_id"],
            "bertflow": {
                "prompt": prompt_of(model) or "",
                "role": role,
                "similarity": str(model.similarity_fn_name),
                "max_length": limit,
                "calibrator": None if calibrator is None else readme.preset_name(calibrator),
                **_facts(found),
            },
        },
    )


# Calibrators


def _export_calibrator(
    calibrator: Calibrator, folder: Path, opset: int | None, role: str
) -> Exported:
    name = type(calibrator).__name__
    normal = np.random.default_rng(0).standard_normal((CHECKED_ROWS, calibrator._n_features_out))
    rows = calibrator.inverse_transform(normal, role).astype(np.float32)
    calibrated = calibrator.transform(rows, role)
    ways = {
        "calibrator": (rows, calibrator.transform, "vectors", "calibrated"),
        "inverse": (calibrated, calibrator.inverse_transform, "calibrated", "vectors"),
    }
    off = 0.0
    for way, (given, exact, source, target) in ways.items():
        graph = CalibratorGraph(calibrator, role, inverse=way == "inverse").eval()
        path = folder / f"{way}.onnx"
        with readable(lambda said: f"{name} cannot be written as a graph: {said}"):
            _record(graph, (torch.from_numpy(given[:3]),), (source,), target, path, opset)
            run = _runner(path)
            parts = [given[:1], given[1:]]
            got = np.concatenate([run(**{source: part}) for part in parts])
        off = max(off, difference(exact(given.astype(np.float64), role), got))
    _check(off, f"the graph of {name}", opset)
    found = Exported(_sizes(folder), calibrator._n_features_out, off, len(rows))
    about = {"calibrator": readme.preset_name(calibrator), "role": role, **_facts(found)}
    _write_json(folder / "config.json", {"bertflow": about})
    return found


# Both


def _record(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    names: Sequence[str],
    output: str,
    path: Path,
    opset: int | None,
) -> None:
    """Write a module as a graph of any number of rows and, of tokens, any length."""
    import onnx_ir

    sizes = {0: "rows", 1: "tokens"} if inputs[0].dtype == torch.long else {0: "rows"}
    try:
        with torch.no_grad():
            program: Any = torch.onnx.export(
                module.eval(),
                inputs,
                dynamo=True,
                dynamic_shapes=(sizes,) * len(inputs),
                input_names=list(names),
                output_names=[output],
                opset_version=opset,
                verbose=False,
            )
    except Exception as error:  # torch's own says what step failed, and why in its cause.
        raise (error.__cause__ or error) from None
    graph = program.model.graph
    for node in graph.all_nodes():
        # What calibrates can be told by its name; lines of this machine's code go.
        if "'calibrator" in node.metadata_props.get("pkg.torch.onnx.name_scopes", ""):
            node.name = f"{BEHIND}{node.name}"
        node.metadata_props.clear()
    for part in (graph, *graph.inputs, *graph.outputs, *graph.initializers.values()):
        part.metadata_props.clear()
    size = sum(one.const_value.nbytes for one in graph.initializers.values())
    beside = f"{path.name}_data" if size > LARGEST_FILE else None
    onnx_ir.save(program.model, path, external_data=beside)


def _runner(path: Path) -> Callable[..., Array]:
    """What runs a graph: its inputs by name to its only output."""
    from onnxruntime import InferenceSession

    session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda **inputs: np.asarray(session.run(None, inputs)[0])


def _quantize(
    folder: Path, vectors: Callable[[Callable[..., Array]], Array], exact: Array
) -> float:
    """Put a quantized graph in the place of a graph; the mean cosine of their vectors."""
    path, target = folder / GRAPH, folder / QUANTIZED
    # Raw language models have a few huge activations within their blocks, which take all the steps
    # of a scale. They enter the products that narrow, and those cost a third of the gain.
    for narrowing in (True, False):
        _write_quantized(path, target, narrowing)
        cosine = _mean_cosine(exact, vectors(_runner(target)))
        log.info("int8 of %s products: mean cosine %.4f", "all" if narrowing else "most", cosine)
        if cosine >= NEAR:
            break
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    return cosine


def _write_quantized(path: Path, target: Path, narrowing: bool) -> None:
    """Quantize a graph but for what calibrates and, unless asked for, products that narrow."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(str(path), load_external_data=False).graph
    own = [node.name for node in graph.node if node.name.startswith(BEHIND)]
    # A Gemm is made into a product and a sum before, with names of their own.
    kept = [*own, *(f"{name}_MatMul" for name in own)]
    if not narrowing:
        shapes = {one.name: tuple(one.dims) for one in graph.initializer if len(one.dims) == 2}
        narrow = {name for name, (rows, columns) in shapes.items() if rows > columns}
        products = [node for node in graph.node if node.op_type == "MatMul"]
        kept += [node.name for node in products if node.input[1] in narrow]
    quantize_dynamic(
        path,
        target,
        # Products with weights, and tables of embeddings.
        op_types_to_quantize=["MatMul", "Gather"],
        nodes_to_exclude=kept,
        weight_type=QuantType.QInt8,
        per_channel=True,
        # 7 of the 8 bits: products of all 8 overflow the 16 bits in which processors without VNNI
        # add them.
        reduce_range=True,
        use_external_data_format=path.with_name(f"{path.name}_data").exists(),
    )


def _check(off: float, name: str, opset: int | None) -> None:
    if off > TOLERANCE:
        raise ModelError(
            f"{name} differs from torch by {off:.1e} of a vector's length, allowed is "
            f"{TOLERANCE:.0e}: its map is too ill-conditioned for float32, or onnxruntime computes "
            "an operator otherwise; calibrate more softly"
            f"{', or leave opset out' if opset else ''}"
        )


def _mean_cosine(one: Array, other: Array) -> float:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(axis=1) / lengths.clip(1e-30)).mean())


def _sizes(folder: Path) -> dict[str, int]:
    paths = sorted(path for path in folder.rglob("*.onnx*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def _facts(found: Exported) -> dict[str, Any]:
    quantized = found.cosine is not None
    return {
        "width": found.width,
        "precision": "int8" if quantized else "float32",
        # Of int8 the graph that was compared is not there any more.
        "float32_difference" if quantized else "difference": found.difference,
        **({"cosine_to_float32": found.cosine} if quantized else {}),
        "checked": found.checked,
        "version": bertflow.__version__,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _silently() -> Iterator[None]:
    """Without the warnings and logs of the libraries, which are about their own insides."""
    with ExitStack() as before, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # onnxruntime would give the root a handler, which prints what everybody logs from then on.
        root, nothing = logging.getLogger(), logging.NullHandler()
        root.addHandler(nothing)
        before.callback(root.removeHandler, nothing)
        for name in CHATTER:
            chatter = logging.getLogger(name)
            before.callback(chatter.setLevel, chatter.level)
            chatter.setLevel(logging.ERROR)
        yield
