"""The base of every calibrator: scikit-learn's protocol, and checks that are made once."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bertflow.arrays import Array, Rows, finite, is_frame, mapped, matrix, unit_length
from bertflow.calibrators.moments import (
    ROLES,
    Moments,
    QueryMap,
    gathered,
    moments_of,
    moments_of_queries,
    places_of_roles,
    varies,
)
from bertflow.calibrators.reference import Density, Reference, sample_of
from bertflow.errors import FewRowsWarning, InputError, unknown
from bertflow.process_state import pinned

Made = TypeVar("Made")
Vectors: TypeAlias = Array | Tensor
# Maps a chunk of rows to a tensor that it fills.
Into: TypeAlias = Callable[[Tensor, Tensor], None]
# Called after each step of a training with the steps done, their total and the loss.
Progress: TypeAlias = Callable[[int, int, float], None]
Shown: TypeAlias = Progress | bool | None

# Private methods that are pinned, too, because unpinned code of other modules calls them.
OTHERS_CALL = ("_rows", "_transform", "_learned", "_tensors")

NOTHING_KEPT = (
    "the calibrator keeps no statistics of its rows: an earlier version fitted it, or it learned "
    "from moments alone, or from variances of very wide rows"
)


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
    """A map learned on unlabelled vectors, after which cosine similarity means something.

    A scikit-learn estimator over matrices of shape (N, D) with N ≥ 2 and D ≥ 2. numpy in gives
    numpy out; a torch tensor in gives a torch tensor out, on the same device. The output has the
    input's type; float16 and bfloat16 are computed in float32, and rows that overflow there in
    float64. Up to rounding, a row of the output depends on its own row of the input alone. Finite
    rows give finite outputs, or the row is refused by its number.
    """

    # The name of the class in files and on the command line, then those of its presets; each with
    # the arguments in which it differs from the defaults.
    names: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    # Set by fit. Files of earlier versions have no n_samples_.
    n_features_in_: int
    n_samples_: int
    # What `_once` has made.
    _kept: dict[Any, Any]
    # Set by callers that know where the rows came from: encoder, files, counts, versions.
    provenance_: dict[str, Any]
    # What brings queries to where documents lie, after a fit on both.
    query_map_: QueryMap | None = None
    # What is kept of the fitted rows. Files of earlier versions have none.
    reference_: Reference | None = None

    def fit(
        self,
        X: Any,  # noqa: N803
        y: None = None,
        *,
        queries: Any = None,
        role: Any = None,
        progress: Shown = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Learn the map from rows; from documents and queries, a map for each of them.

        With both, the map is learned from the documents, and a `QueryMap` brings queries there
        first. Only a `Flow` takes steps, which can be watched and resumed: with a checkpoint, a fit
        that was stopped goes on when it is called again, to the same bits, for the same rows,
        arguments, versions and number of threads. Else it starts anew, and the log says why.

        Args:
            X: Vectors, shape (N, D): an array, a memory-mapped file, a tensor, a data frame of
                numbers; or a list, Series or column whose entries are vectors.
            y: Ignored, there for scikit-learn's sake.
            queries: Vectors of queries, shape (n, D), n ≥ 2; X are then documents. Some 30 help.
            role: Instead of queries, "query" or "document" for each row of X, shape (N,).
            progress: A function to call after each step with the steps done, their total and the
                loss in bits per dimension. True shows a bar, False none, and None one after half a
                second where the main thread has a terminal or notebook.
            checkpoint: File in which the state is kept, written every ten seconds. It stays.

        Raises:
            InputError: Fewer than 2 rows or dimensions, a NaN or infinite row (named), all rows
                equal, or an argument of the constructor out of its range.
            ModelError: The checkpoint cannot be written, or is a file of another kind.
            TrainingError: A step of a `Flow` is not finite.
        """
        self._begin()
        rows = self._checked(X, first=True, least=2)
        # Queries that stand among X have been checked with it.
        check = matrix if role is not None else self._checked
        if role is not None:
            if queries is not None:
                raise InputError("give queries or role, not both")
            places = places_of_roles(role, len(rows))
            if len(places) < 2:
                raise InputError("role must name queries and documents, or be left out")
            rows, queries = rows[places["document"]], rows[places["query"]]
        self._check_arguments()
        # Before the fit, which may take hours.
        found = None
        if queries is not None:
            found = QueryMap.of(moments_of(rows), moments_of_queries(queries, check))
        moments = moments_of(rows, covariance=self._needs_covariance, normalize=self._unit_rows)
        self._fit(moments, rows, progress, checkpoint)
        self.query_map_ = found
        self._remember(moments, rows)
        return self

    def partial_fit(self, X: Any, y: None = None, *, progress: Shown = None) -> Self:  # noqa: N803
        """Learn from more rows. Earlier ones count by their number, and need not be there.

        A linear map becomes what one `fit` on all rows gives, up to rounding, in whatever order and
        parts they come. (Near duplicates, which `AdaptiveWhitening` counts, are looked for within a
        part, so give it some thousand rows at a time.) A `Flow` goes on from its weights, see
        there. A map of queries stays. Vectors that were mapped before do not go with those mapped
        after: bring them back by `inverse_transform` first, then map all of them.

        Until two rows differ, the calibrator stays not fitted. One that is fitted, and refuses
        rows, stays as it was.

        Args:
            X: Vectors, as for `fit`, at least one.
            y: Ignored, there for scikit-learn's sake.
            progress: As for `fit`.

        Raises:
            InputError: As `fit`; or the calibrator was fitted by a version of bertflow that kept
                nothing of the rows.

        Example:
            >>> import numpy as np
            >>> from bertflow import Whitening
            >>> x = np.random.default_rng(0).normal(size=(600, 4))
            >>> parts = Whitening().partial_fit(x[:200]).partial_fit(x[200:])
            >>> bool(np.allclose(parts.transform(x), Whitening().fit_transform(x)))
            True
        """
        self._check_updatable()
        before = self.reference_
        if before is None:
            self._begin()
        rows = self._checked(X, first=before is None, least=1)
        self._check_arguments()
        found = gathered(rows, covariance=self._needs_covariance, normalize=self._unit_rows)
        moments = found if before is None else before.moments + found
        if varies(moments):
            with warnings.catch_warnings():
                if before is not None:  # More rows may come.
                    warnings.simplefilter("ignore", FewRowsWarning)
                self._fit(moments, rows, progress, None)
            self._remember(moments, rows)
        else:
            sample = self._compared(sample_of(rows))
            self.reference_ = Reference.of(moments, sample, sample[:0], before)
        return self

    def _check_updatable(self) -> None:
        if self.__sklearn_is_fitted__() and self.reference_ is None:
            raise InputError(f"{NOTHING_KEPT}; fit it on all rows once more")

    def _remember(self, moments: Moments, rows: Vectors | None) -> None:
        """Conclude a fit on rows with these moments, all before included."""
        self._kept = {}
        self._fitted_with = self.get_params(deep=False)
        self.n_samples_ = moments.count
        sample = moments.mean.new_empty(0, len(moments.mean)) if rows is None else sample_of(rows)
        with torch.no_grad():
            images = self._transform(sample)
        # The caller's own, or those that attributes share, may change.
        moments = Moments.restored(moments.count, moments.mean.clone(), moments.second.clone())
        self.reference_ = Reference.of(moments, self._compared(sample), images, self.reference_)
        self._fitted = True

    def _compared(self, rows: Tensor) -> Tensor:
        """Rows as they are compared with fitted ones: at unit length if those are."""
        return unit_length(rows) if self._unit_rows else rows

    def log_density(self, X: Any) -> Any:  # noqa: N803
        """How typical rows are of those that were fitted, in nats per dimension, shape (N,).

        It is the log-density of a Gaussian with the moments of the fitted rows, whatever the
        calibrator: see `bertflow.calibrators.Density`. Calibrators that learn from rows at unit
        length compare them at unit length. Errors are those of `transform`, or that nothing was
        kept of the rows, see `partial_fit`.
        """
        check_is_fitted(self)
        if self.reference_ is None or not self.reference_.comparable:
            raise InputError(f"{NOTHING_KEPT}; fit it once more")
        density = Density(self.reference_.cloud)

        def into(x: Tensor, out: Tensor) -> None:
            out[:, 0] = density.of(self._compared(x.cpu().double()))

        return mapped(into, self._checked(X), 1)[:, 0]

    def fit_transform(self, X: Any, y: None = None, **how: Any) -> Any:  # noqa: N803
        """Fit, and transform the same rows, each by the map of its role."""
        role = how.get("role")
        return self.fit(X, y, **how).transform(X, "document" if role is None else role)

    def _begin(self) -> None:
        self._fitted = False
        self._fitted_with = self.get_params(deep=False)
        self._kept = {}
        self.query_map_ = self.reference_ = None

    def transform(self, X: Rows, role: Any = "document") -> Rows:  # noqa: N803
        """Apply the learned map: (N, D) to (N, D) or, for `Whitening(dim=K)`, (N, K).

        Args:
            X: Vectors, as for `fit`.
            role: "document" or "query", for all rows or for each, shape (N,). It matters after a
                fit with queries.

        Raises:
            sklearn.exceptions.NotFittedError: fit has not been called.
            InputError: A NaN or infinite row (named), a row whose image its type cannot hold
                (named), another width than at fit, or another role.
        """
        return self._rows(X, role)

    def _rows(self, X: Rows, role: Any = "document") -> Rows:  # noqa: N803
        """Transform, but never to what scikit-learn's set_output asks for."""
        check_is_fitted(self)
        rows: Rows = self._checked(X)
        return self._by_role(0, rows, self._n_features_out, role)

    def _by_role(self, way: int, rows: Rows, width: int, role: Any) -> Rows:
        """Map each row to this width by its role: forward if `way` is 0, back if it is 1."""
        if isinstance(role, str):
            return mapped(self._into(role)[way], rows, width)
        # Not finite, a row is named by its number among all rows, not among those of its role.
        finite(rows)
        make: Any = rows.new_empty if isinstance(rows, Tensor) else np.empty
        found: Rows = make((len(rows), width), dtype=rows.dtype)
        for name, places in places_of_roles(role, len(rows)).items():
            try:
                found[places] = mapped(self._into(name)[way], rows[places], width)
            except InputError as error:
                raise InputError(f"{error} (of those of role {name!r})") from None
        return found

    def _into(self, role: str) -> tuple[Into, Into]:
        """What maps a chunk of rows of a role, and what undoes that."""
        if role not in ROLES:
            raise unknown("role", role, ROLES)
        queries = self.query_map_
        if role == "document" or queries is None:
            return self._transform_into, self._inverse_transform_into

        def into(x: Tensor, out: Tensor) -> None:
            bring = self._once("queries", x, lambda: queries.to(x))
            self._transform_into(bring.apply(x), out)

        def back(z: Tensor, out: Tensor) -> None:
            self._inverse_transform_into(z, out)
            bring_back = self._once("queries back", z, lambda: queries.inverse().to(z))
            out.copy_(bring_back.apply(out))

        return into, back

    def inverse_transform(self, X: Rows, role: Any = "document") -> Rows:  # noqa: N803
        """Undo `transform` as far as it can be undone; what it has removed comes back as its mean.

        Errors and role are those of `transform`.
        """
        check_is_fitted(self)
        rows: Rows = matrix(X, self._n_features_out)
        if rows.shape[1] != self._n_features_out:
            raise InputError(
                f"X has {rows.shape[1]} columns, but {type(self).__name__}.transform "
                f"gives {self._n_features_out}"
            )
        return self._by_role(1, rows, self.n_features_in_, role)

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed half-way has set some attributes, so a flag is needed.
        return getattr(self, "_fitted", False)

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_

    def _checked(self, X: Any, *, first: bool = False, least: int = 0) -> Any:  # noqa: N803
        """Check shape, type and width, and of at least 1 row to be fitted that it is finite.

        The first rows set the width. Those to be mapped are checked for finiteness by `mapped`.
        """
        rows = matrix(X, 0 if first else self.n_features_in_)
        count, width = rows.shape
        if count < least or (first and width < 2):
            # scikit-learn's own checks look for these words.
            raise InputError(
                f"X has n_samples = {count} and n_features = {width}: {width} feature(s) "
                f"(shape=({count}, {width})) while a minimum of {least if width > 1 else 2} is "
                "required."
            )
        try:
            validate_data(self, X if is_frame(X) else rows, reset=first, skip_check_array=True)
        except ValueError as error:
            raise InputError(" ".join(str(error).split())) from error
        return finite(rows) if least else rows

    def _check_arguments(self) -> None:
        """Refuse arguments of the constructor that are out of their range for n_features_in_."""

    @property
    @abstractmethod
    def _needs_covariance(self) -> bool:
        """Whether moments are taken with the full covariance."""

    @property
    @abstractmethod
    def _unit_rows(self) -> bool:
        """Whether they are those of rows at unit length."""

    @abstractmethod
    def _fit(
        self, moments: Moments, rows: Vectors, progress: Shown, checkpoint: str | Path | None
    ) -> None:
        """Learn from checked rows: set the attributes that end in an underscore.

        The moments are of all rows that `partial_fit` was given, of which these came last; what was
        kept of the earlier ones is in `reference_`.
        """

    @abstractmethod
    def _transform_into(self, x: Tensor, out: Tensor) -> None:
        """Map a float32 or float64 chunk (n, D), and write it to (n, K) of its type."""

    @abstractmethod
    def _inverse_transform_into(self, z: Tensor, out: Tensor) -> None:
        """Undo that on a float32 or float64 chunk (n, K), and write it to (n, D)."""

    def _transform(self, x: Tensor, role: str = "document") -> Tensor:
        """Map a float32 or float64 chunk, which need not be finite."""
        out = x.new_empty(len(x), self._n_features_out)
        self._into(role if role in ROLES else "document")[0](x.detach(), out)
        return out

    def facts(self) -> dict[str, str]:
        """The learned map and its rows in words, by name, as model cards show them.

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
        if self.query_map_ is not None:
            found["queries"] = f"{self.query_map_.count:,}, brought to where documents lie"
        return {**found, **self._more_facts()}

    def _more_facts(self) -> dict[str, str]:
        return {}

    def _fitted_on(self) -> str:
        told = getattr(self, "provenance_", {})
        counts = {key: value for key, value in told.items() if isinstance(value, int)}
        rows = getattr(self, "n_samples_", counts.get("rows"))
        sentences = counts.get("sentences")
        if sentences is not None and sentences == (rows or sentences):
            distinct = f", {counts['distinct']:,} of them distinct" if "distinct" in counts else ""
            return f"{sentences:,} sentences{distinct}"
        return "" if rows is None else f"{rows:,} rows"

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

    def _tensors(self) -> dict[str, Tensor]:
        queries = {} if self.query_map_ is None else self.query_map_.learned()
        return {**self._learned(), **queries}

    @abstractmethod
    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Shapes and types of a file for these arguments, as `empty` makes them."""

    @abstractmethod
    def _restore(self, learned: Mapping[str, Tensor]) -> None:
        """Take back what `_learned` gave, names and shapes being checked."""


def empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor without memory: a shape and a type."""
    return torch.empty(shape, dtype=dtype, device="meta")


def learned_tensor(array: Array) -> Tensor:
    """A learned array as a tensor; a read-only one, as joblib maps it, is copied for torch."""
    return torch.from_numpy(np.require(array, requirements=["W"]))


def like(array: Array, tensor: Tensor) -> Tensor:
    """The array as a tensor of another one's type and device."""
    return learned_tensor(array).to(dtype=tensor.dtype, device=tensor.device)
