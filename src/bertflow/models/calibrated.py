"""The calibrated model: an encoder and its calibrator as one, saved whole, and opened again."""

from __future__ import annotations

import copy
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import import_from_string

from bertflow.arrays import Array, check_device
from bertflow.calibrators import Calibrator, load_calibrator, readme
from bertflow.calibrators.storage import SUBFOLDER, write_calibrator
from bertflow.display import notebook
from bertflow.encoders.checks import (
    BUILT_IN,
    check_files,
    check_weights,
    quietly,
    read_modules,
    readable,
)
from bertflow.encoders.description import describe_encoder, origin_of, vocabulary_hash
from bertflow.encoders.encoder import (
    CALIBRATOR,
    PROMPTS,
    Encoder,
    calibrating,
    encoder_of,
    keep_picklable,
    part_of,
)
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.module import MODULE_PATH, CalibratorModule
from bertflow.encoders.precision import HALF, kept_from_half, raise_inputs
from bertflow.encoders.probe import check_saved, is_fingerprint_of, probed
from bertflow.encoders.sentence_cache import SentenceCache
from bertflow.errors import InputError, ModelError, warn
from bertflow.io import files
from bertflow.models.card import card_of, fitted_settings
from bertflow.models.portable import apart
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

# Modules that differ by more than this from their calibrator were trained since.
CHANGED = 0.01


class CalibratedSentenceTransformer(Encoder):
    """A SentenceTransformer whose last modules calibrate, and that knows its calibrator.

    `save_pretrained` writes a model that plain sentence-transformers loads, and beside it the
    calibrator itself, in `bertflow/`. In half precision the encoder alone is: what calibrates keeps
    its weights in float32, and gives float32.

    Attributes:
        calibrator: The fitted calibrator: inverse, likelihood and sampling are there.
    """

    calibrator: Calibrator
    # Where the encoder comes from, the card that was loaded with the model, and added scores.
    _origin: Mapping[str, str] = MappingProxyType({})
    _card: str | None = None
    _scores: tuple[Any, ...] = ()

    @pinned(seed=True)
    def save(  # type: ignore[override]
        self, path: str, model_name: str | None = None, create_model_card: bool = True, **how: Any
    ) -> None:
        """Write the model, the calibrator, its provenance and a card into a folder.

        The folder is then the new one whole, or still the old one. One that holds files of others,
        such as a clone of a repository, keeps them: ours are moved to their places one by one. The
        card is bertflow's own, or the one that the model was loaded with, as someone may have
        edited it. Arguments are those of `SentenceTransformer.save`.

        Raises:
            ModelError: It cannot be written.
        """
        folder = Path(path)
        with files.writing(folder):
            shared = folder.is_dir() and bool(files.foreign_entries(folder))
        # A model that was trained further has a card of that, which its trainer knows best.
        trained = "generated_from_trainer" in self.model_card_data.tags
        how |= {"model_name": model_name, "create_model_card": create_model_card and trained}
        with (files.merged_folder if shared else files.replaced_folder)(folder) as staging:
            with quietly():
                SentenceTransformer.save(self, str(staging), **how)
            for file in staging.rglob("tokenizer.json"):
                _forget_settings(file)
            if create_model_card and not trained:
                card = card_of(self, model_name)
                (staging / readme.CARD).write_text(card, encoding="utf-8", newline="\n")
            for file in [staging / "modules.json", *staging.glob("*/router_config.json")]:
                name_modules_for_every_version(file)
            check_saved(staging, self)
            if belongs_to_its_calibrator(self, weights=True):
                (staging / SUBFOLDER).mkdir(exist_ok=True)
                write_calibrator(self.calibrator, staging / SUBFOLDER)
            else:
                warn(
                    "the model was trained or set otherwise after it was calibrated: its "
                    "calibrator, which no longer belongs to it, is not saved",
                    UserWarning,
                )
        if shared:  # Files of others may change what is loaded.
            check_saved(folder, self)
        log.info("wrote %s", folder)

    def push_to_hub(self, repo_id: str, *args: Any, **kwargs: Any) -> str:
        """Upload the folder that `save_model` writes, with its card, to the model hub.

        What the calibrator was fitted on is part of it, files and encoder without the folders they
        lie in here. A `local_model_path` goes up as it is. Arguments and result are those of
        `SentenceTransformer.push_to_hub`.

        Raises:
            huggingface_hub.errors.HfHubHTTPError: The hub refuses; nothing is uploaded then.

        Example:
            ``model.push_to_hub("me/calibrated", private=True)``
        """
        calibrator = readme.without_folders(self.calibrator)
        public = copy.copy(self)
        public.calibrator = calibrator
        public._modules = {
            name: CalibratorModule(calibrator) if isinstance(module, CalibratorModule) else module
            for name, module in self._modules.items()
        }
        push = super(CalibratedSentenceTransformer, public).push_to_hub
        return str(push(repo_id, *args, **kwargs))

    def add_scores(self, *scores: Any) -> None:
        """Note what `bertflow.evaluate`, `evaluate_all` or `evaluate_job` gave, for the card.

        Raises:
            InputError: A score is another model's.

        Example:
            ``model.add_scores(bertflow.evaluate(model, "stsb"))``
        """
        several: list[Any] = []
        for one in scores:
            several += one.scores.values() if hasattr(one, "scores") else [one]
        provenance = getattr(self.calibrator, "provenance_", None)
        own = describe_encoder(self)["weights"], readme.calibrator_name(self.calibrator), provenance
        for score in several:
            name = (score.calibrator or {}).get("name")
            if (score.encoder.get("weights"), name, score.fitted_on) != own:
                raise InputError(
                    f"the score on {_judged(score)} is of another model than this one; "
                    "give what bertflow.evaluate says of this model"
                )
        latest = {_judged(score): score for score in (*self._scores, *several)}
        self._scores = tuple(latest.values())

    @property
    def encoder(self) -> SentenceTransformer:
        """The encoder alone: the same modules without those that calibrate."""
        encoder = Encoder(modules=[*encoder_of(self)], **_settings(self))
        width = self.calibrator.n_features_in_
        encoder.truncate_dim = width if width < (encoder.get_embedding_dimension() or 0) else None
        return encoder

    def facts(self) -> dict[str, str]:
        """What the model is, by name: encoder, pooling, length, width, calibrator and its facts."""
        settings = fitted_settings(self)
        return {
            "encoder": str(settings["name"] or "without a name"),
            **readme.encoder_facts(settings),
            "modules": f"{len(self)}, {len(calibrating(self))} of which calibrate",
            "calibrator": f"{readme.preset_name(self.calibrator)}: {self.calibrator!r}",
            **self.calibrator.facts(),
        }

    def extra_repr(self) -> str:
        """What `repr` says before the modules."""
        if not hasattr(self, "calibrator"):
            return ""
        facts = [f"{name} {value}" for name, value in self.calibrator.facts().items()]
        return f"calibrated: {self.calibrator!r}; {', '.join(facts)}"

    def _repr_html_(self) -> str:
        return notebook(type(self).__name__, self.facts(), modules=repr(self))

    @classmethod
    def _of(
        cls, encoder: SentenceTransformer, modules: Sequence[Any], calibrator: Calibrator
    ) -> Self:
        """An encoder with modules behind it that calibrate as the calibrator does."""
        every: Any = OrderedDict(encoder._modules)
        for place, module in enumerate(modules, len(every)):
            raise_inputs(module)
            every[f"{CALIBRATOR}{place}"] = module
        # An encoder that is itself calibrated has such modules, too.
        with kept_from_half(m for name, m in every.items() if name.startswith(CALIBRATOR)):
            model = cls(modules=every, **_settings(encoder))
        model.calibrator = calibrator
        model._origin = readme.told_of(calibrator, "origin") or origin_of(encoder)
        return model.eval()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        with kept_from_half(calibrating(self)):
            return super()._apply(*args, **kwargs)

    def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> Any:
        # sentence-transformers would ask for trust in bertflow's own module.
        if class_ref == MODULE_PATH:
            return CalibratorModule
        return super()._load_module_class_from_ref(class_ref, *args, **kwargs)


def _judged(score: Any) -> str:
    if hasattr(score, "task"):
        return f"{score.task} {score.split}"
    return f"{score.kind} of {readme.last_part(score.source, 1)}"


def _settings(model: SentenceTransformer) -> dict[str, Any]:
    """What a model of the same modules is constructed with."""
    prompts = {name: text for name, text in model.prompts.items() if text is not None}
    # A model without a prompt for documents is given an empty one, which would hide "passage".
    for name in PROMPTS["document"]:
        if name in prompts:
            prompts.setdefault("document", prompts[name])
    return {
        "device": str(model.device),
        "prompts": prompts,
        "default_prompt_name": model.default_prompt_name,
        "similarity_fn_name": model.similarity_fn_name,
    }


@pinned(seed=True)
def load(
    path: str | Path, *, device: str | None = None, trust_remote_code: bool = False
) -> CalibratedSentenceTransformer:
    """Load what `save_pretrained` or `bertflow fit --encoder` wrote, with its calibrator.

    `device` and `trust_remote_code` are as in `load_encoder`.

    Raises:
        ModelError: The folder is not such a model; the message says what is missing.
    """
    path = Path(path)
    if device is not None:
        check_device(device)
    for name in ("modules.json", f"{SUBFOLDER}/"):
        if not (path / name).exists():
            raise ModelError(
                f"{path} is no calibrated model: it holds no {name}, as one that was trained or "
                "set otherwise after it was calibrated; SentenceTransformer may load it"
            )
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with readable(lambda said: f"{path} cannot be loaded: {said}"):
        check_files(path)
        calibrator = load_calibrator(path / SUBFOLDER)
        entries = read_modules(path / "modules.json", own=MODULE_PATH, **trust)
        model = CalibratedSentenceTransformer(str(path), device=device, **trust)
        check_weights(model, str(path), [entry["path"] for entry in entries], **trust)
        for entry in entries:
            if (name := entry["name"]).startswith(CALIBRATOR):
                module: Any = model._modules[name]
                if model.dtype in HALF and entry["type"] != MODULE_PATH:
                    # Read it again, in float32.
                    module = type(module).load(str(path), subfolder=entry["path"])
                    model._modules[name] = module.to(model.device)
                raise_inputs(module)
    log.info("%s: a calibrated model, %r", path, calibrator)
    model.calibrator = calibrator
    model._origin, model._card = readme.told_of(calibrator, "origin"), ""
    with suppress(OSError, ValueError):  # It may be gone, or be no text.
        model._card = (path / readme.CARD).read_text(encoding="utf-8")
    if not belongs_to_its_calibrator(model.eval()):
        raise ModelError(
            f"{path} holds a calibrator that does not belong to its model, which was trained, "
            "set otherwise or replaced since; SentenceTransformer loads the model alone"
        )
    keep_picklable(model)
    return model


def is_calibrated(name: str | Path) -> bool:
    """Whether a name is the folder of a saved calibrated model."""
    return (Path(name) / SUBFOLDER / "config.json").is_file()


def open_model(
    name: str | Path,
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    cache: SentenceCache | None = None,
) -> SentenceTransformer:
    """Open a saved calibrated model, or else an encoder as `load_encoder` does.

    Raises:
        InputError: A pooling or maximum length for a calibrated model, whose own are fixed.
        ModelError: It cannot be had.
    """
    how: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    if not is_calibrated(name):
        return load_encoder(name, pooling=pooling, max_length=max_length, cache=cache, **how)
    if pooling is not None or max_length is not None:
        raise InputError(
            f"{name} is a calibrated model: its pooling and maximum length are those it was "
            "fitted with; leave them out"
        )
    return load(name, **how)


def save_model(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Save a model as `model.save_pretrained` does, but refuse a folder with files of others.

    Raises:
        ModelError: The folder holds something that bertflow did not write, or cannot be written.
    """
    files.check_replaceable(folder)
    model.save(str(folder))


def save_card(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Write the card of a saved model anew, with the scores that were added to it since.

    The model is as it was loaded from the folder. What someone has edited in the card stays.

    Raises:
        ModelError: It cannot be written.
    """
    files.write_text(Path(folder) / readme.CARD, card_of(model))


def is_fitted_on(provenance: Mapping[str, Any], encoder: SentenceTransformer, alone: Array) -> bool:
    """Whether an encoder has the vocabulary and the vectors of the probe that are noted, if any."""
    known = provenance.get("vocabulary") in (None, vocabulary_hash(encoder))
    return known and is_fingerprint_of(provenance.get("probe"), alone, encoder)


def belongs_to_its_calibrator(
    model: CalibratedSentenceTransformer, *, weights: bool = False
) -> bool:
    """Whether a model's encoder and calibrating modules still are those of its calibrator.

    With `weights`, all weights of the encoder are compared as well, which takes a while.
    """
    provenance = getattr(model.calibrator, "provenance_", {})
    fitted = readme.told_of(model.calibrator, "encoder")
    # An encoder may itself be a calibrated model.
    count = len(fitted.get("modules") or []) or len(model) - len(calibrating(model))
    encoder = part_of(model, list(model)[:count])
    whole = probed(encoder)
    vectors = whole[:, : model.calibrator.n_features_in_]
    if not is_fitted_on(provenance, encoder, vectors):
        return False
    if weights and fitted.get("dtype") == str(encoder.dtype).removeprefix("torch."):
        if fitted.get("weights") not in (None, describe_encoder(encoder)["weights"]):
            return False
    behind = [module for module in calibrating(model) if module not in encoder]
    with pinned():
        return apart(model.calibrator, behind, vectors, whole, model.device) <= CHANGED


def name_modules_for_every_version(path: Path) -> None:
    """Give built-in modules the names that every version of sentence-transformers resolves."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list):
        for entry in content:
            entry["type"] = _classic(entry["type"])
    else:  # A Router's.
        content["types"] = {name: _classic(kind) for name, kind in content["types"].items()}
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _classic(kind: str) -> str:
    classic = f"{BUILT_IN}models.{kind.rpartition('.')[2]}"
    with suppress(ImportError):  # Newer and foreign ones have no such name.
        if import_from_string(classic) is import_from_string(kind):
            return classic
    return kind


def _forget_settings(path: Path) -> None:
    """Take out of a tokenizer.json how its last call cut and padded: a model is the same bytes."""
    settings = {**json.loads(path.read_text(encoding="utf-8")), "truncation": None, "padding": None}
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    path.write_text(text, encoding="utf-8", newline="\n")
