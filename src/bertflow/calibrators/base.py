"""The base of every calibrator: scikit-learn's protocol, and checks that are made once."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bertflow.arrays import Array, Rows, finite, is_frame, mapped, matrix
from bertflow.display import block, facts_table
from bertflow.errors import InputError
from bertflow.process_state import pinned

Made = TypeVar("Made")
# Called after each step of a training with the steps done, their total and the loss.
Progress = Callable[[int, int, float], None]

# Private methods that other packages of bertflow call.
OTHERS_CALL = ("_rows", "_transform", "_learned", "_allocate", "_restore", "_check_arguments")


class _Pinned:
    """Public methods, also those of subclasses, compute as in a fresh process."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Before scikit-learn wraps transform: its wrapper must see the caller's settings.
        for name, method in list(vars(cls).items()):
            called = not name.startswith("_") or name in OTHERS_CALL
            if called and isinstance(method, FunctionType):
                setattr(cls, name, pinned()(method))
        super().__init_subclass__(**kwargs)


class Calibrator(_Pinned, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):
    r"""A map learned on unlabelled vectors, after which cosine similarity means something.

    A scikit-learn estimator over matrices of shape (N, D) with N ≥ 2 and D ≥ 2. numpy in gives
    numpy out; a torch tensor in gives a torch tensor out, on the same device. The output has the
    input's type; float16 and bfloat16 are raised to float32 for the computation, and rows that
    overflow there are mapped in float64.

    Row i of an output depends on row i of the input alone. Finite rows give finite outputs, or the
    row is refused by its number.
    """

    # The name of the class in files and on the command line, then those of its presets; each with
    # the arguments in which it differs from the defaults.
    names: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    # Set by fit. Files of earlier versions have no n_samples_.
    n_features_in_: int
    n_samples_: int
    # Set by callers that know where the rows came from: encoder, files, counts, versions.
    provenance_: dict[str, Any]

    def fit(
        self,
        X: Any,  # noqa: N803
        y: None = None,
        *,
        progress: Progress | bool | None = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Learn the map from rows.

        Only a `Flow` takes steps, which can be watched and resumed. With a checkpoint, a fit that
        was stopped goes on when it is called again, and ends with the bits it would have had: same
        rows, arguments, versions and number of threads. Anything else starts anew, and the log says
        what differs. A seed of None is that of the file.

        Args:
            X: Vectors, shape (N, D): an array, a memory-mapped file, a tensor, a data frame of
                numbers; or a list, Series or column whose entries are vectors.
            y: Ignored, there for scikit-learn's sake.
            progress: A function to call after each step with the steps done, their total and the
                loss in bits per dimension. None shows a bar once the fit has taken half a second,
                in the main thread of the main process, where standard error is a terminal or a
                notebook shows it. True shows the bar at once and in any thread. False shows none.
            checkpoint: File in which the state is kept, written every ten seconds. It stays, to be
                removed once the flow is saved.

        Returns:
            The calibrator itself.

        Raises:
            InputError: Fewer than 2 rows or dimensions, a NaN or infinite row (named), all rows
                equal, or an argument of the constructor out of its range.
            ModelError: The checkpoint cannot be written, or is a file of another kind.
            TrainingError: A step of a `Flow` is not finite. `error.kept` is the fitted flow some
                steps before that, or None if the first loss was not finite.
        """
        self._fitted = False
        self._fitted_with = self.get_params(deep=False)
        self._kept: dict[Any, Any] = {}
        rows = self._checked(X, fitting=True)
        self.n_samples_ = len(rows)
        self._fit(rows, progress, checkpoint)
        self._fitted = True
        return self

    def transform(self, X: Rows) -> Rows:  # noqa: N803
        """Apply the learned map.

        Args:
            X: Vectors, shape (N, D).

        Returns:
            Calibrated vectors, shape (N, D) or, for `Whitening(dim=K)`, (N, K).

        Raises:
            sklearn.exceptions.NotFittedError: fit has not been called.
            InputError: A NaN or infinite row (named), a row whose image its type cannot hold
                (named), or another width than at fit.
        """
        return self._rows(X)

    def _rows(self, X: Rows) -> Rows:  # noqa: N803
        """As `transform`, but never converted by scikit-learn's set_output."""
        check_is_fitted(self)
        rows: Rows = self._checked(X, fitting=False)
        return mapped(self._transform_into, rows, self._n_features_out)

    def inverse_transform(self, X: Rows) -> Rows:  # noqa: N803
        """Undo `transform`, (N, D) or (N, K) to (N, D), as far as it can be undone.

        The parts that a calibrator has removed (AllButTheTop's directions, dimensions beyond
        Whitening's dim) come back as their mean. Errors are those of `transform`.
        """
        check_is_fitted(self)
        rows: Rows = matrix(X, self._n_features_out)
        if rows.shape[1] != self._n_features_out:
            raise InputError(
                f"X has {rows.shape[1]} columns, but {type(self).__name__}.transform "
                f"gives {self._n_features_out}"
            )
        return mapped(self._inverse_transform_into, rows, self.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed half-way has set some attributes, so a flag is needed.
        return getattr(self, "_fitted", False)

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_

    def _checked(self, X: Any, *, fitting: bool) -> Any:  # noqa: N803
        """Check shape, type and width, and before a fit that rows are finite.

        Rows to be mapped are checked for finiteness chunk by chunk, see `mapped`.
        """
        rows = matrix(X, 0 if fitting else self.n_features_in_)
        count, width = rows.shape
        if fitting and min(count, width) < 2:
            # scikit-learn's own checks look for these words.
            raise InputError(
                f"X has n_samples = {count} and n_features = {width}: {width} feature(s) "
                f"(shape=({count}, {width})) while a minimum of 2 is required."
            )
        try:
            named = X if is_frame(X) else rows
            validate_data(self, named, reset=fitting, skip_check_array=True)
        except ValueError as error:
            raise InputError(" ".join(str(error).split())) from error
        return finite(rows) if fitting else rows

    def _check_arguments(self) -> None:
        """Refuse arguments of the constructor that are out of their range for n_features_in_."""

    @abstractmethod
    def _fit(
        self,
        rows: Array | Tensor,
        progress: Progress | bool | None,
        checkpoint: str | Path | None,
    ) -> None:
        """Learn from checked rows: set the attributes that end in an underscore."""

    @abstractmethod
    def _transform_into(self, x: Tensor, out: Tensor) -> None:
        """Map a float32 or float64 chunk (n, D), and write it to (n, K) of its type."""

    @abstractmethod
    def _inverse_transform_into(self, z: Tensor, out: Tensor) -> None:
        """Undo that on a float32 or float64 chunk (n, K), and write it to (n, D)."""

    def _transform(self, x: Tensor) -> Tensor:
        """Map a float32 or float64 chunk, which need not be finite."""
        out = x.new_empty(len(x), self._n_features_out)
        self._transform_into(x.detach(), out)
        return out

    def push_to_hub(
        self,
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
        """Upload the folder that `save_calibrator` writes, with its card, to the model hub.

        The arguments are those of `SentenceTransformer.push_to_hub`. What the calibrator was fitted
        on is part of it, files and encoder without the folders they lie in here.

        Returns:
            The address of the commit or pull request.

        Raises:
            huggingface_hub.errors.HfHubHTTPError: The hub refuses; nothing is uploaded then.

        Example:
            ``Whitening().fit(vectors).push_to_hub("me/whitening", private=True)``
        """
        from huggingface_hub import HfApi

        from bertflow.calibrators.readme import CARD, calibrator_card
        from bertflow.calibrators.writing import save_calibrator, without_folders

        public = without_folders(self)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            save_calibrator(public, folder)  # Before anything is made on the hub.
            api = HfApi(token=token)
            made = api.create_repo(repo_id, private=private, exist_ok=exist_ok or create_pr)
            repo_id = made.repo_id
            if revision is not None:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            keep = not replace_model_card and api.file_exists(repo_id, CARD, revision=revision)
            content = calibrator_card(public, repo_id)
            (folder / CARD).write_text(content, encoding="utf-8", newline="\n")
            done = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                ignore_patterns=[CARD] if keep else None,
                commit_message=commit_message or f"Add a {type(self).__name__}",
                revision=revision,
                create_pr=create_pr,
            )
        return str(done.pr_url if create_pr else done.commit_url)

    def facts(self) -> dict[str, str]:
        """The learned map and its rows in words, by name, as notebooks and model cards show them.

        Example:
            >>> import numpy as np
            >>> from bertflow import Whitening
            >>> Whitening(2).fit(np.random.default_rng(0).normal(size=(50, 4))).facts()
            {'dimensions': '4 in, 2 out', 'fitted on': '50 rows'}
        """
        if not self.__sklearn_is_fitted__():
            return {}
        width, kept = self.n_features_in_, self._n_features_out
        found = {"dimensions": f"{width:,}" if width == kept else f"{width:,} in, {kept:,} out"}
        if fitted := self._fitted_on():
            found["fitted on"] = fitted
        return {**found, **self._more_facts()}

    def _more_facts(self) -> dict[str, str]:
        """Facts of this kind of calibrator."""
        return {}

    def _fitted_on(self) -> str:
        """How many sentences or rows it was fitted on, as far as that is known."""
        told = getattr(self, "provenance_", {})
        counts = {
            name: value
            for name in ("sentences", "distinct", "rows")
            if isinstance(value := told.get(name), int)
        }
        if "sentences" in counts:
            distinct = f", {counts['distinct']:,} of them distinct" if "distinct" in counts else ""
            return f"{counts['sentences']:,} sentences{distinct}"
        rows = getattr(self, "n_samples_", counts.get("rows"))
        return "" if rows is None else f"{rows:,} rows"

    def _facts_html(self) -> str:
        facts = self.facts()
        return block(f"{type(self).__name__}, fitted", facts_table(facts)) if facts else ""

    # Notebooks ask for either of two names. Both give scikit-learn's page, and our facts below it.
    def _repr_html_inner(self) -> str:
        return f"{super()._repr_html_inner()}{self._facts_html()}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += self._facts_html()
        return bundle

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return {**state, "_kept": {}} if "_kept" in state else state

    def _once(self, name: str, tensor: Tensor, make: Callable[[], Made]) -> Made:
        """Make something once for all chunks of a tensor's type and device."""
        kept = self.__dict__.setdefault("_kept", {})
        key = (name, tensor.dtype, tensor.device)
        if key not in kept:
            kept[key] = make()
        return cast("Made", kept[key])

    @abstractmethod
    def _learned(self) -> dict[str, Tensor]:
        """What was learned, by the name it has in a file."""

    @abstractmethod
    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The tensors of a file for these arguments and n_features_in_, as `empty` makes them.

        The shapes are those that a file has, for sizes that the arguments leave open.
        """

    @abstractmethod
    def _restore(self, learned: Mapping[str, Tensor]) -> None:
        """Take back what `_learned` gave, names and shapes being checked."""


def empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor without memory: a shape and a type."""
    return torch.empty(shape, dtype=dtype, device="meta")


def learned_tensor(array: Array) -> Tensor:
    """A learned array as a tensor; a read-only array is copied.

    Such an array is what `joblib.load(..., mmap_mode="r")` gives. torch has no read-only tensors.
    """
    return torch.from_numpy(np.require(array, requirements=["W"]))


def like(array: Array, tensor: Tensor) -> Tensor:
    """The array as a tensor of another one's type and device."""
    return learned_tensor(array).to(dtype=tensor.dtype, device=tensor.device)
