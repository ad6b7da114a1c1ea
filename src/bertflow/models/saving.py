"""Save a calibrated model, or its card alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.calibrators.card import CARD, HERE, named
from bertflow.io.files import write_text
from bertflow.io.outputs import replaced_folder
from bertflow.process_state import pinned

if TYPE_CHECKING:
    from bertflow.models.calibrated import CalibratedSentenceTransformer

log = logging.getLogger(__name__)


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
