"""The calibrated model: an encoder and its calibrator as one SentenceTransformer, saved whole."""

from __future__ import annotations

import copy
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import import_from_string

from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import CARD, HERE, calibrator_name, named, preset_name
from bertflow.calibrators.writing import SUBFOLDER, without_folders, write_calibrator
from bertflow.display import block, facts_table, unfolded
from bertflow.encoders.checks import quietly
from bertflow.encoders.description import (
    describe_encoder,
    describe_settings,
    origin_of,
    vocabulary_hash,
)
from bertflow.encoders.encoder import CALIBRATOR, Encoder, calibrating, part_of
from bertflow.encoders.module import MODULE_PATH, CalibratorModule
from bertflow.encoders.precision import kept_from_half, raise_input
from bertflow.encoders.probe import (
    can_be_loaded,
    check_saved,
    difference,
    is_fingerprint_of,
    probed,
)
from bertflow.errors import InputError, ModelError, shown, warn
from bertflow.io.files import (
    check_replaceable,
    foreign_entries,
    merged_folder,
    replaced_folder,
    write_text,
)
from bertflow.models.card import card_of, fitted_settings
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

# Modules that differ by more than this from their calibrator were trained since.
CHANGED = 0.01


class CalibratedSentenceTransformer(Encoder):
    """A SentenceTransformer whose last modules calibrate, and that knows its calibrator.

    It does everything that a SentenceTransformer of texts does. `save_pretrained` writes a model
    that plain sentence-transformers loads, and beside it the calibrator itself, in `bertflow/`.

    In half precision (`half()`, `bfloat16()`, an encoder loaded so) the encoder alone is: what
    calibrates keeps its weights in float32, and gives float32. Plain sentence-transformers casts
    all of a saved model to the encoder's type.

    Attributes:
        calibrator: The fitted calibrator: inverse, likelihood and sampling are there.
    """

    calibrator: Calibrator
    # Where the encoder comes from, the card that was loaded with the model, and added scores.
    _origin: Mapping[str, str] = MappingProxyType({})
    _card: str | None = None
    _scores: tuple[Any, ...] = ()

    @pinned(seed=True)
    def save(
        self,
        path: str,
        model_name: str | None = None,
        create_model_card: bool = True,
        train_datasets: list[str] | None = None,
        safe_serialization: bool = True,
    ) -> None:
        """Write the model, the calibrator, its provenance and a card into a folder.

        The folder is then the new one whole, or still the old one. One that holds files of others,
        such as a clone of a repository, keeps them: each of ours is moved to its place whole, but
        one after another.

        The card, README.md, is bertflow's own: what was fitted, on what, how to use it, limits and
        licence. One that the model was loaded with stays, as someone may have edited it.

        Args:
            path: The folder, made if it is not there.
            model_name: Its name on the hub, for the code in the card.
            create_model_card: Whether to write a card.
            train_datasets: As in `SentenceTransformer.save`, which ignores it.
            safe_serialization: As there: False writes weights as PyTorch does.

        Raises:
            ModelError: It cannot be written.
        """
        folder = Path(path)
        try:
            shared = folder.is_dir() and bool(foreign_entries(folder))
        except OSError as error:
            raise ModelError(f"cannot write {folder}: {error.strerror or error}") from None
        # A model that was trained further has a card of that, which its trainer knows best.
        trained = "generated_from_trainer" in self.model_card_data.tags
        with merged_folder(folder) if shared else replaced_folder(folder) as staging:
            with quietly():
                SentenceTransformer.save(
                    self,
                    str(staging),
                    model_name=model_name,
                    create_model_card=create_model_card and trained,
                    safe_serialization=safe_serialization,
                )
            for file in staging.rglob("tokenizer.json"):
                forget_settings(file)
            if create_model_card and not trained:
                content = named(card_of(self), self.model_card_data.model_id or model_name or HERE)
                (staging / CARD).write_text(content, encoding="utf-8", newline="\n")
            name_modules_for_every_version(staging / "modules.json")
            if can_be_loaded(self):
                check_saved(staging, self)
            if belongs_to_its_calibrator(self, weights=True):
                (staging / SUBFOLDER).mkdir(exist_ok=True)
                write_calibrator(self.calibrator, staging / SUBFOLDER)
            else:
                told = getattr(self.calibrator, "provenance_", {}).get("encoder")
                fitted, now = told if isinstance(told, Mapping) else {}, describe_settings(self)
                said = "; ".join(
                    f"{name} {shown(now[name])}, fitted with {shown(fitted[name])}"
                    for name in ("pooling", "max_length", "prompt")
                    if fitted.get(name, now[name]) != now[name]
                )
                warn(
                    "the model was trained or set otherwise after it was calibrated "
                    f"({said or 'other vectors'}): its calibrator, which no longer belongs to it, "
                    "is not saved",
                    UserWarning,
                )
        if shared and can_be_loaded(self):  # Files of others may change what is loaded.
            check_saved(folder, self)
        log.info("wrote %s", folder)

    def push_to_hub(self, repo_id: str, *args: Any, **kwargs: Any) -> str:
        """Upload the folder that `save_model` writes, with its card, to the model hub.

        What the calibrator was fitted on is part of it, files and encoder without the folders they
        lie in here. A folder that is given as `local_model_path` goes up as it is.

        Args:
            repo_id: Name of the repository, "user/name"; it is made.
            *args: As in `SentenceTransformer.push_to_hub`.
            **kwargs: As there: private, exist_ok, replace_model_card and others.

        Returns:
            The address of the commit or pull request.

        Raises:
            huggingface_hub.errors.HfHubHTTPError: The hub refuses; nothing is uploaded then.

        Example:
            ``model.push_to_hub("me/calibrated", private=True)``
        """
        calibrator = without_folders(self.calibrator)
        public = copy.copy(self)
        public.calibrator = calibrator
        public._modules = {
            name: CalibratorModule(calibrator) if isinstance(module, CalibratorModule) else module
            for name, module in self._modules.items()
        }
        push = super(CalibratedSentenceTransformer, public).push_to_hub
        return str(push(repo_id, *args, **kwargs))

    def add_scores(self, *scores: Any) -> None:
        """Note what the model scores, for the card that is saved with it.

        Args:
            scores: What `bertflow.evaluate` or `evaluate_all` gave for this model.

        Raises:
            InputError: A score is another model's.

        Example:
            ``model.add_scores(bertflow.evaluate(model, "stsb"))``
        """
        several: list[Any] = []
        for given in scores:
            several += given.scores.values() if hasattr(given, "scores") else [given]
        provenance = getattr(self.calibrator, "provenance_", None)
        own = describe_encoder(self)["weights"], calibrator_name(self.calibrator), provenance
        for score in several:
            name = (score.calibrator or {}).get("name")
            if (score.encoder.get("weights"), name, score.fitted_on) != own:
                raise InputError(
                    f"the score on {score.task} {score.split} is of another model than this one; "
                    "give what bertflow.evaluate says of this model"
                )
        latest = {(score.task, score.split): score for score in (*self._scores, *several)}
        self._scores = tuple(latest.values())

    @property
    def encoder(self) -> SentenceTransformer:
        """The encoder alone: the same modules without those that calibrate."""
        behind = calibrating(self)
        encoder = Encoder(
            modules=[module for module in self if module not in behind], **_settings(self)
        )
        width = self.calibrator.n_features_in_
        encoder.truncate_dim = width if width < (encoder.get_embedding_dimension() or 0) else None
        return encoder

    def facts(self) -> dict[str, str]:
        """What the model is, by name: encoder, pooling, length, width, calibrator and its facts."""
        settings = fitted_settings(self)
        pooling = str(settings["pooling"] or "its own")
        if settings["layers"]:
            pooling += f" of hidden states {', '.join(map(str, settings['layers']))}"
        return {
            "encoder": str(settings["name"] or "without a name"),
            "pooling": pooling,
            "maximum length": f"{self.max_seq_length} tokens",
            "modules": f"{len(self)}, {len(calibrating(self))} of which calibrate",
            "calibrator": f"{preset_name(self.calibrator)}: {self.calibrator!r}",
            **self.calibrator.facts(),
        }

    def extra_repr(self) -> str:
        """The line that comes first where the modules are listed."""
        if not hasattr(self, "calibrator"):
            return ""
        facts = [f"{name} {value}" for name, value in self.calibrator.facts().items()]
        return f"calibrated: {self.calibrator!r}; {', '.join(facts)}"

    def _repr_html_(self) -> str:
        if not hasattr(self, "calibrator"):
            return block(type(self).__name__)
        modules = unfolded("modules", repr(self))
        return block(type(self).__name__, facts_table(self.facts()), modules)

    @classmethod
    def _of(
        cls, encoder: SentenceTransformer, modules: Sequence[Any], calibrator: Calibrator
    ) -> Self:
        """An encoder with modules behind it that calibrate as the calibrator does."""
        every: Any = OrderedDict(encoder._modules)
        for place, module in enumerate(modules, len(every)):
            module.register_forward_pre_hook(raise_input)
            every[f"{CALIBRATOR}{place}"] = module
        # An encoder that is itself calibrated has such modules, too.
        with kept_from_half(m for name, m in every.items() if name.startswith(CALIBRATOR)):
            model = cls(
                modules=every,
                similarity_fn_name=encoder.similarity_fn_name,
                **_settings(encoder),
            )
        model.calibrator = calibrator
        origin = getattr(calibrator, "provenance_", {}).get("origin")
        model._origin = origin_of(encoder) if origin is None else origin
        return model.eval()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        with kept_from_half(calibrating(self)):
            return super()._apply(*args, **kwargs)

    def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> Any:
        # sentence-transformers would ask for trust in bertflow's own module.
        if class_ref == MODULE_PATH:
            return CalibratorModule
        return super()._load_module_class_from_ref(class_ref, *args, **kwargs)


def _settings(model: SentenceTransformer) -> dict[str, Any]:
    """What a model of the same modules is constructed with."""
    return {
        "device": str(model.device),
        "prompts": {name: text for name, text in model.prompts.items() if text is not None},
        "default_prompt_name": model.default_prompt_name,
    }


def save_model(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Save a model to a folder that is then the new one whole, or still the old one.

    It is what `model.save_pretrained` writes, but a folder with files of others is refused.

    Raises:
        ModelError: The folder holds something that bertflow did not write, or cannot be written.
    """
    check_replaceable(folder)
    model.save(str(folder))


def save_card(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Write the card of a saved model anew, with the scores that were added to it since.

    What someone has edited in it stays, and all other files are left alone.

    Args:
        model: As it was loaded from the folder, with `add_scores`.
        folder: Of the saved model.

    Raises:
        ModelError: It cannot be written.
    """
    write_text(Path(folder) / CARD, named(card_of(model), model.model_card_data.model_id or HERE))


def belongs_to_its_calibrator(
    model: CalibratedSentenceTransformer, *, weights: bool = False
) -> bool:
    """Whether a model's encoder and calibrating modules still are those of its calibrator.

    Args:
        model: The model.
        weights: Compare all weights of the encoder as well, which takes a while.
    """
    provenance = getattr(model.calibrator, "provenance_", {})
    described = provenance.get("encoder")
    fitted = described if isinstance(described, dict) else {}
    # An encoder may itself be a calibrated model.
    count = len(fitted.get("modules") or []) or len(model) - len(calibrating(model))
    encoder = part_of(model, list(model)[:count])
    whole = probed(encoder)
    vectors = whole[:, : model.calibrator.n_features_in_]
    if not is_fingerprint_of(provenance.get("probe"), vectors, encoder):
        return False
    if provenance.get("vocabulary") not in (None, vocabulary_hash(encoder)):
        return False
    if weights and fitted.get("dtype") == str(encoder.dtype).removeprefix("torch."):
        if fitted.get("weights") not in (None, describe_encoder(encoder)["weights"]):
            return False
    features = {"sentence_embedding": torch.from_numpy(whole).to(model.device)}
    with pinned(), torch.no_grad():
        for module in calibrating(model):
            if module not in encoder:
                features = module(features)
    expected = model.calibrator._rows(vectors.astype(np.float64))
    return difference(expected, features["sentence_embedding"].float().cpu().numpy()) <= CHANGED


def name_modules_for_every_version(path: Path) -> None:
    """Give built-in modules the names that every version of sentence-transformers resolves."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    for entry in entries:
        kind, _, name = entry["type"].rpartition(".")
        if not kind.startswith("sentence_transformers."):
            continue
        classic = f"sentence_transformers.models.{name}"
        try:
            same = import_from_string(classic)
        except ImportError:
            continue
        if same is import_from_string(entry["type"]):
            entry["type"] = classic
    path.write_text(json.dumps(entries, indent=2), encoding="utf-8")


def forget_settings(path: Path) -> None:
    """Take out of a tokenizer.json how its tokenizer was last set to cut and pad.

    That is the last call's, not the model's: the same model is the same bytes. The tokenizer itself
    is left alone, since other threads may be using it.
    """
    settings = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps(
        {**settings, "truncation": None, "padding": None}, ensure_ascii=False, indent=2
    )
    path.write_text(text, encoding="utf-8", newline="\n")
