"""The README.md of a saved model: what it is, how it was made, what it scores, how to use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bertflow.calibrators import Calibrator
from bertflow.calibrators.card import (
    HERE,
    LIMITS,
    WHAT,
    code,
    encoder_facts,
    encoder_named,
    fenced,
    front_matter,
    last_part,
    made_of,
    origin_metadata,
    table,
    tag_of,
    text,
)
from bertflow.calibrators.presets import preset_of
from bertflow.encoders.origin import METADATA

# In every card that sentence-transformers makes by itself. It says of a model that it was trained.
GENERATED = "This is a [sentence-transformers](https://www.SBERT.net) model"
SCORES, SCORES_END = "<!-- scores -->", "<!-- end of scores -->"
# sentence-transformers' own, in the order of its own cards.
TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction")
OWN_TAGS = (*TAGS, "dense", "bertflow")
MEASURES = {"spearman": "Spearman", "pearson": "Pearson", "auc": "AUC"}
PLAIN = f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{HERE}")
vectors = model.encode(["Any sentence.", "Another one."])
print(model.similarity(vectors, vectors))"""
OURS = f"""import bertflow

model = bertflow.load("{HERE}")
vectors = model.encode(["Any sentence.", "Another one."])
print(model.calibrator)"""


def model_card(
    calibrator: Calibrator,
    settings: Mapping[str, Any],
    origin: Mapping[str, str],
    *,
    width: int,
    portable: bool,
    card_data: Any = None,
    scores: Sequence[Any] = (),
) -> str:
    """The card of a calibrated model.

    Args:
        calibrator: Fitted.
        settings: What `describe_settings` gives of its encoder.
        origin: What `origin_of` gives of it.
        width: Of the vectors that come out.
        portable: Whether it is made of built-in modules alone.
        card_data: What its owner has set of sentence-transformers' `model_card_data`: license,
            language, model_name and tags.
        scores: Of `bertflow.evaluate`.
    """
    kind = type(calibrator).__name__
    what, source = WHAT[kind]
    # What the calibrator was fitted on says more than the encoder that is there now.
    provenance = dict(getattr(calibrator, "provenance_", {}))
    if not isinstance(provenance.get("encoder"), Mapping):
        provenance["encoder"] = settings
    if not isinstance(provenance.get("origin"), Mapping):
        provenance["origin"] = origin if isinstance(origin, Mapping) else {}
    origin = provenance["origin"]
    encoder = encoder_named(provenance)
    title = (
        getattr(card_data, "model_name", None)
        or f"{_title(provenance)}, calibrated ({preset_of(calibrator)[0]})"
    )
    licence = getattr(card_data, "license", None) or origin_metadata(origin).get("license")
    extra = [tag for tag in getattr(card_data, "tags", None) or () if tag not in OWN_TAGS]
    metadata = front_matter(
        library_name="sentence-transformers" if portable else "bertflow",
        pipeline_tag="sentence-similarity",
        tags=[*TAGS[0 if portable else 1 :], "bertflow", tag_of(calibrator), *extra],
        language=getattr(card_data, "language", None) or None,
        **{**origin_metadata(origin), "license": licence},
    )
    use = [f"With sentence-transformers alone:\n\n{fenced(PLAIN)}"] if portable else []
    more = "has the calibrator besides, with its inverse" + (
        ", density and sampling" if kind == "Flow" else ""
    )
    if portable:
        use.append(f"\nWith bertflow, which {more}:\n\n")
    else:
        use.append(
            "This model has a module of bertflow's own, so that it needs bertflow, which "
            f"{more}:\n\n"
        )
    made = {**encoder_facts(provenance["encoder"]), **made_of(calibrator)}
    content = "\n".join(
        [
            f"---\n{metadata}\n---\n",
            f"# {text(title)}\n",
            f"An encoder, {encoder}, and behind it {what}. The encoder's weights are as they were; "
            "what follows them was fitted without labels, by bertflow. Sentences become vectors of "
            f"{width:,} dimensions, to be compared by cosine similarity.\n",
            "## Use\n",
            f"{''.join(use)}{fenced(OURS)}",
            "## How it was made\n",
            table({"encoder": encoder, **made}),
            "## Scores\n",
            f"{SCORES}\n{scores_text(scores)}\n{SCORES_END}\n",
            "## Limits\n",
            *(f"- {limit}" for limit in (*LIMITS, *_limits(portable))),
            "\n## Licence\n",
            f"{licence_text(licence, origin)}\n",
            "## Source\n",
            source,
            "",
        ]
    )
    return with_scores(content, scores) if scores else content


def renewed(content: str, scores: Sequence[Any]) -> str | None:
    """A card that came with a model, with scores that were added since.

    It may have been edited, and stays what it is apart from that.

    Args:
        content: The card.
        scores: New ones.

    Returns:
        The card, or None if it is none, or one that sentence-transformers has generated, which
        says of a calibrated model that it was trained.
    """
    if not content.strip() or GENERATED in content:
        return None
    return with_scores(content, scores) if scores else content


def with_scores(content: str, scores: Sequence[Any]) -> str:
    """A card with these scores in their place, or at its end, and in its metadata."""
    from huggingface_hub import EvalResult, ModelCard

    shown = f"{SCORES}\n{scores_text(scores)}\n{SCORES_END}"
    between = re.compile(f"{re.escape(SCORES)}.*?{re.escape(SCORES_END)}", re.DOTALL)
    if between.search(content):
        content = between.sub(lambda _: shown, content, count=1)
    else:
        content = f"{content.rstrip()}\n\n## Scores\n\n{shown}\n"
    if not METADATA.match(content):
        return content
    heading = re.search(r"^# (.+)$", content, re.MULTILINE)
    with suppress(Exception):  # A card whose metadata are damaged keeps them.
        card = ModelCard(content)
        data: Any = card.data
        data.model_name = getattr(data, "model_name", None) or (heading[1] if heading else "model")
        data.eval_results = [
            EvalResult(
                task_type="semantic-similarity",
                dataset_type=score.task,
                dataset_name=f"{score.task} {score.split}",
                metric_type=f"{measure}_cosine",
                metric_name=f"{MEASURES[measure]} of cosine ({aggregation})",
                metric_value=round(found[measure].value, 6),
            )
            for score in scores
            for aggregation, found in score.aggregations.items()
            for measure in found
            if found[measure].value is not None
        ]
        return str(card)
    return content


def scores_text(scores: Sequence[Any]) -> str:
    """Scores as a table, each named by its measure and aggregation; or how to have some."""
    if not scores:
        return (
            "None are noted here; `bertflow evaluate` measures them, and with `--card` notes them."
        )
    rows = [
        "| task | pairs | measure of cosine, × 100 | value | 95 % interval |",
        "|---|---:|---|---:|---:|",
    ]
    for score in scores:
        for aggregation, found in score.aggregations.items():
            one = found[score.measure]
            value = "undefined" if one.value is None else f"{100 * one.value:.2f}"
            ends = "" if one.low is None else f"{100 * one.low:.1f} to {100 * one.high:.1f}"
            name = f"{MEASURES[score.measure]}, {aggregation}"
            rows.append(
                f"| {text(score.task)} {text(score.split)} | {sum(score.scored.values()):,} | "
                f"{name} | {value} | {ends} |"
            )
    return "\n".join(["", *rows, ""])


def _title(provenance: Mapping[str, Any]) -> str:
    origin = provenance["origin"]
    name = origin_metadata(origin).get("base_model") or provenance["encoder"].get("name")
    return last_part(str(name)) if name else "An encoder"


def _limits(portable: bool) -> list[str]:
    if portable:
        return [
            "In half precision sentence-transformers casts what calibrates as well, which costs "
            "digits; bertflow keeps it in float32."
        ]
    return [
        "sentence-transformers loads it only where bertflow is installed, with "
        "`trust_remote_code=True`."
    ]


def licence_text(licence: str | None, origin: Mapping[str, str]) -> str:
    """What a card says of the licence."""
    if licence is None:
        return (
            "The encoder's is not known here: look it up before this model, which holds the "
            "encoder's weights, is passed on."
        )
    if licence != origin.get("license"):
        return f"{code(licence)}, by the word of whoever saved this model."
    where = origin.get("license_from", "its card")
    return f"{code(licence)}, the encoder's, by {text(where)}: this model holds its weights."
