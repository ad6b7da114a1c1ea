"""Texts longer than an encoder takes: their number is reported wherever texts are encoded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bertflow import Whitening, calibrate, load_encoder
from bertflow.data import Pairs
from bertflow.encoders import SentenceCache
from bertflow.encoders.embedding import count_cut_of
from bertflow.evaluation import compare, evaluate, score_all, score_pairs
from task_files import write_tasks

LONG = ["the dog eats bread . " * 9, "a cat runs . " * 20, "two men play , " * 12]
SHORT = [f"the {noun} runs ." for noun in ("dog", "cat", "man", "woman", "bird", "bus", "car")]


@pytest.fixture(autouse=True)
def no_data_but_what_a_test_writes(monkeypatch):
    monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    monkeypatch.setattr("bertflow.data.sources.hub_answers", lambda: False)


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu", max_length=16)


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        (a, b, n) for n, (a, b) in enumerate(zip([*LONG, *SHORT], [*SHORT, *LONG], strict=True))
    ]
    lines = [f"{a}\t{b}\t{gold}\n" for a, b, gold in rows]
    Path("mine.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(lines))
    Path("s.txt").write_text("".join(f"{text}\n" for text in [*LONG, *SHORT * 2]))
    return tmp_path


def pairs(task: str, first, second) -> Pairs:
    gold = [float(n) for n in range(len(first))]
    return Pairs(task, "test", first, second, gold, "here")


def test_lengths_are_tokens_not_characters(tiny_bert):
    encoder = load_encoder(tiny_bert, device="cpu", max_length=16)
    ascii_text = ["a" * 16, "a" * 17]
    assert count_cut_of(encoder, ["a" * 50]) == 0  # One word is one token.
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = {"pad_token": letters[0], "unk_token": letters[1]}
    for normalizer, texts, cut in [
        (None, [*ascii_text, "\N{GRINNING FACE}" * 4, "\N{GRINNING FACE}" * 5], 2),
        (None, ["\u72d7" * 5, "\u72d7" * 6], 1),
        (normalizers.NFKC(), ["\ufdfa", "a\u0301"], 1),
    ]:
        tokens = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
        tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        if normalizer is not None:
            tokens.normalizer = normalizer
        encoder[0].processor = PreTrainedTokenizerFast(
            tokenizer_object=tokens, model_max_length=16, **names
        )
        assert count_cut_of(encoder, texts) == cut


def test_the_tokens_of_a_prompt_count(tiny_bert):
    encoder = load_encoder(tiny_bert, device="cpu", max_length=16)
    text = "the dog eats bread and runs"
    assert count_cut_of(encoder, [text, "a dog"]) == 0
    encoder.prompts, encoder.default_prompt_name = {"query": "a man eats , " * 3}, "query"
    assert count_cut_of(encoder, [text, "a dog"]) == 1


def test_a_score_knows_how_many_of_its_distinct_texts_were_cut(encoder, tmp_path):
    one = pairs("a", [*LONG, *LONG], [*SHORT[:3], *SHORT[:3]])
    other = pairs("b", SHORT[:3], [LONG[0], *SHORT[3:5]])
    ungraded = Pairs("c", "test", [LONG[0], *SHORT[:2]], SHORT[2:5], [None, 1.0, 2.0], "here")
    cache = SentenceCache(tmp_path / "cache")
    for _ in range(2):  # Also where all vectors are in the cache.
        found = score_all(encoder, [one, other, ungraded], cache=cache)
        assert [(score.cut, score.texts) for score in found] == [(3, 6), (1, 6), (0, 4)]
    assert found[0].to_dict()["cut"] == 3


def test_a_calibrated_model_cuts_what_its_encoder_cuts(encoder):
    model = calibrate(encoder, [*LONG, *SHORT], Whitening(dim=2))
    assert model.calibrator.provenance_["cut_to_max_length"] == 3
    assert score_pairs(model, pairs("a", LONG, SHORT[:3])).cut == 3


def test_a_comparison_knows_how_many_were_cut(encoder):
    given = pairs("mine", [*LONG, *SHORT], [*SHORT, *LONG])
    found = compare(encoder, [given], methods=["none", "standardization"], jobs=1)
    assert (found.cut, found.sentences) == (3, 10)
    assert json.loads(json.dumps(found.to_dict()))["cut"] == 3


def cut_line(out: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith("cut ")]
    return line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["evaluate", "--pairs", "mine.tsv"], "3 of 10 distinct texts are longer than 16 tokens"),
        (
            ["compare", "--pairs", "mine.tsv", "--method", "none", "--jobs", "1"],
            "3 of 10 distinct texts are longer than 16 tokens",
        ),
        (["diagnose", "--corpus", "s.txt", "--limit", "30"], "3 sentences are longer than the"),
        (["analyze lexical", "--pairs", "mine.tsv"], "3 distinct texts are longer than the"),
        (["analyze isotropy", "--corpus", "s.txt"], "3 sentences are longer than the"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_command_that_encodes_says_how_many_were_cut(work, done, tiny_bert, command, said):
    if command[0] == "diagnose":
        Path("s.txt").write_text("\n".join([*LONG, *(" ".join(["the"] * n) for n in range(1, 14))]))
    name, *options = command
    how = [*name.split(), tiny_bert, *options, "--max-length", "16", "--device", "cpu"]
    out = done(*how, "--json", "out.json", "--markdown", "out.md")
    assert said in cut_line(out)
    assert said in Path("out.md").read_text()
    content = json.loads(Path("out.json").read_text())
    scores = content.get("scores", {"": content})
    assert [one["cut"] for one in scores.values()] == [3]


def test_several_tasks_say_of_which_the_cut_texts_are(done, tmp_path, tiny_bert):
    data = write_tasks(tmp_path / "data", "stsb", "sick-r")
    path = data / "senteval/STS/STSBenchmark/sts-test.csv"
    path.write_text(path.read_text() + f"g\tf\ty\t1\t2.5\t{LONG[0]}\t{SHORT[0]}\n")
    out = done("evaluate", tiny_bert, "--task", "stsb,sick-r", "--data", data)
    assert "longer than 32 tokens: stsb 1" in cut_line(out)


@pytest.mark.slow
def test_fine_tuning_says_how_many_were_cut(done, tmp_path, tiny_bert):
    data = write_tasks(tmp_path / "data", "snli")
    path = data / "nli/snli_dev.jsonl"
    row = {"gold_label": "neutral", "sentence1": LONG[0], "sentence2": SHORT[0]}
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    out = done(
        *["finetune", "--encoder", tiny_bert, "--nli", "snli", "--data", data],
        *["--output", tmp_path / "out", "--epochs", "0.1", "--device", "cpu"],
    )
    assert "1 distinct sentences are longer than 32 tokens" in out
    facts = json.loads((tmp_path / "out/finetuning.json").read_text())
    assert facts["cut_to_max_length"] == 1


def test_rows_are_tied_to_their_cosines(encoder, tmp_path):
    place = tmp_path / "QNLI"
    place.mkdir()
    rows = [
        f"{n}\tthe dog {'runs ' * n}\ta cat .\t{label}"
        for n, label in [
            (40, "entailment"),
            (3, "not_entailment"),
            (11, "entailment"),
            (5, "not_entailment"),
        ]
    ]
    lines = [*rows[:2], "7\tq", "8\tq\ts", *rows[2:]]
    (place / "dev.tsv").write_text("index\tquestion\tsentence\tlabel\n" + "\n".join(lines) + "\n")
    score = evaluate(encoder, "qnli", data=tmp_path)
    assert (sum(score.scored.values()), sum(score.skipped.values())) == (4, 2)
    assert list(zip(score.graded.rows, score.graded.gold, strict=True)) == [
        ("40", 1.0),
        ("3", 0.0),
        ("11", 1.0),
        ("5", 0.0),
    ]
    assert score.cosines.shape == (4,)
