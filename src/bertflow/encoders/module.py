"""bertflow's own sentence-transformers module, for calibrators without a portable form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.sentence_transformer.modules import Module
from torch import Tensor

from bertflow.calibrators import Calibrator, load_calibrator
from bertflow.calibrators.storage import write_calibrator

# Saved models name the class by this path, so it must stay importable.
MODULE_PATH = "bertflow.encoders.module.CalibratorModule"


class CalibratorModule(Module):
    """Apply a fitted calibrator to the sentence vector, in float32, which the result is, too.

    Half precision might not hold it. A model with this module loads with `bertflow.load`, or with
    sentence-transformers where bertflow is installed and `trust_remote_code=True` is given.
    """

    # What sentence-transformers tells a module: encode_query says "query".
    forward_kwargs = {"task"}

    def __init__(self, calibrator: Calibrator, role: str = "document") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calibrator, self.role = calibrator, role

    def of_role(self, role: str) -> Self:
        """The module that takes all text to be of this role."""
        return type(self)(self.calibrator, role)

    def forward(
        self, features: dict[str, Tensor], task: str | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Replace features["sentence_embedding"]."""
        x = features["sentence_embedding"][:, : self.calibrator.n_features_in_]
        with torch.no_grad():
            vectors = self.calibrator._transform(x.float(), task or self.role)
            features["sentence_embedding"] = vectors
        return features

    def get_embedding_dimension(self) -> int:
        """Width of the calibrated vectors."""
        return self.calibrator._n_features_out

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the calibrator, without what is kept of its rows, which the model has beside it."""
        write_calibrator(self.calibrator, Path(output_path), reference=False)

    @classmethod
    def load(  # type: ignore[override]
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> Self:
        """Read them back."""
        return cls(load_calibrator(Path(model_name_or_path) / subfolder))
