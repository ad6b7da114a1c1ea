"""A full disk, and files that were changed: one line that says what is wrong, and nothing lost."""

from __future__ import annotations

import functools
import itertools
import json
import math
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertflow.calibrators import (
    AllButTheTop,
    Calibrator,
    Flow,
    Standardization,
    Whitening,
    load_calibrator,
    save_calibrator,
    storage,
)
from bertflow.errors import ModelError
from bertflow.io.files import check_replaceable, check_writable, replaced_folder

CALIBRATORS = {
    "standardization": Standardization,
    "all-but-the-top": lambda: AllButTheTop(2, standardize=True),
    "whitening": lambda: Whitening(dim=3),
    "flow": Flow,
    "flow-affine-linear": lambda: Flow(coupling="affine", permutation="linear"),
    "flow-tempered": lambda: Flow.tempered(centring=0.5),
}
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@functools.cache
def fitted(name: str) -> Calibrator:
    """Never fit it again."""
    rows = np.random.default_rng(0).normal(3, 2, size=(100, 8))
    return CALIBRATORS[name]().fit(rows)


@pytest.fixture
def saved(tmp_path):
    """Saves a calibrator, to be damaged."""

    def save(name: str = "flow") -> Path:
        save_calibrator(fitted(name), tmp_path / "saved")
        return tmp_path / "saved"

    return save


def refused(folder: Path, *said: str) -> str:
    """The one line with which loading is refused; it holds what is said, and the folder."""
    with pytest.raises(ModelError) as error:
        load_calibrator(folder)
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 1000
    for part in [*said, str(folder)]:
        assert part in message
    return message


def edit(folder: Path, **changes) -> None:
    """Change config.json in place."""
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def edit_arguments(folder: Path, **changes) -> None:
    config = json.loads((folder / CONFIG).read_text())
    edit(folder, arguments={**config["arguments"], **changes})


# A full disk

SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
from bertflow.calibrators import Standardization, Whitening, load_calibrator, save_calibrator
from bertflow.io.files import write_text
from bertflow.io.vectors import transform_file
from bertflow.errors import ModelError

home, source = Path(sys.argv[1]), Path(sys.argv[2])
small, large = (np.random.default_rng(0).normal(size=(400, d)) for d in (4, 100))
np.save(source, large)
save_calibrator(Standardization().fit(small), home / "saved")
write_text(home / "text", "old")
np.save(home / "x.npy", small[:9])
before = {str(path): path.is_file() and path.read_bytes() for path in home.rglob("*")}
scaling, whitening = Standardization().fit(large), Whitening().fit(large)
if sys.argv[3] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
for write in [
    lambda: save_calibrator(whitening, home / "saved"),
    lambda: save_calibrator(whitening, home / "new"),
    lambda: write_text(home / "text", "new" * 100_000),
    lambda: transform_file(scaling.transform, source, home / "x.npy"),
]:
    try:
        write()
    except ModelError as error:
        print(error)
    else:
        print("written")
    after = {str(path): path.is_file() and path.read_bytes() for path in home.rglob("*")}
    assert after == before, after.keys()
load_calibrator(home / "saved")
"""


def assert_full_disk_is_said(command: list[str], reason: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line, name in zip(lines, ["saved", "new", "text", "x.npy"], strict=True):
        assert line.startswith("cannot write ")
        assert f"{name}: " in line
        assert reason in line


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="no limits there")
def test_a_file_that_cannot_grow_is_an_error_and_the_old_one_stays(tmp_path):
    (tmp_path / "home").mkdir()
    places = [str(tmp_path / "home"), str(tmp_path / "in.npy")]
    assert_full_disk_is_said([sys.executable, "-c", SCRIPT, *places, "limit"], "File too large")


@pytest.mark.nightly
def test_a_full_disk_is_an_error_and_the_old_one_stays(tmp_path):
    (tmp_path / "home").mkdir()
    within = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f"mount -t tmpfs -o size=64k none '{tmp_path / 'home'}'"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*within, "sh", "-c", mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("a small disk cannot be made here")
    places = [str(tmp_path / "home"), str(tmp_path / "in.npy")]
    shell = ["sh", "-c", f'{mount} && exec "$@"', "sh"]
    command = [*within, *shell, sys.executable, "-c", SCRIPT, *places, "disk"]
    assert_full_disk_is_said(command, "No space left on device")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("File too large (os error 27)", "File too large"),
        ("I/O error: x (os error 28)", "No space left on device"),
    ],
)
def test_failures_of_libraries_in_rust_are_failures_of_writing(tmp_path, said, reason):
    with (
        pytest.raises(ModelError, match=f"cannot write .*saved: {reason}$"),
        replaced_folder(tmp_path / "saved"),
    ):
        raise Exception(said)
    assert list(tmp_path.iterdir()) == []


def test_other_failures_stay_what_they_are(tmp_path):
    with pytest.raises(ZeroDivisionError), replaced_folder(tmp_path / "saved"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="names may be longer there")
def test_a_name_that_no_system_takes_is_one_line(tmp_path):
    name = tmp_path / ("x" * 300)
    checks = [check_replaceable, check_writable, load_calibrator]
    for check in [*checks, lambda path: save_calibrator(fitted("whitening"), path)]:
        with pytest.raises(ModelError, match="File name too long"):
            check(name)


# config.json


def as_a_folder(path):
    path.unlink()
    path.mkdir()


def too_large(path):
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "provenance": {"x": "y" * 1_000_000}}))


UNREADABLE = {
    "folder": (as_a_folder, "cannot be read"),
    "too-large": (too_large, "more than 1000000 bytes"),
    "deep": (lambda path: path.write_text("[" * 100_000), "nested too deep"),
    "deep-within": (
        lambda path: path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000),
        "nested too deep",
    ),
    "not-utf-8": (lambda path: path.write_bytes(b'{"calibrator": "\xff"}'), "utf-8"),
    "utf-16": (lambda path: path.write_text("{}", encoding="utf-16"), "utf-8"),
    "empty": (lambda path: path.write_text(""), "is no JSON"),
    "cut": (lambda path: path.write_text(path.read_text()[:100]), "is no JSON"),
    "long-number": (lambda path: path.write_text("1" * 5000), "is no JSON"),
}


@pytest.mark.parametrize("damage", UNREADABLE)
def test_configuration_that_cannot_be_read_is_named(damage, saved, tmp_path):
    (tmp_path / "model").mkdir()
    folder = saved().rename(tmp_path / "model" / "bertflow")
    (tmp_path / "model" / CONFIG).write_text('{"model_type": "bert"}')
    change, said = UNREADABLE[damage]
    change(folder / CONFIG)
    refused(folder.parent, str(folder / CONFIG), said)
    refused(folder, str(folder / CONFIG), said)


def test_configuration_that_may_not_be_read_is_named(saved, monkeypatch):
    folder, real = saved(), Path.open

    def forbidden(self, *arguments, **options):
        if self.name == CONFIG:
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", forbidden)
    refused(folder, str(folder / CONFIG), "Permission denied")


def test_format_is_the_number_and_nothing_like_it(saved):
    for value in [True, 1.0, "1", None, [1], 2, 0, "a\nb"]:
        edit(folder := saved(), format=value)
        refused(folder, str(folder / CONFIG), f"format {value!r} is not 1")


def test_width_is_that_of_the_weights(saved):
    for value in [True, 8.0, "8", None, 1, -8, 10**18, 10**30]:
        for name in ["flow", "whitening"]:
            edit(folder := saved(name), n_features_in=value)
            refused(folder)


BAD_ARGUMENTS = [
    ("flow", "levels", [0, True, 2.0, "2", None]),
    ("flow", "depth", [0, True, 3.5, "3", None, 10**6, 10**12, 10**400]),
    ("flow", "width", [0, True, 31.5, 10**9, 10**12]),
    ("flow", "scale_rate", [float("inf"), float("nan"), 0, -1, True, "3"]),
    ("flow", "residual", ["yes", None]),
    ("flow", "bias_correction", ["no", None]),
    ("flow", "normalize", ["no", None]),
    ("flow", "coupling", ["x", None, 1, []]),
    ("flow", "permutation", ["x", None, {}]),
    ("flow", "weight_init", ["x", None]),
    ("flow", "epochs", [0, float("nan"), float("inf"), "1", True]),
    ("flow", "batch_size", [0, 1.5, None]),
    ("flow", "learning_rate", [0, float("nan")]),
    ("flow", "schedule", ["x", None]),
    ("flow", "weight_decay", [-1, float("inf")]),
    ("flow", "adam_epsilon", [0, None]),
    ("flow", "max_grad_norm", [0, float("inf"), "1"]),
    ("flow", "axes", ["x", None]),
    ("flow", "centring", [-1, 2, float("nan"), True]),
    ("flow", "random_state", ["x", -1, 1.5]),
    ("flow-tempered", "noise", [-0.1, 1.1, float("nan")]),
    ("flow-tempered", "leading", [-1, 1.5, True]),
    ("flow-tempered", "leading_gain", [0, 1.5, float("nan")]),
    ("whitening", "dim", [0, 9, -3, True, 3.0, "3"]),
    ("whitening", "power", [-1, 2, float("nan"), True, None]),
    ("whitening", "shrinkage", [-1, 2, float("inf"), "0"]),
    ("all-but-the-top", "n_components", [-1, 8, True, 2.0, "2", 10**30]),
    ("all-but-the-top", "standardize", ["yes", None]),
]


def test_arguments_are_checked_as_for_a_fit(saved):
    for name, argument, value in [
        (name, argument, value) for name, argument, values in BAD_ARGUMENTS for value in values
    ]:
        folder = saved(name)
        edit_arguments(folder, **{argument: value})
        start = time.perf_counter()
        message = refused(folder)
        assert time.perf_counter() - start < 10
        # Numbers that no tensor can have, and shapes that follow from a hidden width, are told
        # apart by torch and by the shapes.
        if value not in (10**400, 10**9, 10**12) or argument == "depth":
            assert str(folder / CONFIG) in message
            # JSON names a number that is not finite, not its key.
            not_finite = isinstance(value, float) and not math.isfinite(value)
            assert not_finite or argument in message or value == 10**400


def test_arguments_of_another_fit_are_found_out_by_the_names(saved):
    edit_arguments(folder := saved(), depth=30)
    refused(folder, "flow.levels.0.steps.10.order is missing, expected")


# model.safetensors


@pytest.mark.parametrize("name", ["whitening", "flow-tempered", "flow-affine-linear"])
def test_any_number_that_is_not_finite_is_refused_by_name(name, saved):
    for value in [float("nan"), -float("inf")]:
        folder = saved(name)
        whole = load_file(folder / WEIGHTS)
        load_calibrator(folder)
        names = [key for key, values in whole.items() if values.is_floating_point()]
        for tensor in names[:: max(1, len(names) // 5)]:
            damaged = {key: values.clone() for key, values in whole.items()}
            damaged[tensor].view(-1)[-1:] = value
            save_file(damaged, folder / WEIGHTS)
            refused(folder, f"{folder / WEIGHTS}: {tensor} holds {value}, which no fit gives")


def test_numbers_with_which_rows_would_be_lost_are_refused(saved):
    for name, tensor, value, said in [
        ("standardization", "scale", 0.0, "scale holds 0.0, which no fit gives"),
        ("standardization", "scale", -1.0, "scale holds -1.0"),
        ("standardization", "scale", 1e-320, "scale holds"),
        ("all-but-the-top", "scale", 0.0, "scale holds 0.0"),
        ("whitening", "scale", 0.0, "scale holds 0.0"),
        ("flow", "scale", 0.0, "scale holds 0.0"),
        ("flow-tempered", "gain", 0.0, "gain holds 0.0"),
        ("flow-tempered", "gain", -1.0, "gain holds -1.0"),
        ("flow", "flow.levels.0.steps.0.log_scale", 10000.0, "log_scale holds 10000.0, which"),
        ("flow", "flow.levels.0.steps.0.log_scale", 30.0, "log_scale holds 30.0"),
        ("flow", "flow.levels.0.steps.0.log_scale", -10000.0, "log_scale holds -10000.0"),
        (
            "flow",
            "flow.levels.1.steps.2.net.actnorm1.log_scale",
            10000.0,
            "actnorm1.log_scale holds",
        ),
        ("flow", "flow.levels.1.steps.2.net.log_scale", 10000.0, "net.log_scale holds"),
        ("flow-affine-linear", "flow.levels.0.steps.1.log_diagonal", 90.0, "log_diagonal holds"),
        ("flow-affine-linear", "flow.levels.0.steps.1.log_diagonal", -1000.0, "log_diagonal holds"),
        ("flow-affine-linear", "flow.levels.0.steps.1.sign", 0.0, "sign holds 0.0, which"),
    ]:
        folder = saved(name)
        tensors = load_file(folder / WEIGHTS)
        tensors[tensor].view(-1)[1] = value
        save_file(tensors, folder / WEIGHTS)
        refused(folder, str(folder / WEIGHTS), said)


def with_trailing_bytes(path):
    with path.open("ab") as file:
        file.write(b"\0" * 8)


def with_a_long_header(path):
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])


def with_another_encoding(path):
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\xff" * 8 + data[16:])


UNREADABLE_WEIGHTS = {
    "folder": (as_a_folder, "cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cannot be read"),
    "trailing": (with_trailing_bytes, "cannot be read"),
    "long-header": (with_a_long_header, "cannot be read"),
    "not-utf-8": (with_another_encoding, "cannot be read"),
}


@pytest.mark.parametrize("damage", UNREADABLE_WEIGHTS)
def test_weights_that_cannot_be_read_are_named(damage, saved):
    folder = saved()
    change, said = UNREADABLE_WEIGHTS[damage]
    change(folder / WEIGHTS)
    refused(folder, str(folder / WEIGHTS), said)


def test_weights_that_may_not_be_read_are_named(saved, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    folder = saved()
    monkeypatch.setattr(storage, "safe_open", forbidden)
    refused(folder, str(folder / WEIGHTS), "Permission denied")


def test_weights_of_another_calibrator_are_refused(saved, tmp_path):
    for name, other in itertools.permutations(CALIBRATORS, 2):
        folder = saved(name)
        save_calibrator(fitted(other), tmp_path / other)
        (tmp_path / other / WEIGHTS).replace(folder / WEIGHTS)
        refused(folder, str(folder / WEIGHTS))


def test_a_foreign_name_is_refused(saved):
    folder = saved()
    save_file({**load_file(folder / WEIGHTS), "x1": torch.zeros(1)}, folder / WEIGHTS)
    assert "x1 is ('F32', (1,)), expected none" in refused(folder)
