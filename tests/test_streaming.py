"""Streams of sentences: the same rows as in memory, in little of it, and after a kill too."""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bertflow import Flow, SentenceCache, Whitening, calibrate, load_encoder
from bertflow.calibrators import Standardization
from bertflow.data import checked_corpus, read_corpus, stream_corpus
from bertflow.encoders import Rows, embed, embedding, encode_file, encode_rows, encoding, streaming
from bertflow.errors import InputError, ModelError
from conftest import WORDS, tree


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    """Not to be changed."""
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """120 sentences, many of them equal, near and far apart."""
    random = np.random.default_rng(0)
    some = [" ".join(random.choice(WORDS, size=random.integers(1, 9))) for _ in range(70)]
    return [some[n] for n in random.integers(0, 70, size=120)]


@pytest.fixture
def small_chunks(monkeypatch):
    """As if 25 sentences were a chunk, and 4 a group."""
    monkeypatch.setattr(streaming, "STREAM_SENTENCES", 25)
    monkeypatch.setattr(embedding, "group_size", lambda encoder: 4)


@pytest.fixture
def in_a_file(monkeypatch):
    """As if 64 rows of 16 were too many for memory."""
    monkeypatch.setattr(streaming, "IN_MEMORY", 64 * 16 * 4)


def streamed(encoder, sentences, **keywords):
    with Rows() as rows:
        found = encode_rows(encoder, iter(sentences), rows, **keywords)
        return np.array(rows.array()), found


# Rows.


def test_what_fits_in_memory_has_the_bits_it_has_in_memory(encoder, sentences):
    rows, found = streamed(encoder, sentences)
    expected = embed(encoder, sentences)
    assert np.array_equal(rows, expected.rows())
    assert rows.dtype == np.float32
    assert (found.rows, found.distinct) == (120, len(set(sentences)))
    assert (found.cut, found.width) == (expected.cut, 16)


@pytest.mark.parametrize(("chunk", "memory"), [(7, 64 * 16 * 4), (25, 0), (119, 10**9)])
def test_chunks_and_a_file_change_no_row(encoder, sentences, monkeypatch, encoded, chunk, memory):
    expected = embed(encoder, sentences)
    encoded.clear()
    monkeypatch.setattr(streaming, "STREAM_SENTENCES", chunk)
    monkeypatch.setattr(streaming, "WRITTEN_ROWS", 3)
    monkeypatch.setattr(streaming, "IN_MEMORY", memory)
    rows, found = streamed(encoder, sentences)
    np.testing.assert_allclose(rows, expected.rows(), atol=1e-6)
    assert sorted(encoded) == sorted(set(sentences))
    assert found.distinct == len(expected.vectors)


def test_long_texts_make_smaller_chunks(monkeypatch):
    monkeypatch.setattr(streaming, "STREAM_CHARACTERS", 10)
    chunks = streaming._chunks(["abcd", "efgh", "ij", "k" * 50, "l"])
    assert list(chunks) == [["abcd", "efgh", "ij"], ["k" * 50], ["l"]]


def test_the_temporary_file_has_no_name_and_rows_stay_after_it(
    encoder, sentences, in_a_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(streaming.tempfile, "tempdir", str(tmp_path))
    with Rows() as store:
        encode_rows(encoder, sentences, store)
        rows = store.array()
        assert isinstance(rows, np.memmap)
        assert not rows.flags.writeable
        assert list(tmp_path.iterdir()) == []
    np.testing.assert_allclose(rows, embed(encoder, sentences).rows(), atol=1e-6)


@pytest.mark.parametrize("name", ["seek", "write"])
def test_a_full_disk_is_an_error_that_says_where(encoder, sentences, in_a_file, monkeypatch, name):
    class Full(io.BytesIO):
        def write(self, data):
            if name == "seek":
                raise OSError(28, "No space left on device")
            return len(data) // 2

    monkeypatch.setattr(streaming.tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(ModelError, match=r"temporary files in .*No space left.*TMPDIR"):
        streamed(encoder, sentences)


def test_what_is_not_text_is_named(encoder, small_chunks):
    for texts, message in [
        (["a"] * 30 + [7], "sentence 30 is int"),
        (["a", ["b"]], "sentence 1 is list"),
        (["a"] * 26 + ["\ud83d"], "sentence 26 holds half"),
        ("a text", "got str; give a list of texts"),
    ]:
        with pytest.raises(InputError, match=message):
            streamed(encoder, texts) if isinstance(texts, list) else encode_rows(
                encoder, texts, Rows()
            )


def test_a_vector_that_is_not_finite_is_named_by_its_sentence(spoiled, small_chunks):
    with pytest.raises(InputError, match="sentence 28 is not finite: 'the cat'"):
        streamed(spoiled, ["a dog"] * 28 + ["the cat", "a"])


def test_a_cache_is_used_and_filled(encoder, sentences, small_chunks, encoded, tmp_path):
    embed(encoder, sentences[:20], cache=SentenceCache(tmp_path))
    encoded.clear()
    first, _ = streamed(encoder, sentences, cache=SentenceCache(tmp_path))
    assert sorted(encoded) == sorted(set(sentences) - set(sentences[:20]))
    encoded.clear()
    second, _ = streamed(encoder, sentences, cache=SentenceCache(tmp_path))
    assert encoded == []
    assert np.array_equal(first, second)


# Calibrators.


def test_a_stream_is_calibrated_on_as_a_list_is(encoder, sentences):
    for calibrator in [Whitening(), Standardization(), Flow(epochs=1)]:
        from_list = calibrate(encoder, sentences, calibrator).calibrator
        from_stream = calibrate(encoder, iter(sentences), calibrator).calibrator
        expected = calibrator.fit(embed(encoder, sentences).rows())
        for name, tensor in expected._learned().items():
            assert np.array_equal(from_list._learned()[name], tensor)
            assert np.array_equal(from_stream._learned()[name], tensor)


def test_a_large_corpus_is_calibrated_on_with_its_repeats(
    encoder, sentences, small_chunks, in_a_file
):
    model = calibrate(encoder, iter(sentences), Whitening())
    expected = Whitening().fit(embed(encoder, sentences).rows())
    np.testing.assert_allclose(model.calibrator.mean_, expected.mean_, atol=1e-6)
    told = model.calibrator.provenance_
    assert (told["sentences"], told["distinct"]) == (120, len(set(sentences)))
    with pytest.raises(InputError, match="got 50 sentences, 1 of them distinct, but"):
        calibrate(encoder, (one for one in ["a dog"] * 50), Whitening())


# Corpora.


def test_a_corpus_is_read_one_by_one(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.jsonl").write_text('{"text": "three"}\n{"text": 4}\n')
    stream = stream_corpus([tmp_path / "a.txt", tmp_path / "b.jsonl"])
    assert [next(stream), next(stream), next(stream)] == ["one", "two", "three"]
    with pytest.raises(InputError, match="line 2"):
        next(stream)
    with pytest.raises(InputError, match="line 2"):
        checked_corpus([tmp_path / "a.txt", tmp_path / "b.jsonl"])
    assert list(checked_corpus([tmp_path / "a.txt"], limit=1)) == ["one"]
    blank = stream_corpus([tmp_path / "a.txt"], blank="refuse")
    assert next(blank) == "one"
    with pytest.raises(InputError, match="sentence 2 is blank"):
        next(blank)


def test_standard_input_is_not_read_twice(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    assert list(checked_corpus(["-"])) == ["one", "two"]


# Files.


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_what_numpy_would_have_written(encoder, sentences, place):
    found = encode_file(encoder, iter(sentences), place / "new" / "z.npy")
    np.save("expected.npy", embed(encoder, sentences).rows())
    assert (place / "new/z.npy").read_bytes() == (place / "expected.npy").read_bytes()
    assert (found.rows, found.distinct) == (120, len(set(sentences)))
    assert [path.name for path in (place / "new").iterdir()] == ["z.npy"]


class Killed(BaseException):
    """What a kill looks like to the code: nothing is tidied up."""


def stopped_after(count: int):
    """A progress that stops the work, without any of it being closed or removed."""
    groups = []

    def progress(done, total):
        groups.append(done)
        if len(groups) == count:
            raise Killed

    return progress


@pytest.mark.parametrize(("count", "cached"), [(1, False), (9, False), (5, True), (10, True)])
def test_what_was_stopped_goes_on_to_the_same_bytes(
    encoder, sentences, place, small_chunks, encoded, count, cached
):
    def cache(name: str) -> SentenceCache | None:
        if not cached:
            return None
        embed(encoder, sentences[5:30], cache=SentenceCache(place / name))
        return SentenceCache(place / name)

    encode_file(encoder, sentences, "whole.npy", cache=cache("one"))
    other = cache("other")
    encoded.clear()
    with pytest.raises(Killed):
        encode_file(encoder, sentences, "z.npy", cache=other, progress=stopped_after(count))
    assert not Path("z.npy").exists()
    before = set(encoded)
    encoded.clear()
    steps = []
    encode_file(encoder, sentences, "z.npy", cache=other, progress=lambda *step: steps.append(step))
    assert Path("z.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert not before & set(encoded)
    assert steps[-1] == (len(set(sentences)),) * 2
    assert not Path(".z.npy.part").exists()
    if cached:
        again = SentenceCache(place / "other")
        embed(encoder, sentences, cache=again)
        assert again.encoded == 0


@pytest.mark.parametrize(
    ("way", "through"),
    [("one after the other", "cache"), ("beside each other", "file"), ("own encode", "file")],
)
def test_what_is_left_of_a_group_has_the_batches_it_had(
    encoder, sentences, place, monkeypatch, untried, way, through
):
    monkeypatch.setattr(encoding, "PART_SECONDS", 0.0)
    beside = way == "beside each other"
    batches: list[tuple[str, list]] = []

    def watched(compute, content):
        @functools.wraps(compute)
        def computed(*arguments, **keywords):
            batches.append((threading.current_thread().name[:6], content(arguments[1])))
            return compute(*arguments, **keywords)

        return computed

    if way == "own encode":
        monkeypatch.setattr(encoding, "is_usual", lambda model: False)
        monkeypatch.setattr(
            SentenceTransformer, "encode", watched(SentenceTransformer.encode, list)
        )
    else:
        ids = watched(encoding._forward, lambda batch: batch["input_ids"].tolist())
        monkeypatch.setattr(encoding, "_forward", ids)

    def run(name: str, progress=None) -> tuple[bytes, list]:
        batches.clear()
        if through == "file":
            encode_file(encoder, sentences, f"{name}.npy", batch_size=1, progress=progress)
            return Path(f"{name}.npy").read_bytes(), sorted(batches)
        cache = SentenceCache(place / name)
        found = embed(encoder, sentences, batch_size=1, cache=cache, progress=progress)
        return found.vectors.tobytes(), sorted(batches)

    threads = torch.get_num_threads()
    torch.set_num_threads(2 if beside else 1)
    try:
        content, whole = run("whole")
        assert len(whole) > 4
        assert {name for name, _ in whole} == {"encode" if beside else "MainTh"}
        # In the end fewer are left than run beside each other.
        for count in (1, 4, len(whole) - 1):
            with pytest.raises(Killed):
                run(f"z{count}", stopped_after(count))
            again, left = run(f"z{count}")
            assert again == content
            assert len(left) == len(whole) - count and all(batch in whole for batch in left)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("cached", [False, True])
def test_a_calibrated_model_goes_on_within_a_group_to_the_same_bytes(
    encoder, sentences, place, monkeypatch, cached
):
    monkeypatch.setattr(encoding, "PART_SECONDS", 0.0)
    model = calibrate(encoder, sentences, Whitening())

    def run(output: str, progress=None) -> bytes:
        cache = SentenceCache(place / f"cache of {output}") if cached else None
        encode_file(model, sentences, output, batch_size=1, cache=cache, progress=progress)
        return Path(output).read_bytes()

    whole = run("whole.npy")
    done: list[int] = []
    with pytest.raises(Killed):
        run("z.npy", stopped_after(3))
    assert run("z.npy", lambda count, of: done.append(count)) == whole
    assert done[0] >= 3  # What was there is told first.


def test_a_calibrated_model_stopped_without_a_cache_goes_on_with_one(
    encoder, sentences, place, monkeypatch
):
    """What was calibrated batch by batch is no part of a group that is calibrated whole."""
    monkeypatch.setattr(encoding, "PART_SECONDS", 0.0)
    model = calibrate(encoder, sentences, Whitening())
    for first, second in ((None, SentenceCache(place / "a")), (SentenceCache(place / "b"), None)):
        with pytest.raises(Killed):
            encode_file(
                model, sentences, "z.npy", batch_size=1, cache=first, progress=stopped_after(3)
            )
        encode_file(model, sentences, "z.npy", batch_size=1, cache=second)
        expected = model.encode(sentences, show_progress_bar=False)
        np.testing.assert_allclose(np.load("z.npy"), expected, rtol=0, atol=1e-4)


def parts() -> list[Path]:
    return sorted(Path(".z.npy.part").glob("*.npz"))


def test_whatever_became_of_the_part_the_file_is_right(encoder, sentences, place, small_chunks):
    def flipped(data: bytes) -> bytes:
        return bytes([*data[:-300], data[-300] ^ 1, *data[-299:]])

    for harm in [
        lambda data: data[:-5],
        lambda data: data[: len(data) // 2],
        lambda data: bytes(len(data)),
        lambda data: bytes(range(256)),
        lambda data: b"",
        flipped,
    ]:
        Path("z.npy").unlink(missing_ok=True)
        encode_file(encoder, sentences, "whole.npy")
        with pytest.raises(Killed):
            encode_file(encoder, sentences, "z.npy", progress=stopped_after(8))
        for path in parts()[::2]:
            path.write_bytes(harm(path.read_bytes()))
        encode_file(encoder, sentences, "z.npy")
        assert Path("z.npy").read_bytes() == Path("whole.npy").read_bytes()


def test_another_corpus_encoder_or_batch_takes_over_nothing_wrong(
    encoder, tiny_bert, sentences, place, small_chunks
):
    other = load_encoder(tiny_bert, device="cpu", pooling="cls")
    turned = sentences[::-1]
    longer = [*sentences, "a new sentence"]
    for number, (model, texts, size) in enumerate(
        [
            (encoder, turned, 32),
            (encoder, sentences[:50], 32),
            (encoder, longer, 32),
            (other, sentences, 32),
            (encoder, sentences, 3),
        ]
    ):
        with pytest.raises(Killed):
            encode_file(encoder, sentences, "z.npy", progress=stopped_after(12))
        encode_file(model, texts, "z.npy", batch_size=size)
        encode_file(model, texts, f"whole{number}.npy", batch_size=size)
        assert Path("z.npy").read_bytes() == Path(f"whole{number}.npy").read_bytes()


def test_a_wrong_option_leaves_what_a_stopped_run_has_kept(encoder, sentences, place, small_chunks):
    with pytest.raises(Killed):
        encode_file(encoder, sentences, "z.npy", progress=stopped_after(8))
    kept = sorted(Path().rglob("*.npz"))
    for wrong in ({"devices": "cpu"}, {"batch_size": 0}, {"cache": "here"}, {"precision": "half"}):
        with pytest.raises(InputError):
            encode_file(encoder, sentences, "z.npy", **wrong)
    assert kept and sorted(Path().rglob("*.npz")) == kept


def test_the_old_file_stays_until_the_new_one_is_whole(encoder, sentences, place, small_chunks):
    Path("z.npy").write_text("old")
    with pytest.raises(Killed):
        encode_file(encoder, sentences, "z.npy", progress=stopped_after(8))
    assert Path("z.npy").read_text() == "old"


def test_an_error_of_the_input_leaves_nothing(encoder, place, small_chunks):
    Path("z.npy").write_text("old")
    before = tree(place)
    for texts in [["a dog"] * 30 + [7], [], ["a \ud83d"]]:
        with pytest.raises(InputError):
            encode_file(encoder, texts, "z.npy")
        assert tree(place) == before


def test_a_second_process_on_the_same_file_is_refused(encoder, sentences, place, small_chunks):
    def second(done, total):
        with pytest.raises(ModelError, match="another process is writing it"):
            encode_file(encoder, sentences, "z.npy")

    encode_file(encoder, sentences, "z.npy", progress=second)
    assert np.load("z.npy").shape == (120, 16)


def test_a_file_that_cannot_be_written_is_refused_before_any_work(encoder, place, encoded):
    Path("file").write_text("")
    for output in [place, place / "file" / "z.npy"]:
        with pytest.raises(ModelError, match="cannot write"):
            encode_file(encoder, ["a dog"], output)
    assert encoded == []


def test_a_disk_that_fills_up_is_an_error_and_what_is_done_is_kept(
    encoder, sentences, place, small_chunks, monkeypatch, encoded
):
    put = Rows._write
    calls = []

    def full(self, places, vectors):
        calls.append(1)
        if len(calls) > 4:
            raise OSError(28, "No space left on device")
        put(self, places, vectors)

    monkeypatch.setattr(Rows, "_write", full)
    with pytest.raises(ModelError, match=r"cannot write z\.npy: No space left"):
        encode_file(encoder, sentences, "z.npy")
    monkeypatch.setattr(Rows, "_write", put)
    encoded.clear()
    encode_file(encoder, sentences, "z.npy")
    assert len(encoded) == len(set(sentences)) - 20  # The fifth part was kept, too.
    np.testing.assert_allclose(np.load("z.npy"), embed(encoder, sentences).rows(), atol=1e-6)


SLOWLY = """
import sys, time
from bertflow.encoders import embedding, streaming
streaming.STREAM_SENTENCES, embedding.group_size = 25, lambda encoder: 4
from sentence_transformers import SentenceTransformer
encode = SentenceTransformer.encode
def slow(self, *args, **keywords):
    time.sleep(float(sys.argv[1]))
    return encode(self, *args, **keywords)
SentenceTransformer.encode = slow
from bertflow.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.nightly
def test_a_process_that_is_killed_goes_on_to_the_same_bytes(tiny_bert, sentences, place):
    (place / "c.txt").write_text("\n".join(sentences) + "\n")
    run = [sys.executable, "-c", SLOWLY]
    encode = ["encode", str(tiny_bert), "--corpus", "c.txt", "--no-cache", "--output"]
    subprocess.run([*run, "0", *encode, "whole.npy"], check=True, capture_output=True)
    process = subprocess.Popen([*run, "0.3", *encode, "z.npy"])
    while len(parts()) < 3:
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not Path("z.npy").exists()
    subprocess.run([*run, "0", *encode, "z.npy"], check=True, capture_output=True)
    assert Path("z.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert sorted(path.name for path in place.iterdir()) == ["c.txt", "whole.npy", "z.npy"]


SLOW = """
import sys, time
from bertflow.encoders import encoding
forward = encoding._forward
def slow(model, batch, kind):
    rows = len(batch["input_ids"])
    time.sleep(rows * float(sys.argv[1]))
    with open("seen", "a") as file:
        file.write("." * rows)
    return forward(model, batch, kind)
encoding._forward = slow
encoding.check_own_encoding = lambda *given, **how: None
from bertflow.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["encode", "fit"])
def test_a_kill_costs_some_seconds_of_a_slow_encoder(tiny_bert, place, command):
    """A tenth of a second for each of 300 sentences, which are one group."""
    random = np.random.default_rng(1)
    texts = sorted({" ".join(random.choice(WORDS, size=6)) for _ in range(300)})
    (place / "c.txt").write_text("\n".join(texts) + "\n")
    arguments = {
        "encode": ["encode", str(tiny_bert), "--no-cache", "--output"],
        "fit": ["fit", "--encoder", str(tiny_bert), "--calibrator", "whitening", "--output"],
    }[command]
    options = ["--corpus", "c.txt", "--batch-size", "1", "--max-length", "8"]

    def start(seconds: float, output: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", SLOW, str(seconds), *arguments, output, *options],
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )

    assert start(0, "whole.npy", BERTFLOW_CACHE="another").wait() == 0
    assert len(Path("seen").read_text()) == len(texts)
    Path("seen").unlink()
    process = start(0.1, "z.npy")
    while not Path("seen").exists() or len(Path("seen").read_text()) < 120:
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not Path("z.npy").exists()
    assert start(0, "z.npy").wait() == 0
    twice = len(Path("seen").read_text()) - len(texts)
    assert twice * 0.1 < 10
    if command == "encode":
        assert Path("z.npy").read_bytes() == Path("whole.npy").read_bytes()
    else:
        assert tree(place / "z.npy") == tree(place / "whole.npy")


def test_several_files_are_encoded_in_order(tiny_bert, place, done, sentences, encoder):
    Path("a.txt").write_text("\n".join(sentences[:50]) + "\n")
    Path("b.jsonl").write_text("".join(json.dumps({"text": s}) + "\n" for s in sentences[50:]))
    done("encode", tiny_bert, "--corpus", "a.txt", "--corpus", "b.jsonl", "--output", "z.npy")
    np.testing.assert_allclose(np.load("z.npy"), embed(encoder, sentences).rows(), atol=1e-6)
    texts = read_corpus(["a.txt", "b.jsonl"])
    assert texts == list(chain(sentences[:50], sentences[50:]))
