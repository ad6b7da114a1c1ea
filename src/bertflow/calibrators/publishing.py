"""Calibrators on the hub."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertflow.calibrators.base import Calibrator


def push_calibrator(
    calibrator: Calibrator,
    repo_id: str,
    *,
    token: str | None = None,
    private: bool | None = None,
    exist_ok: bool = False,
    replace_model_card: bool = False,
    commit_message: str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Upload a calibrator's folder, see `Calibrator.push_to_hub`."""
    from huggingface_hub import HfApi

    from bertflow.calibrators.readme import CARD, calibrator_card
    from bertflow.calibrators.storage import save_calibrator

    calibrator = without_folders(calibrator)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_calibrator(calibrator, folder)  # Before anything is made on the hub.
        api = HfApi(token=token)
        made = api.create_repo(repo_id, private=private, exist_ok=exist_ok or create_pr)
        repo_id = made.repo_id
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        kept = not replace_model_card and api.file_exists(repo_id, CARD, revision=revision)
        content = calibrator_card(calibrator, repo_id)
        (folder / CARD).write_text(content, encoding="utf-8", newline="\n")
        done = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            ignore_patterns=[CARD] if kept else None,
            commit_message=commit_message or f"Add a {type(calibrator).__name__}",
            revision=revision,
            create_pr=create_pr,
        )
    return str(done.pr_url if create_pr else done.commit_url)


def without_folders(calibrator: Calibrator) -> Calibrator:
    """The same calibrator, what it was fitted on named without the folders of this machine.

    Args:
        calibrator: Left as it is.
    """

    def shortened(told: Any) -> Any:
        if isinstance(told, str):
            # A data set's name on the hub has a slash as well, and is public.
            parts = PureWindowsPath(told) if "\\" in told else PurePath(told)
            return told if told.startswith("hub:") else parts.name or told
        return [shortened(one) for one in told] if isinstance(told, list | tuple) else told

    provenance = dict(getattr(calibrator, "provenance_", {}))
    for key in ("corpus", "vectors"):
        if key in provenance:
            provenance[key] = shortened(provenance[key])
    encoder = provenance.get("encoder")
    origin = provenance.get("origin")
    public_name = origin.get("base_model") if isinstance(origin, Mapping) else None
    if isinstance(encoder, Mapping) and encoder.get("name") not in (None, public_name):
        provenance["encoder"] = {**encoder, "name": shortened(encoder["name"])}
    public = copy.copy(calibrator)
    public.provenance_ = provenance
    return public
