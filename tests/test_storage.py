"""Calibrators on disk: the same bits back, and nothing else's files touched."""

from __future__ import annotations

import functools
import inspect
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.exceptions import NotFittedError

from bertflow.calibrators import (
    AdaptiveWhitening,
    AllButTheTop,
    Calibrator,
    Flow,
    Standardization,
    Whitening,
    load_calibrator,
    save_calibrator,
    storage,
)
from bertflow.calibrators.storage import (
    FORMAT,
    as_calibrator,
    check_savable,
    named_calibrator,
    plain_provenance,
)
from bertflow.errors import InputError, ModelError
from bertflow.io.files import MANIFEST, replaced_folder

CALIBRATORS = {
    "adaptive-whitening": AdaptiveWhitening,
    "standardization": Standardization,
    "all-but-the-top": lambda: AllButTheTop(3, standardize=True),
    "whitening": lambda: Whitening(dim=3, power=0.75, shrinkage=0.1),
    "flow": lambda: Flow(epochs=2),
    "flow-affine": lambda: Flow(coupling="affine", permutation="linear", max_grad_norm=None),
    "flow-tempered": lambda: Flow.tempered(centring=0.5),
}
every_calibrator = pytest.mark.parametrize("name", CALIBRATORS)
CONFIG, WEIGHTS, REFERENCE = "config.json", "model.safetensors", "reference.safetensors"


def data() -> np.ndarray:
    return np.random.default_rng(0).normal(3, 2, size=(200, 8))


@functools.cache
def fitted(name: str) -> Calibrator:
    """Fitted on `data()`; never fit it again."""
    return CALIBRATORS[name]().fit(data())


@pytest.fixture
def folder(tmp_path):
    """A saved flow, to be damaged."""
    save_calibrator(fitted("flow"), tmp_path / "saved")
    return tmp_path / "saved"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def edit(folder: Path, change) -> None:
    """Change config.json in place."""
    config = json.loads((folder / CONFIG).read_text())
    change(config)
    (folder / CONFIG).write_text(json.dumps(config))


def rewrite(folder: Path, change) -> None:
    """Change the tensors in place."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def assert_same(found: Calibrator, expected: Calibrator) -> None:
    assert type(found) is type(expected)
    assert found.get_params() == expected.get_params()
    assert found.n_features_in_ == expected.n_features_in_
    assert found.get_feature_names_out().tolist() == expected.get_feature_names_out().tolist()
    for x in (data(), data() + 100, data().astype(np.float32)):
        z = expected.transform(x)
        np.testing.assert_array_equal(found.transform(x), z)
        np.testing.assert_array_equal(found.inverse_transform(z), expected.inverse_transform(z))
    if isinstance(expected, Flow):
        np.testing.assert_array_equal(found.log_prob(data()), expected.log_prob(data()))
        np.testing.assert_array_equal(found.loss_curve_, expected.loss_curve_)
        assert found.loss_ == expected.loss_
        np.testing.assert_array_equal(
            found.sample(5, random_state=0), expected.sample(5, random_state=0)
        )


# Round trip


@every_calibrator
def test_loaded_gives_the_same_bits(name, tmp_path):
    save_calibrator(fitted(name), tmp_path / "saved")
    assert_same(load_calibrator(tmp_path / "saved"), fitted(name))


@every_calibrator
def test_saved_again_gives_the_same_files(name, tmp_path):
    save_calibrator(fitted(name), tmp_path / "first")
    fitted(name).transform(data().astype(np.float16))  # What is kept for mapping is not saved.
    save_calibrator(fitted(name), tmp_path / "again")
    save_calibrator(load_calibrator(tmp_path / "first"), tmp_path / "second")
    assert contents(tmp_path / "again") == contents(tmp_path / "first")
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


@pytest.mark.nightly
def test_new_process_under_another_seed_gives_the_same_bits_for_rows_far_off(tmp_path):
    far = data() + 100
    np.save(tmp_path / "far.npy", far)
    for name in CALIBRATORS:
        save_calibrator(fitted(name), tmp_path / name)
    script = """
import sys
from pathlib import Path
import numpy as np, torch
from bertflow.calibrators import load_calibrator
torch.set_num_threads(int(sys.argv[2]))
folder = Path(sys.argv[1])
far = np.load(folder / "far.npy")
for place in sorted(folder.iterdir()):
    if place.is_dir():
        torch.manual_seed(987)
        np.save(folder / f"{place.name}.z.npy", load_calibrator(place).transform(far))
"""
    threads = str(torch.get_num_threads())
    subprocess.run([sys.executable, "-c", script, str(tmp_path), threads], check=True)
    for name in CALIBRATORS:
        z = np.load(tmp_path / f"{name}.z.npy")
        np.testing.assert_array_equal(z, fitted(name).transform(far), err_msg=name)


@every_calibrator
def test_a_loaded_calibrator_can_be_fitted_again(name, tmp_path):
    save_calibrator(fitted(name), tmp_path / "saved")
    again = load_calibrator(tmp_path / "saved").fit(data())
    np.testing.assert_array_equal(again.transform(data()), fitted(name).transform(data()))


def test_flow_with_dead_dimensions_comes_back(tmp_path):
    x = data()
    x[:, [0, 5]] = 4.0
    flow = Flow().fit(x)
    save_calibrator(flow, tmp_path / "saved")
    assert_same(load_calibrator(tmp_path / "saved"), flow)


def test_loading_does_not_depend_on_the_default_type(folder):
    torch.set_default_dtype(torch.float64)
    try:
        found = load_calibrator(str(folder))
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(found, fitted("flow"))


def test_calibrator_in_a_saved_model_is_found(tmp_path):
    save_calibrator(fitted("whitening"), tmp_path / "model" / "bertflow")
    (tmp_path / "model" / "modules.json").write_text("[]")
    (tmp_path / "model" / CONFIG).write_text('{"model_type": "bert"}')
    assert_same(load_calibrator(tmp_path / "model"), fitted("whitening"))


# config.json


@every_calibrator
def test_config_holds_every_argument_and_nothing_else(name, tmp_path):
    save_calibrator(fitted(name), tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / CONFIG).read_text())
    assert config["arguments"] == fitted(name).get_params()
    names = inspect.signature(type(fitted(name))).parameters
    assert list(config["arguments"]) == sorted(names)
    assert config["n_features_in"] == 8
    assert config["calibrator"] in storage.CALIBRATORS
    assert visible(tmp_path / "saved") == ["README.md", CONFIG, WEIGHTS, REFERENCE]


def test_numpy_numbers_as_arguments_are_stored_as_numbers(tmp_path):
    whitening = Whitening(np.int64(3), power=np.float64(0.5)).fit(data())
    save_calibrator(whitening, tmp_path / "saved")
    found = load_calibrator(tmp_path / "saved")
    assert found.get_params() == {"dim": 3, "power": 0.5, "shrinkage": "auto"}
    assert type(found.dim) is int


def test_argument_that_is_no_number_or_word_is_refused_by_name(tmp_path):
    flow = Flow(random_state=np.random.RandomState(0)).fit(data())
    with pytest.raises(InputError, match="random_state=.* cannot be stored"):
        save_calibrator(flow, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_saved_is_known_before_it_is_fitted():
    for calibrator in [
        Flow(random_state=np.random.RandomState(0)),
        Flow(epochs=np.array(2)),
        Flow(max_grad_norm=float("inf")),
        Whitening(dim=Path("3")),
    ]:
        with pytest.raises(
            InputError, match=r"^\w+=.* cannot be stored; give a number or a string$"
        ):
            check_savable(calibrator)


def test_a_calibrator_of_others_is_known_before_it_is_fitted():
    class Mine(Whitening):
        pass

    with pytest.raises(InputError, match="^Mine is no calibrator of bertflow's"):
        check_savable(Mine())


# Names.


def test_a_name_is_a_calibrator_with_arguments():
    assert repr(named_calibrator("tempered-flow", epochs=2)) == repr(Flow.tempered(epochs=2))
    assert named_calibrator("released-flow").get_params() == Flow.released().get_params()
    for name, kind in storage.CALIBRATORS.items():
        assert type(named_calibrator(name)) is kind
    with pytest.raises(InputError, match=r"flow has no 'epoch'; .*; did you mean epochs\?$"):
        named_calibrator("flow", epoch=2)
    with pytest.raises(
        InputError, match="whitening has no 'epochs'; it has dim, power, shrinkage$"
    ):
        named_calibrator("whitening", epochs=2)
    with pytest.raises(InputError, match=r"'tempered'; .*; did you mean tempered-flow\?$"):
        named_calibrator("tempered")


def test_what_stands_for_a_calibrator_is_one():
    whitening = Whitening(dim=3)
    assert as_calibrator(whitening) is whitening
    assert type(as_calibrator(None)) is AdaptiveWhitening
    assert type(as_calibrator("all-but-the-top")) is AllButTheTop


def test_what_is_no_calibrator_is_refused_in_one_line():
    for given, said in [
        (
            Whitening,
            "such as Whitening\\(\\), or its name, got <class .*Whitening'>; the names are",
        ),
        (3, "^expected a calibrator, such as Whitening\\(\\), or its name, got 3; the names are"),
        (np.ones((3, 3)), "got array"),
        ("Flow", "^unknown calibrator 'Flow'; .* did you mean flow\\?$"),
    ]:
        with pytest.raises(InputError, match=said):
            as_calibrator(given)


# What the version before frames wrote for a Flow of width 8.
BEFORE_FRAMES = """{
  "format": 1, "calibrator": "flow", "n_features_in": 8, "provenance": {},
  "arguments": {
    "adam_epsilon": 1e-08, "batch_size": 32, "bias_correction": true, "coupling": "additive",
    "depth": 3, "device": "auto", "epochs": 2, "learning_rate": 0.001, "levels": 2,
    "max_grad_norm": 1.0, "permutation": "random", "random_state": 0, "residual": true,
    "scale_rate": 3.0, "schedule": "linear", "weight_decay": 0.0, "weight_init": "orthogonal",
    "width": 32
  }
}"""


def test_flow_saved_before_there_were_frames_loads_with_the_same_bits(folder):
    (folder / CONFIG).write_text(BEFORE_FRAMES)
    tensors = load_file(folder / WEIGHTS).keys()
    assert {name for name in tensors if not name.startswith("flow.")} == {
        *("mean", "scale", "live", "loss", "loss_curve")
    }
    assert_same(load_calibrator(folder), fitted("flow"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("gain"), "gain is missing, expected"),
        (lambda t: t.pop("offset"), "offset is missing, expected"),
        (lambda t: t.pop("components"), "components is missing, expected"),
        (lambda t: t.update(components=torch.eye(7).double()), r"components.*\(7, 7\).*\(8, 8\)"),
        (lambda t: t.update(gain=t["gain"].float()), "gain is .*F32.*, expected .*F64"),
    ],
)
def test_damaged_frame_is_refused_naming_the_file(change, message, tmp_path):
    save_calibrator(fitted("flow-tempered"), tmp_path / "saved")
    rewrite(tmp_path / "saved", change)
    with pytest.raises(ModelError, match=message) as error:
        load_calibrator(tmp_path / "saved")
    assert str(tmp_path / "saved" / WEIGHTS) in str(error.value)


def test_frame_that_the_arguments_do_not_have_is_foreign(tmp_path):
    save_calibrator(fitted("flow-tempered"), tmp_path / "saved")
    edit(tmp_path / "saved", lambda c: c["arguments"].update(axes="given", noise=0, leading=0))
    with pytest.raises(ModelError, match=r"components is .*\(8, 8\)\), expected none$"):
        load_calibrator(tmp_path / "saved")


def test_provenance_is_kept_over_saving_and_loading(tmp_path):
    about = {"encoder": "x", "rows": 200}
    save_calibrator(fitted("whitening"), tmp_path / "first", provenance=about)
    found = load_calibrator(tmp_path / "first")
    assert found.provenance_ == about
    save_calibrator(found, tmp_path / "second")
    assert load_calibrator(tmp_path / "second").provenance_ == about


KINDS_OF_VALUES = [
    (MappingProxyType({"a": 1}), {"a": 1}),
    (Path("a/b"), "a/b"),
    ((1, 2.5, None, True), [1, 2.5, None, True]),
    ({"b", "a"}, ["a", "b"]),
    (np.float32(0.5), 0.5),
    (np.int64(3), 3),
    (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    (torch.ones(2, dtype=torch.bfloat16), [1.0, 1.0]),
    ([float("inf"), float("-inf"), np.float64("nan")], ["inf", "-inf", "nan"]),
    (datetime(2026, 1, 2), "2026-01-02T00:00:00"),
    ({1: "a"}, {"1": "a"}),
    ("\ud800", "\ud800"),
]


def test_provenance_of_every_kind_is_kept_as_json_has_it(tmp_path):
    about = {str(number): given for number, (given, _) in enumerate(KINDS_OF_VALUES)}
    plain = {str(number): kept for number, (_, kept) in enumerate(KINDS_OF_VALUES)}
    assert plain_provenance(about) == plain
    save_calibrator(fitted("whitening"), tmp_path / "saved", provenance=about)
    assert load_calibrator(tmp_path / "saved").provenance_ == plain


def itself() -> dict:
    found = {}
    found["it"] = found
    return found


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"a": [1, {"b": len}]}, "cannot hold the provenance: <built-in .*> is no text, number"),
        ({(1, 2): 3}, "cannot hold the provenance: keys must be str"),
        (itself(), "cannot hold the provenance: Circular reference"),
        ({"n": 10**5000}, "cannot hold the provenance"),
        ({"text": "x" * 10**6}, "cannot hold the provenance: 1,000,.* letters are too many"),
        (["a"], "cannot hold the provenance"),
    ],
    ids=["object", "key", "itself", "number", "long", "list"],
)
def test_provenance_that_cannot_be_kept_is_refused(tmp_path, about, said):
    with pytest.raises(InputError, match=said):
        save_calibrator(fitted("whitening"), tmp_path / "saved", provenance=about)
    assert list(tmp_path.iterdir()) == []


# Damage


def missing_tensor(folder):
    rewrite(folder, lambda tensors: tensors.pop("flow.levels.0.steps.1.order"))


def foreign_tensor(folder):
    rewrite(folder, lambda tensors: tensors.update(surplus=torch.zeros(2)))


def wrong_shape(folder):
    rewrite(folder, lambda tensors: tensors.update(mean=torch.zeros(9, dtype=torch.float64)))


def wrong_rank(folder):
    rewrite(folder, lambda tensors: tensors.update(loss_curve=torch.zeros(2, 2).double()))


def half_precision(folder):
    rewrite(folder, lambda tensors: tensors.update(mean=tensors["mean"].half()))


def single_precision(folder):
    rewrite(folder, lambda tensors: tensors.update(mean=tensors["mean"].float()))


def whole_numbers(folder):
    rewrite(folder, lambda tensors: tensors.update(mean=tensors["mean"].long()))


def order_in_floats(folder):
    name = "flow.levels.0.steps.1.order"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name].float()}))


def live_in_floats(folder):
    rewrite(folder, lambda tensors: tensors.update(live=tensors["live"].double()))


def live_disagrees(folder):
    rewrite(folder, lambda tensors: tensors["live"].__setitem__(0, False))


def truncated(folder):
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def truncated_in_the_header(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:20])


def empty_weights(folder):
    (folder / WEIGHTS).write_bytes(b"")


def no_weights(folder):
    (folder / WEIGHTS).unlink()


DAMAGED_WEIGHTS = {
    missing_tensor: "flow.levels.0.steps.1.order",
    foreign_tensor: "surplus",
    wrong_shape: r"mean.*\(9,\).*\(8,\)",
    wrong_rank: "loss_curve",
    half_precision: "mean.*F16",
    single_precision: "mean.*F32",
    whole_numbers: "mean.*I64",
    order_in_floats: "order.*F32",
    live_in_floats: "live.*F64",
    live_disagrees: "cannot be read",
    truncated: "cannot be read",
    truncated_in_the_header: "cannot be read",
    empty_weights: "cannot be read",
    no_weights: "cannot be read",
}


def test_damaged_weights_are_refused_naming_the_file(folder):
    for damage in DAMAGED_WEIGHTS:
        save_calibrator(fitted("flow"), folder)
        damage(folder)
        with pytest.raises(ModelError, match=DAMAGED_WEIGHTS[damage]) as error:
            load_calibrator(folder)
        assert str(folder / WEIGHTS) in str(error.value)
        assert f"cannot be read: {folder}" not in str(error.value)


DAMAGED_CONFIG = {
    "unknown-calibrator": (lambda c: c.update(calibrator="magic"), "'magic'"),
    "newer-format": (lambda c: c.update(format=FORMAT + 1), "format 2"),
    "unknown-argument": (lambda c: c["arguments"].update(surplus=1), "surplus"),
    "no-arguments": (lambda c: c.pop("arguments"), "arguments"),
    "arguments-a-list": (lambda c: c.update(arguments=[1]), CONFIG),
    "bad-argument": (lambda c: c["arguments"].update(levels=0), "levels"),
    "argument-of-a-wrong-kind": (lambda c: c["arguments"].update(levels="2"), "levels|str"),
    "impossible-frame": (lambda c: c["arguments"].update(noise=0.25), "noise=0.25 acts on"),
    "unknown-coupling": (lambda c: c["arguments"].update(coupling="x"), "coupling"),
    "no-width": (lambda c: c.pop("n_features_in"), "n_features_in"),
    "width-1": (lambda c: c.update(n_features_in=1), "n_features_in"),
    "width-a-word": (lambda c: c.update(n_features_in="8"), "n_features_in"),
    "no-provenance": (lambda c: c.pop("provenance"), "provenance"),
    "provenance-a-list": (lambda c: c.update(provenance=[]), "provenance"),
}


def test_damaged_config_is_refused_naming_the_file(folder):
    for damage in DAMAGED_CONFIG:
        save_calibrator(fitted("flow"), folder)
        change, named = DAMAGED_CONFIG[damage]
        edit(folder, change)
        with pytest.raises(ModelError, match=named) as error:
            load_calibrator(folder)
        assert str(folder / CONFIG) in str(error.value)


@pytest.mark.parametrize("width", [7, 9])
def test_width_that_disagrees_with_the_weights_is_refused(width, folder):
    edit(folder, lambda config: config.update(n_features_in=width))
    with pytest.raises(ModelError, match=rf"\b{width}\b") as error:
        load_calibrator(folder)
    assert str(folder / WEIGHTS) in str(error.value)


def test_config_that_is_not_one_is_refused_naming_the_file(folder):
    for text in ["", "{", "[]", "null", "{}", "\x00ÿ"]:
        save_calibrator(fitted("flow"), folder)
        (folder / CONFIG).write_text(text, encoding="latin-1")
        with pytest.raises(ModelError, match=CONFIG) as error:
            load_calibrator(folder)
        assert str(folder) in str(error.value)


def test_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load_calibrator(tmp_path / "nowhere")


def test_folder_without_a_calibrator_is_named(tmp_path):
    with pytest.raises(ModelError, match=f"{tmp_path.name} holds no calibrator"):
        load_calibrator(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="file holds no calibrator"):
        load_calibrator(tmp_path / "file")


# Writing


def test_unfitted_calibrator_is_not_saved(tmp_path):
    for build in CALIBRATORS.values():
        with pytest.raises(NotFittedError):
            save_calibrator(build(), tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_foreign_calibrator_is_refused_by_name(tmp_path):
    class Homemade(Standardization):
        pass

    with pytest.raises(InputError, match="Homemade is no calibrator of bertflow's"):
        save_calibrator(Homemade().fit(data()), tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_empty_folder_is_filled(tmp_path):
    save_calibrator(fitted("whitening"), tmp_path)
    assert_same(load_calibrator(tmp_path), fitted("whitening"))


def test_saved_calibrator_is_replaced_and_nothing_is_left_over(folder):
    save_calibrator(fitted("whitening"), folder)
    assert_same(load_calibrator(folder), fitted("whitening"))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert visible(folder) == ["README.md", CONFIG, WEIGHTS, REFERENCE]


def notes(place):
    place.mkdir()
    (place / "notes.txt").write_text("mine")


def folder_inside(place):
    (place / "inner").mkdir(parents=True)
    (place / "inner" / "notes.txt").write_text("mine")


def calibrator_and_notes(place):
    save_calibrator(fitted("whitening"), place)
    (place / "notes.txt").write_text("mine")


def calibrator_and_a_list_in_words(place):
    calibrator_and_notes(place)
    (place / MANIFEST).write_text('"config.json, model.safetensors and notes.txt"')


def calibrator_and_a_folder_for_a_list(place):
    save_calibrator(fitted("whitening"), place)
    (place / MANIFEST).unlink()
    (place / MANIFEST).mkdir()


def link_to_a_folder(place):
    save_calibrator(fitted("whitening"), place)
    (place.parent / "mine").mkdir()
    (place / "mine").symlink_to(place.parent / "mine", target_is_directory=True)


def plain_file(place):
    place.write_text("mine")


@pytest.mark.parametrize(
    "make",
    [
        notes,
        folder_inside,
        calibrator_and_notes,
        calibrator_and_a_list_in_words,
        calibrator_and_a_folder_for_a_list,
        link_to_a_folder,
        plain_file,
    ],
)
def test_what_holds_something_else_is_refused_and_untouched(make, tmp_path):
    make(tmp_path / "place")
    before = contents(tmp_path)
    with pytest.raises(ModelError, match="place"):
        save_calibrator(fitted("flow"), tmp_path / "place")
    assert contents(tmp_path) == before


def test_an_empty_folder_of_our_own_is_replaced(tmp_path):
    for text in ["old", "new"]:
        with replaced_folder(tmp_path / "saved") as folder:
            (folder / "1_Normalize").mkdir()
            (folder / "a.txt").write_text(text)
    assert visible(tmp_path / "saved") == ["1_Normalize", "a.txt"]
    assert (tmp_path / "saved" / "a.txt").read_text() == "new"


def test_what_others_put_there_meanwhile_stays(folder):
    before = contents(folder)
    with (
        pytest.raises(ModelError, match=r"saved holds notes\.txt"),
        replaced_folder(folder) as staging,
    ):
        (staging / "a.txt").write_text("new")
        (folder / "notes.txt").write_text("mine")
    assert contents(folder) == {**before, "notes.txt": b"mine"}


def fail(*_, **__):
    raise OSError(28, "No space left on device")


def test_failure_while_writing_leaves_the_old_one_and_nothing_else(folder, monkeypatch):
    before = contents(folder.parent)
    monkeypatch.setattr(storage, "save_file", fail)
    with pytest.raises(ModelError, match="saved.*No space left"):
        save_calibrator(fitted("whitening"), folder)
    assert contents(folder.parent) == before
    assert_same(load_calibrator(folder), fitted("flow"))


def test_interrupt_while_writing_leaves_the_old_one_and_nothing_else(folder, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    before = contents(folder.parent)
    monkeypatch.setattr(storage, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_calibrator(fitted("whitening"), folder)
    assert contents(folder.parent) == before


def test_no_pickle_is_read(folder):
    torch.save({"mean": torch.zeros(8)}, folder / WEIGHTS)
    with pytest.raises(ModelError, match="cannot be read"):
        load_calibrator(folder)


def test_names_of_columns_are_kept(tmp_path):
    frame = pandas.DataFrame(data(), columns=list("abcdefgh"))
    save_calibrator(Whitening().fit(frame), tmp_path / "c")
    loaded = load_calibrator(tmp_path / "c")
    loaded.transform(frame)
    with pytest.raises(InputError, match="must be in the same order as they were in fit"):
        loaded.transform(frame[list("hgfedcba")])


def test_an_argument_that_was_changed_after_the_fit_is_not_saved(tmp_path):
    save_calibrator(Whitening().fit(data()), tmp_path / "c")
    for calibrator in (Whitening().fit(data()), load_calibrator(tmp_path / "c")):
        calibrator.dim = 3
        with pytest.raises(InputError, match="dim was None at the fit, not 3"):
            save_calibrator(calibrator, tmp_path / "d")
