"""The user's cache of vectors: nothing encoded twice, nothing mixed up, and never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from sentence_transformers import SentenceTransformer

from bertflow import Flow, SentenceCache, Whitening, calibrate, compare, load_encoder
from bertflow.data import Pairs
from bertflow.encoders import embed, encode_file
from bertflow.encoders.description import describe_vectors
from bertflow.encoders.encoding import Group
from bertflow.encoders.sentence_cache import (
    FILES,
    EncoderVectors,
    SentenceIndex,
    digests_of,
    parse_size,
)
from bertflow.errors import InputError
from bertflow.evaluation import score_pairs
from bertflow.models import load, save_model
from conftest import WORDS


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    """Not to be changed."""
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture
def tiny_sentences(tiny_sentences: list[str]) -> list[str]:
    return [*tiny_sentences[:50], *tiny_sentences[:10]]


def folders(place: Path) -> list[str]:
    return sorted(one.name for one in (place / "vectors").iterdir())


# Sentences by their hash.


def test_hashes_are_found_whatever_their_bytes(rng):
    sentences = [str(number) for number in rng.permutation(3000)]
    digests = digests_of(sentences)
    assert any(digest.endswith(b"\0") for digest in (d.ljust(16, b"\0") for d in digests.tolist()))
    index = SentenceIndex()
    # In several steps, some of them twice; small parts are apart from large ones for a while.
    for start, stop in [(0, 2000), (1900, 2600), (2600, 2800), (2700, 2990), (2985, 3000)]:
        part = slice(start, stop)
        index.add(digests[part], np.arange(3000)[part])
        assert len(index) == stop
        assert np.array_equal(index.find(digests[:stop]), np.arange(stop))
    assert np.array_equal(index.find(digests), np.arange(3000))
    assert index.find(digests_of(["x", "0 "])).tolist() == [-1, -1]
    assert len(digests_of([])) == len(index.find(digests_of([]))) == 0


def test_a_hash_that_is_there_twice_keeps_its_first_row():
    index = SentenceIndex()
    index.add(digests_of(["a", "a", "b"]), np.array([4, 5, 6]))
    index.add(digests_of(["b"]), np.array([7]))
    assert index.find(digests_of(["a", "b"])).tolist() == [4, 6]


# Nothing twice.


def test_a_second_time_nothing_is_encoded_and_every_bit_is_the_same(
    encoder, tiny_bert, tiny_sentences, encoded, tmp_path
):
    plain = embed(encoder, tiny_sentences)
    cache = SentenceCache(tmp_path)
    first = embed(encoder, tiny_sentences, cache=cache)
    distinct = len(set(tiny_sentences))
    assert (cache.found, cache.encoded) == (0, distinct)
    encoded.clear()
    again = SentenceCache(tmp_path)
    second = embed(load_encoder(tiny_bert, device="cpu"), tiny_sentences, cache=again)
    assert encoded == []
    assert (again.found, again.encoded, str(again)) == (distinct, 0, "all in the cache")
    for one in (first, second):
        assert np.array_equal(one.vectors, plain.vectors)
        assert np.array_equal(one.index, plain.index)
        assert type(one.vectors) is np.ndarray  # A copy: the cache is nobody's to write to.
        assert one.vectors.flags.writeable


def test_only_what_is_lacking_is_encoded(encoder, tiny_sentences, encoded, tmp_path):
    embed(encoder, tiny_sentences[:30], cache=SentenceCache(tmp_path))
    encoded.clear()
    cache = SentenceCache(tmp_path)
    got = embed(encoder, tiny_sentences, cache=cache)
    assert set(encoded) == set(tiny_sentences) - set(tiny_sentences[:30])
    assert len(encoded) == len(set(encoded)) == cache.encoded
    assert str(cache) == f"{len(set(tiny_sentences[:30]))} in the cache"
    np.testing.assert_allclose(got.vectors, embed(encoder, tiny_sentences).vectors, atol=1e-6)


def test_without_a_cache_nothing_is_kept(encoder, tiny_sentences, cache_of_its_own):
    calibrate(encoder, tiny_sentences, Whitening())
    assert not cache_of_its_own.exists()


def test_every_function_that_encodes_takes_a_cache(encoder, tiny_sentences, encoded, tmp_path):
    pairs = Pairs(
        task="mine",
        split="test",
        source="here",
        first=tiny_sentences[:30],
        second=tiny_sentences[30:60],
        gold=[float(n % 6) for n in range(30)],
    )
    calls = [
        lambda cache: calibrate(encoder, tiny_sentences, Whitening(), cache=cache).calibrator.mean_,
        lambda cache: score_pairs(encoder, pairs, cache=cache).cosines,
        lambda cache: (
            compare(encoder, [pairs], methods=["none", "whitening"], jobs=1, cache=cache)
            .entries["whitening"]
            .estimates["all"]["mine"]
        ),
    ]
    for number, call in enumerate(calls):
        first = call(SentenceCache(tmp_path / str(number)))
        assert encoded
        encoded.clear()
        second = call(SentenceCache(tmp_path / str(number)))
        assert encoded == []
        assert np.array_equal(first, second) if isinstance(first, np.ndarray) else first == second


def test_a_vector_that_is_not_finite_is_not_kept(spoiled, tmp_path):
    texts = ["a dog", "the cat", "a bird"]
    for _ in range(2):
        cache = SentenceCache(tmp_path)
        got = embed(spoiled, texts, finite=False, cache=cache).vectors
        assert np.isnan(got).any(axis=1).tolist() == [False, True, False]
    assert (cache.found, cache.encoded) == (2, 1)
    with pytest.raises(InputError, match="sentence 1 is not finite: 'the cat'"):
        embed(spoiled, texts, cache=SentenceCache(tmp_path))


# Nothing mixed up.


def variants(folder: Path) -> dict[str, SentenceTransformer]:
    """Encoders that differ in one thing each."""
    made = {
        "plain": load_encoder(folder, device="cpu"),
        "pooling": load_encoder(folder, device="cpu", pooling="cls"),
        "layers": load_encoder(folder, device="cpu", pooling="layers:2"),
        "length": load_encoder(folder, device="cpu", max_length=5),
        "prompt": load_encoder(folder, device="cpu"),
        "width": load_encoder(folder, device="cpu"),
        "type": load_encoder(folder, device="cpu").half(),
        "weights": load_encoder(folder, device="cpu"),
        "tokenizer": load_encoder(folder, device="cpu"),
        "configuration": load_encoder(folder, device="cpu"),
        "activation": load_encoder(folder, device="cpu"),
    }
    made["prompt"].prompts, made["prompt"].default_prompt_name = {"query": "a "}, "query"
    made["width"].truncate_dim = 8
    next(made["weights"].parameters()).data += 1
    made["tokenizer"][0].tokenizer.truncation_side = "left"
    made["configuration"][0].model.config.layer_norm_eps = 0.1
    # What no configuration tells.
    layer = made["activation"][0].model.encoder.layer[0]
    layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
    return made


def test_encoders_that_differ_in_anything_share_nothing(tiny_bert, tmp_path):
    made = variants(tiny_bert)
    for encoder in made.values():
        embed(encoder, ["a dog runs in the street today"], cache=(cache := SentenceCache(tmp_path)))
        assert cache.found == 0
    assert len(folders(tmp_path)) == len(made)
    plain = describe_vectors(made["plain"])
    assert describe_vectors(load_encoder(tiny_bert, device="cpu")) == plain
    assert describe_vectors(made["plain"], "bfloat16") != plain


def test_an_encoder_with_hooks_is_not_kept(tiny_bert, tmp_path):
    encoder = load_encoder(tiny_bert, device="cpu", pooling="mean")
    embed(encoder, ["a dog"], cache=SentenceCache(tmp_path))
    encoder[0].register_forward_hook(
        lambda module, given, out: {**out, "token_embeddings": 2 * out["token_embeddings"]}
    )
    embed(encoder, ["a dog"], cache=(cache := SentenceCache(tmp_path)))
    assert cache.found == 0


def test_an_encoder_with_an_encode_of_its_own_is_not_kept(tiny_bert, tmp_path):
    encoder = load_encoder(tiny_bert, device="cpu")
    plain = embed(encoder, ["a dog"], cache=SentenceCache(tmp_path)).vectors
    encoder.encode = partial(encoder.encode, prompt="the cat ")
    prompted = embed(encoder, ["a dog"], cache=(cache := SentenceCache(tmp_path))).vectors
    assert cache.found == 0 and not np.allclose(plain, prompted)
    assert len(folders(tmp_path)) == 1


def test_the_name_of_the_folder_and_calls_before_make_no_difference(tiny_bert, tmp_path):
    moved = shutil.copytree(tiny_bert, tmp_path / "elsewhere")
    one, other = load_encoder(tiny_bert, device="cpu"), load_encoder(moved, device="cpu")
    other.encode(["a dog", "a cat runs"])
    other[0].tokenizer(["a dog"], truncation=False, padding=False)
    assert describe_vectors(one) == describe_vectors(other)


@pytest.mark.parametrize(("portable", "pooling"), [(True, None), (False, "mean")])
def test_calibrated_models_share_their_encoders_vectors(
    tiny_bert, tiny_sentences, tmp_path, portable, pooling
):
    bare = load_encoder(tiny_bert, device="cpu", pooling=pooling)
    coupling = "additive" if portable else "affine"
    models = [
        calibrate(bare, rows, Flow(epochs=1, coupling=coupling, random_state=n), portable=portable)
        for n, rows in enumerate([tiny_sentences[:30], tiny_sentences[30:]])
    ]
    models.append(calibrate(bare, tiny_sentences[:30], Whitening(), portable=portable))
    models.append(calibrate(models[-1], tiny_sentences, Whitening(), portable=portable))
    embed(bare, tiny_sentences[:9], cache=SentenceCache(tmp_path))
    for number, model in enumerate(models):
        save_model(model, folder := tmp_path / f"model-{number}")
        for one in (model, load(folder, device="cpu")):
            cache = SentenceCache(tmp_path)
            got = embed(one, tiny_sentences[:9], cache=cache)
            assert (cache.found, cache.encoded) == (9, 0)
            expected = model.encode(tiny_sentences[:9], show_progress_bar=False)
            np.testing.assert_allclose(got.rows(), expected, rtol=0, atol=1e-5)
    assert len(folders(tmp_path)) == 1


def test_a_model_that_only_ends_like_a_calibrated_one_is_one_encoder(
    encoder, tiny_bert, tiny_sentences, tmp_path
):
    half = load_encoder(tiny_bert, device="cpu")
    model = calibrate(half, tiny_sentences, Whitening()).half()
    embed(encoder, tiny_sentences[:9], cache=SentenceCache(tmp_path))
    embed(model, tiny_sentences[:9], cache=(cache := SentenceCache(tmp_path)))
    assert cache.found == 0  # In half precision the parts are not kept apart.
    model = calibrate(encoder, tiny_sentences, Whitening())
    model.truncate_dim = 3
    got = embed(model, tiny_sentences[:9], cache=(cache := SentenceCache(tmp_path)))
    assert cache.encoded == 0
    expected = model.encode(tiny_sentences[:9], show_progress_bar=False)
    np.testing.assert_allclose(got.rows(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_calibrated_model_writes_its_own_vectors_and_keeps_its_encoders(
    encoder, tiny_sentences, tmp_path, resumed, monkeypatch
):
    model = calibrate(encoder, tiny_sentences, Whitening())
    if resumed:
        monkeypatch.setattr("bertflow.encoders.embedding.group_size", lambda encoder: 20)
        monkeypatch.setattr("bertflow.encoders.streaming._NpyFile.complete", stopped)
        with pytest.raises(KeyboardInterrupt):
            encode_file(model, tiny_sentences, tmp_path / "z.npy")
        monkeypatch.undo()
        monkeypatch.setattr("bertflow.encoders.embedding.group_size", lambda encoder: 20)
    encode_file(model, tiny_sentences, tmp_path / "z.npy", cache=SentenceCache(tmp_path))
    expected = model.encode(tiny_sentences, show_progress_bar=False)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), expected, rtol=0, atol=1e-5)
    got = embed(encoder, tiny_sentences, cache=(cache := SentenceCache(tmp_path)))
    # What was left beside the file is not encoded again, and so not in the cache.
    assert (cache.encoded == 0) != resumed
    expected = encoder.encode(tiny_sentences, show_progress_bar=False)
    np.testing.assert_allclose(got.rows(), expected, rtol=0, atol=1e-5)


def stopped(*arguments: object) -> None:
    raise KeyboardInterrupt


# Never in the way.


def warned(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "about.json").write_text("{"),
        lambda folder: ((folder / "vectors.f32").unlink(), (folder / "vectors.f32").mkdir()),
    ],
    ids=["not JSON", "no file"],
)
def test_a_damaged_cache_costs_one_warning(encoder, tiny_sentences, tmp_path, caplog, damage):
    expected = embed(encoder, tiny_sentences, cache=SentenceCache(tmp_path))
    damage(tmp_path / "vectors" / folders(tmp_path)[0])
    cache = SentenceCache(tmp_path)
    for _ in range(2):
        got = embed(encoder, tiny_sentences, cache=cache)
        assert np.array_equal(got.vectors, expected.vectors)
    assert len(warned(caplog)) == 1
    assert "the cache of sentence vectors is not used: " in warned(caplog)[0]


@pytest.mark.parametrize(("name", "length"), [("vectors.f32", 100), ("sentences", 0)])
def test_a_file_cut_short_or_lost_is_mended(
    encoder, tiny_sentences, tmp_path, caplog, name, length
):
    expected = embed(encoder, tiny_sentences, cache=SentenceCache(tmp_path))
    file = tmp_path / "vectors" / folders(tmp_path)[0] / name
    if length == 0:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:length])
    embed(encoder, tiny_sentences, cache=SentenceCache(tmp_path))
    cache = SentenceCache(tmp_path)
    got = embed(encoder, tiny_sentences, cache=cache)
    assert cache.encoded == 0
    np.testing.assert_allclose(got.vectors, expected.vectors, atol=1e-6)
    assert warned(caplog) == []


def test_a_kept_vector_that_is_no_longer_finite_is_encoded(encoder, tiny_sentences, tmp_path):
    expected = embed(encoder, tiny_sentences, cache=SentenceCache(tmp_path))
    file = tmp_path / "vectors" / folders(tmp_path)[0] / "vectors.f32"
    file.write_bytes(np.full(16, np.nan, "<f4").tobytes() + file.read_bytes()[64:])
    cache = SentenceCache(tmp_path)
    got = embed(encoder, tiny_sentences, cache=cache)
    assert cache.encoded == 1
    np.testing.assert_allclose(got.vectors, expected.vectors, atol=1e-6)


def test_a_place_that_is_no_folder_costs_one_warning(encoder, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = SentenceCache(tmp_path / "file")
    assert len(embed(encoder, ["a dog"], cache=cache).vectors) == 1
    assert len(warned(caplog)) == 1
    assert cache.contents() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_costs_one_warning(encoder, tmp_path, caplog):
    tmp_path.chmod(0o555)
    try:
        assert len(embed(encoder, ["a dog"], cache=SentenceCache(tmp_path)).vectors) == 1
    finally:
        tmp_path.chmod(0o755)
    assert len(warned(caplog)) == 1


def test_a_full_disk_costs_one_warning(encoder, tiny_sentences, tmp_path, caplog, monkeypatch):
    def full(path, place, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertflow.encoders.sentence_cache._write_at", full)
    got = embed(encoder, tiny_sentences, cache=SentenceCache(tmp_path))
    assert np.array_equal(got.vectors, embed(encoder, tiny_sentences).vectors)
    assert len(warned(caplog)) == 1
    assert "No space left" in warned(caplog)[0]


def test_an_encoder_that_cannot_be_described_is_not_kept(encoder, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(encoder[0].tokenizer, "get_vocab", None)
    monkeypatch.setattr(type(encoder[0].tokenizer), "backend_tokenizer", None)
    with pytest.raises(InputError, match="cannot be described"):
        describe_vectors(encoder)
    assert len(embed(encoder, ["a dog"], cache=SentenceCache(tmp_path)).vectors) == 1
    assert len(warned(caplog)) == 1
    assert not (tmp_path / "vectors").exists()


# Bounded.


def other_encoders(count: int, folder: Path) -> list[SentenceTransformer]:
    encoders = [load_encoder(folder, device="cpu") for _ in range(count)]
    for number, one in enumerate(encoders):
        next(one.parameters()).data += number
    return encoders


def one_size(encoder: SentenceTransformer, texts: list[str], place: Path) -> int:
    embed(encoder, texts, cache=SentenceCache(place))
    return SentenceCache(place).contents()[0].bytes


def test_the_least_recently_used_encoder_goes(tiny_bert, tmp_path):
    texts = list(WORDS[:20])
    encoders = other_encoders(3, tiny_bert)
    size = one_size(encoders[0], texts, tmp_path / "alone")
    place, bound = tmp_path / "bounded", int(2.5 * size)
    for encoder in encoders[:2]:
        embed(encoder, texts, cache=SentenceCache(place, bound))
    first, second = (one.folder.name for one in SentenceCache(place).contents())
    os.utime(place / "vectors" / first / "vectors.f32", (1, 1))
    embed(encoders[2], texts, cache=SentenceCache(place, bound))
    assert first not in folders(place)
    assert second in folders(place)
    assert len(folders(place)) == 2
    assert sum(one.bytes for one in SentenceCache(place).contents()) <= bound


def test_what_is_being_written_stays(tiny_bert, tmp_path):
    texts = list(WORDS[:20])
    one, other = other_encoders(2, tiny_bert)
    bound = int(1.5 * one_size(one, texts, tmp_path / "alone"))
    cache = SentenceCache(tmp_path / "bounded", bound)
    embed(one, texts, cache=cache)
    with FileLock(cache.contents()[0].folder / ".lock"):
        embed(other, texts, cache=(late := SentenceCache(cache.folder, bound)))
        assert late.clear()[-1].sentences == 20
    assert late.clear() == []
    assert not cache.folder.exists()


def test_who_uses_what_is_removed_goes_on_without_it(encoder, tiny_sentences, tmp_path, caplog):
    cache = SentenceCache(tmp_path)
    embed(encoder, tiny_sentences[:20], cache=cache)
    kept = EncoderVectors(cache, lambda: describe_vectors(encoder))
    group, new = Group(list(dict.fromkeys(tiny_sentences[:20]))), Group(["a new one"])
    found, vectors = kept.take(group)
    assert SentenceCache(tmp_path).clear() == []
    again, same = kept.take(group)
    assert len(found) == len(again) == len(group.sentences) and np.array_equal(vectors, same)
    assert not kept.add(new, new.lacking, np.ones((1, 16), dtype=np.float32))
    assert not len(kept.take(new)[0])
    assert len(warned(caplog)) == 1 and "was removed" in warned(caplog)[0]


@pytest.mark.parametrize("bound", [0, 500])
def test_what_alone_is_too_large_is_not_extended(encoder, tiny_sentences, tmp_path, caplog, bound):
    cache = SentenceCache(tmp_path, bound)
    got = embed(encoder, tiny_sentences, cache=cache)
    assert np.array_equal(got.vectors, embed(encoder, tiny_sentences).vectors)
    assert sum(one.bytes for one in cache.contents()) <= bound
    assert warned(caplog) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("10 gb", 10**10), ("1.5G", 15 * 10**8), ("2MiB", 2 << 20), ("7", 7)],
)
def test_a_size_is_read_as_people_write_it(monkeypatch, text, size):
    assert parse_size(text) == size
    monkeypatch.setenv("BERTFLOW_CACHE_SIZE", text)
    assert SentenceCache().size == size


@pytest.mark.parametrize("text", ["ten", "-1", "5 parsecs", "1iB", "1e9", "GB", "9" * 400])
def test_a_size_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("BERTFLOW_CACHE_SIZE", text)
    with pytest.raises(
        InputError, match="BERTFLOW_CACHE_SIZE takes a size such as 500MB"
    ) as caught:
        SentenceCache()
    assert len(str(caught.value)) < 160


def test_the_place_is_ours_else_that_of_caches_else_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("BERTFLOW_CACHE", "~/own")
    assert SentenceCache().folder == tmp_path / "own"
    monkeypatch.delenv("BERTFLOW_CACHE")
    assert SentenceCache().folder == tmp_path / "xdg" / "bertflow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert SentenceCache().folder == tmp_path / ".cache" / "bertflow"


# Cleared.


def test_clearing_leaves_what_is_not_ours(encoder, tmp_path):
    embed(encoder, ["a dog"], cache=(cache := SentenceCache(tmp_path)))
    name = folders(tmp_path)[0]
    (tmp_path / "vectors" / name / "letter.txt").write_text("dear")
    (tmp_path / "vectors" / "mine").mkdir()
    (tmp_path / "photo.jpg").write_text("")
    assert set(FILES) >= {f.name for f in (tmp_path / "vectors" / name).iterdir()} - {"letter.txt"}
    assert [one.sentences for one in cache.clear()] == [0]
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    assert left == ["photo.jpg", f"vectors/{name}/letter.txt"]
    assert (tmp_path / "vectors" / "mine").is_dir()


# On the command line.


@pytest.fixture
def work(tmp_path, tiny_sentences, monkeypatch):
    (tmp_path / "corpus.txt").write_text("\n".join(tiny_sentences) + "\n")
    rows = [
        f"{a},{b},{n % 6}" for n, (a, b) in enumerate(zip(WORDS[:20], WORDS[20:40], strict=True))
    ]
    (tmp_path / "pairs.csv").write_text("\n".join(["text1,text2,score", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMANDS = {
    "fit": ["fit", "--calibrator", "whitening", "--corpus", "corpus.txt", "--output", "m"],
    "encode": ["encode", "--input", "corpus.txt", "--output", "z.npy"],
    "evaluate": ["evaluate", "--pairs", "pairs.csv"],
    "compare": ["compare", "--pairs", "pairs.csv", "--method", "whitening", "--jobs", "1"],
    "diagnose": ["diagnose", "--corpus", "corpus.txt", "--pairs", "pairs.csv"],
    "analyze lexical": ["analyze", "lexical", "--pairs", "pairs.csv"],
    "analyze isotropy": ["analyze", "isotropy", "--corpus", "corpus.txt"],
    "analyze isotropy of poolings": ["analyze", "isotropy", "--pooling", "cls", "--limit", "50"],
    "demo": ["demo", "--calibrator", "whitening", "--output", "d"],
}


def command(name: str, encoder: Path) -> list[str]:
    words = COMMANDS[name]
    if name in ("fit", "demo"):
        return [*words, "--encoder", str(encoder)]
    count = 2 if words[0] == "analyze" else 1
    return [*words[:count], str(encoder), *words[count:]]


QUICK = ("fit", "encode", "evaluate", "diagnose")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in COMMANDS],
)
def test_a_second_run_of_a_command_encodes_nothing(
    work, done, tiny_bert, encoded, cache_of_its_own, name
):
    done(*command(name, tiny_bert))
    count = len(encoded)
    assert count
    encoded.clear()
    said = done(*command(name, tiny_bert))
    assert encoded == []
    if name in ("fit", "encode"):
        assert "all in the cache, " in said
    done(*command(name, tiny_bert), "--no-cache")
    # The demonstration encodes some sentences before and after.
    assert len(encoded) == count or (name == "demo" and len(encoded) > count)
    assert SentenceCache().clear() == []
    done(*command(name, tiny_bert), "--no-cache")
    assert not cache_of_its_own.exists()


def test_the_cache_is_shown_and_cleared(work, done, tiny_bert, cache_of_its_own, tiny_sentences):
    assert done("cache").splitlines()[1].startswith("0 encoders, 0 sentences, 0.0 MB of at most 10")
    done(*command("encode", tiny_bert))
    said = done("cache").splitlines()
    assert said[0] == str(cache_of_its_own)
    assert said[1].startswith(
        f"1 encoders, {len(set(tiny_sentences))} sentences, 0.0 MB of at most"
    )
    assert done("cache", "--clear").startswith("removed 1 encoders, 0.0 MB")
    assert not cache_of_its_own.exists()
    assert done("cache", "--clear") == "removed 0 encoders, 0.0 MB\n"


def test_what_cannot_be_cleared_is_said(work, done, tiny_bert, cache_of_its_own, encoder):
    embed(encoder, ["a dog"], cache=(cache := SentenceCache()))
    with FileLock(cache.contents()[0].folder / ".lock"):
        said = done("cache", "--clear")
    assert said.splitlines()[1].startswith("1 are in use, or hold what bertflow did not write")


def test_a_size_that_is_none_is_refused_by_commands(work, refused, tiny_bert, monkeypatch):
    monkeypatch.setenv("BERTFLOW_CACHE_SIZE", "much")
    for name in COMMANDS:
        assert "BERTFLOW_CACHE_SIZE" in refused(*command(name, tiny_bert))


@pytest.mark.nightly
def test_a_process_of_its_own_goes_on_with_one_line(work, tiny_bert):
    Path("file").write_text("")
    code = "import sys; from bertflow.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *command("encode", tiny_bert)],
        env={**os.environ, "BERTFLOW_CACHE": str(work / "file"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("the cache of sentence vectors is not used: ")
    assert np.load("z.npy").shape == (60, 16)


def test_what_saving_notes_of_the_class_changes_no_vector(tiny_bert):
    """A .gguf names no class, and the model saved from it does."""
    encoder = load_encoder(tiny_bert)
    expected = describe_vectors(encoder)
    encoder[0].model.config.architectures = None
    assert describe_vectors(encoder) == expected
