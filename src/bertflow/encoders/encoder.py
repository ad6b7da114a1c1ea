"""The kind of SentenceTransformer that bertflow gives."""

from __future__ import annotations

from functools import wraps
from typing import Any

from sentence_transformers import SentenceTransformer

from bertflow.process_state import pinned


class Encoder(SentenceTransformer):
    """A SentenceTransformer whose `encode` depends on nothing that the process has set.

    Without a sentence it gives an array of shape (0, D), of the type that it gives otherwise.
    """

    @wraps(SentenceTransformer.encode)
    @pinned()
    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Vectors of sentences, as `SentenceTransformer.encode` gives them."""
        given = args[0] if args else kwargs.get("inputs", kwargs.get("sentences"))
        if not isinstance(given, str) and hasattr(given, "__len__") and len(given) == 0:
            args, kwargs = ([""], *args[1:]), {k: v for k, v in kwargs.items() if v is not given}
            return super().encode(*args, **kwargs)[:0]
        return super().encode(*args, **kwargs)
