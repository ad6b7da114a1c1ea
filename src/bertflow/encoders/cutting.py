"""Cutting a transformer to the blocks that are needed, whatever its architecture."""

from __future__ import annotations

from typing import Any

from torch import nn


class Cut:
    """The blocks of a transformer, of which the last can be left out, and put back.

    Models that normalise after their last block (GPT- and Llama-like ones) apply that to whichever
    block is last. Cut right after block i, their hidden state i would change, so they need one
    block more. Which kind a model is, only trying tells: `choices` are to be tried in turn.

    Args:
        model: A transformers model.
        total: How many blocks it has: one less than its hidden states.
    """

    def __init__(self, model: nn.Module, total: int) -> None:
        self.total = total
        self._configs: list[Any] = []
        for module in model.modules():
            config = getattr(module, "config", None)
            if hasattr(config, "get_text_config"):
                config = config.get_text_config()  # type: ignore[union-attr]
            known = any(config is other for other in self._configs)
            if getattr(config, "num_hidden_layers", None) == total and not known:
                self._configs.append(config)
        self._blocks = [
            (parent, name, child)
            for parent in model.modules()
            for name, child in parent.named_children()
            if isinstance(child, nn.ModuleList) and len(child) == total
        ]
        self._lists = [
            {
                key: value
                for key, value in config.to_dict().items()
                if isinstance(value, list) and len(value) == total
            }
            for config in self._configs
        ]

    def choices(self, top: int) -> list[int]:
        """The numbers of blocks to try where hidden state `top` is the highest that is needed."""
        if not self._blocks or not self._configs:
            return [self.total]
        least = max(top, 1)
        return sorted({min(least, self.total), min(least + 1, self.total), self.total})

    def keep(self, count: int) -> None:
        """Keep the first blocks, in place; all of them are back with `total`."""
        for parent, name, full in self._blocks:
            setattr(parent, name, full if count == self.total else full[:count])
        for config, lists in zip(self._configs, self._lists, strict=True):
            for key, value in lists.items():
                setattr(config, key, value[:count])
            config.num_hidden_layers = count

    def can_be_saved(self) -> bool:
        """Whether configurations with so many blocks can be read again; some refuse the number."""
        try:
            for config in self._configs:
                type(config).from_dict(config.to_dict())
        except Exception:  # Whatever it says, the model is not cut there.
            return False
        return True
