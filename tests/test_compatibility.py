"""What earlier versions saved is loaded, and means what it meant; what later ones save is refused.

`fixtures/saved/` holds what each version wrote, by `fixtures/make_saved.py`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from benchmarks import compat
from sentence_transformers import SentenceTransformer

import bertflow
from bertflow import Flow, attach, load, load_calibrator, load_encoder, save_calibrator
from bertflow.calibrators import training as fitting
from bertflow.encoders import (
    VectorCache,
    describe_encoder,
    embed,
    embedding,
    encode_file,
    streaming,
)
from bertflow.errors import ModelError
from bertflow.io.result_store import ResultStore
from bertflow.models import save_model
from conftest import REPOSITORY, tree

ARCHIVES = sorted((REPOSITORY / "tests/fixtures/saved").glob("*.tar.xz"))
VERSIONS = [path.name.removesuffix(".tar.xz") for path in ARCHIVES]
KINDS = {"models": 25, "own": 2, "calibrators": 13}


@pytest.fixture(scope="module", params=ARCHIVES, ids=VERSIONS)
def saved(request, tmp_path_factory) -> Path:
    """The folder of a version. Not to be changed."""
    place = tmp_path_factory.mktemp("saved")
    with tarfile.open(request.param) as file:
        # Python 3.11 knows filters from its fourth release on; the archive is our own.
        file.extractall(place, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (folder,) = place.iterdir()
    return folder


@pytest.fixture(scope="module")
def expected(saved) -> dict[str, np.ndarray]:
    with np.load(saved / "expected.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def index(saved) -> dict:
    return json.loads((saved / "index.json").read_text(encoding="utf-8"))


def assert_close(got, expected, tolerance):
    """Relative to the length of the rows."""
    assert got.shape == expected.shape
    lengths = np.linalg.norm(expected, axis=-1).clip(1e-12)
    assert (np.linalg.norm(got - expected, axis=-1) / lengths).max() < tolerance


def models(saved: Path, kind: str) -> list[Path]:
    return sorted(path.parent for path in (saved / kind).rglob("modules.json"))


def test_there_is_an_archive_of_this_version():
    assert bertflow.__version__ in VERSIONS, "python tests/fixtures/make_saved.py"


def test_archives_are_small():
    assert sum(path.stat().st_size for path in ARCHIVES) < 500_000 * len(ARCHIVES)


# Calibrators.


def test_every_kind_of_calibrator_maps_rows_as_it_did(saved, expected, index):
    rows = np.load(saved / "rows.npy").astype(np.float64)
    assert len(index["calibrators"]) == KINDS["calibrators"]
    for name in index["calibrators"]:
        calibrator = load_calibrator(saved / "calibrators" / name)
        assert calibrator.provenance_ == {"rows": "rows.npy"}
        z = expected[f"calibrators/{name}/transform"]
        assert_close(calibrator.transform(rows[: len(z)]), z, 1e-6)
        assert_close(calibrator.transform(rows[: len(z)].astype(np.float32)), z, 1e-4)
        assert_close(calibrator.inverse_transform(z), expected[f"calibrators/{name}/inverse"], 1e-6)
        if isinstance(calibrator, Flow):
            density = expected[f"calibrators/{name}/log_prob"]
            np.testing.assert_allclose(calibrator.log_prob(rows[: len(z)]), density, rtol=1e-6)
            drawn = expected[f"calibrators/{name}/sample"]
            assert_close(calibrator.sample(len(drawn), random_state=1), drawn, 1e-5)


def test_what_a_calibrator_holds_is_kept_to_the_bit(saved, index, tmp_path):
    """Loaded and saved again, its weights are the same bytes, and so are its arguments."""
    for name in index["calibrators"]:
        before, after = saved / "calibrators" / name, tmp_path / name
        save_calibrator(load_calibrator(before), after)
        weights = "model.safetensors"
        assert (after / weights).read_bytes() == (before / weights).read_bytes()
        old, new = (json.loads((place / "config.json").read_text()) for place in (before, after))
        assert old["arguments"].items() <= new["arguments"].items()
        assert {**new, "arguments": old["arguments"]} == old


def test_a_saved_calibrator_can_be_fitted_anew(saved, index):
    rows = np.load(saved / "rows.npy")
    for name in index["calibrators"]:
        calibrator = load_calibrator(saved / "calibrators" / name)
        if isinstance(calibrator, Flow):
            calibrator.set_params(epochs=0.1)
        assert calibrator.fit(rows).transform(rows).shape[0] == len(rows)


# Models.


@pytest.mark.parametrize("kind", ["models", "own"])
def test_every_kind_of_model_gives_the_vectors_it_gave(kind, saved, expected, index):
    found = models(saved, kind)
    assert len(found) >= KINDS[kind]
    for folder in found:
        model = load(folder, device="cpu")
        vectors = expected[folder.relative_to(saved).as_posix()]
        assert_close(model.encode(index["sentences"]), vectors, 1e-5)
        assert_close(embed(model, index["sentences"]).rows(), vectors, 1e-5)
        assert {"encoder", "sentences", "versions"} <= model.calibrator.provenance_.keys()


FOREIGN = """
import json, sys
from pathlib import Path
sys.modules["bertflow"] = None  # as where it is not installed
import numpy as np
from sentence_transformers import SentenceTransformer
saved, out = map(Path, sys.argv[1:])
sentences = json.loads((saved / "index.json").read_text())["sentences"]
folders = sorted(path.parent for path in (saved / "models").rglob("modules.json"))
found = {
    folder.relative_to(saved).as_posix(): SentenceTransformer(str(folder), device="cpu").encode(
        sentences
    )
    for folder in [*folders, saved / "finetuned"]
}
np.savez(out, **found)
"""


@pytest.mark.slow
def test_plain_sentence_transformers_loads_every_portable_model(saved, expected, tmp_path):
    out = tmp_path / "foreign.npz"
    ran = subprocess.run(
        [sys.executable, "-c", FOREIGN, str(saved), str(out)],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    with np.load(out) as found:
        assert len(found.files) > KINDS["models"]
        for name in found.files:
            assert_close(found[name], expected[name], 1e-5)


def test_the_encoder_is_known_again_and_takes_its_calibrator(saved, expected, index):
    """The fingerprint of an encoder does not depend on who computes it."""
    encoder = load_encoder(saved / "encoder", pooling="mean", device="cpu")
    ours = describe_encoder(encoder)
    told = index["encoder"]
    assert {**ours, "name": None} == {**told, "name": None}
    for name in ("flow", "whitening", "all-but-the-top"):
        calibrator = load_calibrator(saved / "models" / name / "mean")
        again = attach(encoder, calibrator)
        assert_close(again.encode(index["sentences"]), expected[f"models/{name}/mean"], 1e-5)


def test_a_loaded_model_is_saved_anew_and_loads(saved, expected, index, tmp_path):
    for name in ("models/flow/first-last-avg", "own/affine-flow"):
        model = load(saved / name, device="cpu")
        save_model(model, tmp_path / "again")
        again = load(tmp_path / "again", device="cpu")
        assert_close(again.encode(index["sentences"]), expected[name], 1e-5)


def test_a_fine_tuned_encoder_is_an_encoder(saved, expected, index):
    encoder = load_encoder(saved / "finetuned", device="cpu")
    assert_close(encoder.encode(index["sentences"]), expected["finetuned"], 1e-5)
    facts = json.loads((saved / "finetuned" / "finetuning.json").read_text())
    assert facts["format"] == 1
    assert sorted(facts["labels"]) == ["contradiction", "entailment", "neutral"]


# Vectors, records, and what was interrupted.


def test_vectors_and_records_are_read(saved, expected, index, tmp_path):
    assert_close(np.load(saved / "vectors.npy"), expected["vectors"], 1e-6)
    shutil.copytree(saved / "vectors", tmp_path / "vectors")
    cache = VectorCache(tmp_path / "vectors", {"encoder": "tiny", "max_length": 32})
    rows = cache.rows(index["sentences"])
    np.testing.assert_array_equal(cache.vectors()[rows], expected["vectors"])
    records = ResultStore(saved / "records")
    kinds = {records.need(path.stem).kind for path in records.folder.glob("*.json")}
    assert kinds == {"score", "words", "tuning"}
    score = records.need("0a" * 16)
    assert score.result == {"value": 0.5, "kind": "score"}
    np.testing.assert_array_equal(score.arrays["cosines"], expected["records/cosines"])


def test_the_checkpoint_of_another_version_is_left_behind_in_words(
    saved, tmp_path, caplog, monkeypatch
):
    """Bits are promised within a version alone: the fit starts anew, and says so."""
    place = tmp_path / "flow.safetensors"
    shutil.copy(saved / "interrupted" / "flow.safetensors", place)
    monkeypatch.setattr(bertflow, "__version__", "99.0")
    monkeypatch.setattr(fitting, "SAVED_SECONDS", 1e9)
    rows = np.load(saved / "rows.npy")
    seen: list[int] = []
    flow = Flow(width=4, epochs=20)
    with caplog.at_level(logging.WARNING):
        flow.fit(rows, progress=lambda done, *_: seen.append(done), checkpoint=place)
    assert "is of another fit (other bertflow)" in caplog.text
    assert "starting anew" in caplog.text
    assert seen[0] == 1
    np.testing.assert_array_equal(
        flow.transform(rows), Flow(width=4, epochs=20).fit(rows).transform(rows)
    )


def test_an_interrupted_encoding_of_any_version_ends_with_the_right_rows(
    saved, expected, index, tmp_path, monkeypatch
):
    monkeypatch.setattr(streaming, "STREAM_SENTENCES", 16)
    monkeypatch.setattr(embedding, "group_size", lambda encoder: 8)
    shutil.copytree(saved / "interrupted" / "part", tmp_path / ".part.npy.part")
    encoder = load_encoder(saved / "encoder", pooling="mean", device="cpu")
    encode_file(encoder, index["sentences"], tmp_path / "part.npy", precision="float32")
    assert_close(np.load(tmp_path / "part.npy"), expected["vectors"], 1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["part.npy"]


# What a later version has saved.


def changed(folder: Path, target: Path, change) -> Path:
    """A copy of a saved folder with another configuration of its calibrator."""
    shutil.copytree(folder, target)
    config = next(
        place
        for place in (target / "bertflow/config.json", target / "config.json")
        if place.exists()
    )
    content = json.loads(config.read_text())
    change(content)
    config.write_text(json.dumps(content))
    return target


LATER = {
    "format": (lambda config: config.update(format=2), "format 2 is not 1"),
    "calibrator": (
        lambda config: config.update(calibrator="spline-flow"),
        "'spline-flow' is none of ['adaptive-whitening', 'flow', 'whitening'",
    ),
    "argument": (
        lambda config: config["arguments"].update(temperature=2, curvature=1),
        "arguments hold curvature, temperature",
    ),
}


@pytest.mark.parametrize("what", LATER)
def test_what_a_later_version_saved_is_refused_by_name_with_the_remedy(what, saved, tmp_path):
    change, said = LATER[what]
    alone = changed(saved / "calibrators/flow", tmp_path / "alone", change)
    model = changed(saved / "models/flow/mean", tmp_path / "model", change)
    for call in (
        lambda: load_calibrator(alone),
        lambda: load(model),
        lambda: load_calibrator(model),
    ):
        with pytest.raises(ModelError) as caught:
            call()
        message = str(caught.value)
        assert message.startswith(str(tmp_path))
        assert said in message
        assert message.endswith("install a newer bertflow")
        assert "\n" not in message


@pytest.mark.parametrize("what", LATER)
def test_plain_sentence_transformers_loads_a_later_model_all_the_same(
    what, saved, expected, index, tmp_path
):
    model = changed(saved / "models/flow/mean", tmp_path / "model", LATER[what][0])
    vectors = SentenceTransformer(str(model), device="cpu").encode(index["sentences"])
    assert_close(vectors, expected["models/flow/mean"], 1e-5)


def test_a_later_record_counts_as_not_there_and_stays(saved, tmp_path):
    shutil.copytree(saved / "records", tmp_path / "records")
    path = tmp_path / "records" / f"{'0b' * 16}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    before = tree(tmp_path)
    records = ResultStore(tmp_path / "records")
    assert records.get("0b" * 16) is None
    kept = filter(None, (records.get(path.stem) for path in records.folder.glob("*.json")))
    assert {record.kind for record in kept} == {"score", "tuning"}
    assert tree(tmp_path) == before


def test_a_later_folder_of_vectors_is_refused_by_name(saved, tmp_path):
    shutil.copytree(saved / "vectors", tmp_path / "vectors")
    path = tmp_path / "vectors" / "about.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(ModelError, match="vectors"):
        VectorCache(tmp_path / "vectors", {"encoder": "tiny", "max_length": 32})


# The table of `make compat`.


def test_a_row_that_is_run_takes_its_place_and_the_others_stay(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{compat.BEGIN}\nnothing yet\n{compat.END}\nafter\n")
    monkeypatch.setattr(compat, "PAGE", page)
    for name in ["newest, Python 3.13", "newest", "newest, Python 3.12", "oldest"]:
        compat.write_row(name, f"| {name} | 1 |")
    compat.write_row("newest", "| newest | 2 |")
    before, begin, *table, end, after = page.read_text().splitlines()
    assert (before, begin, end, after) == ("before", compat.BEGIN, compat.END, "after")
    assert table[2:] == [
        "| oldest | 1 |",
        "| newest | 2 |",
        "| newest, Python 3.12 | 1 |",
        "| newest, Python 3.13 | 1 |",
    ]
    assert [line.count("|") for line in table[:2]] == [len(compat.SHOWN) + 4] * 2


def test_every_lower_bound_of_the_project_is_a_plain_one():
    """Of `oldest`, that is what is installed; a row that differs holds what its name says."""
    bounds = compat.lower_bounds()
    assert {*compat.GRID, "numpy", "accelerate", "matplotlib"} <= bounds.keys()
    rows = compat.rows([])
    assert [rows[0].name, rows[-1].name] == ["oldest", "newest"]
    assert len({row.old for row in rows}) == len(rows) == 2 ** len(compat.GRID)
