"""A fine-tuned encoder with its accuracy, and how it is saved."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from scipy.stats import binomtest
from sentence_transformers import SentenceTransformer
from torch import nn

from bertflow.calibrators.readme import (
    CARD,
    TEXTS,
    encoder_cells,
    encoder_named,
    front_matter,
    last_part,
    origin_metadata,
    table,
    text,
)
from bertflow.io.files import replaced_folder
from bertflow.models.calibrated import name_modules_for_every_version
from bertflow.models.card import TAGS, licence_text

FACTS, CLASSIFIER = "finetuning.json", "classifier.safetensors"


@dataclass(frozen=True)
class Accuracy:
    """How many held-out pairs get their label.

    Attributes:
        value: The share of these, with its 95 % Wilson interval, which takes pairs as independent.
        pairs: How many were held out.
        majority: The accuracy of always saying the most frequent label.
        majority_label: That label.
        recall: By label, the share of its pairs that get it.
    """

    value: float
    low: float
    high: float
    pairs: int
    majority: float
    majority_label: str
    recall: Mapping[str, float]


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned encoder.

    Attributes:
        model: The encoder, in evaluation mode.
        classifier: The head over ``[u, v, |u − v|]`` with which it was trained, on the CPU.
        labels: The labels of the head's outputs, in their order.
        accuracy: On the held-out pairs.
        counts: Of "train" and "held_out", how many pairs have each label.
        loss_curve: Steps and the mean loss since the step before.
        resumed_at: The step of the checkpoint that the run went on from; 0 without one.
        discarded: Parts of the run that differed in a discarded checkpoint, such as "recipe".
        provenance: Recipe, data sets, encoder, versions, device and seconds.
        checkpoints: The folder of the last checkpoint, which `save_finetuned` removes.
    """

    model: SentenceTransformer
    classifier: nn.Linear
    labels: Sequence[str]
    accuracy: Accuracy
    counts: Mapping[str, Mapping[str, int]]
    loss_curve: Sequence[tuple[int, float]]
    resumed_at: int
    discarded: Sequence[str]
    provenance: Mapping[str, Any]
    checkpoints: Path | None


def accuracy_of(predicted: Sequence[str], labels: Sequence[str]) -> Accuracy:
    """Compare predicted labels with the given ones.

    Example:
        >>> accuracy_of(["neutral", "neutral"], ["neutral", "entailment"]).value
        0.5
    """
    totals = Counter(labels)
    hits = Counter(label for label, guess in zip(labels, predicted, strict=True) if label == guess)
    correct = hits.total()
    interval = binomtest(correct, len(labels)).proportion_ci(method="wilson")
    # The first by name of equally frequent labels: the same pairs give the same answer.
    majority_label = min(totals, key=lambda label: (-totals[label], label))
    return Accuracy(
        value=correct / len(labels),
        low=float(interval.low),
        high=float(interval.high),
        pairs=len(labels),
        majority=totals[majority_label] / len(labels),
        majority_label=majority_label,
        recall={label: hits[label] / totals[label] for label in sorted(totals)},
    )


def save_finetuned(result: FineTuned, folder: str | Path) -> None:
    """Save a fine-tuned encoder to a folder, which is then the new one whole, or still the old one.

    The folder is an ordinary sentence-transformers model with a card, its provenance in
    finetuning.json and the head in classifier.safetensors. Then the checkpoints are removed.

    Raises:
        ModelError: The folder holds something that bertflow did not write, or cannot be written.
    """
    facts = {
        "format": 1,
        "labels": list(result.labels),
        "accuracy": asdict(result.accuracy),
        "counts": result.counts,
        **result.provenance,
        "loss_curve": result.loss_curve,
    }
    with replaced_folder(folder) as staging:
        result.model.save_pretrained(str(staging), create_model_card=False)
        (staging / CARD).write_text(finetuned_card(result), encoding="utf-8", newline="\n")
        name_modules_for_every_version(staging / "modules.json")
        (staging / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        save_file(result.classifier.state_dict(), staging / CLASSIFIER)
    if result.checkpoints is not None:
        shutil.rmtree(result.checkpoints, ignore_errors=True)


def finetuned_card(result: FineTuned) -> str:
    """The card of a fine-tuned encoder: how it was trained, accuracy and limits."""
    about = result.provenance
    encoder = encoder_named(about)
    metadata = origin_metadata(about["origin"])
    name = metadata.get("base_model") or about["encoder"].get("name")
    train, held_out = (sum(result.counts[side].values()) for side in ("train", "held_out"))
    template = (files("bertflow.finetuning") / "card.md").read_text(encoding="utf-8")
    return template.format(
        metadata=front_matter(
            library_name="sentence-transformers",
            pipeline_tag="sentence-similarity",
            tags=[*TAGS, "bertflow"],
            **metadata,
        ),
        title=text(last_part(str(name)) if name else "An encoder"),
        about=about,
        encoder=encoder,
        encoder_table=table({"encoder": encoder, **encoder_cells(about["encoder"])}).rstrip("\n"),
        sets=", ".join(dict.fromkeys(text(part["name"]) for part in about["sets"])),
        train=train,
        held_out=held_out,
        versions=", ".join(f"{text(k)} {text(v)}" for k, v in about["versions"].items()),
        accuracy=result.accuracy,
        recall=", ".join(f"{label} {share:.1%}" for label, share in result.accuracy.recall.items()),
        licence=licence_text(metadata.get("license"), about["origin"]),
        paper=TEXTS["Flow"]["source"],
    )
