"""Siamese training on NLI by sentence-transformers' own trainer and loss."""

from __future__ import annotations

import copy
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from torch import nn
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer_utils import SaveStrategy
from transformers.utils import logging

from bertflow.data import NLI_LABELS, NliPairs
from bertflow.encoders import describe_encoder, embed, library_versions
from bertflow.encoders.description import origin_of
from bertflow.encoders.embedding import count_cut_of
from bertflow.errors import InputError, MissingDependencyError, TrainingError, check_number
from bertflow.finetuning.examples import NliCorpus
from bertflow.finetuning.finetuned import FineTuned, accuracy_of
from bertflow.finetuning.resuming import CLASSIFIER, completed, last_checkpoint, restore, step
from bertflow.io.files import sole_writer

Progress = Callable[[str, int, int], None]

PACKAGES = ("accelerate", "datasets")
PRECISIONS = ("auto", "float32", "bf16", "fp16")
POINTS = 100  # Of the loss curve.
_LOG = getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an encoder is fine-tuned on NLI.

    The defaults are those of the paper's Appendix B (1 epoch, 2e-5, batches of 16). What it leaves
    open is SBERT's: AdamW, a warm-up over the first tenth of the steps and a linear decay to zero,
    and the weight decay and the gradient norm of sentence-transformers' own `fit`, with which SBERT
    was trained (biases and LayerNorms do not decay).

    Attributes:
        epochs: Passes over the training pairs; a part of one is possible.
        learning_rate: The highest, reached after the warm-up.
        batch_size: Pairs a step.
        warmup: Share of the steps over which the learning rate rises from zero.
        weight_decay: AdamW's.
        max_grad_norm: The encoder's gradient is cut to this norm; 0 leaves it as it is.
        random_state: Seed of the classifier's first weights, of the order of the pairs and of
            dropout.
        precision: "float32", "bf16" or "fp16"; the last two are mixed precision, whose weights stay
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
        # The trainer seeds numpy's generator, too, which takes no larger seed.
        check_number("random_state", self.random_state, 0, 2**32 - 1, integer=True)
        check_number("checkpoint_steps", self.checkpoint_steps, 1, integer=True)
        if self.precision not in PRECISIONS:
            raise InputError(
                f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
            )


def resolved_precision(precision: str, device: torch.device) -> str:
    """The precision on a device: "float32", "bf16" or "fp16".

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


def finetune(
    encoder: SentenceTransformer,
    corpus: NliCorpus,
    recipe: Recipe | None = None,
    *,
    checkpoints: Path | None = None,
    progress: Progress | None = None,
) -> FineTuned:
    r"""Fine-tune an encoder on labelled pairs of sentences, both through the same weights.

    With u and v the vectors of a premise and its hypothesis, the classifier

    .. math:: p = \mathrm{softmax}(W [u, v, |u - v|] + b), \quad W \in \mathbb{R}^{3 \times 3D}

    is trained by cross entropy together with the encoder, which is kept (Reimers and Gurevych,
    2019, the classification objective; the paper's Appendix B).

    The given encoder does not change, nor do the caller's random states. The same encoder, corpus,
    recipe, device and thread count give the same bits, also if the run was interrupted and went on
    from its last checkpoint.

    Args:
        encoder: Any SentenceTransformer with float32 weights; `load_encoder(name,
            pooling="mean")` is SBERT's.
        corpus: As `nli_corpus` gives it.
        recipe: How; None takes the paper's.
        checkpoints: A folder for the last checkpoint. The run goes on from a checkpoint of its own,
            and discards one of another run. `save_finetuned` removes the folder.
        progress: Called with the name of the stage ("train", then "encode" for the held-out
            sentences), the steps done and their total.

    Returns:
        The fine-tuned encoder, its accuracy on the held-out pairs and its provenance.

    Raises:
        MissingDependencyError: datasets or accelerate is missing; the message is the pip line.
        InputError: Weights that are not float32, a precision the device does not have, or a
            second GPU.
        TrainingError: Loss or weights are not finite; the message names the step. The last
            checkpoint is from before it.
        ModelError: The folder of the checkpoints holds something else, cannot be written, or
            another process is training into it.

    Example:
        ``save_finetuned(finetune(load_encoder(name, pooling="mean"), corpus), "sbert")``
    """
    with _alone(checkpoints):
        return _finetune(encoder, corpus, recipe or Recipe(), checkpoints, progress)


def _alone(checkpoints: Path | None) -> AbstractContextManager[None]:
    """Keep other processes from training into the same folder while inside."""
    if checkpoints is None:
        return nullcontext()
    return sole_writer(checkpoints, checkpoints.with_name(f".{checkpoints.name}.lock"))


def _finetune(
    encoder: SentenceTransformer,
    corpus: NliCorpus,
    recipe: Recipe,
    checkpoints: Path | None,
    progress: Progress | None,
) -> FineTuned:
    check_packages()
    precision = resolved_precision(recipe.precision, encoder.device)
    _check_encoder(encoder)
    began = time.perf_counter()
    facts: dict[str, Any] = {
        "recipe": {**asdict(recipe), "precision": precision},
        "encoder": describe_encoder(encoder),
        "device": encoder.device.type,
    }
    run = _identity(facts, corpus)
    resume, discarded = last_checkpoint(checkpoints, run) if checkpoints else (None, list[str]())
    if discarded:
        _LOG.info("checkpoints in %s discarded: other %s", checkpoints, ", ".join(discarded))
    model = copy.deepcopy(encoder)
    with (
        _as_if_alone(recipe.random_state),
        # The trainer makes its folder even if it saves nothing.
        nullcontext(checkpoints) if checkpoints else tempfile.TemporaryDirectory() as folder,
        # The loss trains whole vectors; users truncate afterwards.
        model.truncate_embeddings(None),
    ):
        loss = SoftmaxLoss(model, model.get_embedding_dimension() or 0, len(NLI_LABELS))
        total = math.ceil(recipe.epochs * math.ceil(len(corpus.train) / recipe.batch_size))
        arguments = _arguments(model, recipe, precision, total, str(folder))
        arguments.save_strategy = SaveStrategy.STEPS if checkpoints else SaveStrategy.NO
        trainer = _Trainer(loss, corpus.train, arguments, run, progress)
        trainer.run_to_end(resume, total)
        # Mixed precision has put itself around `forward`.
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        classifier = loss.classifier.cpu().requires_grad_(False)
        model.eval()
        predicted = _predicted(model, classifier, corpus.held_out, progress)
    resumed_at = 0 if resume is None else step(resume)
    return FineTuned(
        model=model,
        classifier=classifier,
        labels=NLI_LABELS,
        accuracy=accuracy_of(predicted, corpus.held_out.labels),
        counts=corpus.counts,
        loss_curve=loss_curve(trainer.losses),
        resumed_at=resumed_at,
        discarded=discarded,
        provenance={
            **facts,
            "origin": origin_of(encoder),
            "steps": total,
            "resumed_at": resumed_at,
            "cut_to_max_length": count_cut_of(encoder, corpus.texts()),
            "division": dict(corpus.division),
            "sets": [asdict(part) for part in corpus.sets],
            "versions": {**library_versions(), **{name: version(name) for name in PACKAGES}},
            "seconds": round(time.perf_counter() - began, 1),
        },
        checkpoints=checkpoints,
    )


def loss_curve(losses: list[float]) -> list[tuple[int, float]]:
    """Steps and the mean loss since the one before, at about 100 points.

    Example:
        >>> loss_curve([3.0, 2.0]), loss_curve([1.0] * 250)[:2]
        ([(1, 3.0), (2, 2.0)], [(2, 1.0), (4, 1.0)])
    """
    every = max(len(losses) // POINTS, 1)
    ends = range(every, len(losses) + 1, every)
    return [(end, math.fsum(losses[end - every : end]) / every) for end in ends]


def check_packages() -> None:
    """Refuse to begin without the packages that training needs.

    Raises:
        MissingDependencyError: One is missing; the message is the pip line.
    """
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise MissingDependencyError(
            f"fine-tuning needs {' and '.join(missing)}: pip install 'bertflow[train]'"
        )


def _check_encoder(encoder: SentenceTransformer) -> None:
    if encoder.dtype != torch.float32:
        raise InputError(
            f"the encoder's weights are {str(encoder.dtype).removeprefix('torch.')}, in which "
            "small steps are lost; load it in float32 and choose the precision by the recipe"
        )
    if encoder.device.type == "cuda" and encoder.device.index not in (None, 0):
        raise InputError(
            f"the encoder is on {encoder.device}, but the trainer takes the first GPU it sees; "
            f"set CUDA_VISIBLE_DEVICES={encoder.device.index} and use cuda"
        )


def _identity(facts: dict[str, Any], corpus: NliCorpus) -> dict[str, Any]:
    """All that the bits of the result depend on: no path, and not how often it saves."""
    return {
        "recipe": {k: v for k, v in facts["recipe"].items() if k != "checkpoint_steps"},
        "corpus": corpus.digest(),
        "encoder": {k: v for k, v in facts["encoder"].items() if k != "name"},
        "device": facts["device"],
    }


@contextmanager
def _as_if_alone(seed: int) -> Iterator[None]:
    """Seed all global generators, which the trainer uses, and restore them afterwards.

    The trainer's libraries also write into the environment, which is restored. Their warnings are
    off: they are about things that the libraries set right, such as an unknown padding token.
    """
    environment, verbosity = dict(os.environ), logging.get_verbosity()
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    # To ask for a GPU's state would start it.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(list(gpus)):
            torch.manual_seed(seed)
            logging.set_verbosity(ERROR)
            yield
    finally:
        logging.set_verbosity(verbosity)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


class _Trainer(SentenceTransformerTrainer):
    """The trainer, with the classifier and all losses in its checkpoints, and silent.

    Its own model card would show sentences of the corpus, and for each checkpoint it would ask the
    hub whether it knows the encoder. The classifier belongs to the loss and not to the model.
    """

    def __init__(
        self,
        loss: SoftmaxLoss,
        pairs: NliPairs,
        arguments: SentenceTransformerTrainingArguments,
        run: Mapping[str, Any],
        progress: Progress | None,
    ) -> None:
        from datasets import Dataset

        data = Dataset.from_dict(
            {
                "sentence1": list(pairs.first),
                "sentence2": list(pairs.second),
                "label": [NLI_LABELS.index(label) for label in pairs.labels],
            }
        )
        super().__init__(model=loss.model, args=arguments, train_dataset=data, loss=loss)
        self.remove_callback(PrinterCallback)  # It prints a summary at the end.
        if progress is not None:
            self.add_callback(_Watch(progress))
        self.classifier: nn.Linear = loss.classifier
        self.run = run
        self.losses: list[float] = []

    def run_to_end(self, resume: Path | None, total: int) -> None:
        """Train up to the last of so many steps, from a checkpoint if there is one."""
        if resume is not None:
            _LOG.info("going on after step %d of %d", step(resume), total)
        if resume is not None and step(resume) == total:
            # After a part of an epoch `train` would take one step more.
            self._load_from_checkpoint(str(resume))
        else:
            self.train(resume_from_checkpoint=None if resume is None else str(resume))
            self._check_weights()

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Loss and gradient of a batch, before its step is taken.

        Raises:
            TrainingError: The loss is not finite.
        """
        # The trainer of sentence-transformers 5.7 zeroes the encoder's gradients alone.
        self.classifier.zero_grad()
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.losses.append(float(loss))
        if not bool(loss.isfinite()):
            raise self._not_finite(f"the loss is {float(loss)} at", self.state.global_step + 1)
        return loss

    def _check_weights(self) -> None:
        weights = [*self.model.parameters(), *self.classifier.parameters()]
        if not all(bool(weight.isfinite().all()) for weight in weights):
            raise self._not_finite("the weights are not finite after", self.state.global_step)

    def _not_finite(self, what: str, at: int) -> TrainingError:
        return TrainingError(
            f"{what} step {at} of {self.state.max_steps}; take a smaller learning rate than "
            f"{self.args.learning_rate:g}, or precision float32"
        )

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Collect nothing for the trainer's own card."""

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save finite weights only: they replace the checkpoint before."""
        self._check_weights()
        checkpoint = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        with completed(checkpoint, self.run, self.losses):
            super()._save_checkpoint(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self.model.save_pretrained(str(output_dir), create_model_card=False)
        save_file(self.classifier.state_dict(), Path(str(output_dir), CLASSIFIER))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint)
        self.losses = restore(Path(resume_from_checkpoint), self.classifier)


class _Watch(TrainerCallback):
    """Reports each step."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the step."""
        self.progress("train", state.global_step, state.max_steps)


def _arguments(
    model: SentenceTransformer, recipe: Recipe, precision: str, total: int, folder: str
) -> SentenceTransformerTrainingArguments:
    """The recipe as arguments of the trainer, which prints and reports nothing."""
    arguments = SentenceTransformerTrainingArguments(
        output_dir=folder,
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(recipe.warmup * total),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        seed=recipe.random_state,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=model.device.type == "cpu",
        dataloader_pin_memory=model.device.type == "cuda",
        prompts=model.prompts.get(model.default_prompt_name or "") or None,
        save_steps=recipe.checkpoint_steps,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    # With several GPUs it would split each batch over them.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _predicted(
    model: SentenceTransformer, classifier: nn.Linear, pairs: NliPairs, progress: Progress | None
) -> list[str]:
    """The most probable label of each pair."""
    embedded = embed(
        model,
        [*pairs.first, *pairs.second],
        precision="float32",
        progress=None if progress is None else lambda done, of: progress("encode", done, of),
    )
    first, second = embedded.index[: len(pairs)], embedded.index[len(pairs) :]
    u, v = (torch.from_numpy(embedded.vectors[index]) for index in (first, second))
    logits = classifier(torch.cat([u, v, (u - v).abs()], dim=1))
    return [NLI_LABELS[label] for label in logits.argmax(dim=1).tolist()]
