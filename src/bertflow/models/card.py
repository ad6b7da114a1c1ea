"""The README.md of a saved model: what it is, how it was made, what it scores, how to use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from bertflow.calibrators.readme import (
    HERE,
    LIMITS,
    WHAT,
    calibrator_name,
    code,
    encoder_facts,
    encoder_named,
    fenced,
    front_matter,
    last_part,
    made_of,
    origin_metadata,
    preset_of,
    table,
    text,
)
from bertflow.encoders.description import METADATA, describe_settings
from bertflow.encoders.module import CalibratorModule

if TYPE_CHECKING:
    from bertflow.models.calibrated import CalibratedSentenceTransformer

# In every card that sentence-transformers makes by itself. It says of a model that it was trained.
GENERATED = "This is a [sentence-transformers](https://www.SBERT.net) model"
SCORES, SCORES_END = "<!-- scores -->", "<!-- end of scores -->"
# sentence-transformers' own, in the order of its own cards.
TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction")
MEASURES = {"spearman": "Spearman", "pearson": "Pearson", "auc": "AUC"}
HALF = (
    "In half precision sentence-transformers casts what calibrates as well, which costs digits; "
    "bertflow keeps it in float32."
)
NEEDS_BERTFLOW = (
    "sentence-transformers loads it only where bertflow is installed, with "
    "`trust_remote_code=True`."
)
PLAIN = f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{HERE}")
vectors = model.encode(["Any sentence.", "Another one."])
print(model.similarity(vectors, vectors))"""
OURS = f"""import bertflow

model = bertflow.load("{HERE}")
vectors = model.encode(["Any sentence.", "Another one."])
print(model.calibrator)"""


def card_of(model: CalibratedSentenceTransformer) -> str:
    """A model's card, whose code loads from a stand-in for its place.

    The card that the model was loaded with may have been edited, and stays apart from new scores,
    unless sentence-transformers has generated it: that says of the model that it was trained.
    """
    card = model._card or ""
    if not card.strip() or GENERATED in card:
        card = _new_card(model)
    return with_scores(card, model._scores) if model._scores else card


def fitted_settings(model: CalibratedSentenceTransformer) -> dict[str, Any]:
    """What `describe_settings` gives, with the name of the encoder that was fitted on."""
    settings = describe_settings(model)
    if model._card is not None:  # The name is that of the folder that the model was loaded from.
        settings["name"] = None
    fitted = getattr(model.calibrator, "provenance_", {}).get("encoder")
    return {**settings, "name": fitted.get("name")} if isinstance(fitted, Mapping) else settings


def _new_card(model: CalibratedSentenceTransformer) -> str:
    calibrator, owner = model.calibrator, model.model_card_data
    kind = type(calibrator).__name__
    what, source = WHAT[kind]
    # What the calibrator was fitted on says more than the encoder that is there now.
    provenance = dict(getattr(calibrator, "provenance_", {}))
    if not isinstance(provenance.get("encoder"), Mapping):
        provenance["encoder"] = fitted_settings(model)
    if not isinstance(provenance.get("origin"), Mapping):
        provenance["origin"] = model._origin if isinstance(model._origin, Mapping) else {}
    origin = origin_metadata(provenance["origin"])
    encoder, name = encoder_named(provenance), provenance["encoder"].get("name")
    base = last_part(str(origin.get("base_model") or name or "An encoder"))
    title = owner.model_name or f"{base}, calibrated ({preset_of(calibrator)[0]})"
    licence = owner.license or origin.get("license")
    portable = not any(isinstance(module, CalibratorModule) for module in model)
    extra = [tag for tag in owner.tags or () if tag not in (*TAGS, "dense", "bertflow")]
    metadata = front_matter(
        library_name="sentence-transformers" if portable else "bertflow",
        pipeline_tag="sentence-similarity",
        tags=[*TAGS[0 if portable else 1 :], "bertflow", calibrator_name(calibrator), *extra],
        language=owner.language or None,
        **{**origin, "license": licence},
    )
    made = {**encoder_facts(provenance["encoder"]), **made_of(calibrator)}
    limits = "\n".join(f"- {limit}" for limit in (*LIMITS, HALF if portable else NEEDS_BERTFLOW))
    template = (files("bertflow.models") / "card.md").read_text(encoding="utf-8")
    return template.format(
        metadata=metadata,
        title=text(title),
        encoder=encoder,
        what=what,
        width=model.get_embedding_dimension() or 0,
        use=_use(kind, portable),
        made=table({"encoder": encoder, **made}),
        scores=_scores_part(()),
        limits=limits,
        licence=licence_text(licence, provenance["origin"]),
        source=source,
    )


def _use(kind: str, portable: bool) -> str:
    more = ", density and sampling" if kind == "Flow" else ""
    own = f"which has the calibrator besides, with its inverse{more}:\n\n{fenced(OURS)}"
    if portable:
        plain = f"With sentence-transformers alone:\n\n{fenced(PLAIN)}"
        return f"{plain}\nWith bertflow, {own}"
    return f"This model has a module of bertflow's own, so that it needs bertflow, {own}"


def with_scores(content: str, scores: Sequence[Any]) -> str:
    """A card with these scores in their place, or at its end, and in its metadata."""
    from huggingface_hub import EvalResult, ModelCard

    shown = _scores_part(scores)
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


def _scores_part(scores: Sequence[Any]) -> str:
    return f"{SCORES}\n{scores_text(scores)}\n{SCORES_END}"


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
