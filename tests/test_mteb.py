"""Saved models run in MTEB as they are, and its STS score is the correlation over all pairs."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from bertflow import calibrate, load, load_encoder
from bertflow.calibrators import Flow, Whitening
from conftest import WORDS

# mteb's calls into itself and into sentence-transformers, for any model at all.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The fill_missing parameter is:DeprecationWarning:mteb"),
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension`:FutureWarning:mteb"),
]

PAIRS = 60
CALIBRATORS = {"whitening": Whitening(), "flow": Flow(epochs=1)}
LOADERS = {"sentence-transformers": SentenceTransformer, "bertflow": load}


@pytest.fixture(scope="module")
def mteb(tmp_path_factory):
    """The package; its import makes a cache folder, in the home folder if not told otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTEB_CACHE", str(tmp_path_factory.mktemp("mteb-default")))
        if os.environ.get("CI") != "true":
            pytest.importorskip("mteb", reason="needs the extra mteb")
        import mteb

        yield mteb


@pytest.fixture
def offline(monkeypatch):
    """Hosts that were looked up; none is found, and the hub is not told to be offline."""
    asked = []

    def refuse(host, *arguments, **keywords):
        asked.append(host)
        raise OSError(f"no network: {host}")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return asked


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def saved(encoder, tiny_sentences, tmp_path_factory):
    """Folders of calibrated models, by the calibrator's name."""
    folders = {name: tmp_path_factory.mktemp(name) / "model" for name in CALIBRATORS}
    for name, folder in folders.items():
        calibrate(encoder, tiny_sentences, CALIBRATORS[name]).save_pretrained(str(folder))
    return folders


@pytest.fixture(scope="module")
def pairs():
    """Sentences, the same with some words changed, and the share of words kept, 0 to 5."""
    random = np.random.default_rng(1)
    first, second, gold = [], [], []
    for _ in range(PAIRS):
        words = random.choice(WORDS, size=random.integers(3, 12))
        kept = random.random(len(words)) < random.random()
        kept[0] = False
        first.append(" ".join(words))
        second.append(" ".join(np.where(kept, words, random.choice(WORDS, size=len(words)))))
        gold.append(5 * float(kept.mean()))
    return first, second, gold


@pytest.fixture(scope="module")
def task(mteb, pairs):
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalSTS(AbsTaskSTS):
        metadata = TaskMetadata(
            name="LocalSTS",
            dataset={"path": "local/none", "revision": "1"},
            description="Sentence pairs made on the spot.",
            type="STS",
            category="t2t",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )

        def load_data(self, **keywords):
            columns = dict(zip(["sentence1", "sentence2", "score"], pairs, strict=True))
            self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
            self.data_loaded = True

    return LocalSTS()


def by_hand(model, pairs, rows=slice(None)) -> float:
    """Spearman's correlation of cosine and gold, in float64, over some pairs or all."""
    a, b = (model.encode(texts).astype(np.float64) for texts in pairs[:2])
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    # mteb takes cosines in float32: rounding must not be able to change their order.
    assert np.diff(np.sort(cosine)).min() > 1e-5
    return spearmanr(cosine[rows], pairs[2][rows]).statistic


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", CALIBRATORS)
def test_score_in_mteb_is_spearman_over_all_pairs(
    name, loader, saved, encoder, pairs, task, mteb, offline, tmp_path
):
    model = LOADERS[loader](str(saved[name]), device="cpu")
    everywhere = by_hand(model, pairs)
    halves = [by_hand(model, pairs, rows) for rows in (slice(30), slice(30, None))]
    # Neither the encoder's own score nor the mean over subsets could be taken for it.
    assert abs(by_hand(encoder, pairs) - everywhere) > 1e-3
    assert abs(np.mean(halves) - everywhere) > 1e-3

    cache = mteb.ResultCache(tmp_path / "mteb")
    result = mteb.evaluate(model, task, cache=cache, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    assert scores["main_score"] == scores["cosine_spearman"]
    assert scores["cosine_spearman"] == pytest.approx(everywhere, abs=1e-6)

    assert offline == []
    assert [path.name for path in tmp_path.rglob("LocalSTS.json")] == ["LocalSTS.json"]
    assert not any(mteb.ResultCache().cache_path.iterdir())


def test_models_with_names_of_their_own_share_a_cache(saved, pairs, task, mteb, tmp_path):
    """By name mteb finds earlier results, and a folder gives a model none."""
    cache = mteb.ResultCache(tmp_path)
    for name, folder in saved.items():
        model = SentenceTransformer(str(folder), device="cpu")
        model.model_card_data.model_name = f"ours/{name}"
        result = mteb.evaluate(model, task, cache=cache, show_progress_bar=False)
        assert result.model_name == f"ours/{name}"
        assert result.task_results[0].get_score() == pytest.approx(by_hand(model, pairs), abs=1e-6)


def test_default_prompt_of_calibration_holds_in_mteb(
    tiny_bert, tiny_sentences, pairs, task, mteb, tmp_path
):
    encoder = load_encoder(tiny_bert, device="cpu")
    encoder.prompts = {"query": "the man reads "}
    encoder.default_prompt_name = "query"
    model = calibrate(encoder, tiny_sentences, Whitening())
    expected = by_hand(model, pairs)
    model.default_prompt_name = None
    assert abs(by_hand(model, pairs) - expected) > 1e-3
    model.default_prompt_name = "query"
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    assert result.task_results[0].get_score() == pytest.approx(expected, abs=1e-6)
