"""Many at once, and again and again: threads, processes, thousands of calls on one model."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.load import KINDS
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

from bertflow import (
    AllButTheTop,
    Flow,
    SentenceCache,
    Standardization,
    Whitening,
    attach,
    calibrate,
    load,
    load_calibrator,
    load_encoder,
    save_calibrator,
)
from bertflow.analysis.frequency import frequent_words
from bertflow.encoders import VectorCache, embed, embedding, encode_file, encoding, load_poolings
from bertflow.encoders.checks import quietly
from bertflow.encoders.embedding import count_cut_of
from bertflow.encoders.encoding import Encoding, Group
from bertflow.models import save_model
from conftest import REPOSITORY

THREADS, PROCESSES = 8, 4
SMALL = {"levels": 2, "depth": 2, "width": 4, "epochs": 1}
CALIBRATORS = {
    "flow": Flow(**SMALL),
    "tempered flow": Flow.tempered(**SMALL),
    "affine flow": Flow(coupling="affine", **SMALL),
    "learned matrices": Flow(permutation="linear", **SMALL),
    "whitening": Whitening(),
    "standardization": Standardization(),
    "all-but-the-top": AllButTheTop(2),
}


def at_once(function: Callable[[int], object], count: int = THREADS) -> list:
    """Call a function with 0, 1, … in threads that all begin together."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> object:
        barrier.wait()
        return function(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def in_another(call: Callable[[], object]) -> object:
    """Call in a thread that has just begun."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.fixture(scope="module")
def saved(tiny_bert, tiny_llama, tiny_sentences, tmp_path_factory) -> dict[str, Path]:
    """Calibrated models: portable and with bertflow's module, of one state and of several."""
    home = tmp_path_factory.mktemp("models")
    made = {
        "averaging": (tiny_bert, None, True),
        "last": (tiny_bert, "mean", True),
        "causal": (tiny_llama, "layers:1", True),
        "own module": (tiny_bert, None, False),
    }
    for name, (folder, pooling, portable) in made.items():
        encoder = load_encoder(folder, pooling=pooling, device="cpu")
        model = calibrate(encoder, tiny_sentences, Flow(**SMALL), portable=portable)
        save_model(model, home / name)
    return {name: home / name for name in made}


MODELS = ["averaging", "last", "causal", "own module"]


# Threads.


@pytest.mark.parametrize("name", ["causal", "own module"])
def test_threads_on_one_model_get_the_vectors_of_one(name, saved, tiny_sentences):
    expected = load(saved[name], device="cpu").encode(tiny_sentences)
    model = load(saved[name], device="cpu")  # Not even once was it called before.
    for got in at_once(lambda number: model.encode(tiny_sentences)):
        np.testing.assert_array_equal(got, expected)
    # Each its own sentences, batch size and form.
    parts = [tiny_sentences[number : 40 + 20 * number] for number in range(THREADS)]
    alone = [model.encode(part, batch_size=7) for part in parts]

    def own(number: int) -> np.ndarray:
        tensor = model.encode(parts[number], batch_size=7, convert_to_tensor=number % 2 == 1)
        return np.asarray(tensor)

    for got, wanted in zip(at_once(own), alone, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_threads_on_one_model_in_half_precision_get_the_vectors_of_one(saved, tiny_sentences):
    """And nearly those of single precision, because the calibrator stays in it."""
    name = "averaging"
    some = tiny_sentences[:60]
    whole = load(saved[name], device="cpu").encode(some)
    model = load(saved[name], device="cpu").half()
    expected = model.encode(some), embed(model, some).rows()

    def either(number: int) -> np.ndarray:
        return embed(model, some).rows() if number % 2 else model.encode(some)

    for number, got in enumerate(at_once(either)):
        np.testing.assert_array_equal(got, expected[number % 2])
        lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(whole, axis=1)
        assert (np.einsum("nd,nd->n", got, whole) / lengths).min() > 0.99


def test_threads_on_one_encoder_of_several_poolings_get_the_vectors_of_one(
    tiny_bert, tiny_sentences
):
    poolings = ["mean", "cls", "last2avg"]
    expected = load_poolings(tiny_bert, poolings, device="cpu").encode(tiny_sentences[:60])
    encoder = load_poolings(tiny_bert, poolings, device="cpu")
    for got in at_once(lambda number: encoder.encode(tiny_sentences[:60])):
        np.testing.assert_array_equal(got, expected)


def test_encoder_and_models_on_it_are_used_at_once(tiny_bert, tiny_sentences):
    """Models share the encoder's modules."""
    encoder = load_encoder(tiny_bert, device="cpu")
    some = tiny_sentences[:80]
    models = [
        encoder,
        *(calibrate(encoder, tiny_sentences, one) for one in (Whitening(), Flow(**SMALL))),
    ]
    expected = [model.encode(some) for model in models]
    for number, got in enumerate(at_once(lambda number: models[number % 3].encode(some))):
        np.testing.assert_array_equal(got, expected[number % 3])


def test_threads_that_embed_and_that_encode_do_not_disturb_each_other(saved, tiny_sentences):
    model = load(saved["averaging"], device="cpu")
    vectors = model.encode(tiny_sentences)

    def either(number: int) -> np.ndarray:
        return embed(model, tiny_sentences).rows() if number % 2 else model.encode(tiny_sentences)

    for got in at_once(either):
        np.testing.assert_allclose(got, vectors, atol=1e-5)


def test_counting_what_is_cut_leaves_the_tokenizer_as_other_threads_use_it(tiny_bert):
    """A fast tokenizer keeps how it cuts and pads; changed between two lines of another thread,
    that gets uncut sentences, or rows of several lengths."""
    encoder = load_encoder(tiny_bert, max_length=8, device="cpu")
    encoder.encode(["a dog"])
    backend = encoder[0].tokenizer.backend_tokenizer
    before = backend.truncation, backend.padding
    assert count_cut_of(encoder, ["a dog", "a dog is on the street " * 3]) == 1
    assert (backend.truncation, backend.padding) == before


def test_models_are_saved_and_words_looked_up_beside_threads_that_tokenize(
    saved, tiny_sentences, tmp_path
):
    """What a tokenizer was last set to is changed for nobody, and saved by nobody."""
    model = load(saved["averaging"], device="cpu")
    save_model(model, tmp_path / "before")
    model.encode(tiny_sentences)
    backend = model[0].tokenizer.backend_tokenizer
    before = backend.truncation, backend.padding
    assert before[0] is not None and before[1] is not None
    save_model(model, tmp_path / "after")
    assert (backend.truncation, backend.padding) == before
    for file in (tmp_path / "before").rglob("*.json"):
        other = tmp_path / "after" / file.relative_to(tmp_path / "before")
        assert other.read_bytes() == file.read_bytes(), file
    frequent_words(model[0].tokenizer)
    assert (backend.truncation, backend.padding) == before


def test_attaching_leaves_the_width_that_other_threads_encode_in(tiny_bert, rng):
    """What is asked for the whole width is a copy."""
    seen: list[tuple[int, object]] = []

    class Watched(SentenceTransformer):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "truncate_dim":
                seen.append((id(self), value))
            super().__setattr__(name, value)

    encoder = Watched(modules=list(load_encoder(tiny_bert)), device="cpu", truncate_dim=8)
    model = attach(encoder, Whitening().fit(rng.normal(size=(50, 8))), portable=False)
    assert {value for owner, value in seen if owner == id(encoder)} == {8}
    assert model.encode(["a dog"]).shape == (1, 8)


def test_threads_that_load_leave_transformers_as_talkative_as_it_was():
    """The first that comes is the first that goes."""
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    first, second = quietly(), quietly()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not logging.is_progress_bar_enabled()
    second.__exit__(None, None, None)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize("name", CALIBRATORS)
def test_threads_on_one_calibrator_get_the_bits_of_one(name, rng, tmp_path):
    rows = rng.normal(size=(500, 8)) * 3 + 1
    save_calibrator(CALIBRATORS[name].fit(rows), tmp_path / "saved")
    given = [rows, rows.astype(np.float32), rows.astype(np.float16), torch.from_numpy(rows)]

    def calls(calibrator, number: int) -> list[np.ndarray]:
        z = calibrator.transform(given[number % 4])
        found = [z, calibrator.inverse_transform(z)]
        if isinstance(calibrator, Flow):
            found += [calibrator.log_prob(given[number % 4]), calibrator.sample(9, random_state=1)]
        return [np.asarray(one) for one in found]

    calibrator = load_calibrator(tmp_path / "saved")
    together = at_once(lambda number: calls(calibrator, number))
    for number, found in enumerate(together):
        alone = calls(load_calibrator(tmp_path / "saved"), number)
        for got, wanted in zip(found, alone, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_fits_in_threads_learn_the_bits_of_fits_one_after_the_other(rng):
    rows = rng.normal(size=(400, 8)).astype(np.float32)
    kinds = list(CALIBRATORS.values())

    def fit(number: int) -> np.ndarray:
        kind = kinds[number % len(kinds)]
        return type(kind)(**kind.get_params()).fit(rows).transform(rows)

    alone = [fit(number) for number in range(THREADS)]
    for got, wanted in zip(at_once(fit), alone, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_threads_encode_without_dropout_with_a_model_that_was_left_in_training(
    tiny_bert, tiny_sentences
):
    encoder = load_encoder(tiny_bert, device="cpu")
    expected = embed(encoder, tiny_sentences).rows()
    for module in encoder[0].modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    encoder.train()
    for got in at_once(lambda number: embed(encoder, tiny_sentences).rows()):
        np.testing.assert_array_equal(got, expected)


@pytest.fixture
def four_threads(monkeypatch) -> Iterator[None]:
    """Two workers with two threads each, in a process whose threads have four."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(encoding, "WORKERS", 2)
    monkeypatch.setattr(embedding, "group_size", lambda encoder: 50)
    yield
    torch.set_num_threads(before)


def test_threads_that_begin_while_others_encode_have_the_number_of_all(
    four_threads, tiny_bert, tiny_sentences, rng, monkeypatch, tmp_path
):
    """And so have fits, which go on after a stop with that number alone."""
    encoder = load_encoder(tiny_bert, device="cpu")
    numbers: list[object] = []
    said: list[int] = []
    part: set[int] = set()
    run, forward = Flow._run, encoding._forward

    def watched(*arguments):
        if threading.current_thread().name.startswith("encode"):
            part.add(torch.get_num_threads())
        return forward(*arguments)

    def noted(self, *arguments):
        found = run(self, *arguments)
        said.append(found["threads"])
        return found

    monkeypatch.setattr(encoding, "_forward", watched)
    monkeypatch.setattr(Flow, "_run", noted)
    rows = rng.normal(size=(60, 8))

    def another(done: int, of: int) -> None:
        numbers.append(in_another(torch.get_num_threads))
        kept = tmp_path / f"{len(numbers)}.safetensors"
        in_another(lambda: Flow(**SMALL).fit(rows, checkpoint=kept))
        in_another(lambda: embed(encoder, tiny_sentences[:200], batch_size=1))

    embed(encoder, tiny_sentences[:200], batch_size=1, progress=another)
    assert part == {2}
    assert set(numbers) == {4} and set(said) == {4} and len(said) > 2
    assert torch.get_num_threads() == in_another(torch.get_num_threads) == 4


def test_threads_keep_their_own_number_whoever_ends_an_encoding(
    four_threads, tiny_bert, tiny_sentences
):
    encode = Encoding(load_encoder(tiny_bert, device="cpu"), batch_size=1)
    begun = encode.each(Group(tiny_sentences[start : start + 50]) for start in range(0, 200, 50))
    next(begun)

    def end() -> int:
        torch.set_num_threads(3)
        begun.close()
        return torch.get_num_threads()

    try:
        assert in_another(end) == 3
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(4)


def test_threads_share_a_cache_on_disk(tiny_bert, tiny_sentences, tmp_path):
    encoder = load_encoder(tiny_bert, max_length=32, device="cpu")
    expected = embed(encoder, tiny_sentences)
    cache = SentenceCache(tmp_path)

    def part(number: int) -> np.ndarray:
        return embed(encoder, tiny_sentences[20 * number : 100 + 20 * number], cache=cache).rows()

    for number, got in enumerate(at_once(part)):
        wanted = expected.rows()[20 * number : 100 + 20 * number]
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    distinct = [len(set(tiny_sentences[20 * n : 100 + 20 * n])) for n in range(THREADS)]
    assert cache.found + cache.encoded == sum(distinct)
    (kept,) = cache.contents()
    assert kept.sentences == len(set(tiny_sentences[: 100 + 20 * (THREADS - 1)]))
    cache = SentenceCache(tmp_path)
    embed(encoder, tiny_sentences[:240], cache=cache)
    assert cache.encoded == 0


def test_threads_add_to_one_folder_of_vectors(tmp_path):
    """Each with an object of its own, as processes have."""
    vectors = np.eye(80, dtype=np.float32)
    names = [str(number) for number in range(80)]

    def add(number: int) -> None:
        cache = VectorCache(tmp_path, {"encoder": "none"})
        for start in range(5 * number, 5 * number + 40, 10):
            cache.add(names[start : start + 10], vectors[start : start + 10])

    at_once(add)
    cache = VectorCache(tmp_path, {"encoder": "none"})
    assert len(cache) == 75
    np.testing.assert_array_equal(cache.vectors()[cache.rows(names[:75])], vectors[:75])


# Processes.


def in_process(model: bytes, sentences: list[str]) -> np.ndarray:
    """What a process does that was sent a model."""
    torch.set_num_threads(1)
    return pickle.loads(model).encode(sentences)


def from_folder(folder: str, sentences: list[str], cache: str) -> np.ndarray:
    """What a process does that opens a folder."""
    torch.set_num_threads(1)
    return embed(load(folder, device="cpu"), sentences, cache=SentenceCache(cache)).rows()


@pytest.mark.nightly
def test_processes_that_are_sent_a_model_give_the_vectors_of_one(saved, tiny_sentences):
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        for name in MODELS:
            model = load(saved[name], device="cpu")
            expected = model.encode(tiny_sentences)  # Before it is sent, too.
            sent = pickle.dumps(model)
            ran = [pool.submit(in_process, sent, tiny_sentences) for _ in range(PROCESSES)]
            for one in ran:
                np.testing.assert_allclose(one.result(), expected, atol=1e-5)


@pytest.mark.nightly
def test_processes_on_one_folder_and_one_cache_give_the_vectors_of_one(
    saved, tiny_sentences, tmp_path
):
    expected = load(saved["averaging"], device="cpu").encode(tiny_sentences)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        arguments = str(saved["averaging"]), tiny_sentences, str(tmp_path)
        ran = [pool.submit(from_folder, *arguments) for _ in range(2 * PROCESSES)]
        for one in ran:
            np.testing.assert_allclose(one.result(), expected, atol=1e-5)
    (kept,) = SentenceCache(tmp_path).contents()
    assert kept.sentences == len(set(tiny_sentences))


FORKED = """
import multiprocessing, sys
import numpy as np, torch
from bertflow import load
torch.set_num_threads(1)  # As every program that forks: threads of the parent are not there.
model = load(sys.argv[1], device="cpu")
sentences = sys.argv[2].split("|")
before = model.encode(sentences)
def encode(number):
    return model.encode(sentences), model.calibrator.transform(before)
with multiprocessing.get_context("fork").Pool(4) as pool:
    for vectors, mapped in pool.map(encode, range(8)):
        np.testing.assert_allclose(vectors, before, atol=1e-5)
        np.testing.assert_array_equal(mapped, model.calibrator.transform(before))
print("same")
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="forking is for Linux")
def test_forked_processes_give_the_vectors_of_one(saved, tiny_sentences):
    ran = subprocess.run(
        [sys.executable, "-c", FORKED, str(saved["averaging"]), "|".join(tiny_sentences[:50])],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        timeout=300,
    )
    assert ran.stdout == "same\n", ran.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_the_pool_of_sentence_transformers_gives_the_rows_of_one_in_order(
    name, saved, tiny_sentences
):
    """Four processes, after an ordinary encoding and before another."""
    model = load(saved[name], device="cpu")
    texts = [f"{tiny_sentences[i % 300]} {tiny_sentences[i // 4]}" for i in range(1003)]
    alone = model.encode(texts)
    pool = model.start_multi_process_pool(["cpu"] * PROCESSES)
    try:
        together = model.encode(texts, pool=pool, chunk_size=50)
    finally:
        model.stop_multi_process_pool(pool)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_array_equal(model.encode(texts), alone)


# Again and again.


LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
# More than a page now and then, less than what a call would leave; in all, with leaks that come in
# leaps, twice as much.
LEAK_BYTES = 100


def load_figures(tiny_bert: Path, calls: int, *kinds: str) -> list[dict]:
    """Of kinds of call, what `python -m benchmarks.load` finds."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.load", "--calls", str(calls)),
            *("--encoder", str(tiny_bert), "--only", *kinds),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])["results"]


@LINUX
@pytest.mark.nightly
def test_hundreds_of_calls_leave_nothing(tiny_bert):
    """Of every kind, and thousands of them: `make torture`."""
    (one,) = load_figures(tiny_bert, 200, "encode")
    assert (one["files"], one["threads"]) == (0, 0), one
    assert one["grown_mb"] < 2, one
    assert one["objects"] < 50, one


@LINUX
@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_calls_leave_nothing(kind, tiny_bert):
    (one,) = load_figures(tiny_bert, 10_000, kind)
    assert (one["files"], one["threads"]) == (0, 0), one
    assert one["later_mb"] < 2 * LEAK_BYTES * 5_000 / 1e6, one
    assert one["objects"] < 50, one
    assert one["bytes_per_call"] < LEAK_BYTES, one


MEASURED = """
import json
from benchmarks.load import measured
kept, once = [], {}
calls = {
    "leak": lambda number: kept.append(bytes(200)),
    "lists": lambda number: kept.append([[]]),
    "fill": lambda number: once.setdefault(number % 3000, bytes(900)),
    "nothing": lambda number: None,
}
print(json.dumps({name: measured(call, 10_000) for name, call in calls.items()}))
"""


@LINUX
@pytest.mark.nightly
def test_a_leak_is_told_from_what_is_filled_once():
    """The one goes on growing, the other fills up before the second half."""
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert 2 * LEAK_BYTES < found["leak"]["bytes_per_call"] < 4 * LEAK_BYTES
    assert found["lists"]["objects"] == 10_000
    assert found["leak"]["later_mb"] > 1
    assert found["fill"]["grown_mb"] > 1.5 and found["fill"]["later_mb"] < 0.1
    for name in ("fill", "nothing"):
        assert abs(found[name]["bytes_per_call"]) < LEAK_BYTES / 5, found[name]
        assert found[name]["objects"] == 0


STREAMED = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from bertflow import load
from bertflow.encoders import encode_file
from benchmarks.streaming import memory, sentences
model = load(sys.argv[1], device="cpu")
encode_file(model, sentences(2000), sys.argv[2])
Path("/proc/self/clear_refs").write_text("5")
before = memory()["VmRSS"]
encode_file(model, sentences(int(sys.argv[3])), sys.argv[2])
print(memory()["VmHWM"] - before)
"""


@LINUX
@pytest.mark.nightly
def test_50000_texts_are_written_in_flat_memory(saved, tmp_path):
    """What 50,000 take above 10,000 is their texts, not their vectors or tokens."""
    took = {}
    for count in (10_000, 50_000):
        ran = subprocess.run(
            [
                *(sys.executable, "-c", STREAMED, str(saved["averaging"])),
                *(str(tmp_path / "out.npy"), str(count), str(REPOSITORY)),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        assert ran.returncode == 0, ran.stderr
        took[count] = float(ran.stdout.splitlines()[-1])
        assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (count, 16)
    assert took[50_000] < took[10_000] + 20, took


def test_rows_in_a_file_are_those_of_memory_whatever_the_chunk(saved, tiny_sentences, tmp_path):
    model = load(saved["averaging"], device="cpu")
    texts = [f"{tiny_sentences[i % 300]} {tiny_sentences[i // 4]}" for i in range(1003)]
    encode_file(model, texts, tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), model.encode(texts), atol=1e-5)
