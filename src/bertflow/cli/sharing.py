"""The command that puts what was saved on the model hub: push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertflow.cli.opening import show
from bertflow.cli.options import TrustRemoteCode
from bertflow.errors import InputError, ModelError


def push(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A saved calibrated model or calibrator.")
    ],
    repository: Annotated[
        str, typer.Argument(metavar="USER/NAME", help="Name on the hub; it is made there.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Let nobody else see a new repository.")
    ] = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="The repository may be there already; its card stays."),
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Upload a saved model or calibrator, with its card, to the model hub.

    Log in before, by `hf auth login` or HF_TOKEN.
    """
    from bertflow.calibrators.storage import calibrator_folder

    calibrator_folder(folder)  # Refused here it takes no import of an encoder.
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    from bertflow.calibrators import load_calibrator
    from bertflow.cli.terminal import busy
    from bertflow.models import is_calibrated, load

    what = (
        load(folder, device="cpu", trust_remote_code=trust_remote_code)
        if is_calibrated(folder)
        else load_calibrator(folder)
    )
    try:
        with busy(f"uploading to {repository}"):
            address = what.push_to_hub(
                repository, private=True if private else None, exist_ok=update
            )
    except HFValidationError as error:
        raise InputError(f"{repository!r} is no name on the hub: {error}") from None
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        remedy = "log in by `hf auth login` or HF_TOKEN, or give --update if it is there already"
        raise ModelError(f"cannot push to {repository}: {error}; {remedy}") from error
    show(f"uploaded to {repository}: {address}")
