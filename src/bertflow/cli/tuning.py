"""The command that trains an encoder with labels: finetune."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.cli.destinations import check_folder
from bertflow.cli.interruption import NOTHING, Interrupted, resumes_from
from bertflow.cli.opening import load_raw
from bertflow.cli.options import (
    ENCODER,
    INPUT,
    POOLING_HELP,
    REQUIRED,
    SPEED,
    EncoderOptions,
    SpeedOptions,
    data_option,
    device_option,
    encoder_option,
    known_pooling,
    max_length_option,
    option,
    trust_option,
)
from bertflow.cli.terminal import progress_bars, show
from bertflow.errors import InputError, ModelError, one_line, quoted

if TYPE_CHECKING:
    from bertflow.finetuning import FineTuned, NliCorpus

TRAINING = "Training"


@dataclass(frozen=True)
class RecipeOptions:
    """The fields of `bertflow.finetuning.Recipe`."""

    epochs: float = option(1.0, "X", "Passes over the pairs, or a part of one.", group=TRAINING)
    learning_rate: float = option(2e-5, "X", "The highest, after the warm-up.", group=TRAINING)
    batch_size: int = option(16, "N", "Pairs a step.", group=TRAINING)
    warmup: float = option(0.1, "X", "Share of the steps in which it rises.", group=TRAINING)
    random_state: int = option(0, "N", "Seed.", group=TRAINING)
    precision: str = option(
        "auto",
        "NAME",
        "float32, bf16, fp16, or auto: mixed precision where the device has it.",
        group=SPEED,
    )


def finetune(
    *,
    encoder: str = encoder_option(REQUIRED),
    nli: list[str] = option(
        REQUIRED, "NAME", "Labelled pairs: snli, mnli or sick-e. May be repeated."
    ),
    output: Path = option(REQUIRED, "DIR", "Folder to save to."),
    data: Path | None = data_option(),
    limit: int | None = option(
        None, "N", "Take only the first N pairs of each split.", group=INPUT
    ),
    held_out: float = option(
        0.1, "X", "Share of the premises held out of a set that has no split for it.", group=INPUT
    ),
    pooling: str = option("mean", "NAME", POOLING_HELP, group=ENCODER, callback=known_pooling),
    max_length: int | None = max_length_option(),
    trust_remote_code: bool = trust_option(),
    recipe: RecipeOptions,
    device: str = device_option(),
) -> None:
    """Fine-tune an encoder on labelled NLI pairs, and save it. Stopped, it goes on."""
    check_folder(output, {"--encoder": encoder})
    from bertflow.finetuning import Recipe, finetune_and_save, nli_corpus
    from bertflow.finetuning.siamese import check_packages
    from bertflow.models import is_calibrated

    check_packages()
    checked = Recipe(**asdict(recipe))
    if is_calibrated(encoder):
        raise InputError(
            f"{encoder} is a calibrated model; fine-tune the encoder it was made of, then "
            "calibrate what comes out"
        )
    corpus = nli_corpus(nli, data, held_out=held_out, random_state=recipe.random_state, limit=limit)
    loading = EncoderOptions(
        pooling=pooling, max_length=max_length, trust_remote_code=trust_remote_code
    )
    loaded = load_raw(encoder, loading, SpeedOptions(device=device))
    _show_corpus(corpus)
    checkpoints = Path(f"{output}.checkpoints")
    try:
        with progress_bars() as report:
            result = finetune_and_save(
                loaded, corpus, output, checked, checkpoints=checkpoints, progress=report
            )
    except KeyboardInterrupt:
        saved = any(checkpoints.glob("checkpoint-*"))
        raise Interrupted(resumes_from(checkpoints) if saved else NOTHING) from None
    except ModelError as error:
        if any(checkpoints.glob("checkpoint-*")):
            raise ModelError(f"{error}; {resumes_from(checkpoints)}") from error
        raise
    _show_result(result, output, pooling)


def _show_corpus(corpus: NliCorpus) -> None:
    for part in corpus.sets:
        how = part.held_out_split or f"{corpus.division['held_out']:.0%} of the premises"
        show(
            f"{part.name}: {part.train:,} pairs to train on, {part.held_out:,} held out ({how}) "
            f"of {', '.join(part.sources)}"
        )
        for reason, count in part.skipped.items():
            show(f"  {count:,} skipped: {reason}")


def _show_result(result: FineTuned, output: Path, pooling: str) -> None:
    facts, accuracy = result.provenance, result.accuracy
    show(
        f"{facts['cut_to_max_length']:,} distinct sentences are longer than "
        f"{facts['encoder']['max_length']} tokens"
    )
    if result.discarded:
        show(f"began anew: the checkpoints found were of another {', '.join(result.discarded)}")
    if result.resumed_at < facts["steps"]:
        show(
            f"trained steps {result.resumed_at + 1:,} to {facts['steps']:,} in "
            f"{facts['recipe']['precision']} on {facts['device']} in {facts['seconds']:.0f} s"
        )
    else:
        seconds = facts["seconds"]
        show(f"all {facts['steps']:,} steps were trained before; measured in {seconds:.0f} s")
    show(
        f"accuracy on {accuracy.pairs:,} held-out pairs: {accuracy.value:.1%} "
        f"(95 % interval {accuracy.low:.1%} to {accuracy.high:.1%}); always saying "
        f"{accuracy.majority_label}: {accuracy.majority:.1%}"
    )
    show(f"saved to {one_line(output)}: SentenceTransformer({str(output)!r}) loads it anywhere")
    # Of the last blocks something is left only if the last one was trained.
    pooled = "last2avg" if pooling == "mean" else pooling
    show(
        f"next: bertflow fit --encoder {quoted(output)} --pooling {quoted(pooled)} --corpus FILE "
        f"--output {quoted(f'{output}-calibrated')}"
    )
