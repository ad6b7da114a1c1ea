"""What the tests share: where the data of others lies, and a tiny encoder made on the spot."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@pytest.fixture(scope="session", autouse=True)
def the_same_arithmetic_everywhere() -> Iterator[None]:
    """What "auto" means must not depend on the machine that tests: float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertflow.encoders.precision.multiplies_bfloat16", lambda device: False)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets and fixtures: BERTFLOW_DATA, or ../shared/data."""
    folder = Path(os.environ.get("BERTFLOW_DATA", REPOSITORY / "../shared/data")).resolve()
    if not folder.is_dir():
        reason = f"no data at {folder}: set BERTFLOW_DATA"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders that are not there yet."""
    home = tmp_path_factory.mktemp("caches")
    return (home / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def cache_of_its_own(caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test, and every process it starts, has a cache that no other test has used."""
    folder = next(caches)
    monkeypatch.setenv("BERTFLOW_CACHE", str(folder))
    monkeypatch.delenv("BERTFLOW_CACHE_SIZE", raising=False)
    return folder


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


WORDS = (
    "a the man woman dog cat is was are plays playing guitar piano on in at of and not runs "
    "running eats eating food bread street house two three children red blue big small old new "
    "train car bus bird flies water drinks reads writes book letter today yesterday . , ?"
).split()


def save_tiny_encoder(folder: Path, kind: str = "bert", blocks: int = 3, width: int = 16) -> Path:
    """Write a randomly initialised transformers encoder with a word-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: row for row, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    if kind == "bert":
        names |= {"pad_token": "[PAD]", "mask_token": "[MASK]"}
    else:
        names |= {"eos_token": "[SEP]", "bos_token": "[CLS]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **names)
    common = {
        "vocab_size": len(vocabulary),
        "hidden_size": width,
        "num_hidden_layers": blocks,
        "num_attention_heads": 2,
        "intermediate_size": 2 * width,
        "max_position_embeddings": 32,
    }
    torch.manual_seed(0)
    if kind == "bert":
        model = BertModel(BertConfig(**common, initializer_range=0.3))
    else:
        model = LlamaModel(LlamaConfig(**common, num_key_value_heads=2, initializer_range=0.3))
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a BERT with 3 blocks, 16 dimensions and at most 32 tokens."""
    return save_tiny_encoder(tmp_path_factory.mktemp("tiny-bert"), "bert")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a causal, pre-norm model with 3 blocks, without a padding token."""
    return save_tiny_encoder(tmp_path_factory.mktemp("tiny-llama"), "llama")


@pytest.fixture(scope="session")
def tiny_sentences() -> list[str]:
    """300 sentences over the tiny encoders' vocabulary, some of them equal."""
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 12))) for _ in range(300)]


# The command line.


@pytest.fixture
def as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a run sets ends with the test; libraries that are loaded already hush now."""
    from transformers.utils import logging

    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], as_in_a_process_of_its_own: None) -> Callable:
    """Run the command line: exit code, standard output, standard error."""
    from bertflow.cli.main import run

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def done(cli: Callable) -> Callable:
    """Run the command line, which must succeed without a word on standard error."""

    def call(*arguments: object) -> str:
        code, out, err = cli(*arguments)
        assert (code, err) == (0, "")
        return out

    return call


@pytest.fixture
def refused(cli: Callable) -> Callable:
    """Run the command line, which must refuse and write nothing: its one line, less "error: "."""

    def call(*arguments: object) -> str:
        before = tree(Path.cwd())
        code, out, err = cli(*arguments)
        assert code == 1
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert "Traceback" not in err + out
        # Only what nobody thought of is called unexpected.
        assert "unexpected" not in err
        assert tree(Path.cwd()) == before
        return err.removeprefix("error: ").strip()

    return call


def tree(folder: Path) -> dict[str, bytes]:
    """Every file and folder below a folder, with what it holds."""
    assert folder != REPOSITORY, "the test has no folder of its own to work in"
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


def of_probe(text: str) -> bool:
    """Whether a text is one that encoders are tried out with."""
    from bertflow.encoders.probe import SENTENCES

    return text in SENTENCES or text.startswith(SENTENCES[1])


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Every sentence that any encoder is given from here on, those of a probe apart."""
    from sentence_transformers import SentenceTransformer

    seen: list[str] = []
    preprocess = SentenceTransformer.preprocess
    # sentence-transformers' own, for the card of a model that is saved.
    card = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")

    def counted(self, texts, *args, **keywords):
        seen.extend(text for text in texts if text not in card and not of_probe(text))
        return preprocess(self, texts, *args, **keywords)

    monkeypatch.setattr(SentenceTransformer, "preprocess", counted)
    return seen


@pytest.fixture
def spoiled(tiny_bert: Path) -> Any:
    """An encoder whose vectors are NaN for each sentence with "cat"."""
    from bertflow import load_encoder

    encoder = load_encoder(tiny_bert, device="cpu")
    weight = encoder[0].model.embeddings.word_embeddings.weight
    weight.data[encoder.tokenizer.convert_tokens_to_ids("cat")] = float("nan")
    return encoder


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora are encoded without trying the encoder out: every batch is one of the corpus."""
    monkeypatch.setattr("bertflow.encoders.encoding.check_own_encoding", lambda *_, **__: None)
    monkeypatch.setattr("bertflow.encoders.description.probed", lambda encoder: np.ones((1, 2)))
