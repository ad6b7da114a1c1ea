"""Models and calibrators on the hub: the real client, and a stand-in for the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

from bertflow import Flow, Whitening, attach, calibrate, load, load_encoder
from bertflow.models import save_model
from conftest import tree
from hub_stand_in import hub_running


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    """Not to be changed."""
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub to which this process, and those it starts, are logged in."""
    with hub_running() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        template = f"{running.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        for name, value in {
            "HF_TOKEN": "hf_right",
            "HF_ENDPOINT": running.address,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        yield running


def fetched(hub, name, folder):
    for path, content in hub.repositories[name].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.mark.parametrize("portable", [True, False], ids=["built-in", "own"])
def test_what_is_pushed_is_the_saved_folder_with_a_card_that_names_it(
    hub, encoder, tiny_sentences, tmp_path, portable
):
    model = calibrate(encoder, tiny_sentences, Whitening(4), portable=portable)
    save_model(model, tmp_path / "saved")
    address = model.push_to_hub("me/calibrated", private=True)
    assert address.startswith(f"{hub.address}/me/calibrated/commit/")
    assert hub.private == {"me/calibrated"}
    pushed = hub.repositories["me/calibrated"]
    saved = {name: one for name, one in tree(tmp_path / "saved").items() if one}
    assert pushed.keys() == saved.keys()
    differing = {name for name in saved if pushed[name] != saved[name]}
    told = {name for name in saved if name.endswith("config.json") and b"provenance" in saved[name]}
    assert differing == {"README.md"} | told
    assert str(tmp_path.parent.parent).encode() not in b"".join(pushed.values())
    card = pushed["README.md"].decode()
    assert hub.cards == [card]
    there = 'bertflow.load(snapshot_download("me/calibrated"))'
    if portable:
        assert 'SentenceTransformer("me/calibrated")' in card
    assert there in card
    assert "path/to/this/folder" not in card
    assert (
        card.replace("from huggingface_hub import snapshot_download\n", "")
        .replace(there, 'bertflow.load("path/to/this/folder")')
        .replace("me/calibrated", "path/to/this/folder")
        == saved["README.md"].decode()
    )
    again = load(fetched(hub, "me/calibrated", tmp_path / "fetched"), device="cpu")
    expected = model.encode(tiny_sentences[:9])
    np.testing.assert_allclose(again.encode(tiny_sentences[:9]), expected, atol=1e-6)


def test_a_card_on_the_hub_stays_unless_it_is_to_be_replaced(hub, encoder, tiny_sentences):
    model = calibrate(encoder, tiny_sentences, Whitening(4))
    model.push_to_hub("me/model")
    pushed = hub.repositories["me/model"]
    pushed["README.md"] = b"mine"
    with pytest.raises(Exception, match="409"):
        model.push_to_hub("me/model")
    model.push_to_hub("me/model", exist_ok=True)
    assert pushed["README.md"] == b"mine"
    model.push_to_hub("me/model", exist_ok=True, replace_model_card=True)
    assert b"whitening" in pushed["README.md"]


def test_no_folder_of_this_machine_is_published(hub, encoder, tiny_sentences, tmp_path):
    files = {
        "corpus": [
            f"{tmp_path}/secret/a.txt",
            "b.txt",
            "secret/c.txt",
            "../secret/d.txt",
            "hub:e/f:train",
        ],
        "column": "text",
    }
    model = calibrate(encoder, tiny_sentences, Whitening(4), provenance=files)
    kept = model.calibrator.provenance_
    model.push_to_hub("me/model")
    told = json.loads(hub.repositories["me/model"]["bertflow/config.json"])["provenance"]
    assert told["corpus"] == ["a.txt", "b.txt", "c.txt", "d.txt", "hub:e/f:train"]
    assert told["encoder"] == {**kept["encoder"], "name": Path(kept["encoder"]["name"]).name}
    assert b"secret" not in b"".join(hub.repositories["me/model"].values())
    assert model.calibrator.provenance_ is kept
    assert kept["corpus"] == files["corpus"]
    again = load(fetched(hub, "me/model", tmp_path / "fetched"), device="cpu")
    assert np.array_equal(again.encode(tiny_sentences[:3]), model.encode(tiny_sentences[:3]))
    # Attached anew, it still knows its encoder.
    attach(encoder, again.calibrator)


def test_the_command_pushes_models(hub, encoder, tiny_sentences, tmp_path, done, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = calibrate(encoder, tiny_sentences, Whitening(4))
    save_model(model, "m")
    assert done("push", "m", "me/m", "--private").startswith("uploaded to me/m: ")
    saved = tree(tmp_path / "m")
    assert {n for n, one in saved.items() if one} == hub.repositories["me/m"].keys()
    assert cli("push", "m/bertflow", "me/w")[0] == 1
    assert hub.private == {"me/m"}
    code, _, err = cli("push", "m", "me/m")
    assert code == 1
    assert "cannot push to me/m: " in err
    assert "--update" in err
    assert err.count("\n") == 1
    done("push", "m", "me/m", "--update")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    code, _, err = cli("push", "m", "me/other")
    assert code == 1
    assert "log in" in err
    assert "me/other" not in hub.repositories
    code, _, err = cli("push", "m", "me/a b")
    assert code == 1
    assert "is no name on the hub" in err
    assert cli("push", "nope", "me/x")[0] == 1


PLAIN = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
assert not [name for name in sys.modules if name.startswith("bertflow")]
print(json.dumps(model.encode(["the dog eats bread ."]).tolist()))
"""


@pytest.mark.nightly
def test_plain_sentence_transformers_loads_what_was_pushed_by_its_name(
    hub, encoder, tiny_sentences
):
    model = calibrate(encoder, tiny_sentences, Flow(levels=1))
    model.push_to_hub("me/calibrated")
    ran = subprocess.run(
        [sys.executable, "-c", PLAIN, "me/calibrated"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": ""},
        timeout=600,
    )
    got = np.array(json.loads(ran.stdout.splitlines()[-1]))
    np.testing.assert_allclose(got, model.encode(["the dog eats bread ."]), atol=1e-5)


@pytest.mark.slow
def test_an_encoder_of_the_hub_is_named_with_its_licence_in_the_card(
    hub, tiny_bert, tiny_sentences, tmp_path
):
    """In a process of its own: the libraries read where the hub is when they are imported."""
    files = {name: one for name, one in tree(tiny_bert).items() if one}
    files["README.md"] = b"---\nlicense: apache-2.0\n---\n# Tiny\n"
    hub.repositories["someone/tiny"] = files
    (tmp_path / "s.txt").write_text("\n".join(tiny_sentences))
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from bertflow.cli.main import run; sys.exit(run(sys.argv[1:]))",
            "fit",
            *("--encoder", "someone/tiny", "--corpus", "s.txt", "--output", "m"),
            *("--calibrator", "whitening"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=600,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    card = ModelCard((tmp_path / "m" / "README.md").read_text())
    assert card.data.base_model == "someone/tiny"
    assert card.data.license == "apache-2.0"
    assert "[someone/tiny](https://huggingface.co/someone/tiny)" in card.text
