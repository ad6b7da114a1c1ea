"""What the fuzzer reads: every reader of files, and whole files of each to start from."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from bertflow import AllButTheTop, Flow, Standardization, Whitening, load_encoder
from bertflow.calibrators import load_calibrator, save_calibrator
from bertflow.calibrators.training import Checkpoint, State
from bertflow.cli.options import Chosen
from bertflow.data import CATALOG, read_corpus, read_nli, read_pairs, read_sentences, read_task
from bertflow.encoders import load_word_vectors
from bertflow.encoders.checks import read_modules, readable
from bertflow.encoders.encoding import Group
from bertflow.encoders.gguf import licence_of
from bertflow.encoders.sentence_cache import Unfinished, VectorCache, parse_size
from bertflow.finetuning.siamese import CLASSIFIER, RECORD, last_checkpoint, restore
from bertflow.io.files import check_replaceable
from bertflow.io.reading import read_json
from bertflow.io.result_store import Result, ResultStore
from bertflow.io.vectors import read_vectors

Files = dict[str, bytes]
ROWS = [("A cat eats.", 'A dog "barks"', "2.5"), ("Ein Bär", "一只熊", "0"), ("x", "y", "5.0")]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader, and what it is fed.

    Attributes:
        name: For the table.
        files: Whole files by name, any of which is damaged; the reader takes them as they are.
        read: Called with their folder.
        kept: Names that are never damaged.
        changes: Whether it writes in the folder, which is then made anew for each input.
        named: Whether its errors name a file.
        share: How many inputs it gets, beside the others' 1.
    """

    name: str
    files: Files
    read: Callable[[Path], Any]
    kept: frozenset[str] = frozenset()
    changes: bool = False
    named: bool = True
    share: float = 1.0


def readers() -> list[Reader]:
    """All of them; their whole files are made on the spot."""
    return [
        *_tables(),
        *_tasks(),
        *_vectors(),
        *_calibrators(),
        *_encoders(),
        *_left_behind(),
        *_settings(),
    ]


def _lines(rows: list[tuple[str, ...]], mark: str = "\t") -> bytes:
    return "".join(mark.join(row) + "\n" for row in rows).encode()


def _parquet(columns: Mapping[str, list[Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), out)
    return out.getvalue()


def _tables() -> list[Reader]:
    names = ("sentence1", "sentence2", "score")
    sides = list(zip(*ROWS, strict=True))
    objects = [json.dumps(dict(zip(names, row, strict=True))) for row in ROWS]
    quoted = [
        tuple(f'"{cell}"' if " " in cell and '"' not in cell else cell for cell in row)
        for row in [("A cat, eats.", "dog", "2.5"), ROWS[1][1:] + ("3",)]
    ]
    single = {
        ".txt": _lines([(row[0],) for row in ROWS]),
        ".csv": _lines([("text",), ('"A cat, eats."',), ("Bär",)], ","),
        ".tsv": _lines([("id", "text"), ("1", '"A cat'), ("2", "Bär")]),
        ".jsonl": b'{"text": "A cat", "n": 1}\n{"text": "B\\u00e4r"}\n',
        ".parquet": _parquet({"text": ["A cat", "Bär", None], "n": [1, 2, 3]}),
    }
    triple = {
        ".csv": _lines([names, *quoted], ","),
        ".tsv": _lines([names, *ROWS]),
        ".jsonl": ("\n".join(objects) + "\n").encode(),
        ".parquet": _parquet(dict(zip(names, map(list, sides), strict=True))),
    }
    found = []
    for kind, content in single.items():
        for packed in (False, True):
            file = f"c{kind}{'.gz' if packed else ''}"
            column = "text" if kind == ".tsv" else None
            found.append(
                Reader(
                    name=f"corpus {kind}{' gz' if packed else ''}",
                    files={file: gzip.compress(content, 1, mtime=0) if packed else content},
                    read=lambda folder, file=file, column=column: read_corpus(
                        [folder / file], column=column
                    ),
                    share=0.5,
                )
            )
    for kind, content in triple.items():
        file = f"p{kind}"
        found.append(
            Reader(
                name=f"pairs {kind}",
                files={file: content},
                read=lambda folder, file=file: read_pairs(folder / file),
            )
        )
    return found


def _tasks() -> list[Reader]:
    """Every form of layout, of the task readers."""
    sts16 = CATALOG["sts16"].subsets
    labels = [("neutral",), ("contradiction",), ("entailment",)]
    nli = [(a, b, label) for (a, b, _), (label,) in zip(ROWS, labels, strict=True)]
    snli = [
        json.dumps({"gold_label": label, "sentence1": a, "sentence2": b}) + "\n"
        for a, b, label in nli
    ]
    year = {
        f"STS16-en-test/STS.{part}.{subset}.txt": _lines(
            [row[:2] if part == "input" else row[2:] for row in ROWS]
        )
        for subset in sts16
        for part in ("input", "gs")
    }
    stsb = [("main", "file", "2012", "1", gold, a, b) for a, b, gold in ROWS]
    glue = [("index", "sentence1", "sentence2", "score")]
    glue += [("1", a, b, gold) for a, b, gold in ROWS]
    sick = [("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")]
    sick += [("1", a, b, "3.5", "NEUTRAL") for a, b, _ in ROWS]
    whole = [("sentence_A", "sentence_B", "relatedness_score", "entailment_label", "SemEval_set")]
    splits = ("TRAIN", "TRIAL", "TEST")
    whole += [(a, b, "3.5", "NEUTRAL", s) for (a, b, _), s in zip(ROWS, splits, strict=True)]
    qnli = [("index", "question", "sentence", "label")]
    qnli += [("1", '"Who', "C ate", "entailment"), ("2", "q", "s", "not_entailment")]
    text = [("gold_label", "sentence1", "sentence2"), *((c, a, b) for a, b, c in nli)]
    five = [("index", "captionID", "sentence1", "sentence2", "label1", "gold_label")]
    five += [("1", "x", a, b, "neutral", label) for a, b, label in nli]
    sides = {
        f"SNLI/{part}.train": _lines([(row[place],) for row in nli])
        for place, part in enumerate(["s1", "s2", "labels"])
    }
    files: dict[str, tuple[str, str, Files]] = {
        "sts": ("sts16", "test", year),
        "positions": ("stsb", "test", {"STSBenchmark/sts-test.csv": _lines(stsb)}),
        "GLUE STS-B": ("stsb", "dev", {"STS-B/dev.tsv": _lines(glue)}),
        "SICK": ("sick-r", "test", {"SICK/SICK_test_annotated.txt": _lines(sick)}),
        "SICK in one": ("sick-r", "test", {"SICK/SICK.txt": _lines(whole)}),
        "QNLI": ("qnli", "dev", {"QNLI/dev.tsv": _lines(qnli)}),
        "SNLI jsonl": ("snli", "train", {"nli/snli_train.jsonl": "".join(snli).encode()}),
        "MNLI text": ("mnli", "train", {"MNLI/multinli_1.0_train.txt": _lines(text)}),
        "GLUE SNLI": ("snli", "train", {"SNLI/train.tsv": _lines(five)}),
        "SNLI in three": ("snli", "train", sides),
    }
    found = []
    for form, (name, split, content) in files.items():
        labelled = read_nli if CATALOG[name].kind == "nli" else read_task

        def read(
            folder: Path, name: str = name, split: str = split, labelled: Any = labelled
        ) -> None:
            labelled(name, folder, split)
            read_sentences(name, folder)

        found.append(Reader(name=f"task {form}", files=content, read=read))
    return found


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _vectors() -> list[Reader]:
    random = np.random.default_rng(0)
    words = _lines([("cat", "1", "0.5"), ("dog", "-1e-3", "2"), ("a b", "0", "0")], " ")
    counted = b"3 2\n" + words
    return [
        Reader(
            name="word vectors",
            files={"w.txt": words},
            read=lambda folder: load_word_vectors(folder / "w.txt"),
        ),
        Reader(
            name="word vectors gz",
            files={"w.gz": gzip.compress(counted, 1, mtime=0)},
            read=lambda folder: load_word_vectors(folder / "w.gz"),
        ),
        Reader(
            name="vectors .npy",
            files={"x.npy": _npy(random.normal(size=(5, 4)).astype(np.float32))},
            read=lambda folder: np.array(read_vectors(folder / "x.npy")),
            share=2,
        ),
    ]


def _folder_of(write: Callable[[Path], Any]) -> Files:
    """The files that something writes into a folder."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "x"
        write(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _calibrators() -> list[Reader]:
    x = np.random.default_rng(0).gamma(1.0, size=(40, 4)).astype(np.float32)
    kinds: dict[str, Any] = {
        "standardization": Standardization(),
        "whitening": Whitening(dim=3),
        "all-but-the-top": AllButTheTop(n_components=1),
        "flow": Flow(levels=1, depth=1, width=2, epochs=1),
        "affine flow": Flow(
            levels=1, depth=1, width=2, epochs=1, coupling="affine", permutation="linear"
        ),
    }
    found = []
    for name, calibrator in kinds.items():
        calibrator.fit(x)
        files = _folder_of(lambda folder, one=calibrator: save_calibrator(one, folder))
        found.append(
            Reader(
                name=f"saved {name}",
                files=files,
                read=_applied,
                share=0.5 if "flow" in name else 1.5,
            )
        )
    files = _folder_of(lambda folder: save_calibrator(kinds["whitening"], folder))
    found.append(
        Reader(
            name="saved model",
            files={f"bertflow/{name}": content for name, content in files.items()},
            read=_applied,
        )
    )
    found.append(Reader(name="list of files", files=files, read=check_replaceable))
    return found


def _applied(folder: Path) -> None:
    """Load a calibrator, and use it: what is loaded must give numbers."""
    calibrator = load_calibrator(folder)
    rows = np.random.default_rng(1).gamma(1.0, size=(3, calibrator.n_features_in_))
    calibrator.transform(rows)


def _tiny_encoder(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = {word: row for row, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=8,
    )
    BertModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=8
    ).save_pretrained(folder)


def _gguf() -> bytes:
    def text(one: str) -> bytes:
        return struct.pack("<Q", len(one)) + one.encode()

    facts = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.block_count") + struct.pack("<II", 4, 2),
        text("llama.embedding_length") + struct.pack("<II", 4, 8),
        text("llama.eps") + struct.pack("<If", 6, 1e-6),
        text("tokenizer.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("tokenizer.scores") + struct.pack("<IIQff", 9, 6, 2, 0.0, 1.0),
    ]
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(facts)) + b"".join(facts) + bytes(256)


def _read_gguf(folder: Path) -> None:
    path = folder / "x.gguf"
    with readable(lambda said: f"{path}: {said}"):  # As load_encoder does.
        licence_of(path)


def _encoders() -> list[Reader]:
    kinds = ["Transformer", "Pooling", "Dense"]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"{MODELS}.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    listed = {"modules.json": json.dumps(modules).encode()}
    tiny = _folder_of(_tiny_encoder)

    return [
        Reader(
            name="modules.json",
            files=listed,
            read=lambda folder: read_modules(folder / "modules.json"),
            share=2,
        ),
        Reader(
            name="encoder",
            files=tiny,
            read=lambda folder: load_encoder(folder, device="cpu"),
            share=0.1,
        ),
        Reader(name="gguf header", files={"x.gguf": _gguf()}, read=_read_gguf, share=2),
    ]


MODELS = "sentence_transformers.models"


class _Classifier(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)


def _left_behind() -> list[Reader]:
    """What stopped work leaves, and caches."""
    random = np.random.default_rng(0)
    run = {"seed": "0", "x": "1"}
    rows = random.normal(size=(4, 2)).astype(np.float32)
    state = State(*(torch.zeros(5) for _ in range(3)), torch.zeros(2, dtype=torch.float64))

    def write_state(folder: Path) -> None:
        folder.mkdir()
        checkpoint = Checkpoint(folder / "flow.safetensors", run, rows)
        checkpoint._saved = -math.inf
        checkpoint.save(state)

    def read_state(folder: Path) -> None:
        found = Checkpoint(folder / "flow.safetensors", run, rows).state
        if found is not None:
            assert {len(tensor) for tensor in found[:3]} == {5}

    about = {"encoder": {"width": 3}}

    def write_cache(folder: Path) -> None:
        VectorCache(folder, about).add(["a", "b"], np.ones((2, 3), dtype=np.float32))

    def read_cache(folder: Path) -> None:
        cache = VectorCache(folder, about)
        if len(cache):
            np.array(cache.vectors()[cache.find(["a", "b", "c"])])

    group, vectors = Group(["a", "b"]), np.arange(6, dtype=np.float32).reshape(2, 3)

    def write_part(folder: Path) -> None:
        Unfinished(folder, about).add(group, np.arange(2), vectors)

    def read_part(folder: Path) -> None:
        there, found = Unfinished(folder, about).take(group)
        assert not len(there) or np.array_equal(found, vectors[there])

    classifier = save({name: t.detach() for name, t in _Classifier().state_dict().items()})
    record = {"run": {"recipe": 1}, "losses": [0.5] * 3, "files": {CLASSIFIER: len(classifier)}}

    def read_checkpoints(folder: Path) -> None:
        checkpoint, _ = last_checkpoint(folder, {"recipe": 1})
        if checkpoint is not None:
            restore(checkpoint, _Classifier())

    work = {"kind": "score", "key": "ab", "recipe": {}, "seconds": 0.1}
    one = Result(**work, result={"x": 1}, arrays={"cosines": np.ones(3)})

    return [
        Reader(name="checkpoint of a fit", files=_folder_of(write_state), read=read_state, share=2),
        Reader(
            name="vectors of a run",
            files=_folder_of(write_cache),
            read=read_cache,
            kept=frozenset({".lock"}),  # It has no content.
            changes=True,
        ),
        Reader(name="encode, stopped", files=_folder_of(write_part), read=read_part),
        Reader(
            name="finetune, stopped",
            files={
                f"checkpoint-3/{RECORD}": json.dumps(record).encode(),
                f"checkpoint-3/{CLASSIFIER}": classifier,
            },
            read=read_checkpoints,
            changes=True,
        ),
        Reader(
            name="record",
            files=_folder_of(lambda folder: ResultStore(folder).put(one)),
            read=lambda folder: ResultStore(folder).get("ab"),
        ),
        Reader(
            name="JSON",
            files={"x.json": b'{"a": [1, {"b": 2.5}], "c": null}\n'},
            read=lambda folder: read_json(folder / "x.json"),
        ),
    ]


def _settings() -> list[Reader]:
    """What the command line parses."""

    def read(folder: Path) -> None:
        text = (folder / "x").read_bytes().decode("utf-8", "surrogateescape")[:20_000]
        kind, _, setting = text.partition(" ")
        if kind == "size":
            parse_size(setting)
        else:
            Chosen(calibrator="flow", set=[setting]).build("cpu")

    texts = [b"set epochs=2", b"set scale_rate=0.5", b"set max_grad_norm=null", b"size 1.5 GB"]
    return [
        Reader(
            name=f"setting {text.decode()}", files={"x": text}, read=read, named=False, share=0.5
        )
        for text in texts
    ]
