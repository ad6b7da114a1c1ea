"""What every command does: open a model, show a result. Heavy imports wait until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertflow.cli.options import device_or_none
from bertflow.errors import one_line

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.encoders import SentenceCache


def show(what: Any) -> None:
    """Print text or a table on standard output."""
    from bertflow.cli.terminal import console

    console().print(what)


def load_raw(
    name: str,
    pooling: str | None,
    max_length: int | None,
    device: str,
    trust_remote_code: bool,
    cache: SentenceCache | None,
) -> SentenceTransformer:
    """Load an encoder without calibration."""
    from bertflow.cli.terminal import busy
    from bertflow.encoders import load_encoder

    with busy(f"loading {one_line(name)}"):
        return load_encoder(
            name,
            pooling=pooling,
            max_length=max_length,
            device=device_or_none(device),
            trust_remote_code=trust_remote_code,
            cache=cache,
        )


def open_any(
    name: str,
    pooling: str | None,
    max_length: int | None,
    device: str,
    trust_remote_code: bool,
    cache: SentenceCache | None,
) -> SentenceTransformer:
    """Open a model, calibrated or not."""
    from bertflow.cli.terminal import busy
    from bertflow.encoders import open_model

    with busy(f"loading {one_line(name)}"):
        return open_model(
            name,
            pooling=pooling,
            max_length=max_length,
            device=device_or_none(device),
            trust_remote_code=trust_remote_code,
            cache=cache,
        )
