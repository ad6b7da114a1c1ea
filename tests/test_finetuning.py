"""Fine-tuning on NLI: what is divided how, what is learned, and that interruption costs no bit."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from scipy.stats import norm
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from torch import nn
from torch.testing import assert_close

from bertflow.data import NLI_LABELS, NliPairs
from bertflow.encoders import load_encoder
from bertflow.errors import (
    InputError,
    MissingDataError,
    MissingDependencyError,
    ModelError,
    TrainingError,
)
from bertflow.finetuning import NliCorpus, Recipe, finetune, nli_corpus, save_finetuned, siamese
from bertflow.finetuning.siamese import accuracy_of, last_checkpoint, resolved_precision
from bertflow.io.files import sole_writer
from conftest import WORDS

FAST = Recipe(learning_rate=3e-3, batch_size=8, epochs=1, checkpoint_steps=4)

Row = tuple[str, str, str]


def nli_rows(premises: int, seed: int) -> list[Row]:
    """Four pairs a premise, whose label shows: the hypothesis repeats, changes or leaves it."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(premises):
        words = generator.choice(WORDS[:30], size=generator.integers(4, 8)).tolist()
        premise = " ".join([*words, str(1000 * seed + number)])
        rows.append((premise, " ".join(words), "entailment"))
        rows.append((premise, " ".join(["not", *words[1:], "not"]), "contradiction"))
        rows.append((premise, " ".join(generator.choice(WORDS[30:], size=5)), "neutral"))
        rows.append((premise, " ".join(words[1:]), "entailment"))
    return rows


def write_nli(folder: Path, stem: str, rows: list[Row]) -> None:
    """Write rows as the corpora's own files have them."""
    (folder / "nli").mkdir(exist_ok=True)
    lines = [
        json.dumps({"gold_label": label, "sentence1": first, "sentence2": second}) + "\n"
        for first, second, label in rows
    ]
    (folder / "nli" / f"{stem}.jsonl").write_text("".join(lines))


class Stop(Exception):
    """Stands for Ctrl-C."""


def stop_at(step: int):
    def progress(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("train", step):
            raise Stop

    return progress


@pytest.fixture(autouse=True, scope="module")
def quick_collection():
    """The trainer collects garbage each time, a quarter of a second over all that is imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def encoder(tiny_bert) -> SentenceTransformer:
    return load_encoder(tiny_bert, pooling="mean", device="cpu")


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """SNLI's dev and test splits, four pairs a premise."""
    folder = tmp_path_factory.mktemp("nli")
    write_nli(folder, "snli_dev", nli_rows(40, 0))
    write_nli(folder, "snli_test", nli_rows(20, 1))
    return folder


@pytest.fixture(scope="session")
def corpus(data) -> NliCorpus:
    return nli_corpus(["snli"], data, held_out=0.2, limit=60)


@pytest.fixture(scope="module")
def uninterrupted(tiny_bert, corpus):
    return finetune(load_encoder(tiny_bert, pooling="mean", device="cpu"), corpus, FAST)


def weights(result) -> dict[str, torch.Tensor]:
    own = {f"classifier.{name}": tensor for name, tensor in result.classifier.state_dict().items()}
    return {**result.model.state_dict(), **own}


def assert_same_bits(one, other) -> None:
    assert weights(one).keys() == weights(other).keys()
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


def premises(pairs: NliPairs) -> set[str]:
    return {" ".join(premise.split()).casefold() for premise in pairs.first}


def rows_of(pairs: NliPairs) -> list[tuple[str, str, str]]:
    return list(zip(pairs.first, pairs.second, pairs.labels, strict=True))


# The corpus.


def test_without_a_train_split_all_others_are_divided_by_premise(data):
    corpus = nli_corpus(["snli"], data, held_out=0.1)
    everything = nli_rows(40, 0) + nli_rows(20, 1)
    assert sorted(rows_of(corpus.train) + rows_of(corpus.held_out)) == sorted(everything)
    assert not premises(corpus.train) & premises(corpus.held_out)
    assert len(premises(corpus.held_out)) == round(0.1 * len({row[0] for row in everything}))
    (part,) = corpus.sets
    assert (part.splits, part.held_out_split) == (["dev", "test"], None)
    assert (part.train, part.held_out) == (len(corpus.train), len(corpus.held_out))
    assert [Path(source).name for source in part.sources] == ["snli_dev.jsonl", "snli_test.jsonl"]
    assert corpus.division == {"held_out": 0.1, "random_state": 0, "limit": None}


def test_the_division_follows_its_seed(data):
    first, again = (nli_corpus(["snli"], data) for _ in range(2))
    other = nli_corpus(["snli"], data, random_state=1)
    assert rows_of(first.held_out) == rows_of(again.held_out)
    assert first.digest() == again.digest() != other.digest()
    assert premises(first.held_out) != premises(other.held_out)


def test_a_train_split_is_trained_on_and_its_dev_split_held_out(tmp_path):
    train, dev = nli_rows(10, 0), nli_rows(5, 1)
    for split, rows in [("train", train), ("dev_mismatched", nli_rows(4, 2))]:
        write_nli(tmp_path, f"mnli_{split}", rows)
    write_nli(tmp_path, "mnli_dev_matched", dev)
    corpus = nli_corpus(["mnli"], tmp_path)
    assert rows_of(corpus.train) == train
    assert rows_of(corpus.held_out) == dev
    assert corpus.sets[0].held_out_split == "dev-matched"


def test_a_train_split_without_a_dev_split_is_divided_itself(tmp_path):
    write_nli(tmp_path, "snli_train", nli_rows(10, 0))
    write_nli(tmp_path, "snli_test", nli_rows(5, 1))
    corpus = nli_corpus(["snli"], tmp_path, held_out=0.3)
    assert sorted(rows_of(corpus.train) + rows_of(corpus.held_out)) == sorted(nli_rows(10, 0))
    assert len(premises(corpus.held_out)) == 3


def test_what_would_be_held_out_with_a_premise_trained_on_is_left_out_and_counted(tmp_path):
    write_nli(tmp_path, "snli_train", [("A man eats .", "a b", "neutral"), *nli_rows(4, 0)])
    dev = [("a  man EATS .", "a c", "neutral"), ("a dog .", "a c", "entailment")]
    write_nli(tmp_path, "snli_dev", dev)
    write_nli(tmp_path, "mnli_train", [("A dog .", "x", "neutral"), *nli_rows(4, 3)])
    write_nli(tmp_path, "mnli_dev_matched", nli_rows(4, 4))
    assert rows_of(nli_corpus(["snli"], tmp_path).held_out) == [dev[1]]
    corpus = nli_corpus(["snli", "mnli"], tmp_path)
    assert not premises(corpus.train) & premises(corpus.held_out)
    assert corpus.sets[0].skipped == {"premise also trained on": 2}
    assert (corpus.sets[0].held_out, corpus.sets[1].held_out) == (0, 16)
    assert corpus.train.name == "snli+mnli"
    assert corpus.sets[1].skipped == {}


def test_rows_without_a_label_are_counted_and_aliases_understood(tmp_path):
    rows = nli_rows(4, 0)
    rows[0] = (*rows[0][:2], "-")
    rows[1] = (*rows[1][:2], "contradictory")
    write_nli(tmp_path, "snli_dev", rows)
    corpus = nli_corpus(["snli"], tmp_path)
    assert corpus.sets[0].skipped == {"no gold label": 1}
    assert (rows[1][0], rows[1][1], "contradiction") in rows_of(corpus.train) + rows_of(
        corpus.held_out
    )


def test_counts_are_by_label_in_their_order(corpus):
    for side, pairs in {"train": corpus.train, "held_out": corpus.held_out}.items():
        assert tuple(corpus.counts[side]) == NLI_LABELS
        assert corpus.counts[side]["neutral"] == pairs.labels.count("neutral")
        assert sum(corpus.counts[side].values()) == len(pairs)


def test_a_limit_takes_the_first_pairs_of_each_split(data):
    corpus = nli_corpus(["snli"], data, limit=12)
    expected = nli_rows(40, 0)[:12] + nli_rows(20, 1)[:12]
    assert sorted(rows_of(corpus.train) + rows_of(corpus.held_out)) == sorted(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": []}, "each once, got none"),
        ({"names": ["snli", "snli"]}, "each once, got snli, snli"),
        ({"names": ["stsb"]}, "stsb"),
        ({"held_out": 0}, "held_out must be a number above 0"),
        ({"held_out": 1.5}, "held_out must be a number above 0"),
        ({"limit": 0}, "limit must be an integer of at least 1"),
        ({"limit": 0.5}, "limit must be an integer"),
        ({"random_state": -1}, "random_state must be an integer"),
    ],
)
def test_a_corpus_that_cannot_be_meant_is_refused(data, arguments, message):
    arguments = {"names": ["snli"], **arguments}
    with pytest.raises(InputError, match=message):
        nli_corpus(arguments.pop("names"), data, **arguments)


def test_an_unknown_label_is_refused_by_its_line(tmp_path):
    rows = nli_rows(3, 0)
    rows[2] = (*rows[2][:2], "maybe")
    write_nli(tmp_path, "snli_dev", rows)
    with pytest.raises(InputError, match=r"snli_dev.jsonl, line 3: unknown label 'maybe'"):
        nli_corpus(["snli"], tmp_path)


def test_too_little_to_divide_is_refused(tmp_path):
    write_nli(tmp_path, "snli_dev", nli_rows(1, 0))
    with pytest.raises(InputError, match="no pair is left to hold out"):
        nli_corpus(["snli"], tmp_path)
    write_nli(tmp_path, "snli_train", nli_rows(1, 0))
    with pytest.raises(InputError, match="no pair is left to hold out"):
        nli_corpus(["snli"], tmp_path)
    write_nli(tmp_path, "snli_train", [("a dog .", "a b", "neutral")])
    with pytest.raises(InputError, match="all 1 pairs to train on are neutral"):
        nli_corpus(["snli"], tmp_path)


def test_a_set_that_is_nowhere_is_said_to_be(data, monkeypatch):
    monkeypatch.setattr("bertflow.data.sources.hub_answers", lambda: False)
    with pytest.raises(MissingDataError, match="no data for mnli"):
        nli_corpus(["snli", "mnli"], data)


# The recipe.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("warmup", 1.1),
        ("weight_decay", -1),
        ("max_grad_norm", -1),
        ("random_state", 2**32),
        ("checkpoint_steps", 0),
        ("precision", "float16"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(name, value):
    with pytest.raises(InputError, match=f"{name} must be"):
        Recipe(**{name: value})


def test_the_paper_is_the_default():
    recipe = Recipe()
    assert (recipe.epochs, recipe.learning_rate, recipe.batch_size) == (1, 2e-5, 16)
    assert recipe.warmup == 0.1


def test_precision_is_the_device_s(monkeypatch):
    cuda = torch.device("cuda")
    assert resolved_precision("auto", torch.device("cpu")) == "float32"
    for has, expected in [(True, "bf16"), (False, "fp16")]:
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda has=has, **_: has)
        assert resolved_precision("auto", cuda) == expected
    assert resolved_precision("fp16", cuda) == "fp16"
    with pytest.raises(InputError, match="fp16 needs a CUDA device, but the encoder is on cpu"):
        resolved_precision("fp16", torch.device("cpu"))


# What is learned.


def test_what_can_be_learned_is_learned_well_above_chance(encoder, data):
    corpus = nli_corpus(["snli"], data, held_out=0.2)
    result = finetune(encoder, corpus, replace(FAST, epochs=5))
    accuracy = result.accuracy
    assert accuracy.low > accuracy.majority + 0.1
    assert accuracy.pairs == len(corpus.held_out)
    assert result.loss_curve[-1][1] < result.loss_curve[0][1]


def test_accuracy_is_counted_by_hand():
    accuracy = accuracy_of(
        ["neutral", "neutral", "entailment", "neutral"],
        ["neutral", "entailment", "entailment", "entailment"],
    )
    assert (accuracy.value, accuracy.pairs) == (0.5, 4)
    assert (accuracy.majority, accuracy.majority_label) == (0.75, "entailment")
    assert accuracy.recall == {"entailment": pytest.approx(1 / 3), "neutral": 1.0}
    # Wilson (1927), with n = 4 and p = 1/2: 1/2 ± z / (n + z²) · sqrt(n/4 + z²/4).
    z = norm.ppf(0.975)
    half = z / (4 + z**2) * np.sqrt(4 / 4 + z**2 / 4)
    assert (accuracy.low, accuracy.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_the_head_that_is_kept_is_that_of_the_loss(uninterrupted, corpus):
    """The predictions by SoftmaxLoss's own forward, pair by pair, give the same accuracy."""
    model, held = uninterrupted.model, corpus.held_out
    loss = SoftmaxLoss(model, 16, 3)
    loss.classifier.load_state_dict(uninterrupted.classifier.state_dict())
    predicted = []
    with torch.no_grad():
        for first, second in zip(held.first, held.second, strict=True):
            features = [model.preprocess([first]), model.preprocess([second])]
            _, logits = loss(features, None)
            predicted.append(uninterrupted.labels[int(logits.argmax())])
    assert accuracy_of(predicted, held.labels) == uninterrupted.accuracy


def test_the_encoder_passed_is_unchanged_bit_for_bit(encoder, corpus):
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    result = finetune(encoder, corpus, replace(FAST, epochs=0.2))
    after = encoder.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not encoder.training
    assert encoder.encode("a man").tolist() != result.model.encode("a man").tolist()


def test_the_caller_s_random_states_and_environment_are_untouched(encoder, corpus, monkeypatch):
    def states():
        legacy = np.random.get_state()  # noqa: NPY002
        return random.getstate(), legacy[1].tolist(), legacy[2:], torch.get_rng_state().tolist()

    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    before, environment = states(), dict(os.environ)
    first = finetune(encoder, corpus, replace(FAST, epochs=0.2))
    assert states() == before
    assert dict(os.environ) == environment
    random.seed(6)
    np.random.seed(6)  # noqa: NPY002
    torch.manual_seed(6)
    assert_same_bits(first, finetune(encoder, corpus, replace(FAST, epochs=0.2)))


def test_the_seed_decides(encoder, corpus):
    one, other = (
        finetune(encoder, corpus, replace(FAST, epochs=0.2, random_state=seed)) for seed in (0, 1)
    )
    assert not torch.equal(one.classifier.weight, other.classifier.weight)


def test_the_steps_are_those_of_a_loop_written_out(encoder, corpus):
    """All pairs in one batch, without dropout, so that the order of pairs is of no account."""
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    pairs, steps, warm = corpus.train, 6, 2
    recipe = replace(FAST, batch_size=len(pairs), epochs=steps, warmup=0.3, weight_decay=0.1)
    result = finetune(encoder, corpus, recipe)

    model = copy.deepcopy(encoder).train()
    torch.manual_seed(0)
    head = nn.Linear(3 * 16, 3)
    named = [*model.named_parameters(), *head.named_parameters()]
    still = [tensor for name, tensor in named if name.endswith("bias") or "LayerNorm" in name]
    moved = [tensor for name, tensor in named if not any(tensor is other for other in still)]
    groups = [{"params": moved, "weight_decay": 0.1}, {"params": still, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate)
    labels = torch.tensor([NLI_LABELS.index(label) for label in pairs.labels])
    for step in range(steps):
        rate = recipe.learning_rate * min(step / warm, (steps - step) / (steps - warm))
        for group in optimizer.param_groups:
            group["lr"] = rate
        u, v = (
            model(model.preprocess(list(texts)))["sentence_embedding"]
            for texts in (pairs.first, pairs.second)
        )
        logits = head(torch.cat([u, v, (u - v).abs()], dim=1))
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert_close(result.classifier.weight, head.weight, rtol=0, atol=2e-5)
    for name, tensor in model.named_parameters():
        # No key bias changes a softmax over keys: its gradient is rounding, which Adam scales.
        if not name.endswith("key.bias"):
            assert_close(result.model.get_parameter(name), tensor, rtol=0, atol=2e-5, msg=name)


def test_warm_up_and_decay_are_linear(encoder, corpus, monkeypatch):
    rates, step = [], siamese._Trainer.training_step

    def listen(self, *arguments, **keywords):
        rates.append(self.lr_scheduler.get_last_lr()[0])
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(siamese._Trainer, "training_step", listen)
    result = finetune(encoder, corpus, replace(FAST, warmup=0.25, epochs=0.5))
    steps = result.provenance["steps"]
    warm = int(np.ceil(0.25 * steps))
    expected = [
        FAST.learning_rate * min(step / warm, (steps - step) / (steps - warm))
        for step in range(steps)
    ]
    assert rates == pytest.approx(expected)


def test_mixed_precision_ends_with_float32_weights_and_vectors(encoder, corpus):
    result = finetune(encoder, corpus, replace(FAST, epochs=0.2, precision="bf16"))
    assert {tensor.dtype for tensor in result.model.parameters()} == {torch.float32}
    with torch.no_grad():
        vector = result.model(result.model.preprocess(["a man eats"]))["sentence_embedding"]
    assert vector.dtype == torch.float32
    # Rounded to 8 bits it would be equal to this.
    assert not torch.equal(vector, vector.bfloat16().float())
    assert result.provenance["recipe"]["precision"] == "bf16"


@pytest.mark.parametrize(
    ("kind", "pooling", "layers"),
    [("bert", "layers:1", None), ("bert", "first-last-avg", [1, 3]), ("llama", "layers:1", [1])],
)
def test_other_poolings_train_and_frozen_mixtures_stay(request, corpus, kind, pooling, layers):
    encoder = load_encoder(request.getfixturevalue(f"tiny_{kind}"), pooling=pooling, device="cpu")
    result = finetune(encoder, corpus, replace(FAST, epochs=0.2))
    assert result.provenance["encoder"]["layers"] == layers
    changed = [
        name
        for name, tensor in encoder.named_parameters()
        if not torch.equal(tensor, result.model.get_parameter(name))
    ]
    assert any("embed" in name for name in changed)
    assert not any("layer_weights" in name for name in changed)


def test_a_prompt_is_trained_with_as_it_is_encoded_with(encoder, corpus):
    plain = finetune(encoder, corpus, replace(FAST, epochs=0.2))
    encoder.prompts, encoder.default_prompt_name = {"nli": "the man reads : "}, "nli"
    prompted = finetune(encoder, corpus, replace(FAST, epochs=0.2))
    assert plain.loss_curve[0] != prompted.loss_curve[0]


def test_progress_goes_step_by_step_and_nothing_is_printed(encoder, corpus, capfd):
    seen = []
    result = finetune(
        encoder, corpus, replace(FAST, epochs=0.5), progress=lambda *report: seen.append(report)
    )
    steps = result.provenance["steps"]
    assert [report for report in seen if report[0] == "train"] == [
        ("train", step, steps) for step in range(1, steps + 1)
    ]
    assert seen[-1][0] == "encode"
    assert seen[-1][1] == seen[-1][2]
    assert capfd.readouterr() == ("", "")


def test_a_loss_that_is_not_finite_names_its_step(encoder, corpus):
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) at step \d+ of 48"):
        finetune(encoder, corpus, replace(FAST, learning_rate=1e30, max_grad_norm=0, epochs=4))


def test_weights_that_are_not_finite_after_the_last_step_are_refused(encoder, corpus, monkeypatch):
    step = siamese._Trainer.training_step

    def broken(self, model, *args, **kwargs):
        loss = step(self, model, *args, **kwargs)
        if self.state.global_step == self.state.max_steps - 1:
            next(model.parameters()).data[0] = float("nan")
        return loss

    monkeypatch.setattr(siamese._Trainer, "training_step", broken)
    with pytest.raises(TrainingError, match="weights are not finite after step 12 of 12"):
        finetune(encoder, corpus, FAST)


@pytest.mark.parametrize("spoilt", ["loss", "weights"])
def test_the_last_checkpoint_is_from_before_what_is_not_finite(
    encoder, corpus, monkeypatch, tmp_path, spoilt
):
    recipe = replace(FAST, checkpoint_steps=2)
    whole = finetune(encoder, corpus, recipe)
    step = siamese._Trainer.training_step

    def broken(self, model, *args, **kwargs):
        loss = step(self, model, *args, **kwargs)
        if self.state.global_step == 5:
            if spoilt == "loss":
                raise TrainingError("the loss is nan")
            next(model.parameters()).data[0] = float("nan")
        return loss

    monkeypatch.setattr(siamese._Trainer, "training_step", broken)
    reason = "the loss is nan" if spoilt == "loss" else "weights are not finite after step 6 of 12"
    for _ in range(2):  # Again, from the checkpoint.
        with pytest.raises(TrainingError, match=reason):
            finetune(encoder, corpus, recipe, checkpoints=tmp_path / "c")
        assert [path.name for path in (tmp_path / "c").glob("checkpoint-*")] == ["checkpoint-4"]
    monkeypatch.undo()
    again = finetune(encoder, corpus, recipe, checkpoints=tmp_path / "c")
    assert again.resumed_at == 4
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)


def test_another_process_on_the_same_checkpoints_is_refused(encoder, corpus, tmp_path):
    with (
        sole_writer(tmp_path / "c", tmp_path / ".c.lock"),
        pytest.raises(ModelError, match="another process is writing it"),
    ):
        finetune(encoder, corpus, FAST, checkpoints=tmp_path / "c")
    finetune(encoder, corpus, FAST, checkpoints=tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("missing", [["datasets"], ["accelerate", "datasets"]])
def test_a_missing_package_is_told_as_the_pip_line(encoder, corpus, monkeypatch, missing):
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None if name in missing else True)
    with pytest.raises(MissingDependencyError) as told:
        finetune(encoder, corpus)
    assert str(told.value) == (
        f"fine-tuning needs {' and '.join(missing)}: pip install 'bertflow[train]'"
    )


def test_half_precision_weights_are_refused(tiny_bert, corpus):
    encoder = load_encoder(tiny_bert, pooling="mean", device="cpu", dtype="bfloat16")
    with pytest.raises(InputError, match="weights are bfloat16.*load it in float32"):
        finetune(encoder, corpus)


# Interruption.


def test_a_checkpoint_changes_no_bit_and_holds_the_classifier(
    encoder, corpus, uninterrupted, tmp_path
):
    folder = tmp_path / "run"
    result = finetune(encoder, corpus, FAST, checkpoints=folder)
    assert_same_bits(result, uninterrupted)
    (checkpoint,) = folder.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{result.provenance['steps']}"
    assert len(json.loads((checkpoint / "run.json").read_text())["losses"]) == 12
    saved = load_file(checkpoint / "classifier.safetensors")
    assert torch.equal(saved["weight"], result.classifier.weight)
    assert (result.resumed_at, result.discarded) == (0, [])
    assert result.checkpoints == folder


@pytest.mark.parametrize(
    "points", [4, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2))]
)
def test_a_point_of_the_loss_curve_that_spans_a_checkpoint_is_the_same(
    encoder, corpus, tmp_path, monkeypatch, points
):
    seen, step = [], siamese._Trainer.training_step

    def watched(self, *args, **kwargs):
        seen.append(float(step(self, *args, **kwargs)))
        return torch.tensor(seen[-1])

    # Points after every 3rd, 6th and 12th step, of which the checkpoints are in the midst.
    monkeypatch.setattr(siamese, "POINTS", points)
    with monkeypatch.context() as patch:
        patch.setattr(siamese._Trainer, "training_step", watched)
        whole = finetune(encoder, corpus, FAST)
    every = 12 // points
    assert [at for at, _ in whole.loss_curve] == list(range(every, 13, every))
    means = [np.mean(seen[at - every : at]) for at, _ in whole.loss_curve]
    np.testing.assert_allclose([loss for _, loss in whole.loss_curve], means, rtol=1e-12)
    for number in (5, 10):
        with pytest.raises(Stop):
            finetune(encoder, corpus, FAST, checkpoints=tmp_path, progress=stop_at(number))
    result = finetune(encoder, corpus, FAST, checkpoints=tmp_path)
    assert result.resumed_at == 8
    assert result.loss_curve == whole.loss_curve


@pytest.mark.parametrize("stops", [(1,), (6,), pytest.param((5, 9, 11), marks=pytest.mark.nightly)])
def test_an_interrupted_run_ends_with_the_same_bits(
    encoder, corpus, uninterrupted, tmp_path, stops
):
    assert uninterrupted.provenance["steps"] == 12
    for number in stops:
        with pytest.raises(Stop):
            finetune(encoder, corpus, FAST, checkpoints=tmp_path, progress=stop_at(number))
    result = finetune(encoder, corpus, FAST, checkpoints=tmp_path)
    # A step is told before it is saved.
    assert result.resumed_at == (stops[-1] - 1) // 4 * 4
    assert_same_bits(result, uninterrupted)
    assert result.accuracy == uninterrupted.accuracy
    assert result.loss_curve == uninterrupted.loss_curve


def test_so_does_one_of_a_causal_model_cut_low(tiny_llama, corpus, tmp_path):
    encoder = load_encoder(tiny_llama, pooling="layers:1", device="cpu")
    recipe = replace(FAST, epochs=0.5)
    whole = finetune(encoder, corpus, recipe)
    with pytest.raises(Stop):
        finetune(encoder, corpus, recipe, checkpoints=tmp_path, progress=stop_at(6))
    assert_same_bits(finetune(encoder, corpus, recipe, checkpoints=tmp_path), whole)


@pytest.mark.parametrize("epochs", [1.75, pytest.param(2, marks=pytest.mark.nightly)])
def test_so_does_one_over_several_epochs(encoder, corpus, tmp_path, epochs):
    recipe = replace(FAST, epochs=epochs, checkpoint_steps=6)
    whole = finetune(encoder, corpus, recipe)
    for number in (14, 20):  # After the first epoch's end, and in the midst of the second.
        with pytest.raises(Stop):
            finetune(encoder, corpus, recipe, checkpoints=tmp_path, progress=stop_at(number))
    assert_same_bits(finetune(encoder, corpus, recipe, checkpoints=tmp_path), whole)


def test_a_run_that_stopped_after_its_last_step_is_only_measured(encoder, corpus, tmp_path):
    recipe = replace(FAST, epochs=0.5)
    whole = finetune(encoder, corpus, recipe, checkpoints=tmp_path)
    seen = []
    again = finetune(
        encoder,
        corpus,
        replace(recipe, checkpoint_steps=7),
        checkpoints=tmp_path,
        progress=lambda *report: seen.append(report[0]),
    )
    assert set(seen) == {"encode"}
    assert again.resumed_at == whole.provenance["steps"]
    assert_same_bits(again, whole)
    assert again.loss_curve == whole.loss_curve


@pytest.fixture(scope="module")
def stopped(tiny_bert, corpus, tmp_path_factory):
    """The folder of a run that was stopped after step 10, and what the run depends on."""
    folder = tmp_path_factory.mktemp("stopped")
    encoder = load_encoder(tiny_bert, pooling="mean", device="cpu")
    with pytest.raises(Stop):
        finetune(encoder, corpus, FAST, checkpoints=folder, progress=stop_at(10))
    return folder, json.loads((folder / "checkpoint-8/run.json").read_text())["run"]


@pytest.mark.parametrize("damage", ["unlisted", "cut", "no classifier", "an earlier version's"])
def test_a_checkpoint_that_is_not_whole_does_not_count(stopped, tmp_path, damage):
    folder, run = shutil.copytree(stopped[0], tmp_path / "copy"), stopped[1]
    checkpoint = folder / "checkpoint-8"
    assert last_checkpoint(folder, run) == (checkpoint, [])
    if damage == "unlisted":
        (checkpoint / "run.json").unlink()
    elif damage == "cut":
        file = checkpoint / "optimizer.pt"
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "no classifier":
        (checkpoint / "classifier.safetensors").unlink()
    else:
        record = json.loads((checkpoint / "run.json").read_text())
        (checkpoint / "run.json").write_text(json.dumps({**record, "losses": [1.0]}))
    assert last_checkpoint(folder, run) == (None, [])


def test_interrupted_while_it_saves_the_one_before_is_gone_on_from(
    encoder, corpus, uninterrupted, tmp_path, monkeypatch
):
    save = SentenceTransformerTrainer._save_rng_state

    def interrupted(self, folder):
        if self.state.global_step == 8:
            raise KeyboardInterrupt
        save(self, folder)

    with monkeypatch.context() as patched:
        patched.setattr(SentenceTransformerTrainer, "_save_rng_state", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finetune(encoder, corpus, FAST, checkpoints=tmp_path)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    result = finetune(encoder, corpus, FAST, checkpoints=tmp_path)
    assert result.resumed_at == 4
    assert_same_bits(result, uninterrupted)


def test_what_a_run_depends_on_is_compared(stopped, encoder, data, corpus, tmp_path):
    assert stopped[1].keys() == {"recipe", "corpus", "encoder", "device"}
    assert stopped[1]["corpus"] == corpus.digest()
    assert stopped[1]["corpus"] != nli_corpus(["snli"], data, held_out=0.2, limit=59).digest()
    for number, name in enumerate(stopped[1]):
        folder = shutil.copytree(stopped[0], tmp_path / str(number))
        assert last_checkpoint(folder, {**stopped[1], name: "other"}) == (None, [name])


def test_checkpoints_of_another_run_are_discarded_and_said_to_be(
    encoder, corpus, stopped, tmp_path
):
    folder = shutil.copytree(stopped[0], tmp_path / "copy")
    other = replace(FAST, learning_rate=1e-3)
    result = finetune(encoder, corpus, other, checkpoints=folder)
    assert (result.resumed_at, result.discarded) == (0, ["recipe"])


def test_a_moved_encoder_is_still_the_same_run(encoder, corpus, stopped, tmp_path):
    folder = shutil.copytree(stopped[0], tmp_path / "copy")
    encoder[0].model.config._name_or_path = "elsewhere"
    with pytest.raises(Stop):
        finetune(encoder, corpus, FAST, checkpoints=folder, progress=stop_at(9))
    assert (folder / "checkpoint-8").is_dir()


def test_a_folder_of_something_else_is_refused_and_untouched(encoder, corpus, tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ModelError, match=r"holds mine.txt, which bertflow did not write"):
        finetune(encoder, corpus, FAST, checkpoints=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-4", "mine.txt"}


# Saving.


def test_what_is_saved_loads_plainly_and_by_every_pooling(encoder, corpus, tmp_path):
    result = finetune(encoder, corpus, replace(FAST, epochs=0.5), checkpoints=tmp_path / "run")
    folder = tmp_path / "saved"
    save_finetuned(result, folder)
    assert not (tmp_path / "run").exists()
    sentences = [" ".join(WORDS[start : start + 6]) for start in range(20)]
    expected = result.model.encode(sentences)
    kinds = [entry["type"] for entry in json.loads((folder / "modules.json").read_text())]
    assert all(kind.startswith("sentence_transformers.models.") for kind in kinds)
    assert np.array_equal(
        SentenceTransformer(str(folder), device="cpu").encode(sentences), expected
    )
    mean = load_encoder(folder, pooling="mean", device="cpu")
    assert np.array_equal(mean.encode(sentences), expected)
    seen = [expected]
    for pooling in ("last2avg", "first-last-avg"):
        pooled = load_encoder(folder, pooling=pooling, device="cpu")
        assert pooled[0].model.config.num_hidden_layers == 3
        vectors = pooled.encode(sentences)
        assert all(np.abs(vectors - other).max() > 1e-3 for other in seen)
        seen.append(vectors)


def test_what_is_written_beside_it_says_how_it_came_about(uninterrupted, corpus, tmp_path):
    save_finetuned(uninterrupted, tmp_path / "saved")
    facts = json.loads((tmp_path / "saved/finetuning.json").read_text())
    assert facts["labels"] == list(NLI_LABELS)
    assert facts["accuracy"]["value"] == uninterrupted.accuracy.value
    assert facts["accuracy"]["low"] <= facts["accuracy"]["value"] <= facts["accuracy"]["high"]
    assert facts["counts"] == corpus.counts
    assert facts["recipe"] == {**vars(FAST), "precision": "float32"}
    assert facts["sets"][0]["splits"] == ["dev", "test"]
    assert facts["division"] == {"held_out": 0.2, "random_state": 0, "limit": 60}
    assert len(facts["encoder"]["weights"]) == 64
    assert {"bertflow", "torch", "accelerate", "datasets"} <= facts["versions"].keys()
    assert facts["seconds"] >= 0
    saved = load_file(tmp_path / "saved/classifier.safetensors")
    assert torch.equal(saved["weight"], uninterrupted.classifier.weight)
    assert saved["weight"].shape == (3, 48)


def test_its_card_says_what_it_is_how_it_was_trained_and_what_it_gets(uninterrupted, tmp_path):
    save_finetuned(uninterrupted, tmp_path / "saved")
    card = ModelCard((tmp_path / "saved/README.md").read_text())
    assert card.data.library_name == "sentence-transformers"
    assert {"sentence-transformers", "bertflow"} <= set(card.data.tags)
    accuracy = uninterrupted.accuracy
    for told in (
        ", fine-tuned on NLI",
        f"{sum(uninterrupted.counts['train'].values())} labelled pairs of sentences (snli)",
        f"| {accuracy.pairs} | {accuracy.value:.1%} | {accuracy.low:.1%} to {accuracy.high:.1%} |",
        f"{uninterrupted.provenance['steps']} steps of {FAST.batch_size} pairs",
        "The encoder's is not known here",
        "## Limits",
    ):
        assert told in card.text, told
    assert "dataset_size" not in card.content  # sentence-transformers' own card has these.
    assert str(tmp_path.parent) not in card.content
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    again.save_pretrained(str(tmp_path / "again"))
    assert (tmp_path / "again/README.md").read_text() == card.content


def test_no_sentence_of_the_corpus_is_in_the_saved_folder(uninterrupted, corpus, tmp_path):
    save_finetuned(uninterrupted, tmp_path / "saved")
    text = (tmp_path / "saved/README.md").read_text()
    assert not any(sentence in text for sentence in corpus.train.first)


def test_a_folder_of_others_is_refused_and_the_checkpoints_stay(encoder, corpus, tmp_path):
    run, folder = tmp_path / "run", tmp_path / "saved"
    result = finetune(encoder, corpus, replace(FAST, epochs=0.2), checkpoints=run)
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ModelError, match=r"mine.txt"):
        save_finetuned(result, folder)
    assert list(run.glob("checkpoint-*"))
