"""Siamese training on NLI by sentence-transformers' own trainer and loss."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from torch import nn
from transformers import PrinterCallback
from transformers.trainer_utils import SaveStrategy

from bertflow.calibrators.readme import (
    CARD,
    TEXTS,
    encoder_cells,
    front_matter,
    last_part,
    origin_metadata,
    table,
    text,
)
from bertflow.data import NLI_LABELS, NliPairs
from bertflow.encoders import describe_encoder, embed, library_versions
from bertflow.encoders.checks import quietly
from bertflow.encoders.description import origin_of
from bertflow.encoders.embedding import count_cut_of
from bertflow.errors import InputError, ModelError, TrainingError, check_choice, check_number, need
from bertflow.finetuning.examples import NliCorpus
from bertflow.io.files import check_replaceable, reason_of, replaced_folder, sole_writer
from bertflow.io.reading import parse_json
from bertflow.models.calibrated import name_modules_for_every_version
from bertflow.models.card import TAGS, licence_text

Progress = Callable[[str, int, int], None]

PACKAGES = ("accelerate", "datasets")
PRECISIONS = ("auto", "float32", "bf16", "fp16")
POINTS = 100  # Of the loss curve.
FACTS, CLASSIFIER = "finetuning.json", "classifier.safetensors"
RECORD = "run.json"
# With less room than this the disk is full: no optimizer state is that small.
SMALL = 2**16


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an encoder is fine-tuned on NLI.

    The defaults are those of the paper's Appendix B and, where it is silent, SBERT's: AdamW, linear
    warm-up and decay, and the weight decay and gradient norm of sentence-transformers' `fit`
    (biases and LayerNorms do not decay).

    Attributes:
        epochs: Passes over the training pairs, also a part of one.
        learning_rate: The highest, reached after the warm-up.
        batch_size: Pairs a step.
        warmup: Share of the steps over which the learning rate rises from zero.
        weight_decay: AdamW's.
        max_grad_norm: The encoder's gradient is cut to this norm; 0 leaves it as it is.
        random_state: Seed of the classifier's first weights, the order of the pairs and dropout.
        precision: "float32", or mixed precision by "bf16" or "fp16", whose weights stay float32.
            "auto" takes bf16 on a CUDA device that has it, fp16 on another, float32 elsewhere.
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
        check_choice("precision", self.precision, PRECISIONS)


@dataclass(frozen=True)
class Accuracy:
    """How many held-out pairs get their label.

    Attributes:
        value: The share of these, with its 95 % Wilson interval, which takes pairs as independent.
        pairs: How many were held out.
        majority: The accuracy of always saying the most frequent label.
        majority_label: That label.
        recall: By label, the share of its pairs that get it.
    """

    value: float
    low: float
    high: float
    pairs: int
    majority: float
    majority_label: str
    recall: Mapping[str, float]


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned encoder.

    Attributes:
        model: The encoder, in evaluation mode.
        classifier: The head over ``[u, v, |u − v|]`` with which it was trained, on the CPU.
        labels: The labels of the head's outputs, in their order.
        accuracy: On the held-out pairs.
        counts: Of "train" and "held_out", how many pairs have each label.
        loss_curve: Steps and the mean loss since the step before.
        resumed_at: The step of the checkpoint that the run went on from; 0 without one.
        discarded: Parts of the run that differed in a discarded checkpoint, such as "recipe".
        provenance: Recipe, data sets, encoder, versions, device and seconds.
        checkpoints: The folder of the last checkpoint, which `save_finetuned` removes.
    """

    model: SentenceTransformer
    classifier: nn.Linear
    labels: Sequence[str]
    accuracy: Accuracy
    counts: Mapping[str, Mapping[str, int]]
    loss_curve: Sequence[tuple[int, float]]
    resumed_at: int
    discarded: Sequence[str]
    provenance: Mapping[str, Any]
    checkpoints: Path | None


def resolved_precision(precision: str, device: torch.device) -> str:
    """The precision on a device: "float32", "bf16" or "fp16", which needs CUDA."""
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
            pooling="mean")` is SBERT's. Of several GPUs it is trained on the first.
        corpus: As `nli_corpus` gives it.
        recipe: How; None takes the paper's.
        checkpoints: A folder for the last checkpoint. The run goes on from a checkpoint of its own,
            and replaces one of another run. `save_finetuned` removes the folder.
        progress: Called with "train", then "encode", the steps done and their total.

    Returns:
        The fine-tuned encoder, its accuracy on the held-out pairs and its provenance.

    Raises:
        MissingDependencyError: datasets or accelerate is missing; the message is the pip line.
        InputError: Weights that are not float32, or a precision the device does not have.
        TrainingError: Loss or weights are not finite; the last checkpoint is from before it.
        ModelError: The folder of the checkpoints holds something else, cannot be written, or
            another process is training into it.

    Example:
        ``save_finetuned(finetune(load_encoder(name, pooling="mean"), corpus), "sbert")``
    """
    check_packages()
    recipe = recipe or Recipe()
    precision = resolved_precision(recipe.precision, encoder.device)
    if encoder.dtype != torch.float32:
        raise InputError(
            f"the encoder's weights are {str(encoder.dtype).removeprefix('torch.')}, in which "
            "small steps are lost; load it in float32 and choose the precision by the recipe"
        )
    began = time.perf_counter()
    facts: dict[str, Any] = {
        "recipe": {**asdict(recipe), "precision": precision},
        "encoder": describe_encoder(encoder),
        "device": encoder.device.type,
    }
    total = math.ceil(recipe.epochs * math.ceil(len(corpus.train) / recipe.batch_size))
    run = _identity(facts, corpus)
    model = copy.deepcopy(encoder)
    with (
        _sole_folder(checkpoints) as folder,
        _as_if_alone(recipe.random_state),
        # The loss trains whole vectors; users truncate afterwards.
        model.truncate_embeddings(None),
    ):
        resume, discarded = last_checkpoint(folder, run)
        resumed_at = 0 if resume is None else step(resume)
        arguments = _arguments(model, recipe, precision, total, str(folder))
        arguments.save_strategy = SaveStrategy.STEPS if checkpoints else SaveStrategy.NO
        trainer = _Trainer(model, corpus.train, arguments, run, progress)
        trainer.run_to_end(resume, total)
        # Mixed precision has put itself around `forward`.
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        classifier = trainer.classifier.cpu().requires_grad_(False)
        model.eval()
        predicted = _predicted(model, classifier, corpus.held_out, progress)
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


@contextmanager
def _sole_folder(checkpoints: Path | None) -> Iterator[Path]:
    """Give the folder of the checkpoints to one process at a time."""
    if checkpoints is None:
        # The trainer makes its folder even if it saves nothing.
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    with sole_writer(checkpoints, checkpoints.with_name(f".{checkpoints.name}.lock")):
        check_replaceable(checkpoints)
        yield checkpoints


def accuracy_of(predicted: Sequence[str], labels: Sequence[str]) -> Accuracy:
    """Compare predicted labels with the given ones."""
    totals = Counter(labels)
    hits = Counter(label for label, guess in zip(labels, predicted, strict=True) if label == guess)
    correct = hits.total()
    interval = binomtest(correct, len(labels)).proportion_ci(method="wilson")
    # The first by name of equally frequent labels: the same pairs give the same answer.
    majority_label = min(totals, key=lambda label: (-totals[label], label))
    return Accuracy(
        value=correct / len(labels),
        low=float(interval.low),
        high=float(interval.high),
        pairs=len(labels),
        majority=totals[majority_label] / len(labels),
        majority_label=majority_label,
        recall={label: hits[label] / totals[label] for label in sorted(totals)},
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
    """Refuse to begin without the packages that training needs; the message is the pip line."""
    need("fine-tuning", "train", *PACKAGES)


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
    """Seed the global generators that the trainer uses, and restore them and the environment."""
    environment = dict(os.environ)
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    # To ask for a GPU's state would start it.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        # Warnings are about what the libraries set right, such as an unknown padding token.
        with quietly(), torch.random.fork_rng(list(gpus)):
            torch.manual_seed(seed)
            yield
    finally:
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
        model: SentenceTransformer,
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
        loss = SoftmaxLoss(model, model.get_embedding_dimension() or 0, len(NLI_LABELS))
        super().__init__(model=model, args=arguments, train_dataset=data, loss=loss)
        self.remove_callback(PrinterCallback)  # It prints a summary at the end.
        self.progress = progress
        self.classifier: nn.Linear = loss.classifier
        self.run = run
        self.losses: list[float] = []

    def run_to_end(self, resume: Path | None, total: int) -> None:
        """Train up to the last of so many steps, from a checkpoint if there is one."""
        if resume is not None and step(resume) == total:
            # After a part of an epoch `train` would take one step more.
            self._load_from_checkpoint(str(resume))
        else:
            self.train(resume_from_checkpoint=str(resume) if resume else None)
            self._check_weights()

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Loss and gradient of a batch; a TrainingError if the loss is not finite."""
        # The trainer of sentence-transformers 5.7 zeroes the encoder's gradients alone.
        self.classifier.zero_grad()
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.losses.append(float(loss))
        if not bool(loss.isfinite()):
            raise self._not_finite(f"the loss is {float(loss)} at", self.state.global_step + 1)
        if self.progress is not None:
            self.progress("train", self.state.global_step + 1, self.state.max_steps)
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
        folder = self.args.output_dir
        with completed(Path(str(folder)), self.run, self.losses) as staging:
            self.args.output_dir = str(staging)
            super()._save_checkpoint(*args, **kwargs)
        self.args.output_dir = folder

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self.model.save_pretrained(str(output_dir), create_model_card=False)
        save_file(self.classifier.state_dict(), Path(str(output_dir), CLASSIFIER))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint)
        self.losses = restore(Path(resume_from_checkpoint), self.classifier)


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


# The checkpoint of a run: the trainer's own, with its classifier and a record of the run.


def last_checkpoint(folder: Path, run: Mapping[str, Any]) -> tuple[Path | None, list[str]]:
    """The checkpoint that a run goes on from, or None and the parts of the run that differ.

    Args:
        folder: Where its checkpoint is, if there is one.
        run: All that the result depends on, for JSON.
    """
    checkpoint = next(folder.glob("checkpoint-*"), None)
    earlier = _record(checkpoint)["run"] if checkpoint else {}
    described = json.loads(json.dumps(run))
    if earlier == described:
        return checkpoint, []
    return None, [name for name in described if earlier and earlier.get(name) != described[name]]


def step(checkpoint: Path) -> int:
    """The step after which a checkpoint was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def restore(checkpoint: Path, classifier: nn.Module) -> list[float]:
    """Give a classifier the weights of a checkpoint, and return the loss of each step before it."""
    path = checkpoint / CLASSIFIER
    try:
        classifier.load_state_dict(load_file(path))
        return [float(loss) for loss in _record(checkpoint)["losses"]]
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); remove {checkpoint}") from None


@contextmanager
def completed(folder: Path, run: Mapping[str, Any], losses: Sequence[float]) -> Iterator[Path]:
    """Give an empty folder for a checkpoint, which is recorded and replaces the one before."""
    with replaced_folder(folder) as staging:
        try:
            yield staging
        except RuntimeError as error:
            # torch does not say that the disk is full.
            full = shutil.disk_usage(staging).free < SMALL
            reason = os.strerror(errno.ENOSPC) if full else reason_of(error)
            raise ModelError(f"cannot write {folder}: {reason}") from error
        (checkpoint,) = staging.iterdir()
        record = {"run": run, "losses": losses, "files": _sizes(checkpoint)}
        (checkpoint / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")


def _record(checkpoint: Path) -> dict[str, Any]:
    """The record of a checkpoint; of no run if a file is missing, cut short or has grown."""
    try:
        record = parse_json((checkpoint / RECORD).read_text(encoding="utf-8"))
        whole = (
            isinstance(record["run"], dict)
            and len(record["losses"]) == step(checkpoint)
            and record["files"] == _sizes(checkpoint)
        )
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    return record if whole else {"run": {}}


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD
    }


# The folder of a fine-tuned encoder.


def save_finetuned(result: FineTuned, folder: str | Path) -> None:
    """Save a fine-tuned encoder to a folder, which is then the new one whole, or still the old one.

    The folder is an ordinary sentence-transformers model with a card, its provenance in
    finetuning.json and the head in classifier.safetensors. Then the checkpoints are removed.

    Raises:
        ModelError: The folder holds something that bertflow did not write, or cannot be written.
    """
    facts = {
        "format": 1,
        "labels": list(result.labels),
        "accuracy": asdict(result.accuracy),
        "counts": result.counts,
        **result.provenance,
        "loss_curve": result.loss_curve,
    }
    with replaced_folder(folder) as staging:
        result.model.save_pretrained(str(staging), create_model_card=False)
        (staging / CARD).write_text(finetuned_card(result), encoding="utf-8", newline="\n")
        name_modules_for_every_version(staging / "modules.json")
        (staging / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        save_file(result.classifier.state_dict(), staging / CLASSIFIER)
    if result.checkpoints is not None:
        shutil.rmtree(result.checkpoints, ignore_errors=True)


def finetuned_card(result: FineTuned) -> str:
    """The card of a fine-tuned encoder: how it was trained, accuracy and limits."""
    about = result.provenance
    encoder = encoder_cells(about["encoder"], about["origin"])
    metadata = origin_metadata(about["origin"])
    name = metadata.get("base_model") or about["encoder"].get("name")
    train, held_out = (sum(result.counts[side].values()) for side in ("train", "held_out"))
    template = (files("bertflow.finetuning") / "card.md").read_text(encoding="utf-8")
    return template.format(
        metadata=front_matter(
            library_name="sentence-transformers",
            pipeline_tag="sentence-similarity",
            tags=[*TAGS, "bertflow"],
            **metadata,
        ),
        title=text(last_part(str(name)) if name else "An encoder"),
        about=about,
        encoder=encoder["encoder"],
        encoder_table=table(encoder).rstrip("\n"),
        sets=", ".join(dict.fromkeys(text(part["name"]) for part in about["sets"])),
        train=train,
        held_out=held_out,
        versions=", ".join(f"{text(k)} {text(v)}" for k, v in about["versions"].items()),
        accuracy=result.accuracy,
        recall=", ".join(f"{label} {share:.1%}" for label, share in result.accuracy.recall.items()),
        licence=licence_text(metadata.get("license"), about["origin"]),
        paper=TEXTS["Flow"]["source"],
    )
