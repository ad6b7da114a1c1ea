"""The README.md of a saved model: what it is, how it was made, what it scores, how to use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bertflow.calibrators import readme
from bertflow.calibrators.readme import code, text
from bertflow.display.grid import ascii_minus, hundredfold, hundredfold_span
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


def card_of(model: CalibratedSentenceTransformer, name: str | None = None) -> str:
    """A model's card, whose code loads the model by its name on the hub, or a stand-in for that.

    The card that the model was loaded with may have been edited, and stays apart from new scores,
    unless sentence-transformers has generated it: that says of the model that it was trained.
    """
    card = model._card or ""
    if not card.strip() or GENERATED in card:
        card = _new_card(model)
    if model._scores:
        card = _with_scores(card, model._scores)
    return readme.named(card, model.model_card_data.model_id or name or readme.HERE)


def fitted_settings(model: CalibratedSentenceTransformer) -> dict[str, Any]:
    """What `describe_settings` gives, with the name of the encoder that was fitted on."""
    settings, fitted = describe_settings(model), readme.told_of(model.calibrator, "encoder")
    if fitted or model._card is not None:  # A loaded model's is that of its folder.
        settings["name"] = fitted.get("name")
    return settings


def _new_card(model: CalibratedSentenceTransformer) -> str:
    calibrator, owner = model.calibrator, model.model_card_data
    kind, name = type(calibrator).__name__, readme.calibrator_name(calibrator)
    # What the calibrator was fitted on says more than the encoder that is there now.
    about = readme.told_of(calibrator, "encoder") or fitted_settings(model)
    origin = readme.origin_metadata(model._origin)
    encoder = readme.encoder_cells(about, origin)
    base = readme.last_part(str(origin.get("base_model") or about.get("name") or "An encoder"))
    licence = owner.license or origin.get("license")
    portable = not any(isinstance(module, CalibratorModule) for module in model)
    extra = [tag for tag in owner.tags or () if tag not in (*TAGS, "dense", "bertflow")]
    return readme.filled(
        "bertflow.models",
        "card.md",
        metadata=readme.front_matter(
            library_name="sentence-transformers" if portable else "bertflow",
            pipeline_tag="sentence-similarity",
            tags=[*TAGS[0 if portable else 1 :], "bertflow", name, *extra],
            language=owner.language,
            **{**origin, "license": licence},
        ),
        title=text(owner.model_name or f"{base}, calibrated ({readme.preset_of(calibrator)[0]})"),
        encoder=encoder["encoder"],
        **readme.TEXTS[kind],
        width=model.get_embedding_dimension() or 0,
        portable=portable,
        sides=calibrator.query_map_ is not None,
        density=kind == "Flow",
        made=readme.table({**encoder, **readme.made_of(calibrator)}),
        limits=readme.TEXTS["limits"],
        licence=licence_text(licence, model._origin),
    )


def _with_scores(content: str, scores: Sequence[Any]) -> str:
    from huggingface_hub import EvalResult, ModelCard

    numbers = {"hundredfold": hundredfold, "interval": hundredfold_span, "measures": MEASURES}
    how = {"text": text, "last_part": readme.last_part, **numbers}
    table = readme.filled("bertflow.models", "scores.md", scores=scores, **how)
    shown = f"{SCORES}\n{ascii_minus(table)}{SCORES_END}"
    between = re.compile(f"{re.escape(SCORES)}.*?{re.escape(SCORES_END)}", re.DOTALL)
    content, placed = between.subn(lambda _: shown, content, count=1)
    if not placed:
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
                metric_value=round(one.value, 6),
            )
            for score in scores
            if hasattr(score, "task")
            for aggregation, found in score.aggregations.items()
            for measure, one in found.items()
            if one.value is not None
        ]
        return str(card)
    return content


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
