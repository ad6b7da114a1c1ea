"""Checkpoints of a flow's fit: stopped anywhere, it goes on to the same bits; nothing else is."""

from __future__ import annotations

import logging
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.exceptions import NotFittedError

from bertflow.calibrators import Flow, training
from bertflow.errors import ModelError, TrainingError

# Batches of 10 are 70 a pass: 210 steps, whose passes end at 70 and 140.
ROWS, STEPS = 700, 210
DESIGN = {"epochs": 3, "batch_size": 10, "width": 8}
DESIGNS = {
    "written out": {},
    "constant": {"schedule": "constant", "weight_decay": 0.01, "bias_correction": False},
    "autograd": {"permutation": "linear"},
    "tempered": {"axes": "principal", "noise": 0.5, "leading": 1, "normalize": True},
}


class Killed(BaseException):
    """What a kill looks like to the code: nobody catches it."""


@pytest.fixture(autouse=True)
def saved_whenever_kept(monkeypatch):
    monkeypatch.setattr(training, "SAVED_SECONDS", 0.0)


@pytest.fixture
def x(rng):
    return (rng.normal(size=(ROWS, 6)) ** 3 + np.arange(6.0)).astype(np.float32)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "state"


def stopped(flow: Flow, x: np.ndarray, place: Path, at: int) -> None:
    """Fit, but be gone after a step."""

    def stop(done, total, loss):
        if done == at:
            raise Killed

    with pytest.raises(Killed):
        flow.fit(x, progress=stop, checkpoint=place)


def begun_at(flow: Flow, x: np.ndarray, place: Path) -> int:
    """Fit, and give the steps that were not taken."""
    seen: list[int] = []
    flow.fit(x, progress=lambda done, *_: seen.append(done), checkpoint=place)
    assert seen == list(range(seen[0], seen[-1] + 1))
    return seen[0] - 1


def assert_same(flow: Flow, whole: Flow, x: np.ndarray) -> None:
    """All that was learned and all that comes of it, bit for bit."""
    learned, expected = flow._learned(), whole._learned()
    assert learned.keys() == expected.keys()
    for name, tensor in learned.items():
        assert torch.equal(tensor, expected[name]), name
    np.testing.assert_array_equal(flow.transform(x), whole.transform(x))
    np.testing.assert_array_equal(flow.sample(9, random_state=1), whole.sample(9, random_state=1))
    assert flow.score(x) == whole.score(x)
    assert vars(flow).keys() == vars(whole).keys()


# Going on.


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_stopped_after_any_step_it_goes_on_to_the_same_bits(x, tmp_path, design):
    whole = Flow(**DESIGN, **design).fit(x)
    for at in (65,) if design else (1, 64, 65, 70, 129, 140, 141, STEPS - 1):
        place = tmp_path / str(at)
        stopped(Flow(**DESIGN, **design), x, place, at)
        flow = Flow(**DESIGN, **design)
        assert begun_at(flow, x, place) == (at - 1) // 64 * 64
        assert_same(flow, whole, x)


def test_where_losses_are_looked_at_late_it_is_the_same(x, place, monkeypatch):
    whole = Flow(**DESIGN).fit(x)
    monkeypatch.setattr(training, "steps_fetched", lambda device: 64)
    stopped(Flow(**DESIGN), x, place, 100)  # That is told after step 128.
    flow = Flow(**DESIGN)
    assert begun_at(flow, x, place) == 64
    assert_same(flow, whole, x)
    spoiled(monkeypatch, 150)
    with pytest.raises(TrainingError, match="step 151 of 210"):
        Flow(**DESIGN).fit(x)


def test_stopped_again_and_again_it_gets_there(x, place):
    for at in (10, 65, 130, 193, 205):
        stopped(Flow(**DESIGN), x, place, at)
    flow = Flow(**DESIGN)
    assert begun_at(flow, x, place) == 192
    assert_same(flow, Flow(**DESIGN).fit(x), x)


@pytest.mark.parametrize("at", [65, 129, 200])
def test_windows_that_were_trained_on_are_not_read_again(x, place, monkeypatch, at):
    monkeypatch.setattr(training, "WINDOW_ROWS", 40)
    whole = Flow(**DESIGN).fit(x)
    stopped(Flow(**DESIGN), x, place, at)
    taken, asked = sys.modules[Flow.__module__].taken, []

    def counted(rows, index):
        asked.append(len(index))
        return taken(rows, index)

    monkeypatch.setattr(sys.modules[Flow.__module__], "taken", counted)
    flow = Flow(**DESIGN)
    skipped = begun_at(flow, x, place)
    assert skipped == (at - 1) // 64 * 64
    # Of 18 windows a pass the last has 2 batches; first the initialisation, last the evaluation.
    passes, within = divmod(skipped, 70)
    assert len(asked) == 2 + 18 * (2 - passes) + math.ceil((70 - within) / 4)
    assert_same(flow, whole, x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_in_a_file_and_in_memory_are_the_same_rows(x, place, tmp_path, dtype):
    np.save(tmp_path / "x.npy", x.astype(dtype))
    stopped(Flow(**DESIGN), np.load(tmp_path / "x.npy", mmap_mode="r"), place, 100)
    flow = Flow(**DESIGN)
    assert begun_at(flow, np.load(tmp_path / "x.npy"), place) == 64
    assert_same(flow, Flow(**DESIGN).fit(x.astype(dtype)), x)


def test_tensors_go_on_too(x, place):
    rows = torch.from_numpy(x).bfloat16()
    stopped(Flow(**DESIGN), rows, place, 100)
    flow = Flow(**DESIGN)
    assert begun_at(flow, rows, place) == 64
    assert_same(flow, Flow(**DESIGN).fit(rows), x)


def test_without_a_seed_it_goes_on_with_the_one_that_was_drawn(x, place):
    drawn = []
    stopped(Flow(random_state=None, **DESIGN), x, place, 100)
    for _ in range(2):
        flow = Flow(random_state=None, **DESIGN)
        assert begun_at(flow, x, place) == (192 if drawn else 64)
        drawn.append(flow.transform(x))
    np.testing.assert_array_equal(*drawn)
    with safe_open(place, "numpy") as file:
        seed = file.metadata()["seed"]
    generator = torch.Generator().manual_seed(int(seed))
    expected = Flow(random_state=None, **DESIGN)._build(6, generator).state_dict()
    found = {k: v for k, v in flow.flow_.state_dict().items() if k.endswith("order")}
    assert found
    assert all(torch.equal(order, expected[name]) for name, order in found.items())


def test_a_seed_drawn_from_a_state_is_compared(x, place):
    stopped(Flow(random_state=np.random.RandomState(5), **DESIGN), x, place, 100)
    other = Flow(random_state=np.random.RandomState(6), **DESIGN)
    assert begun_at(other, x, place.with_name("none")) == 0
    same = Flow(random_state=np.random.RandomState(5), **DESIGN)
    assert begun_at(same, x, place) == 64


def test_a_finished_fit_leaves_its_last_state_and_no_other_file(x, place):
    Flow(**DESIGN).fit(x, checkpoint=place)
    assert list(place.parent.iterdir()) == [place]
    assert begun_at(flow := Flow(**DESIGN), x, place) == 192
    assert_same(flow, Flow(**DESIGN).fit(x), x)


def test_a_fit_shorter_than_the_interval_writes_nothing(x, place, monkeypatch):
    monkeypatch.setattr(training, "SAVED_SECONDS", 1000.0)
    plain = Flow(**DESIGN).fit(x, checkpoint=place)
    assert not place.exists()
    assert_same(plain, Flow(**DESIGN).fit(x), x)


# Another fit.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"learning_rate": 2e-3}, "other learning_rate"),
        ({"random_state": 1}, "other seed"),
        ({"epochs": 2}, "other epochs"),
    ],
    ids=str,
)
def test_another_argument_or_seed_starts_anew_and_says_what_differed(
    x, place, caplog, change, said
):
    stopped(Flow(**DESIGN), x, place, 100)
    other = Flow(**{**DESIGN, **change})
    assert begun_at(other, x, place) == 0
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{place} is of another fit (")
    assert record.getMessage().endswith("): starting anew")
    assert re.search(said, record.getMessage())
    assert_same(other, Flow(**{**DESIGN, **change}).fit(x), x)


def test_other_rows_versions_or_threads_start_anew(x, place, caplog, monkeypatch):
    other = x.copy()
    other[-1, -1] += 1
    stopped(Flow(**DESIGN), x, place, 100)
    for rows, said in [
        (other, "other contents"),
        (x[:-1], "other shape, contents"),
        (x.astype(np.float64), "other dtype, contents"),
    ]:
        state = place.read_bytes()
        assert begun_at(Flow(**DESIGN), rows, place) == 0
        assert said in caplog.text
        place.write_bytes(state)
    monkeypatch.setattr("bertflow.__version__", "7.0")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert begun_at(Flow(**DESIGN), x, place) == 0
    finally:
        torch.set_num_threads(threads)
    assert "other threads, bertflow" in caplog.text


def test_the_device_named_is_no_part_of_the_run(x, place):
    stopped(Flow(**DESIGN, device="cpu"), x, place, 100)
    there = "cpu" if torch.cuda.is_available() else "auto"
    assert begun_at(Flow(**DESIGN, device=there), x, place) == 64


# Files.


def changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: changed(content, len(content) - 1),
        lambda content: changed(content, len(content) // 2),
        lambda content: content.replace(b'"contents":"', b'"contents":"0', 1),
    ],
)
def test_a_damaged_file_is_said_to_be_and_left_behind(x, place, caplog, damage):
    stopped(Flow(**DESIGN), x, place, 100)
    place.write_bytes(damage(place.read_bytes()))
    flow = Flow(**DESIGN)
    assert begun_at(flow, x, place) == 0
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "starting anew" in record.getMessage()
    assert_same(flow, Flow(**DESIGN).fit(x), x)
    assert begun_at(Flow(**DESIGN), x, place) == 192


def test_no_changed_byte_is_taken_for_what_was_written(x, place):
    stopped(Flow(**DESIGN), x, place, 100)
    flow, whole = Flow(**DESIGN), place.read_bytes()
    with safe_open(place, "numpy") as file:
        seed = int(file.metadata()["seed"])
    run = flow._run(x, torch.device("cpu"), seed)
    assert training.Checkpoint(place, run, x).state.curve.shape == (64,)
    header = 8 + int.from_bytes(whole[:8], "little")
    assert 500 < header < 3000
    for at in [*range(0, header, 7), *range(header, len(whole), 4999)]:
        place.write_bytes(changed(whole, at))
        try:
            assert training.Checkpoint(place, run, x).state is None, whole[:at]
        except ModelError as error:
            assert "is no checkpoint" in str(error)


def test_a_file_of_another_kind_is_not_overwritten(x, place):
    save_file({"values": np.zeros(3)}, place)
    before = place.read_bytes()
    with pytest.raises(ModelError, match="is no checkpoint of a fit; give a file that is not"):
        Flow(**DESIGN).fit(x, checkpoint=place)
    with pytest.raises(ModelError, match="it is a folder; give a file"):
        Flow(**DESIGN).fit(x, checkpoint=place.parent)
    assert place.read_bytes() == before


def test_a_full_disk_is_one_warning_and_the_fit_goes_on(x, place, caplog):
    stopped(Flow(**DESIGN), x, place, 70)
    before = place.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        flow = Flow(**DESIGN).fit(x, checkpoint=place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    [record] = caplog.records
    assert "cannot write" in record.getMessage()
    assert "training goes on" in record.getMessage()
    assert place.read_bytes() == before
    assert list(place.parent.iterdir()) == [place]
    assert_same(flow, Flow(**DESIGN).fit(x), x)


def test_stopped_while_writing_the_state_before_is_there(x, place, monkeypatch):
    write, replace = Path.write_bytes, Path.replace
    for name, half in [
        ("write_bytes", lambda path, content: write(path, content[: len(content) // 2])),
        ("replace", lambda path, target: None),
    ]:
        stopped(Flow(**DESIGN), x, place, 70)
        before = place.read_bytes()
        with monkeypatch.context() as patch:

            def killed(*arguments, half=half):
                half(*arguments)
                raise Killed

            patch.setattr(Path, name, killed)
            with pytest.raises(Killed):
                Flow(**DESIGN).fit(x, checkpoint=place)
        assert Path.replace is replace
        assert place.read_bytes() == before
    flow = Flow(**DESIGN)
    assert begun_at(flow, x, place) == 64
    assert_same(flow, Flow(**DESIGN).fit(x), x)


KILLED = """
import os, signal, sys, time
import numpy as np
from pathlib import Path
from bertflow.calibrators import Flow, training
training.SAVED_SECONDS = 0.0
how, at = sys.argv[3], int(sys.argv[4])
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if how == "writing":
    Path.replace = die
def progress(done, total, loss):
    if how == "step" and done == at:
        die()
    if how == "outside":
        time.sleep(0.02)
x = np.load(sys.argv[1], mmap_mode="r")
print("fits", flush=True)
Flow(epochs=3, batch_size=10, width=8).fit(x, progress=progress, checkpoint=sys.argv[2])
"""


@pytest.mark.nightly
def test_a_process_that_is_killed_goes_on_to_the_same_bits(x, place, tmp_path):
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    for how, at in [("outside", 0), ("step", 70), ("writing", 0), ("step", 140), ("outside", 0)]:
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, tmp_path / "x.npy", place, how, str(at)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout.readline() == b"fits\n"
        if how == "outside":
            time.sleep(random.uniform(0.5, 2.5))
            process.kill()
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    flow = Flow(**DESIGN)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert begun_at(flow, x, place) >= 128
    assert_same(flow, Flow(**DESIGN).fit(x), x)


# Divergence.


def spoiled(monkeypatch, at: int) -> None:
    """Make the parameters nonsense in one step, whatever the arithmetic is."""
    factors = training._Adam.factors

    def broken(self, step):
        if step + 1 == at:
            self.flat.fill_(float("inf"))
        return factors(self, step)

    monkeypatch.setattr(training._Adam, "factors", broken)


@pytest.mark.parametrize(
    ("at", "design"), [(1, {}), (64, {}), (65, {}), (65, {"permutation": "linear"})]
)
def test_the_step_that_was_not_finite_is_named_and_nothing_is_fitted(x, monkeypatch, at, design):
    spoiled(monkeypatch, at)
    flow = Flow(**DESIGN, **design)
    with pytest.raises(TrainingError, match=rf"^step {at + 1} of 210 is not finite"):
        flow.fit(x)
    with pytest.raises(NotFittedError):
        flow.transform(x)


def test_weights_that_only_the_last_step_has_spoiled_are_noticed(x, monkeypatch):
    spoiled(monkeypatch, STEPS)
    with pytest.raises(TrainingError, match="step 210 of 210 left a loss that"):
        Flow(**DESIGN).fit(x)


@pytest.mark.parametrize("design", [{}, {"permutation": "linear"}], ids=["written out", "autograd"])
def test_a_step_too_long_is_named(x, design):
    with pytest.raises(TrainingError, match=r"step \d+ of 210"):
        Flow(**{**DESIGN, **design}, learning_rate=1e30).fit(x)


PRESETS = {
    "paper": Flow,
    "released": Flow.released,
    "tempered": Flow.tempered,
    "affine": lambda **changes: Flow(coupling="affine", **changes),
}


@pytest.mark.parametrize(
    ("name", "why"), [*((name, "weights") for name in PRESETS), ("paper", "rate")]
)
def test_every_preset_names_the_step_and_can_be_fitted_again(name, why, x, monkeypatch):
    if why == "weights":
        spoiled(monkeypatch, 66)
    rate = {"learning_rate": 1e30} if why == "rate" else {}
    flow = PRESETS[name](depth=1, width=8, batch_size=10, **rate)
    with pytest.raises(TrainingError, match=r"^step (\d+) of 70 .*lower learning_rate") as caught:
        flow.fit(x)
    if why == "weights":
        assert str(caught.value).startswith("step 67 of 70 is not finite")
    with pytest.raises(NotFittedError):
        flow.transform(x)
    monkeypatch.undo()
    assert np.isfinite(flow.set_params(learning_rate=1e-3).fit_transform(x)).all()


def test_a_first_loss_that_is_not_finite_is_step_1(x, monkeypatch):
    monkeypatch.setattr(
        training.LikelihoodGradient, "__call__", lambda self, batch: torch.tensor(float("nan"))
    )
    with pytest.raises(TrainingError, match="step 1 of 210"):
        Flow(**DESIGN).fit(x)


def test_a_fit_that_diverged_is_stopped_at_the_same_step_again(x, place, monkeypatch):
    spoiled(monkeypatch, 100)
    for begun in (0, 64):
        seen = []
        with pytest.raises(TrainingError, match="step 101 of 210"):
            Flow(**DESIGN).fit(
                x, progress=lambda done, *_, seen=seen: seen.append(done), checkpoint=place
            )
        assert seen == list(range(begun + 1, 101))
    assert os.listdir(place.parent) == [place.name]  # noqa: PTH208
