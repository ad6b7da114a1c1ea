"""Who is measured: what changes an encoder's digest and what does not, and what it is called."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from bertflow.errors import ModelError
from bertflow.paper import plan
from bertflow.paper.plan import identify

COMMIT = "86b5e0934494bd15c9632b12f734a8a67f723594"


@pytest.fixture(scope="module")
def tiny(tiny_bert, tmp_path_factory) -> Path:
    """A copy that may be changed for a moment."""
    return Path(shutil.copytree(tiny_bert, tmp_path_factory.mktemp("subjects") / "tiny"))


@pytest.fixture
def encoder(tiny, tmp_path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "encoder-of-mine"))


def flip(path: Path) -> None:
    """Change a file's last byte."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


# What lies here.


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_changed_file_of_the_encoder_is_another_encoder(encoder, name):
    before = identify(encoder).digest
    flip(encoder / name)
    assert identify(encoder).digest != before


@pytest.mark.parametrize(
    "name", ["vocab.txt", "1_Pooling/config.json", "modeling_mine.py", "pytorch_model.bin"]
)
def test_an_added_file_that_vectors_may_depend_on_is_another_encoder(encoder, name):
    before = identify(encoder).digest
    (encoder / name).parent.mkdir(exist_ok=True)
    (encoder / name).write_text("{}")
    assert identify(encoder).digest != before


def test_the_same_content_under_another_name_inside_is_another_encoder(encoder):
    (encoder / "one.json").write_text("{}")
    before = identify(encoder).digest
    (encoder / "one.json").rename(encoder / "two.json")
    assert identify(encoder).digest != before


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "picture.png",
        ".bertflow-files.json",
        ".git/config.json",
        "1_Pooling/.cache/old.json",
    ],
)
def test_cards_and_hidden_files_change_nothing(encoder, name):
    before = identify(encoder)
    (encoder / name).parent.mkdir(parents=True, exist_ok=True)
    (encoder / name).write_text("{}")
    assert identify(encoder) == before


def test_neither_name_nor_place_nor_what_it_is_used_with_changes_the_digest(encoder, tmp_path):
    before = identify(encoder)
    moved = identify(shutil.copytree(encoder, tmp_path / "deep" / "other"), pooling="cls")
    assert moved.digest == before.digest
    assert (before.label, moved.label) == ("encoder-of-mine", "other")
    assert (before.pooling, moved.pooling) == (None, "cls")
    assert identify(encoder, max_length=7).digest == before.digest


def test_a_folder_has_no_revision_and_64_tokens_if_nothing_is_said(encoder):
    found = identify(encoder)
    assert (found.revision, found.size, found.words) == (None, None, False)
    assert (found.max_length, identify(encoder, max_length=9).max_length) == (64, 9)
    assert found.name == str(encoder)


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("mine", "mine"),
        ("some/where/tiny-2.5_x+y", "tiny-2.5_x+y"),
        ("my encoder (new)", "my-encoder-new-"),
        ("minilm/model", "minilm"),
        ("minilm/encoder", "minilm"),
        ("runs-3/checkpoint", "runs-3"),
        ("small.gguf", "small"),
    ],
)
def test_the_label_is_the_folders_name_fit_for_a_table(tmp_path, place, label):
    (tmp_path / place).mkdir(parents=True)
    assert identify(tmp_path / place).label == label


@pytest.mark.parametrize(
    ("name", "size", "label"),
    [
        ("bert-base-uncased", "base", "BERT-base"),
        ("bert-large-uncased", "large", "BERT-large"),
        ("bert-base-cased", None, "bert-base-cased"),
        ("xbert-base-uncased", None, "xbert-base-uncased"),
    ],
)
def test_the_papers_two_encoders_are_known_by_name(encoder, tmp_path, name, size, label):
    found = identify(encoder.rename(tmp_path / name))
    assert (found.size, found.label) == (size, label)


# Files.


@pytest.mark.parametrize("name", ["words.txt", "words.vec", "glove.6B.50d", "words.txt.gz"])
def test_a_file_is_word_vectors_and_told_apart_by_content(tmp_path, name):
    path = tmp_path / name
    path.write_text("cat 1 0\n")
    one = identify(path)
    assert one.words
    assert one.max_length is None
    path.write_text("cat 0 1\n")
    assert identify(path).digest != one.digest


def test_the_label_of_a_file_is_without_its_ending(tmp_path):
    (tmp_path / "small.txt.gz").write_text("cat 1 0\n")
    assert identify(tmp_path / "small.txt.gz").label == "small"


def test_a_gguf_file_is_an_encoder(tmp_path):
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    found = identify(tmp_path / "small.gguf")
    assert (found.words, found.label, found.max_length) == (False, "small", 64)


# The hub.


@pytest.fixture
def offline(monkeypatch):
    """No hub."""
    monkeypatch.setattr(plan, "hub_answers", lambda: False)


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """The client's cache, empty."""
    folder = tmp_path / "hub-cache"
    cached = functools.partial(snapshot_download, cache_dir=folder)
    monkeypatch.setattr(plan, "snapshot_download", cached)
    return folder


def fetched(cache: Path, name: str, commit: str, *refs: str, file: str = "config.json") -> None:
    """Put a file of a commit into the cache as the client does."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / file).write_text("{}")
    (folder / "refs").mkdir(exist_ok=True)
    for ref in refs:
        (folder / "refs" / ref).write_text(commit)


@pytest.fixture
def hub(monkeypatch, cache):
    """A hub that knows one commit of every model, or fails as it is told; an empty cache."""
    answers = SimpleNamespace(asked=[], revisions=[], failure=None, known=None)

    def download(name, *, revision, allow_patterns, local_files_only):
        if not local_files_only:
            answers.asked.append(name)
            answers.revisions.append(revision)
        if local_files_only or answers.failure is not None:
            try:  # The client, too, takes what is in the cache then.
                return snapshot_download(
                    name, revision=revision, local_files_only=True, cache_dir=cache
                )
            except LocalEntryNotFoundError:
                raise (answers.failure or OSError("not in the cache")) from None
        if answers.known is not None and name not in answers.known:
            raise OSError(f"no {name} there")
        commit = COMMIT if revision is None else revision * 8
        return f"/cache/snapshots/{commit}"

    monkeypatch.setattr(plan, "hub_answers", lambda: True)
    monkeypatch.setattr(plan, "snapshot_download", download)
    return answers


@pytest.mark.parametrize(
    ("name", "size", "label"),
    [
        ("bert-base-uncased", "base", "BERT-base"),
        ("google-bert/bert-large-uncased", "large", "BERT-large"),
        ("sentence-transformers/all-MiniLM-L6-v2", None, "all-MiniLM-L6-v2"),
    ],
)
def test_a_hub_name_is_its_newest_commit(hub, tmp_path, monkeypatch, name, size, label):
    monkeypatch.chdir(tmp_path)
    found = identify(name)
    assert (found.revision, found.digest, hub.asked) == (COMMIT, f"hub:{COMMIT}", [name])
    assert (found.name, found.size, found.label, found.words) == (name, size, label, False)
    assert hub.revisions == [None]


def test_a_hub_name_may_carry_its_revision(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = identify("google-bert/bert-base-uncased@abcde")
    assert (hub.asked, hub.revisions) == (["google-bert/bert-base-uncased"], ["abcde"])
    assert (found.revision, found.digest) == ("abcde" * 8, f"hub:{'abcde' * 8}")
    # The revision is no part of the name, by which size and label go.
    assert found.name == "google-bert/bert-base-uncased"
    assert (found.size, found.label) == ("base", "BERT-base")


def test_an_at_sign_in_the_name_of_a_folder_is_no_revision(hub, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder.rename("mine@2")
    found = identify("mine@2")
    assert (found.name, found.label, found.revision) == ("mine@2", "mine-2", None)
    assert hub.asked == []


def test_a_name_alone_may_be_one_of_sentence_transformers(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub.known = ["sentence-transformers/all-MiniLM-L6-v2"]
    found = identify("all-MiniLM-L6-v2")
    assert hub.asked == ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"]
    assert (found.revision, found.name) == (COMMIT, "all-MiniLM-L6-v2")
    # What has an owner has no other.
    with pytest.raises(ModelError, match="no a/b there"):
        identify("a/b")
    assert hub.asked[2:] == ["a/b"]


OTHER = "0" * 40


@pytest.mark.parametrize(
    ("name", "kept"), [("a/b", "a/b"), ("mini", "mini"), ("mini", "sentence-transformers/mini")]
)
@pytest.mark.parametrize("online", [False, True], ids=["no hub", "a hub that fails"])
def test_what_the_hub_does_not_say_the_cache_does(
    hub, cache, tmp_path, monkeypatch, name, kept, online
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "hub_answers", lambda: online)
    hub.failure = OSError("503")
    fetched(cache, kept, COMMIT, "main")
    assert identify(name).revision == COMMIT
    assert bool(hub.asked) == online


def test_the_branch_in_the_cache_says_which_snapshot_and_without_one_it_is_unknown(
    hub, cache, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "hub_answers", lambda: False)
    fetched(cache, "a/b", OTHER)
    fetched(cache, "a/b", COMMIT)
    assert "no connection, and it is not in the cache" in one_line("a/b")
    (cache / "models--a--b/refs/main").write_text(COMMIT)
    assert identify("a/b").revision == COMMIT


def test_a_revision_in_the_cache_is_that_one_and_no_other(hub, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "hub_answers", lambda: False)
    fetched(cache, "a/b", OTHER, "main")
    assert "a/b is no folder here" in one_line("a/b@v2")
    fetched(cache, "a/b", COMMIT, "v2")
    assert identify("a/b@v2").revision == identify(f"a/b@{COMMIT}").revision == COMMIT
    assert identify("a/b").revision == OTHER


@pytest.mark.parametrize("kept", ["config.json", "modules.json"])
def test_without_the_hub_it_is_the_commit_in_the_cache(cache, tmp_path, monkeypatch, offline, kept):
    monkeypatch.chdir(tmp_path)
    fetched(cache, "a/b", COMMIT, "main", file=kept)
    found = identify("a/b")
    assert (found.revision, found.digest) == (COMMIT, f"hub:{COMMIT}")


def test_a_folder_of_the_name_comes_before_the_hub(hub, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder.rename("bert-base-uncased")
    found = identify("bert-base-uncased")
    assert (found.revision, found.size, hub.asked) == (None, "base", [])


def one_line(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        identify(name)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_is_nowhere_is_said_in_one_line(offline, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no-such-model is no folder here and cannot be had from the model hub" in one_line(
        "no-such-model"
    )


@pytest.mark.parametrize("name", ["./nothing", "/nothing/here", "~/nothing", "a/b/c"])
def test_a_path_is_not_looked_for_on_the_hub(hub, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert one_line(name).startswith(f"{name} does not exist")
    assert hub.asked == []


@pytest.mark.parametrize(
    "failure",
    [OSError("no route\nto the host"), ValueError("no route\nto the host")],
    ids=lambda failure: type(failure).__name__,
)
def test_a_hub_that_fails_is_one_line_however_its_client_says_it(
    hub, tmp_path, monkeypatch, failure
):
    monkeypatch.chdir(tmp_path)
    hub.failure = failure
    assert one_line("a/b").startswith(
        "a/b is no folder here and cannot be had from the model hub (no route); check "
    )


def test_a_name_that_the_hub_cannot_have_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "hub_answers", lambda: False)
    assert "no such model!" in one_line("no such model!")


def test_a_subject_is_json_beside_its_records(encoder):
    json.dumps(vars(identify(encoder)), allow_nan=False)
