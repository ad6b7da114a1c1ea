"""The command that trains an encoder with labels: finetune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertflow.cli.caching import users_cache
from bertflow.cli.interruption import NOTHING, Interrupted, kept
from bertflow.cli.opening import load_raw, show
from bertflow.cli.options import (
    ENCODER,
    ENCODER_OPTION,
    INPUT,
    POOLING_HELP,
    SPEED,
    Data,
    Device,
    MaxLength,
    Output,
    TrustRemoteCode,
    known_pooling,
)
from bertflow.cli.places import check_folder
from bertflow.errors import InputError, ModelError, one_line, quoted

TRAINING = "Training"

if TYPE_CHECKING:
    from bertflow.finetuning import FineTuned, NliCorpus


def finetune(
    *,
    encoder: Annotated[str, ENCODER_OPTION],
    nli: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Labelled pairs: snli, mnli or sick-e. May be repeated."),
    ],
    output: Output,
    data: Data = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Take only the first N pairs of each split.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    held_out: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Share of the premises held out of a set that has no split for it.",
            rich_help_panel=INPUT,
        ),
    ] = 0.1,
    pooling: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            callback=known_pooling,
            help=POOLING_HELP,
            rich_help_panel=ENCODER,
        ),
    ] = "mean",
    max_length: MaxLength = None,
    trust_remote_code: TrustRemoteCode = False,
    epochs: Annotated[
        float,
        typer.Option(
            metavar="X", help="Passes over the pairs, or a part of one.", rich_help_panel=TRAINING
        ),
    ] = 1.0,
    learning_rate: Annotated[
        float,
        typer.Option(metavar="X", help="The highest, after the warm-up.", rich_help_panel=TRAINING),
    ] = 2e-5,
    batch_size: Annotated[
        int, typer.Option(metavar="N", help="Pairs a step.", rich_help_panel=TRAINING)
    ] = 16,
    warmup: Annotated[
        float,
        typer.Option(
            metavar="X", help="Share of the steps in which it rises.", rich_help_panel=TRAINING
        ),
    ] = 0.1,
    random_state: Annotated[
        int, typer.Option(metavar="N", help="Seed.", rich_help_panel=TRAINING)
    ] = 0,
    precision: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="float32, bf16, fp16, or auto: mixed precision where the device has it.",
            rich_help_panel=SPEED,
        ),
    ] = "auto",
    device: Device = "auto",
) -> None:
    """Fine-tune an encoder on labelled NLI pairs, and save it. Stopped, it goes on."""
    check_folder(output, {"--encoder": encoder})
    from bertflow.cli.terminal import progress_bars
    from bertflow.finetuning import Recipe, finetune_and_save, nli_corpus
    from bertflow.finetuning.siamese import check_packages
    from bertflow.models import is_calibrated

    check_packages()
    recipe = Recipe(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        warmup=warmup,
        random_state=random_state,
        precision=precision,
    )
    if is_calibrated(encoder):
        raise InputError(
            f"{encoder} is a calibrated model; fine-tune the encoder it was made of, then "
            "calibrate what comes out"
        )
    corpus = nli_corpus(nli, data, held_out=held_out, random_state=random_state, limit=limit)
    loaded = load_raw(encoder, pooling, max_length, device, trust_remote_code, users_cache(False))
    _show_corpus(corpus)
    checkpoints = Path(f"{output}.checkpoints")
    try:
        with progress_bars() as report:
            result = finetune_and_save(
                loaded, corpus, output, recipe, checkpoints=checkpoints, progress=report
            )
    except KeyboardInterrupt:
        saved = any(checkpoints.glob("checkpoint-*"))
        raise Interrupted(kept(checkpoints) if saved else NOTHING) from None
    except ModelError as error:
        if any(checkpoints.glob("checkpoint-*")):
            raise ModelError(f"{error}; {kept(checkpoints)}") from error
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
