"""How a fine-tuning is done: the arguments, checked, and the precision they come to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bertflow.errors import InputError, check_number

PRECISIONS = ("auto", "float32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an encoder is fine-tuned on NLI.

    The defaults are those of the paper's Appendix B (1 epoch, 2e-5, batches of 16), and what it
    leaves open is SBERT's: AdamW, a warm-up over the first tenth of the steps and a linear decay
    to zero, and the weight decay and the gradient norm of sentence-transformers' own `fit`, with
    which SBERT was trained (biases and LayerNorms do not decay).

    Attributes:
        epochs: Passes over the training pairs; a part of one is possible.
        learning_rate: The highest, reached after the warm-up.
        batch_size: Pairs a step.
        warmup: Share of the steps over which the learning rate rises from zero.
        weight_decay: AdamW's.
        max_grad_norm: The encoder's gradient is cut to this norm; 0 leaves it as it is.
        random_state: Seed of the classifier's first weights, of the order of the pairs and of
            dropout.
        precision: "float32", "bf16" or "fp16"; the two are mixed precision, the weights stay
            float32. "auto" takes bf16 on a CUDA device that has it, fp16 on another, and float32
            elsewhere.
        checkpoint_steps: Steps between two checkpoints. The result does not depend on it.

    Raises:
        InputError: A value is out of its range.

    Example:
        >>> Recipe(epochs=0.5).learning_rate
        2e-05
    """

    epochs: float = 1.0
    learning_rate: float = 2e-5
    batch_size: int = 16
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    random_state: int = 0
    precision: str = "auto"
    checkpoint_steps: int = 500

    def __post_init__(self) -> None:
        check_number("epochs", self.epochs, 0, above=True)
        check_number("learning_rate", self.learning_rate, 0, above=True)
        check_number("batch_size", self.batch_size, 1, integer=True)
        check_number("warmup", self.warmup, 0, 1)
        check_number("weight_decay", self.weight_decay, 0)
        check_number("max_grad_norm", self.max_grad_norm, 0)
        # What numpy's generator, which the trainer seeds as well, can be seeded with.
        check_number("random_state", self.random_state, 0, 2**32 - 1, integer=True)
        check_number("checkpoint_steps", self.checkpoint_steps, 1, integer=True)
        if self.precision not in PRECISIONS:
            raise InputError(
                f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
            )


def resolved_precision(precision: str, device: torch.device) -> str:
    """The precision that is meant on a device: "float32", "bf16" or "fp16".

    Raises:
        InputError: fp16 where there is no CUDA device.
    """
    if precision == "auto":
        if device.type != "cuda":
            return "float32"
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if precision == "fp16" and device.type != "cuda":
        raise InputError(
            f"precision fp16 needs a CUDA device, but the encoder is on {device.type}; "
            "take float32 or bf16"
        )
    return precision
