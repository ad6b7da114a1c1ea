"""finetune on the command line: what it says and writes, refuses, and goes on with."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from bertflow.calibrators import Whitening
from bertflow.cli.options import Loading
from bertflow.encoders import load_encoder
from bertflow.finetuning import Recipe, siamese
from bertflow.models import calibrate, save_model
from task_files import graded_rows

pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")
LABELS = ("entailment", "contradictory", "neutral")


def write_nli(folder: Path, stem: str, premises: int, seed: int) -> None:
    """Two pairs a premise, with the labels in turn and in the end one without."""
    (folder / "nli").mkdir(parents=True, exist_ok=True)
    rows = [
        {"gold_label": LABELS[(2 * n + m) % 3], "sentence1": f"{a} {n}", "sentence2": second}
        for n, (a, b, _) in enumerate(graded_rows(premises, seed))
        for m, second in enumerate([b, a])
    ]
    rows.append({"gold_label": "-", "sentence1": "a man", "sentence2": "a dog"})
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "nli" / f"{stem}.jsonl").write_text("".join(lines))


@pytest.fixture(autouse=True)
def work(tmp_path, tiny_bert, monkeypatch) -> Path:
    """A folder to work in, with an encoder, SNLI's dev and test, and MultiNLI's train and dev."""
    (tmp_path / "tiny").symlink_to(tiny_bert)
    write_nli(tmp_path / "data", "snli_dev", 40, 0)
    write_nli(tmp_path / "data", "snli_test", 20, 1)
    write_nli(tmp_path / "data", "mnli_train", 12, 2)
    write_nli(tmp_path / "data", "mnli_dev_matched", 9, 3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = ["finetune", "--encoder", "tiny", "--data", "data", "--output", "out"]
SNLI = [*COMMAND, "--nli", "snli", "--batch-size", 8, "--device", "cpu"]


def test_it_says_what_was_trained_on_how_well_it_went_and_what_is_next(done, work):
    said = done(*SNLI, "--nli", "mnli", "--learning-rate", 1e-3).splitlines()
    assert said[0] == (
        "snli: 108 pairs to train on, 12 held out (10% of the premises) of "
        "data/nli/snli_dev.jsonl, data/nli/snli_test.jsonl"
    )
    assert said[1] == "  2 skipped: no gold label"
    assert said[2] == (
        "mnli: 24 pairs to train on, 18 held out (dev-matched) of "
        "data/nli/mnli_train.jsonl, data/nli/mnli_dev_matched.jsonl"
    )
    assert re.fullmatch(r"trained steps 1 to 17 in float32 on cpu in \d+ s", said[5])
    facts = json.loads(Path("out/finetuning.json").read_text())
    accuracy = facts["accuracy"]
    assert said[4] == "0 distinct sentences are longer than 32 tokens"
    assert said[6] == (
        f"accuracy on 30 held-out pairs: {accuracy['value']:.1%} (95 % interval "
        f"{accuracy['low']:.1%} to {accuracy['high']:.1%}); always saying "
        f"{accuracy['majority_label']}: {accuracy['majority']:.1%}"
    )
    assert said[7] == "saved to out: SentenceTransformer('out') loads it anywhere"
    assert said[8] == (
        "next: bertflow fit --encoder out --pooling last2avg --corpus FILE --output out-calibrated"
    )
    assert len(said) == 9
    assert {path.name for path in work.iterdir()} == {"tiny", "data", "out"}
    assert SentenceTransformer("out", device="cpu").encode("a man").shape == (16,)


def test_what_it_says_is_next_works(done, work):
    said = done(*SNLI, "--epochs", 0.2)
    Path("mine.txt").write_text("".join(f"{a}\n{b}\n" for a, b, _ in graded_rows(60, 9)))
    command = said.splitlines()[-1].removeprefix("next: bertflow ").replace("FILE", "mine.txt")
    assert "saved to out-calibrated" in done(*command.split())


def test_every_option_reaches_the_recipe(done, work):
    done(
        *[*SNLI, "--epochs", 0.5, "--learning-rate", 3e-4, "--warmup", 0.2, "--held-out", 0.3],
        *["--limit", 30, "--random-state", 7, "--precision", "bf16", "--max-length", 9],
        *["--pooling", "layers:1"],
    )
    facts = json.loads(Path("out/finetuning.json").read_text())
    assert facts["recipe"] == {
        "epochs": 0.5,
        "learning_rate": 3e-4,
        "batch_size": 8,
        "warmup": 0.2,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "random_state": 7,
        "precision": "bf16",
        "checkpoint_steps": 500,
    }
    assert facts["division"] == {"held_out": 0.3, "random_state": 7, "limit": 30}
    assert facts["encoder"]["max_length"] == 9
    assert facts["sets"][0]["train"] + facts["sets"][0]["held_out"] == 60
    assert load_encoder("out", pooling="layers:1", device="cpu").max_seq_length == 9


def test_interrupted_it_says_that_it_goes_on_and_does(cli, done, work, monkeypatch):
    done(*SNLI, "--learning-rate", 1e-3)
    whole = Path("out/model.safetensors").read_bytes()
    step = siamese._Trainer.training_step

    def interrupted_at(number):
        def training_step(self, *args, **keywords):
            loss = step(self, *args, **keywords)
            if self.state.global_step + 1 == number:
                raise KeyboardInterrupt
            return loss

        return training_step

    command = [*SNLI, "--learning-rate", 1e-3, "--output", "other"]
    monkeypatch.setattr("bertflow.finetuning.Recipe", functools.partial(Recipe, checkpoint_steps=4))
    with monkeypatch.context() as patched:
        for number, where in [
            (2, "begins anew: nothing was saved yet"),
            (6, "goes on from other.checkpoints"),
        ]:
            patched.setattr(siamese._Trainer, "training_step", interrupted_at(number))
            code, out, err = cli(*command)
            assert code == 130
            assert "interrupted" not in out
            assert err == f"error: interrupted; the same command {where}\n"
    assert not Path("other").exists()
    said = done(*command)
    assert "trained steps 5 to 14 in float32" in said
    assert Path("other/model.safetensors").read_bytes() == whole
    assert not Path("other.checkpoints").exists()


def test_what_was_trained_but_not_saved_is_only_measured(cli, done, work, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("bertflow.finetuning.siamese.finetuned_card", full)
        code, _, err = cli(*SNLI)
    assert (code, err) == (
        1,
        "error: cannot write out: No space left on device; "
        "the same command goes on from out.checkpoints\n",
    )
    assert "all 14 steps were trained before; measured in" in done(*SNLI)


def test_checkpoints_of_other_arguments_are_said_to_be_discarded(cli, done, work, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("bertflow.finetuning.siamese.finetuned_card", lambda *_: 1 / 0)
        assert cli(*SNLI)[0] == 1
    said = done(*SNLI, "--limit", 30, "--learning-rate", 1e-3)
    assert "began anew: the checkpoints found were of another recipe, corpus\n" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", 0], "epochs must be a number above 0, got 0.0"),
        (["--warmup", 2], "warmup must be a number between 0 and 1, got 2.0"),
        (
            ["--precision", "half"],
            "precision must be one of ('auto', 'float32', 'bf16', 'fp16'), got 'half'",
        ),
        (["--precision", "fp16"], "precision fp16 needs a CUDA device, but the encoder is on cpu"),
        (["--nli", "stsb"], "stsb"),
        (["--nli", "snli"], "give NLI data sets, each once, got snli, snli"),
        (["--pooling", "middle"], "unknown pooling 'middle'"),
        (["--held-out", 0], "held_out must be a number above 0"),
        (["--limit", 0], "limit must be an integer of at least 1, got 0"),
        (["--data", "nowhere"], "nowhere is no folder"),
        (["--output", "data"], "data holds nli/mnli_dev_matched.jsonl, which bertflow did not"),
        (["--encoder", "nothing/here/at/all"], "nothing/here/at/all does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(refused, work, arguments, message):
    assert message in refused(*SNLI, *arguments)


def test_a_calibrated_model_is_not_taken_for_an_encoder(refused, work, tiny_sentences):
    encoder = load_encoder("tiny", device="cpu")
    save_model(calibrate(encoder, tiny_sentences, Whitening()), "calibrated")
    assert "calibrated is a calibrated model; fine-tune the encoder" in refused(
        *SNLI, "--encoder", "calibrated"
    )


def test_a_folder_in_the_checkpoints_place_is_refused(refused, work):
    Path("out.checkpoints").mkdir()
    Path("out.checkpoints/mine.txt").write_text("mine")
    assert "holds mine.txt, which bertflow did not write" in refused(*SNLI)


def test_missing_packages_are_told_as_the_pip_line(refused, work, monkeypatch):
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    monkeypatch.setattr(Loading, "load_raw", lambda *_: pytest.fail("an encoder was loaded"))
    assert refused(*SNLI) == (
        "fine-tuning needs accelerate and datasets: pip install 'bertflow[train]'"
    )


def test_labels_are_needed(cli, work):
    assert cli(*COMMAND)[0] == 2
    assert not Path("out").exists()
