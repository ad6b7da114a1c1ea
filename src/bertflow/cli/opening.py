"""How commands open encoders, models and clusters. Heavy imports wait until then."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli.options import (
    OWN_ENCODER,
    ClusterOptions,
    EncoderOptions,
    SpeedOptions,
    device_or_none,
)
from bertflow.cli.output import busy
from bertflow.errors import InputError, one_line

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.scale import Engine

# The modules of an encoder that a pooling gives, of the last hidden state and of others.
POOLED = ["Transformer", "Pooling"]
MIXED = ["Transformer", "WeightedLayerPooling", "Pooling"]


def load_raw(name: str, encoder: EncoderOptions, speed: SpeedOptions) -> SentenceTransformer:
    """Load an encoder without calibration."""
    from bertflow.encoders import load_encoder

    return _loaded(load_encoder, name, encoder, speed)


def open_any(name: str, encoder: EncoderOptions, speed: SpeedOptions) -> SentenceTransformer:
    """Open a model, calibrated or not."""
    from bertflow.models import open_model

    return _loaded(open_model, name, encoder, speed)


def _loaded(
    load: Callable[..., SentenceTransformer],
    name: str,
    encoder: EncoderOptions,
    speed: SpeedOptions,
) -> SentenceTransformer:
    with busy(f"loading {one_line(name)}"):
        return load(
            name,
            **asdict(encoder),
            device=device_or_none(speed.device),
            cache=speed.cache,
        )


def to_limit(encoder: SentenceTransformer) -> str:
    """To how many tokens an encoder cuts; some read texts of any length."""
    limit = encoder.max_seq_length
    return "" if limit is None or math.isinf(limit) else f" to {limit} tokens"


def check_own(against: str | None, model: str) -> None:
    """Refuse --against without a value where there is no encoder that it could mean."""
    if against != OWN_ENCODER:
        return
    from bertflow.models import is_calibrated

    if not is_calibrated(model):
        raise InputError(
            f"--against without a value is the encoder of a saved calibrated model, and {model} is "
            "none; name the other model"
        )


def open_sides(
    names: Sequence[str], options: EncoderOptions, speed: SpeedOptions
) -> Iterator[tuple[int, SentenceTransformer]]:
    """Open one or two models that are set side by side, one after another, calibrated ones first.

    Beside a calibrated model, its own encoder (OWN_ENCODER, which is not loaded again) and raw ones
    have its pooling and maximum length unless others are asked for: what differs is then the
    calibration. Each comes with its place among the names.
    """
    from bertflow.models import is_calibrated

    calibrated = [name != OWN_ENCODER and is_calibrated(name) for name in names]
    alone = all(own for name, own in zip(names, calibrated, strict=True) if name != OWN_ENCODER)
    encoder: Any = None
    fitted: dict[str, Any] = {}
    for place in sorted(range(len(names)), key=lambda place: not calibrated[place]):
        name, own = names[place], options
        if name == OWN_ENCODER:
            yield place, encoder
            continue
        if calibrated[place] and not alone:
            own = replace(options, pooling=None, max_length=None)
        elif fitted and _is_set_beside(name, fitted):
            own = replace(
                options,
                pooling=options.pooling or fitted["pooling"],
                max_length=options.max_length or fitted["max_length"],
            )
        try:
            model: Any = open_any(name, own, speed)
        except InputError as error:
            if own == options or calibrated[place]:
                raise
            raise InputError(
                f"{error}; that is the calibrated model's: give --pooling R and --max-length N"
            ) from None
        if calibrated[place]:
            fitted = _as_fitted(model)
            encoder = model.encoder if OWN_ENCODER in names else None
        yield place, model
        del model  # One at a time is in memory.


def _as_fitted(model: Any) -> dict[str, Any]:
    """The names of a calibrated model's encoder, and how it is loaded.

    The pooling is None where the encoder has another than `load_encoder` gives.
    """
    from bertflow.encoders.description import describe_settings

    provenance = getattr(model.calibrator, "provenance_", {})
    about, origin = provenance.get("encoder"), provenance.get("origin")
    names = [
        about.get("name") if isinstance(about, dict) else None,
        origin.get("base_model") if isinstance(origin, dict) else None,
    ]
    settings = describe_settings(model.encoder)
    kinds, pooling = settings["modules"], None
    if kinds == POOLED and settings["pooling"] == "cls":
        pooling = "cls"
    elif kinds in (POOLED, MIXED) and settings["pooling"] == "mean":
        # By number, since an encoder that was cut has its last block elsewhere than the whole one.
        blocks = model[0].model.config.get_text_config().num_hidden_layers
        pooling = f"layers:{','.join(map(str, settings['layers'] or [blocks]))}"
    return {"names": names, "pooling": pooling, "max_length": settings["max_length"]}


def _is_set_beside(name: str, fitted: Mapping[str, Any]) -> bool:
    """Whether an encoder is the one that was fitted on, or has no pooling of its own."""
    from bertflow.encoders.loading import has_pooling

    same = any(
        name == one or (Path(one).exists() and Path(name).exists() and Path(one).samefile(name))
        for one in fitted["names"]
        if isinstance(one, str)
    )
    return same or not has_pooling(name)


@contextmanager
def vectors_named(source: str | Path) -> Iterator[None]:
    """Let messages about X name the file that the rows come from."""
    try:
        yield
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        if name != "X":
            raise
        raise InputError(f"{one_line(source)} {rest}") from error


@contextmanager
def opened_cluster(options: ClusterOptions) -> Iterator[Engine]:
    """The engine that works on shards."""
    from bertflow.scale import opened_engine

    name, handler = options.engine or "local", signal.getsignal(signal.SIGTERM)
    with opened_engine(name, address=options.address, workers=options.workers) as engine:
        signal.signal(signal.SIGTERM, handler)  # Ray puts one of its own in the place of ours.
        yield engine
