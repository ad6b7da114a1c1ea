"""The calibrated model: an encoder and its calibrator as one SentenceTransformer."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertflow.calibrators import Calibrator
from bertflow.calibrators.card import CARD, HERE, named
from bertflow.calibrators.presets import preset_name
from bertflow.calibrators.sharing import without_folders
from bertflow.calibrators.storage import SUBFOLDER, calibrator_name, write_calibrator
from bertflow.display import block, facts_table, unfolded
from bertflow.encoders.checks import quietly
from bertflow.encoders.encoder import CALIBRATOR, Encoder
from bertflow.encoders.fingerprint import describe_encoder, describe_settings
from bertflow.encoders.half import kept_from_half, raise_input
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.origin import origin_of
from bertflow.encoders.probe import (
    can_be_loaded,
    check_saved,
    difference,
    is_fingerprint_of,
    probed,
)
from bertflow.errors import InputError, ModelError
from bertflow.io.outputs import foreign_entries, merged_folder, replaced_folder
from bertflow.models.card import model_card, renewed
from bertflow.models.portable import forget_settings, name_modules_for_every_version
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
    # What is known of the encoder's origin, the card that the model came with, and scores for it.
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
        target = Path(path)
        try:
            shared = target.is_dir() and bool(foreign_entries(target))
        except OSError as error:
            raise ModelError(f"cannot write {target}: {error.strerror or error}") from None
        with merged_folder(target) if shared else replaced_folder(target) as staging:
            self._fill(staging, model_name, create_model_card, safe_serialization)
        if shared and can_be_loaded(self):  # Files of others may change what is loaded.
            check_saved(target, self)

    def _fill(
        self,
        folder: Path,
        model_name: str | None = None,
        create_model_card: bool = True,
        safe_serialization: bool = True,
    ) -> None:
        # A model that was trained further has a card of that, which its trainer knows best.
        trained = "generated_from_trainer" in self.model_card_data.tags
        with quietly():
            super().save(
                str(folder),
                model_name=model_name,
                create_model_card=create_model_card and trained,
                safe_serialization=safe_serialization,
            )
        for file in folder.rglob("tokenizer.json"):
            forget_settings(file)
        if create_model_card and not trained:
            content = named(self._card_text(), self.model_card_data.model_id or model_name or HERE)
            (folder / CARD).write_text(content, encoding="utf-8", newline="\n")
        name_modules_for_every_version(folder / "modules.json")
        if self._has_its_calibrator(weights=True):
            native = folder / SUBFOLDER
            native.mkdir(exist_ok=True)
            write_calibrator(self.calibrator, native)
        else:
            log.warning(
                "the model was trained or set otherwise after it was calibrated: its calibrator, "
                "which no longer belongs to it, is not saved"
            )
        if can_be_loaded(self):
            check_saved(folder, self)

    def _has_its_calibrator(self, *, weights: bool = False) -> bool:
        """Whether encoder and calibrating modules still are those of the calibrator.

        Args:
            weights: Compare all weights of the encoder as well, which takes a while.
        """
        told = getattr(self.calibrator, "provenance_", {})
        fitted: Any = told.get("encoder") if isinstance(told.get("encoder"), dict) else {}
        # An encoder may itself be a calibrated model.
        before = len(fitted.get("modules") or []) or len(self) - len(_calibrating(self._modules))
        encoder = copy.copy(self)
        encoder._modules = dict(list(self._modules.items())[:before])
        encoder.truncate_dim = None
        width = self.calibrator.n_features_in_
        whole = probed(encoder)
        vectors = whole[:, :width]
        if not is_fingerprint_of(told.get("probe"), vectors, encoder):
            return False
        if weights and fitted.get("dtype") == str(encoder.dtype).removeprefix("torch."):
            if fitted.get("weights") not in (None, describe_encoder(encoder)["weights"]):
                return False
        expected = self.calibrator._rows(vectors.astype(np.float64))
        features = {"sentence_embedding": torch.from_numpy(whole).to(self.device)}
        with pinned(), torch.no_grad():
            for module in _calibrating(dict(list(self._modules.items())[before:])):
                features = module(features)
        found = features["sentence_embedding"].float().cpu().numpy()
        return difference(expected, found) <= CHANGED

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
        for one in scores:
            several += one.scores.values() if hasattr(one, "scores") else [one]
        provenance = getattr(self.calibrator, "provenance_", None)
        own = describe_encoder(self)["weights"], calibrator_name(self.calibrator), provenance
        for score in several:
            name = (score.calibrator or {}).get("name")
            if (score.encoder.get("weights"), name, score.fitted_on) != own:
                raise InputError(
                    f"the score on {score.task} {score.split} is of another model than this one; "
                    "give what bertflow.evaluate says of this model"
                )
        new = {(one.task, one.split): one for one in (*self._scores, *several)}
        self._scores = tuple(new.values())

    @property
    def encoder(self) -> SentenceTransformer:
        """The encoder alone: the same modules without those that calibrate."""
        calibrating = _calibrating(self._modules)
        encoder = Encoder(
            modules=[module for module in self if module not in calibrating],
            device=str(self.device),
            prompts={k: v for k, v in self.prompts.items() if v is not None},
            default_prompt_name=self.default_prompt_name,
        )
        width = self.calibrator.n_features_in_
        encoder.truncate_dim = width if width < (encoder.get_embedding_dimension() or 0) else None
        return encoder

    def facts(self) -> dict[str, str]:
        """What the model is, by name: encoder, pooling, length, width, calibrator and its facts."""
        settings = self._settings()
        found = {
            "encoder": str(settings["name"] or "without a name"),
            "pooling": str(settings["pooling"] or "its own"),
            "maximum length": f"{self.max_seq_length} tokens",
            "modules": f"{len(self)}, {len(_calibrating(self._modules))} of which calibrate",
            "calibrator": f"{preset_name(self.calibrator)}: {self.calibrator!r}",
        }
        if settings["layers"]:
            found["pooling"] += f" of hidden states {', '.join(map(str, settings['layers']))}"
        return {**found, **self.calibrator.facts()}

    def _settings(self) -> dict[str, Any]:
        """What `describe_settings` gives, with the name of the encoder that was fitted on."""
        settings = describe_settings(self)
        if self._card is not None:  # That is the name of the folder it was loaded from.
            settings["name"] = None
        fitted = getattr(self.calibrator, "provenance_", {}).get("encoder")
        return {**settings, **({"name": fitted.get("name")} if isinstance(fitted, dict) else {})}

    def _card_text(self) -> str:
        """The card, before it has a name."""
        if (kept := renewed(self._card or "", self._scores)) is not None:
            return kept
        return model_card(
            self.calibrator,
            self._settings(),
            self._origin,
            width=self.get_embedding_dimension() or 0,
            portable=not any(isinstance(module, CalibratorModule) for module in self),
            card_data=self.model_card_data,
            scores=self._scores,
        )

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
        named: Any = OrderedDict(encoder._modules)
        for place, module in enumerate(modules, len(named)):
            module.register_forward_pre_hook(raise_input)
            named[f"{CALIBRATOR}{place}"] = module
        with kept_from_half(_calibrating(named)):
            model = cls(
                modules=named,
                device=str(encoder.device),
                prompts={k: v for k, v in encoder.prompts.items() if v is not None},
                default_prompt_name=encoder.default_prompt_name,
                similarity_fn_name=encoder.similarity_fn_name,
            )
        model.calibrator = calibrator
        told = getattr(calibrator, "provenance_", {}).get("origin")
        model._origin = origin_of(encoder) if told is None else told
        return model.eval()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        with kept_from_half(_calibrating(self._modules)):
            return super()._apply(*args, **kwargs)


def _calibrating(named: Mapping[str, Any]) -> list[Any]:
    """The modules of a model that calibrate."""
    return [module for name, module in named.items() if name.startswith(CALIBRATOR)]
