"""Calibrated models: an encoder and its calibrator as one SentenceTransformer."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import import_from_string
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from bertflow.calibrators import Calibrator, Flow, load_calibrator
from bertflow.calibrators.base import Array, check_device
from bertflow.calibrators.card import CARD, HERE, named
from bertflow.calibrators.presets import preset_name
from bertflow.calibrators.sharing import without_folders
from bertflow.calibrators.storage import (
    SUBFOLDER,
    as_calibrator,
    calibrator_name,
    check_savable,
    foreign_entries,
    merged_folder,
    plain_provenance,
    replaced_folder,
    write_calibrator,
    write_text,
)
from bertflow.display import block, facts_table, of_stage, unfolded, watched
from bertflow.encoders.card import model_card, renewed
from bertflow.encoders.checkpoints import (
    check_files,
    check_weights,
    module_class,
    quietly,
    read_modules,
    readable,
    shapes_named,
)
from bertflow.encoders.encoder import CALIBRATOR, Encoder, as_sentences
from bertflow.encoders.encoding import Precision, own_part, resolved_precision
from bertflow.encoders.fingerprint import (
    describe_encoder,
    describe_settings,
    library_versions,
)
from bertflow.encoders.half import HALF, kept_from_half, raise_input
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.origin import origin_of, read_card
from bertflow.encoders.pickling import keep_picklable
from bertflow.encoders.portable import to_modules
from bertflow.encoders.probe import (
    ROUGH,
    can_be_loaded,
    check_encoder,
    check_saved,
    difference,
    fingerprint,
    is_fingerprint_of,
    probe_texts,
    probed,
    rehearse,
)
from bertflow.encoders.sampling import SAMPLE, sample_corpus
from bertflow.encoders.sentence_cache import SentenceCache
from bertflow.encoders.sizes import check_sizes
from bertflow.encoders.streaming import FIRST, Rows, encode_rows
from bertflow.errors import InputError, ModelError
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

# The portable form must give what the calibrator gives, on real vectors, up to this.
TOLERANCE = 1e-4
# Modules that differ by more than this from their calibrator were trained since.
CHANGED = 0.01
CHECKED_ROWS = FIRST
OWN_MODULE = f"{CalibratorModule.__module__}.{CalibratorModule.__name__}"


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


@pinned(seed=True)
def calibrate(
    encoder: SentenceTransformer | str | Path,
    sentences: Iterable[str],
    calibrator: Calibrator | str | None = None,
    *,
    portable: bool = True,
    sample: int | None = SAMPLE,
    batch_size: int = 32,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
    devices: Sequence[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | None = None,
) -> CalibratedSentenceTransformer:
    """Fit a calibrator on an encoder's vectors of unlabelled sentences, and append it.

    Each distinct sentence is encoded once; repeats count as often as they occur. Of a corpus larger
    than the sample, distinct sentences are drawn in one pass (see `sample_corpus`); vectors that
    would fill the memory lie in a temporary file. Neither the encoder nor the calibrator that is
    passed is changed.

    Args:
        encoder: Any SentenceTransformer, such as `load_encoder` gives, or what that takes by name.
        sentences: Unlabelled text, at least two distinct sentences: a list, or anything that gives
            them one by one.
        calibrator: Not fitted, or fitted before (it is fitted anew), or its name on the command
            line, such as "whitening"; None takes `AdaptiveWhitening()`.
        portable: Write the calibrator as built-in modules, so that the saved model loads without
            bertflow. False uses bertflow's own module.
        sample: How many sentences are enough; drawn by the calibrator's seed, if it has a number
            for one. None takes all there are, a chunk at a time.
        batch_size: Sentences a forward pass.
        cache: Where vectors are taken from and kept, such as `SentenceCache()`; None encodes all.
        precision: What the encoder computes in while the corpus is encoded: "float32", "mixed"
            (products and attention in bfloat16), "fast" (all of it), or "auto": "mixed" where the
            device has units for it. The model that is returned computes in the encoder's own type.
        devices: Of the processes that encode, such as ["cuda:0", "cuda:1"], see `DevicesEncoding`;
            None encodes in this one.
        provenance: More to be kept with the model, such as the names of files.
        progress: None shows a bar for each stage, "encode" and "fit", where someone watches, as in
            `bertflow.Flow.fit`; False never does, True at once and in any thread. A function is
            called with the name of the stage, the steps done and their total.
        checkpoint: File from which the fit of a flow goes on after it was stopped, as in
            `bertflow.Flow.fit`; other calibrators are fitted too quickly to need one.

    Returns:
        A SentenceTransformer that gives calibrated vectors; `.calibrator` is the fitted one.

    Raises:
        InputError: Too few sentences, something else than sentences, or the encoder gives a vector
            that is not finite.
        ModelError: The encoder is not one function of the text (see `check_encoder`), would not be
            the same once it is saved, or the calibrator cannot be portable; the message says why.
        TrainingError: A step of the fit is not finite; `error.kept` is the flow before that, which
            `attach` appends.

    Example:
        ``save_model(calibrate(load_encoder("bert-base-uncased"), sentences), "m")``
    """
    calibrator = cast("Calibrator", clone(as_calibrator(calibrator)))
    check_savable(calibrator)
    told = plain_provenance(provenance or {})
    if portable:
        _refuse_what_cannot_be_portable(calibrator)
    sentences = as_sentences(sentences)
    if isinstance(encoder, str | Path):
        encoder = load_encoder(encoder)
    alone = _tried(encoder)
    description = describe_encoder(encoder)
    sentences, drawn = _drawn(sentences, sample, calibrator)
    with watched(progress) as report, Rows() as store:
        encoded = encode_rows(
            encoder,
            sentences,
            store,
            batch_size=batch_size,
            cache=cache,
            precision=precision,
            devices=devices,
            description=description,
            progress=None if report is None else lambda done, of: report("encode", done, of),
        )
        if encoded.distinct < 2:
            raise InputError(
                f"got {encoded.rows} sentences, {encoded.distinct} of them distinct, but "
                "calibrating needs at least 2 (and is worth it from some hundreds)"
            )
        calibrator.provenance_ = {
            "encoder": description,
            "probe": fingerprint(alone),
            "sentences": encoded.rows,
            "distinct": encoded.distinct,
            "cut_to_max_length": encoded.cut,
            **drawn,
            "precision": resolved_precision(precision, encoder),
            "versions": library_versions(),
            **({"origin": origin} if (origin := origin_of(encoder)) else {}),
            **told,
        }
        rows = store.array()
        log.info(
            "%d sentences, %d distinct, %d of these cut to %s tokens; in %s (asked: %s)",
            *(encoded.rows, encoded.distinct, encoded.cut, encoder.max_seq_length),
            *(calibrator.provenance_["precision"], precision),
        )
        began = time.perf_counter()
        if isinstance(calibrator, Flow):
            calibrator.fit(
                rows,
                progress=False if report is None else of_stage(report, "fit"),
                checkpoint=checkpoint,
            )
        else:
            calibrator.fit(rows)
        log.info("%r fitted in %.1f s", calibrator, time.perf_counter() - began)
        looked_at = np.array(rows[encoded.first])
    return _appended(encoder, calibrator, portable, looked_at)


def _drawn(
    sentences: Iterable[str], sample: int | None, calibrator: Calibrator
) -> tuple[Iterable[str], dict[str, int]]:
    """Enough sentences, drawn by the calibrator's seed, and of how many they were drawn."""
    if sample is None:
        return sentences, {}
    given = getattr(calibrator, "random_state", None)
    seed = int(given) if isinstance(given, Integral) else 0
    found = sample_corpus(sentences, sample, seed=seed)
    return found.sentences, {} if found.whole else {"drawn_from": found.rows}


def _tried(encoder: SentenceTransformer) -> Array:
    """Refuse, before any work, an encoder whose calibrated model would be another function.

    Returns:
        Its vectors of the probe's sentences.
    """
    alone = check_encoder(encoder)
    if (own := own_part(encoder)) is not None:
        raise InputError(
            f"{type(encoder).__name__} has its own {own}, which the calibrated model would not "
            "have; say what it adds by prompts and default_prompt_name of a SentenceTransformer"
        )
    rehearse(encoder)
    if any(hasattr(module, "sub_modules") for module in encoder):  # A Router.
        texts = probe_texts(encoder)
        asked = [np.asarray(ask(texts)) for ask in (encoder.encode_query, encoder.encode_document)]
        if max(difference(alone, found) for found in asked) > ROUGH:
            log.warning(
                "queries and documents are encoded on different routes; the calibrator is fitted "
                "on the vectors of encode, and fits only the route that it takes"
            )
    return alone


@pinned(seed=True)
def attach(
    encoder: SentenceTransformer,
    calibrator: Calibrator,
    *,
    portable: bool = True,
    sample: Array | None = None,
) -> CalibratedSentenceTransformer:
    """Append a fitted calibrator to the encoder it belongs to.

    Args:
        encoder: The encoder. Its modules are shared with the result, not copied.
        calibrator: Fitted, here or in another session (`load_calibrator`). If it was fitted on an
            encoder's vectors, this must be that encoder, with the same pooling, length and type.
        portable: As in `calibrate`.
        sample: Vectors of the encoder, shape (n, D), to compare the portable form on; None
            draws them around the calibrator's centre.

    Returns:
        The calibrated model.

    Raises:
        sklearn.exceptions.NotFittedError: The calibrator has not been fitted.
        ModelError: The calibrator belongs to another encoder (the message names what differs),
            or cannot be portable.
        InputError: The widths differ.
    """
    check_is_fitted(calibrator)
    provenance = getattr(calibrator, "provenance_", {})
    if "encoder" in provenance:
        _compare_encoders(provenance["encoder"], describe_encoder(encoder))
    if not is_fingerprint_of(provenance.get("probe"), check_encoder(encoder), encoder):
        raise ModelError(
            "the calibrator was fitted on another encoder than this one: their vectors of the same "
            "sentences differ"
        )
    return _appended(encoder, calibrator, portable, sample)


def _appended(
    encoder: SentenceTransformer, calibrator: Calibrator, portable: bool, sample: Array | None
) -> CalibratedSentenceTransformer:
    """Append a calibrator to the encoder that it is known to belong to."""
    # Of a copy: other threads may be encoding, and are to have what truncate_dim leaves.
    whole = copy.copy(encoder)
    whole.truncate_dim = None
    width = int(whole.get_embedding_dimension() or 0)
    expected = calibrator.n_features_in_
    if min(width, encoder.truncate_dim or width) != expected:
        raise InputError(
            f"the encoder gives vectors of {width} dimensions, but the calibrator was fitted on "
            f"{expected}"
        )
    if not portable:
        return CalibratedSentenceTransformer._of(
            encoder, [CalibratorModule(calibrator)], calibrator
        )
    modules = to_modules(calibrator, width)
    _check_portable(calibrator, modules, width, sample)
    return CalibratedSentenceTransformer._of(encoder, modules, calibrator)


@pinned(seed=True)
def load(
    path: str | Path, *, device: str | None = None, trust_remote_code: bool = False
) -> CalibratedSentenceTransformer:
    """Load a saved calibrated model together with its calibrator.

    Args:
        path: What `save_pretrained` or `bertflow fit --encoder` wrote.
        device: Where it runs; None takes a GPU if there is one.
        trust_remote_code: Whether code that came with the encoder may run.

    Returns:
        The model; `.calibrator` gives inverse, likelihood and sampling.

    Raises:
        ModelError: The folder is not such a model; the message says what is missing.
    """
    path = Path(path)
    if device is not None:
        check_device(device)
    if not (path / "modules.json").is_file():
        raise ModelError(f"{path} is no calibrated model: it holds no modules.json")
    if not (path / SUBFOLDER).is_dir():
        raise ModelError(
            f"{path} is no calibrated model: it holds no {SUBFOLDER}/, which one that was trained "
            "after it was calibrated does not have; SentenceTransformer loads it"
        )
    check_files(path)
    calibrator = load_calibrator(path / SUBFOLDER)
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with readable(lambda said: f"{path} cannot be loaded: {said}"):
        entries = read_modules(path / "modules.json", own=OWN_MODULE, **trust)
        check_sizes(path, entries, trusted=trust_remote_code)
        folders = [entry["path"] for entry in entries]
        with shapes_named(str(path), folders, **trust):
            own = any(entry["type"] == OWN_MODULE for entry in entries)
            if own and not trust_remote_code:
                model = _load_with_own_module(path, entries, device)
            else:
                model = CalibratedSentenceTransformer(str(path), device=device, **trust)
        check_weights(model, str(path), folders, **trust)
        for entry in entries:
            if entry["name"].startswith(CALIBRATOR):
                if model.dtype in HALF and entry["type"] != OWN_MODULE:
                    kind: Any = module_class(entry["type"], path / "modules.json")
                    whole = kind.load(str(path), subfolder=entry["path"])
                    model._modules[entry["name"]] = whole.to(model.device)
                model._modules[entry["name"]].register_forward_pre_hook(raise_input)
    keep_picklable(model)
    log.info("%s: a calibrated model, %r", path, calibrator)
    model.calibrator = calibrator
    model._origin = getattr(calibrator, "provenance_", {}).get("origin", {})
    model._card = read_card(path / CARD)
    if not model.eval()._has_its_calibrator():
        raise ModelError(
            f"{path} holds a calibrator that does not belong to its model, which was trained or "
            "replaced since; SentenceTransformer loads the model alone"
        )
    return model


def _load_with_own_module(
    path: Path, entries: Sequence[Mapping[str, str]], device: str | None
) -> CalibratedSentenceTransformer:
    """Load module by module: sentence-transformers would ask for trust in ours."""
    modules: Any = OrderedDict()
    for entry in entries:
        kind: Any = CalibratorModule
        if entry["type"] != OWN_MODULE:
            kind = module_class(entry["type"], path / "modules.json")
        modules[entry["name"]] = kind.load(str(path), subfolder=entry["path"])
    config = json.loads((path / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    return CalibratedSentenceTransformer(
        modules=modules,
        device=device,
        prompts=config.get("prompts"),
        default_prompt_name=config.get("default_prompt_name"),
        similarity_fn_name=config.get("similarity_fn_name"),
        truncate_dim=config.get("truncate_dim"),
    )


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
    if not is_calibrated(name):
        return load_encoder(
            name,
            pooling=pooling,
            max_length=max_length,
            device=device,
            trust_remote_code=trust_remote_code,
            cache=cache,
        )
    if pooling is not None or max_length is not None:
        raise InputError(
            f"{name} is a calibrated model: its pooling and maximum length are those it was "
            "fitted with; leave them out"
        )
    return load(name, device=device, trust_remote_code=trust_remote_code)


@pinned(seed=True)
def save_model(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Save a model to a folder that is then the new one whole, or still the old one.

    Raises:
        ModelError: The folder holds something that bertflow did not write, or cannot be written.
    """
    with replaced_folder(folder) as staging:
        model._fill(staging)
    log.info("wrote %s", folder)


def save_card(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Write the card of a saved model anew, with the scores that were added to it since.

    What someone has edited in it stays, and all other files are left alone.

    Args:
        model: As it was loaded from the folder, with `add_scores`.
        folder: Of the saved model.

    Raises:
        ModelError: It cannot be written.
    """
    name = model.model_card_data.model_id or HERE
    write_text(Path(folder) / CARD, named(model._card_text(), name))


def _refuse_what_cannot_be_portable(calibrator: Calibrator) -> None:
    """Say so before an hour of encoding, by fitting the same design on a handful of numbers."""
    if isinstance(calibrator, Flow) and calibrator.coupling != "additive":
        tiny = clone(calibrator).set_params(epochs=1, device="cpu")
        to_modules(tiny.fit(np.random.default_rng(0).normal(size=(8, 4)), progress=False), 4)


def _check_portable(
    calibrator: Calibrator, modules: Sequence[Any], width: int, sample: Array | None
) -> None:
    """Compare the built-in modules with the calibrator itself on real vectors."""
    if sample is None:
        if not isinstance(calibrator, Flow):
            return
        sample = calibrator.sample(CHECKED_ROWS, random_state=0)
    expected = calibrator._rows(sample.astype(np.float64))
    padded = np.zeros((len(sample), width), dtype=np.float32)
    padded[:, : sample.shape[1]] = sample
    features = {"sentence_embedding": torch.from_numpy(padded)}
    with torch.no_grad():
        for module in modules:
            features = module(features)
    got = features["sentence_embedding"].double().numpy()
    norms = np.linalg.norm(expected, axis=1)
    difference = float((np.linalg.norm(got - expected, axis=1) / norms.clip(1e-12)).max())
    if not difference <= TOLERANCE:
        raise ModelError(
            f"the built-in modules differ from the calibrator by {difference:.1e} (allowed "
            f"{TOLERANCE:.0e}): its map is too ill-conditioned for float32; train it less, or "
            "save with bertflow's own module (portable=False, on the command line --no-portable)"
        )


def _compare_encoders(fitted: Any, given: Mapping[str, Any]) -> None:
    if not isinstance(fitted, Mapping):
        raise ModelError(f"the calibrator's provenance describes no encoder: {fitted!r}")
    told = given.keys() - {"name"}
    if missing := sorted(told - fitted.keys()):
        raise ModelError(
            f"the calibrator's provenance does not tell which encoder it was fitted on: it lacks "
            f"{', '.join(missing)}"
        )
    differing = [
        f"{name} {fitted[name]!r}, not {given[name]!r}"
        for name in given
        if name in told and fitted[name] != given[name]
    ]
    if differing:
        raise ModelError(
            f"the calibrator was fitted on another encoder than this one: {'; '.join(differing)}"
        )


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

    Args:
        path: As tokenizers writes it; what begins otherwise is left as it is.
    """
    head, name, rest = path.read_text(encoding="utf-8").partition('"added_tokens"')
    try:
        settings = json.loads(head.rstrip().removesuffix(",") + "}")
    except ValueError:
        return
    if settings.get("truncation") is None and settings.get("padding") is None:
        return
    none = json.dumps({**settings, "truncation": None, "padding": None}, indent=2)
    path.write_text(none.removesuffix("\n}") + f",\n  {name}{rest}", encoding="utf-8", newline="\n")
