"""Calibrated models: fitted, saved, loaded anywhere, and refused where they do not belong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from bertflow import attach, calibrate, load, load_calibrator, load_encoder, save_calibrator
from bertflow.calibrators import AllButTheTop, Flow, Standardization, Whitening
from bertflow.encoders import describe_encoder, embed
from bertflow.errors import InputError, ModelError
from bertflow.models import open_model, save_model
from conftest import save_tiny_encoder, tree

CALIBRATORS = {
    "flow": Flow(),
    "released": Flow.released(),
    "whitening": Whitening(),
    "whitening-4": Whitening(4),
    "standardization": Standardization(),
    "all-but-the-top": AllButTheTop(2),
}
FOREIGN = """
import sys, json
sys.modules["bertflow"] = None  # as where it is not installed
import numpy as np, sentence_transformers
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[3], model.encode(json.loads(sys.argv[2])))
print(sentence_transformers.__version__)
"""


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


def relative(got, expected):
    return (np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)).max()


def in_foreign_process(folder: Path, sentences: list[str], tmp_path: Path, path: str = ""):
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    out = tmp_path / "foreign.npy"
    ran = subprocess.run(
        [sys.executable, "-c", FOREIGN, str(folder), json.dumps(sentences), str(out)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return np.load(out), ran.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("name", CALIBRATORS)
def test_saved_model_equals_calibrator_on_encoder_and_reloads(
    name, encoder, tiny_sentences, tmp_path
):
    model = calibrate(encoder, tiny_sentences, CALIBRATORS[name])
    vectors = encoder.encode(tiny_sentences)
    exact = model.calibrator.transform(vectors.astype(np.float64))
    calibrated = model.encode(tiny_sentences)
    assert relative(calibrated, exact) < 1e-5
    model.save_pretrained(str(tmp_path / "model"))
    again = load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.encode(tiny_sentences), calibrated)
    np.testing.assert_array_equal(
        again.calibrator.transform(vectors), model.calibrator.transform(vectors)
    )
    assert again.get_embedding_dimension() == exact.shape[1]


def test_the_way_of_the_sentences_is_that_of_the_architecture(encoder, tiny_sentences, tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = page.partition("## The way of the sentences")[2].partition("\n## ")[0]
    stops = re.findall(r"^\d+\. `(.*?)\.py`: `(.*?)`", way, flags=re.MULTILINE)
    assert len(stops) == 10
    called = []

    def note(frame, event, _):
        module = frame.f_code.co_filename.partition("/src/bertflow/")[2]
        stop = (module.removesuffix(".py"), frame.f_code.co_qualname)
        # A generator is called again for each of its values.
        if event == "call" and stop in stops and stop not in called[-1:]:
            called.append(stop)

    sys.setprofile(note)
    try:
        save_model(calibrate(encoder, tiny_sentences, Flow(epochs=1), sample=40), tmp_path / "m")
    finally:
        sys.setprofile(None)
    assert called == stops


@pytest.mark.slow
def test_saved_model_loads_where_bertflow_is_not_installed(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Flow())
    model.save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model").rename(tmp_path / "moved")
    vectors, _ = in_foreign_process(tmp_path / "moved", tiny_sentences[:20], tmp_path)
    np.testing.assert_allclose(vectors, model.encode(tiny_sentences[:20]), atol=1e-6)


def other_versions() -> list[str]:
    folder = os.environ.get("BERTFLOW_OTHER_VERSIONS")
    return sorted(str(path) for path in Path(folder).iterdir()) if folder else []


@pytest.mark.nightly
@pytest.mark.skipif(not other_versions(), reason="BERTFLOW_OTHER_VERSIONS is not set: .ci/run does")
@pytest.mark.parametrize("kind", ["raw", "ending in Normalize"])
def test_saved_model_loads_with_other_versions(kind, encoder, tiny_sentences, tmp_path):
    if kind != "raw":
        encoder = SentenceTransformer(modules=[*encoder, Normalize()], device="cpu")
    model = calibrate(encoder, tiny_sentences, Flow())
    model.save_pretrained(str(tmp_path / "model"))
    for path in other_versions():
        vectors, version = in_foreign_process(
            tmp_path / "model", tiny_sentences[:20], tmp_path, path
        )
        assert version == Path(path).name
        assert relative(vectors, model.encode(tiny_sentences[:20])) < 1e-5


def test_affine_flow_is_refused_at_once_or_saved_with_our_module(
    encoder, tiny_sentences, tmp_path, monkeypatch
):
    flow = Flow(coupling="affine")
    with monkeypatch.context() as patch:
        patch.setattr("bertflow.models.calibrating.encode_rows", None)  # before anything is encoded
        with pytest.raises(ModelError, match="portable=False"):
            calibrate(encoder, tiny_sentences, flow)
    model = calibrate(encoder, tiny_sentences, flow, portable=False)
    model.save_pretrained(str(tmp_path / "model"))
    again = load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.encode(tiny_sentences), model.encode(tiny_sentences))
    trusted = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(trusted.encode(tiny_sentences), model.encode(tiny_sentences))


def test_encoder_and_calibrator_are_left_as_they_were(encoder, tiny_sentences):
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    modules, vectors = len(list(encoder)), encoder.encode(tiny_sentences)
    whitening = Whitening()
    calibrate(encoder, tiny_sentences, whitening)
    assert not hasattr(whitening, "mean_")
    assert len(list(encoder)) == modules
    assert all(torch.equal(before[name], t) for name, t in encoder.state_dict().items())
    np.testing.assert_array_equal(encoder.encode(tiny_sentences), vectors)


def test_repeats_count_as_often_as_they_occur(encoder, tiny_sentences):
    repeated = [*tiny_sentences[:50], *tiny_sentences[:10], *tiny_sentences[:10]]
    model = calibrate(encoder, repeated, Standardization())
    expected = Standardization().fit(encoder.encode(repeated))
    np.testing.assert_allclose(model.calibrator.mean_, expected.mean_, atol=1e-6)


def test_each_distinct_sentence_is_encoded_once(encoder, encoded):
    embedded = embed(encoder, ["a dog", "the cat", "a dog", "a dog"])
    assert sorted(encoded) == ["a dog", "the cat"]
    assert embedded.index.tolist() == [0, 1, 0, 0]
    np.testing.assert_array_equal(embedded.rows()[0], embedded.rows()[2])


def test_sentences_cut_are_counted(tiny_bert):
    encoder = load_encoder(tiny_bert, max_length=5, device="cpu")
    long, short = "the dog and the cat and the bird", "the dog"
    assert embed(encoder, [long, short, long]).cut == 1


def test_vectors_that_are_not_finite_are_named_by_sentence(encoder, monkeypatch):
    encode = encoder.encode

    def broken(texts, **keywords):
        vectors = encode(texts, **keywords)
        vectors[[text == "the cat" for text in texts]] = np.nan
        return vectors

    monkeypatch.setattr(encoder, "encode", broken)
    with pytest.raises(InputError, match="sentence 1 is not finite: 'the cat'"):
        embed(encoder, ["a dog", "the cat", "a bird"])


def test_too_few_sentences_are_refused(encoder):
    for sentences in [[], ["the dog"], ["the dog"] * 5]:
        with pytest.raises(InputError, match="at least 2"):
            calibrate(encoder, sentences, Whitening())


def test_what_is_not_text_is_refused(encoder):
    with pytest.raises(InputError, match="sentence 1 is int"):
        calibrate(encoder, ["the dog", 7], Whitening())


def test_truncated_encoders_are_calibrated_on_what_they_give(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cpu")
    encoder.truncate_dim = 6
    model = calibrate(encoder, tiny_sentences, Flow())
    vectors = model.encode(tiny_sentences)
    assert vectors.shape[1] == 6
    exact = model.calibrator.transform(encoder.encode(tiny_sentences).astype(np.float64))
    assert relative(vectors, exact) < 1e-5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"calibrator": Whitening(dim=40)}, "dim must be an integer between 1 and 16, got 40"),
        ({"calibrator": AllButTheTop(16)}, "n_components must be an integer between 0 and 15"),
        ({"batch_size": 1.5}, "batch_size must be an integer of at least 1, got 1.5"),
        ({"cache": "folder"}, "cache must be a SentenceCache(folder), got 'folder'"),
        ({"devices": "cpu"}, "devices must be a list such as ['cpu', 'cpu'], got 'cpu'"),
        ({"devices": []}, "devices must be a list such as ['cpu', 'cpu'], got []"),
        ({"devices": ["nowhere"]}, "there is no device 'nowhere' here"),
        ({"devices": ["meta"]}, "there is no device 'meta' here"),
        ({"progress": "x"}, "progress must be a function or a bool, got 'x'"),
        ({"sample": "5"}, "a sample needs at least 2 sentences, got '5'"),
        ({"checkpoint": "/"}, "cannot write /: it is a folder"),
    ],
)
def test_what_cannot_be_is_refused_before_a_sentence_is_read(encoder, given, said):
    corpus = iter(["a dog", "a cat"])
    with pytest.raises((InputError, ModelError), match=re.escape(said)):
        calibrate(encoder, corpus, **given)
    assert next(corpus) == "a dog"


def test_a_batch_of_none_is_refused(encoder):
    with pytest.raises(InputError, match="batch_size must be an integer of at least 1, got 0"):
        embed(encoder, ["a dog"], batch_size=0)


@pytest.mark.parametrize("width", [0, 1, -1])
def test_a_width_that_cannot_be_calibrated_is_refused_at_once(tiny_bert, width):
    encoder = load_encoder(tiny_bert, device="cpu")
    encoder.truncate_dim = width
    with pytest.raises(ModelError, match=f"as it declares, {width}; mend truncate_dim"):
        calibrate(encoder, iter(()))
    encoder.truncate_dim, encoder[-1].pooling_output_dimension = None, 64
    with pytest.raises(ModelError, match=r"vectors of 16 dimensions, .* declares, 64; .*config"):
        calibrate(encoder, iter(()))


def test_prompts_are_kept(tiny_bert, tiny_sentences, tmp_path):
    encoder = load_encoder(tiny_bert, device="cpu")
    encoder.prompts = {"query": "the man reads "}
    encoder.default_prompt_name = "query"
    model = calibrate(encoder, tiny_sentences, Standardization())
    model.save_pretrained(str(tmp_path / "model"))
    again = load(tmp_path / "model", device="cpu")
    assert again.prompts["query"] == "the man reads "
    np.testing.assert_allclose(
        again.encode(tiny_sentences[:5]),
        model.calibrator.transform(encoder.encode(tiny_sentences[:5])),
        atol=1e-5,
    )


def test_provenance_says_what_it_was_fitted_on(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Whitening(), provenance={"corpus": ["a.txt"]})
    model.save_pretrained(str(tmp_path / "model"))
    told = json.loads((tmp_path / "model/bertflow/config.json").read_text())["provenance"]
    assert told["sentences"] == len(tiny_sentences)
    assert told["distinct"] == len(set(tiny_sentences))
    assert told["corpus"] == ["a.txt"]
    assert told["encoder"]["layers"] == [1, 3]
    assert len(told["encoder"]["weights"]) == 64


def test_calibrator_goes_back_to_its_own_encoder_only(encoder, tiny_bert, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Whitening())
    save_calibrator(model.calibrator, tmp_path / "whitening")
    whitening = load_calibrator(tmp_path / "whitening")
    again = attach(encoder, whitening)
    np.testing.assert_array_equal(again.encode(tiny_sentences), model.encode(tiny_sentences))
    for other, named in [
        (load_encoder(tiny_bert, pooling="mean", device="cpu"), "layers"),
        (load_encoder(tiny_bert, max_length=16, device="cpu"), "max_length"),
        (load_encoder(save_tiny_encoder(tmp_path / "deep", blocks=4), device="cpu"), "weights"),
    ]:
        with pytest.raises(ModelError, match=named):
            attach(other, whitening)


def test_what_differs_from_the_encoder_it_was_fitted_on_is_named(
    encoder, tiny_bert, tiny_sentences
):
    for change, named in [
        ({"dtype": "float16"}, "dtype 'float32', not 'float16'"),
        ({"pooling": "cls"}, "pooling 'mean', not 'cls'"),
        ({"pooling": "layers:1,2"}, "layers \\[1, 3\\], not \\[1, 2\\]"),
        ({"prompt": "the man reads "}, "prompt None, not 'the man reads '"),
        ({"truncate_dim": 8}, "width 16, not 8"),
    ]:
        calibrator = calibrate(encoder, tiny_sentences, Whitening(4)).calibrator
        how = {name: value for name, value in change.items() if name in {"dtype", "pooling"}}
        other = load_encoder(tiny_bert, device="cpu", **how)
        if "prompt" in change:
            other.prompts, other.default_prompt_name = {"query": change["prompt"]}, "query"
        other.truncate_dim = change.get("truncate_dim")
        with pytest.raises(ModelError, match=named):
            attach(other, calibrator)


def test_a_provenance_that_does_not_tell_the_encoder_is_refused(encoder, tiny_sentences):
    calibrator = calibrate(encoder, tiny_sentences, Whitening()).calibrator
    described = calibrator.provenance_["encoder"]
    without = {name: value for name, value in described.items() if name != "weights"}
    for told in [{}, without, None, "bert"]:
        calibrator.provenance_ = {**calibrator.provenance_, "encoder": told}
        with pytest.raises(ModelError, match="weights None, not '"):
            attach(encoder, calibrator)
    # The name alone may change: the folder was moved.
    calibrator.provenance_["encoder"] = described | {"name": "elsewhere"}
    attach(encoder, calibrator)


def test_calibrator_of_bare_vectors_needs_the_width(encoder, rng):
    with pytest.raises(InputError, match="16 dimensions, but the calibrator was fitted on 5"):
        attach(encoder, Whitening().fit(rng.normal(size=(20, 5))))


def test_description_tells_encoders_apart_and_knows_equal_ones(tiny_bert):
    same = [describe_encoder(load_encoder(tiny_bert, device="cpu")) for _ in range(2)]
    assert same[0] == same[1]
    assert describe_encoder(load_encoder(tiny_bert, pooling="cls", device="cpu")) != same[0]


def test_half_precision_model_agrees_and_keeps_its_statistics(encoder, tiny_sentences):
    model = calibrate(encoder, tiny_sentences, Flow())
    full, mean = model.encode(tiny_sentences), model.calibrator.mean_.copy()
    half = attach(encoder, model.calibrator).half()
    vectors = half.encode(tiny_sentences).astype(np.float32)
    encoder.float()
    cosine = (
        (full * vectors).sum(1) / np.linalg.norm(full, axis=1) / np.linalg.norm(vectors, axis=1)
    )
    assert cosine.min() > 0.99
    np.testing.assert_array_equal(model.calibrator.mean_, mean)


def test_saving_replaces_ours_and_refuses_what_is_not(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Standardization())
    save_model(model, tmp_path / "model")
    save_model(calibrate(encoder, tiny_sentences, Whitening(4)), tmp_path / "model")
    assert load(tmp_path / "model", device="cpu").get_embedding_dimension() == 4
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("years of work")
    with pytest.raises(ModelError, match="did not write"):
        save_model(model, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other"]


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("save", ["save", "save_pretrained"])
def test_its_own_save_leaves_the_old_one_or_the_new_one(
    encoder, tiny_sentences, tmp_path, monkeypatch, save
):
    old = calibrate(encoder, tiny_sentences, Whitening(4))
    new = calibrate(encoder, tiny_sentences, Standardization())
    getattr(old, save)(str(tmp_path / "model"))
    before = tree(tmp_path)
    with monkeypatch.context() as patched:

        def killed(*arguments, **more):
            raise KeyboardInterrupt

        patched.setattr("bertflow.models.calibrated.write_calibrator", killed)
        with pytest.raises(KeyboardInterrupt):
            getattr(new, save)(str(tmp_path / "model"))
        assert tree(tmp_path) == before

        def full(*arguments, **more):
            raise OSError(28, "No space left on device")

        patched.setattr("bertflow.models.calibrated.write_calibrator", full)
        with pytest.raises(ModelError, match="model: No space left on device"):
            getattr(new, save)(str(tmp_path / "model"))
        assert tree(tmp_path) == before
    getattr(new, save)(str(tmp_path / "model"))
    save_model(new, tmp_path / "expected")
    assert names(tmp_path / "model") == names(tmp_path / "expected")
    assert load(tmp_path / "model", device="cpu").get_embedding_dimension() == 16


def test_its_own_save_keeps_what_others_have_in_the_folder(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Standardization())
    place = tmp_path / "clone"
    (place / ".git").mkdir(parents=True)
    (place / ".git" / "config").write_text("theirs")
    (place / "README.md").write_text("an old one")
    for _ in range(2):
        model.save_pretrained(str(place))
        assert (place / ".git" / "config").read_text() == "theirs"
        assert (place / "README.md").read_text() != "an old one"
        loaded = load(place, device="cpu")
        expected = model.encode(tiny_sentences[:5])
        np.testing.assert_allclose(loaded.encode(tiny_sentences[:5]), expected, atol=1e-6)
        assert [path.name for path in tmp_path.iterdir()] == ["clone"]


def test_a_bare_encoder_is_no_calibrated_model(tiny_bert, tmp_path):
    with pytest.raises(ModelError, match=r"no modules\.json"):
        load(tiny_bert)
    load_encoder(tiny_bert, device="cpu").save_pretrained(str(tmp_path / "bare"))
    with pytest.raises(ModelError):
        load(tmp_path / "bare")
    assert isinstance(open_model(tmp_path / "bare"), SentenceTransformer)


def test_pooling_of_a_calibrated_model_cannot_be_changed(encoder, tiny_sentences, tmp_path):
    calibrate(encoder, tiny_sentences, Whitening()).save_pretrained(str(tmp_path / "model"))
    with pytest.raises(InputError, match="leave them out"):
        open_model(tmp_path / "model", pooling="mean")
