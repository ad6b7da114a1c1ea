"""How commands open encoders, models and clusters. Heavy imports wait until then."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli import options
from bertflow.cli.console import busy
from bertflow.errors import InputError, one_line

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.scale import Engine


def load_raw(name: str, how: options.Loading) -> SentenceTransformer:
    """Load an encoder without calibration."""
    from bertflow.encoders import load_encoder

    with busy(f"loading {one_line(name)}"):
        return load_encoder(name, **how.loading(), cache=how.cache)


def open_any(name: str, how: options.Loading) -> SentenceTransformer:
    """Open a model, calibrated or not."""
    from bertflow.models import open_model

    with busy(f"loading {one_line(name)}"):
        return open_model(name, **how.loading(), cache=how.cache)


def to_limit(encoder: SentenceTransformer) -> str:
    """To how many tokens an encoder cuts; some read texts of any length."""
    limit = encoder.max_seq_length
    return "" if limit is None or math.isinf(limit) else f" to {limit} tokens"


def check_own(against: str | None, model: str) -> None:
    """Refuse --against without a value where there is no encoder that it could mean."""
    if against != options.OWN_ENCODER:
        return
    from bertflow.models import is_calibrated

    if not is_calibrated(model):
        raise InputError(
            f"--against without a value is the encoder of a saved calibrated model, and {model} is "
            "none; name the other model"
        )


def open_sides(names: Sequence[str], how: options.Loading) -> Iterator[tuple[int, Any]]:
    """Open one or two models that are set side by side, one after another, calibrated ones first.

    Beside a calibrated model, its own encoder (OWN_ENCODER, which is not loaded again) and those
    without a pooling of their own have its pooling and maximum length unless others are asked for:
    what differs is then the calibration. Each comes with its place among the names.
    """
    from bertflow.encoders.loading import has_pooling
    from bertflow.models import is_calibrated

    raw = {name for name in names if name != options.OWN_ENCODER and not is_calibrated(name)}
    encoder: Any = None
    fitted: dict[str, Any] = {}
    sides = sorted(enumerate(names), key=lambda side: side[1] in {options.OWN_ENCODER, *raw})
    for place, name in sides:
        if name == options.OWN_ENCODER:
            yield place, encoder
            continue
        own = how
        if name not in raw and raw:
            own = replace(how, pooling=None, max_length=None)
        elif name in raw and fitted and not has_pooling(name):
            pooling, limit = how.pooling or fitted["pooling"], how.max_length or fitted["limit"]
            own = replace(how, pooling=pooling, max_length=limit)
        model: Any = open_any(name, own)
        if name not in raw:
            fitted = _as_fitted(model)
            encoder = model.encoder if options.OWN_ENCODER in names else None
        yield place, model
        del model  # One at a time is in memory.


def _as_fitted(model: Any) -> dict[str, Any]:
    """How a calibrated model's encoder is loaded; the pooling is None where it has no name."""
    from bertflow.encoders.description import describe_settings

    settings = describe_settings(model.encoder)
    pooling = "cls" if settings["pooling"] == "cls" else None
    if settings["modules"][0] == "Transformer" and settings["pooling"] == "mean":
        # By number, since an encoder that was cut has its last block elsewhere than the whole one.
        blocks = model[0].model.config.get_text_config().num_hidden_layers
        pooling = f"layers:{','.join(map(str, settings['layers'] or [blocks]))}"
    return {"pooling": pooling, "limit": settings["max_length"]}


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
def opened_cluster(cluster: options.Cluster) -> Iterator[Engine | None]:
    """The engine that works on shards."""
    from bertflow.scale import opened_engine

    name, handler = cluster.engine or "local", signal.getsignal(signal.SIGTERM)
    with opened_engine(name, address=cluster.address, workers=cluster.workers) as engine:
        signal.signal(signal.SIGTERM, handler)  # Ray puts one of its own in the place of ours.
        yield engine
