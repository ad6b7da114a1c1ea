"""The README.md of a fine-tuned encoder: what it is, how it was trained, accuracy and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertflow.calibrators.card import (
    PAPER,
    code,
    encoder_facts,
    encoder_named,
    fenced,
    front_matter,
    last_part,
    origin_metadata,
    table,
    text,
)
from bertflow.models.card import PLAIN, TAGS, licence_text

if TYPE_CHECKING:
    from bertflow.finetuning.result import FineTuned

SBERT = (
    "Nils Reimers, Iryna Gurevych: *Sentence-BERT: Sentence Embeddings using Siamese "
    "BERT-Networks*, EMNLP 2019."
)
LIMITS = (
    "The accuracy is that of the classifier on pairs like those it was trained on. How well the "
    "cosine ranks sentences is another matter, which `bertflow evaluate` measures.",
    "Its vectors may still crowd around a common direction; `bertflow diagnose` tells, and a "
    "calibrator fitted behind it (`bertflow fit --encoder`) mends that without labels.",
    "What it has learned of sentences it has learned from these data sets, with their language, "
    "their fields and their biases.",
)


def finetuned_card(result: FineTuned) -> str:
    """The card of what `finetune` gave."""
    told = result.provenance
    encoder = encoder_named(told)
    origin = told["origin"] if isinstance(told.get("origin"), Mapping) else {}
    metadata = origin_metadata(origin)
    name = metadata.get("base_model") or told["encoder"].get("name")
    train, held_out = (sum(result.counts[side].values()) for side in ("train", "held_out"))
    sets = ", ".join(dict.fromkeys(text(one["name"]) for one in told["sets"]))
    return "\n".join(
        [
            "---",
            front_matter(
                library_name="sentence-transformers",
                pipeline_tag="sentence-similarity",
                tags=[*TAGS, "bertflow"],
                **metadata,
            ),
            "---\n",
            f"# {text(last_part(str(name)) if name else 'An encoder')}, fine-tuned on NLI\n",
            f"An encoder, {encoder}, trained further on {train:,} labelled pairs of sentences "
            f"({sets}), both through the same weights. Sentences become vectors of "
            f"{told['encoder']['width']:,} dimensions, to be compared by cosine similarity.\n",
            "## Use\n",
            fenced(PLAIN),
            "## How it was made\n",
            table({"encoder": encoder, **_training(told, train, held_out, sets)}),
            "## Accuracy on held-out pairs\n",
            _accuracy(result),
            "## Limits\n",
            *(f"- {limit}" for limit in LIMITS),
            "\n## Licence\n",
            f"{licence_text(metadata.get('license'), origin)} What the licences of the data sets "
            "ask for is not looked at here.\n",
            "## Source\n",
            f"- {SBERT}",
            f"- {PAPER}",
            "",
        ]
    )


def _training(told: Mapping[str, Any], train: int, held_out: int, sets: str) -> dict[str, str]:
    recipe = told["recipe"]
    return {
        **encoder_facts(told["encoder"]),
        "objective": code("softmax(W [u, v, |u - v|] + b)") + " by cross entropy",
        "data": f"{sets}: {train:,} pairs to train on, {held_out:,} held out",
        "epochs": f"{recipe['epochs']:g}, {told['steps']:,} steps of {recipe['batch_size']} pairs",
        "learning rate": (
            f"{recipe['learning_rate']:g} at most, after a warm-up of {recipe['warmup']:.0%} of "
            "the steps; AdamW"
        ),
        "weight decay": f"{recipe['weight_decay']:g}",
        "seed": str(recipe["random_state"]),
        "precision": f"{code(recipe['precision'])} on {code(told['device'])}",
        "cut": f"{told['cut_to_max_length']:,} of the sentences were longer than the encoder takes",
        "versions": ", ".join(f"{text(k)} {text(v)}" for k, v in told["versions"].items()),
    }


def _accuracy(result: FineTuned) -> str:
    found = result.accuracy
    return "\n".join(
        [
            "| pairs | accuracy | 95 % interval | always saying the most frequent label |",
            "|---:|---:|---:|---:|",
            f"| {found.pairs:,} | {found.value:.1%} | {found.low:.1%} to {found.high:.1%} | "
            f"{found.majority:.1%} ({found.majority_label}) |",
            "",
            "Of each label: "
            + ", ".join(f"{label} {share:.1%}" for label, share in found.recall.items())
            + ".\n",
        ]
    )
