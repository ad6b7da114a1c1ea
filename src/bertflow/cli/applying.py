"""The commands that use models and what was saved, such as transform, encode and export."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli import console, options
from bertflow.cli.options import REQUIRED, Shared, argument, flag, option
from bertflow.errors import InputError, ModelError, one_line
from bertflow.io.files import part_path

if TYPE_CHECKING:
    from bertflow.scale import Worker


def transform(
    folder: Path = argument("DIR"),
    *,
    vectors: str = option(REQUIRED, "IN.npy"),
    output: Path = option(REQUIRED, "OUT.npy"),
    inverse: bool = flag("--inverse"),
    role: str = Shared.role,
    cluster: options.Cluster,
) -> None:
    """Apply a saved calibrator to vectors.

    Args:
        folder: A saved calibrator or calibrated model.
        vectors: Vectors, one a row; or a folder of .parquet.
        output: File to write; for a folder of .parquet a folder.
        inverse: Undo the calibration.
    """
    if cluster.take(vectors):
        from bertflow.scale import Transform

        console.check_folder(output, {"DIR": folder}, ours=False)
        place, column = str(folder.absolute()), cluster.vector
        worker = Transform(place, vector=column, inverse=inverse, role=role)
        _run_shards(worker, vectors, output, cluster, "transform")
        return
    console.check_files({"--output": output}, {"DIR": folder, "--vectors": vectors}, rows=True)
    from bertflow.calibrators import load_calibrator
    from bertflow.io.vectors import transform_file

    calibrator = load_calibrator(folder)
    apply = partial(calibrator.inverse_transform if inverse else calibrator.transform, role=role)
    with console.vectors_named(vectors), console.progress_bar("transform") as report:
        rows, width = transform_file(apply, vectors, output, progress=report)
    console.show(f"wrote {rows:,} vectors of {width} dimensions to {one_line(output)}")


def encode(
    model: str = Shared.model,
    *,
    corpus: list[str] = option(REQUIRED, "FILE", "--corpus", "--input"),
    output: Path = option(REQUIRED, "FILE"),
    role: str | None = option(None, "NAME", callback=options.one_of("role", options.ROLES)),
    text: options.Text,
    how: options.Encoder,
    devices: str | None = Shared.devices,
    cluster: options.EncodingCluster,
) -> None:
    """Encode sentences to vectors, row i for sentence i; of a folder of shards, a folder.

    Args:
        output: File to write. Stopped, the same command goes on where it was.
        role: query or document: encode with that side's prompt, and its map after a fit with
            queries. Default: as the model's encode does.
    """
    if cluster.take(None):
        if text.format is not None:
            raise InputError("--engine goes without --format: it reads a folder of .parquet files")
        if len(corpus) != 1 or corpus[0] == "-":
            raise InputError(
                f"--engine takes one --corpus, a folder of .parquet, got {len(corpus)}"
            )
        console.check_folder(output, {"MODEL": model}, ours=False)
        from bertflow.scale import Encode

        worker = Encode(
            str(Path(model).absolute()) if Path(model).exists() else model,
            column=text.column,
            **how.loading(),
            batch_size=how.batch_size,
            precision=how.precision,  # type: ignore[arg-type]
            vector=cluster.vector,
            role=role,
            keep=cluster.keep,
            numbers=cluster.numbers,
            blank="skip" if cluster.skip_blank else "refuse",
        )
        _run_shards(worker, corpus[0], output, cluster, "encode")
        return
    from bertflow.data import checked_corpus

    console.check_files({"--output": output}, {"MODEL": model, "--corpus": corpus}, rows=True)
    sentences = checked_corpus(corpus, blank="refuse", **asdict(text))
    from bertflow.encoders import encode_file, parse_devices, side_of

    places = parse_devices(devices) if devices else None
    loaded = how.open_any(model)
    if role is not None:
        loaded = side_of(loaded, role)
    kept = console.resumable(part_path(output), how.cache)
    with kept, console.progress_bar("encode") as report:
        encoded = encode_file(
            loaded, sentences, output, devices=places, progress=report, **how.encoding()
        )
    told = {"encoded": encoded, "encoder": loaded, "cache": how.cache}
    console.show_form("encoded.txt", output=output, **told)


def _run_shards(
    worker: Worker, source: str, output: Path, cluster: options.Cluster, stage: str
) -> None:
    """Work on a folder of .parquet files, which makes another."""
    from bertflow.scale import run
    from bertflow.scale.folders import MANIFEST

    with console.resumable(output, mark=MANIFEST), cluster.running(stage) as how:
        done = run(worker, source, output, **how)
    console.show_form("shards.txt", output=output, outcome=done)


def report(
    source: str = argument("MODEL|VECTORS"),
    *,
    output: Path = option(REQUIRED, "FILE.html"),
    corpus: Path | None = option(None, "FILE"),
    own: options.JobMaterial,
    against: str | None = option(None, "[OTHER]"),
    task: list[str] | None = option(None, "NAME", callback=options.listed),
    data: Path | None = option(None, "DIR"),
) -> None:
    """Write one page about a model or vectors, before and after.

    The page stands alone: it opens from disk, without a network. A model encodes only what fit,
    encode, evaluate and others have not left in the cache. Of a section that is left out the page
    says what would fill it.

    Args:
        source: A saved calibrated model, or vectors in a .npy file, one a row.
        output: File to write.
        corpus: Sentences, as --corpus of fit: of vectors their texts, row by row; of a model those
            to look at. Default: those it was fitted on.
        pairs: Judge a model by your own pairs: a table with two columns of text and one of labels,
            1 for duplicates and 0.
        against: What to set beside it: of vectors a calibrator or calibrated model, which is
            applied to them, or a .npy file of the same rows; of a model another calibrator of its
            encoder or, without a value, its own encoder, which is the default.
        task: Score a model on it: sts12, sts13, sts14, sts15, sts16, stsb or sick-r. May be
            repeated. Default: all that are in --data, none without that.
        data: Folder of the tasks, in any layout people have; default: BERTFLOW_DATA, for tasks that
            --task names.
    """
    from bertflow.report import build_report, write_report
    from bertflow.report.page import check_page

    check_page(output)
    own = replace(own, corpus=None if corpus is None else [str(corpus)])
    own.check()
    options.check_own(against, source)
    reads: dict[str, console.Given] = {"the report": source, "--against": against or None}
    reads |= own.reads()
    console.check_files({"--output": output}, reads)
    pairs = own.read()
    job = own.duplicates(pairs[0]) if pairs else own.job()
    with console.progress_bar("encode") as told:
        found = build_report(
            source,
            corpus=corpus,
            column=own.column,
            format=None if corpus is None else own.format,
            against=against or None,
            data=data,
            tasks=task or (),
            job=job,
            progress=told,
        )
    size = write_report(found, output)
    console.show(one_line(found.verdict))
    for names, reason in found.left_out():
        console.show(one_line(f"- without {', '.join(names)}: {reason}"))
    console.show(f"wrote {one_line(output)}, {size / 1e6:.1f} MB: open it in a browser")


def export(
    model: str = Shared.model,
    *,
    output: Path = Shared.output,
    quantize: str | None = option(None, "KIND", callback=options.one_of("quantization", ("int8",))),
    opset: int | None = option(None, "N"),
    role: str | None = option(None, "NAME", callback=options.one_of("role", options.ROLES)),
    pooling: str | None = Shared.pooling,
    max_length: int | None = option(None, "N", group=options.ENCODER),
    trust_remote_code: bool = Shared.trust_remote_code,
) -> None:
    """Write a model as one ONNX graph, which runs without torch.

    Of a calibrator alone, a graph from vectors to calibrated ones, and one back. What was written
    is compared with the model on real sentences of all lengths.

    Args:
        model: A saved model or calibrator, an encoder's folder, a hub name or a .gguf file.
        output: Folder to write.
        quantize: int8: a quarter to a third of the size, and vectors that are somewhat off.
        opset: ONNX's operator set, 18 to 23. Default: torch's.
        role: query or document: the side of a search whose prompt and map are taken. Default: as
            the model's encode does.
        pooling: Of an encoder, as for fit: cls, mean, last2avg, first-last-avg, embed-last-avg or
            layers:1,12.
        max_length: Of an encoder, the tokens that a sentence is cut to.
    """
    console.check_folder(output, {"MODEL": model})
    from bertflow.calibrators import load_calibrator
    from bertflow.calibrators.storage import is_calibrator
    from bertflow.models.export import check_export, export_onnx

    check_export(quantize, opset)
    loaded: Any
    given: dict[str, Any]
    if alone := is_calibrator(model):
        given = {"--pooling": pooling, "--max-length": max_length, "--quantize": quantize}
        options.refuse(given, f"does not go with a calibrator alone, which {model} is")
        loaded = load_calibrator(model)
    else:
        how: dict[str, Any] = {"pooling": pooling, "max_length": max_length, "device": "cpu"}
        loaded = options.Loading(trust_remote_code=trust_remote_code, **how).open_any(model)
    with console.busy("exporting"):
        given = {"quantize": quantize, "opset": opset, "role": role}
        found = export_onnx(loaded, output, **given)
    console.show_form("exported.txt", output=output, found=found, sentences=not alone)


def push(
    folder: Path = argument("DIR"),
    repository: str = argument("USER/NAME"),
    *,
    private: bool = flag("--private"),
    update: bool = flag("--update"),
    trust_remote_code: bool = Shared.trust_remote_code,
) -> None:
    """Upload a saved calibrated model, with its card, to the model hub.

    Log in before, by `hf auth login` or HF_TOKEN.

    Args:
        folder: A saved calibrated model.
        repository: Name on the hub; it is made there.
        private: Let nobody else see a new repository.
        update: The repository may be there already; its card stays.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    from bertflow.models import load

    model = load(folder, device="cpu", trust_remote_code=trust_remote_code)
    try:
        with console.busy(f"uploading to {repository}"):
            address = model.push_to_hub(repository, private=private or None, exist_ok=update)
    except HFValidationError as error:
        raise InputError(f"{repository!r} is no name on the hub: {error}") from None
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        remedy = "log in by `hf auth login` or HF_TOKEN, or give --update if it is there already"
        raise ModelError(f"cannot push to {repository}: {error}; {remedy}") from error
    console.show(f"uploaded to {repository}: {address}")


def cache(*, clear: bool = flag("--clear")) -> None:
    """Show or clear the cache of sentence vectors and of what was read of .gguf files.

    It lies in $BERTFLOW_CACHE, else bertflow/ in $XDG_CACHE_HOME or ~/.cache, and holds
    $BERTFLOW_CACHE_SIZE (10GB) at most: what was used least recently goes first, and what compare
    has finished has a small part of it.

    Args:
        clear: Remove what bertflow has written there.
    """
    from bertflow.encoders import SentenceCache

    found = SentenceCache()
    held, fits = found.contents(), list(found.results.sizes().values())
    gguf = [one.bytes for one in held if one.gguf]
    encoders, size = len(held) - len(gguf), sum(fits) + sum(one.bytes for one in held)
    if clear:
        left = found.clear()
        freed = size - sum(one.bytes for one in left) - sum(found.results.sizes().values())
        gone = encoders - sum(not one.gguf for one in left)
        console.show(f"removed {gone:,} encoders, {freed / 1e6:,.1f} MB")
        if left:
            why = "are in use, or hold what bertflow did not write"
            console.show(f"{len(left):,} {why}: {found.folder}")
        return
    given = {"sentences": sum(one.sentences for one in held), "gguf": gguf, "fits": fits}
    console.show_form("cache.txt", cache=found, encoders=encoders, size=size, **given)
