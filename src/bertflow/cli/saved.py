"""The commands for what was saved: report shows it, push uploads it, cache shows vectors kept."""

from __future__ import annotations

from pathlib import Path

from bertflow.cli.destinations import Given, check_files
from bertflow.cli.opening import check_own
from bertflow.cli.options import REQUIRED, TextOptions, argument, flag, option, trust_option
from bertflow.cli.terminal import busy, progress_bar, show, written
from bertflow.errors import InputError, ModelError, one_line


def report(
    source: str = argument(
        "RUN|MODEL|VECTORS",
        "A folder of bertflow reproduce; a saved calibrated model or calibrator; or vectors in a "
        ".npy file, one a row.",
    ),
    *,
    output: Path = option(REQUIRED, "FILE.html", "File to write."),
    corpus: Path | None = option(
        None,
        "FILE",
        "Sentences, as --corpus of fit: of vectors their texts, row by row; of a model or run "
        "those to look at. Default: those it was fitted on.",
    ),
    text: TextOptions,
    against: str | None = option(
        None,
        "[OTHER]",
        "What to set beside it: of vectors a calibrator or calibrated model, which is applied to "
        "them, or a .npy file of the same rows; of a model another calibrator of its encoder or, "
        "without a value, its own encoder, which is the default; of a run a calibrator in place of "
        "its flow.",
    ),
    task: list[str] | None = option(
        None,
        "NAME",
        "Score vectors or a model on it: sts12, sts13, sts14, sts15, sts16, stsb or sick-r. May be "
        "repeated. Default: all that are in --data, none without that.",
    ),
    data: Path | None = option(
        None,
        "DIR",
        "Folder of the tasks, in any layout people have; default: BERTFLOW_DATA, for tasks that "
        "--task names and for a run.",
    ),
) -> None:
    """Write one page about a run, a model or vectors, before and after.

    The page stands alone: it opens from disk, without a network. A model encodes only what fit,
    encode, evaluate and others have not left in the cache. Of a section that is left out the page
    says what would fill it.
    """
    from bertflow.report import build_report, check_page, write_report
    from bertflow.report.reproduced import is_run

    check_page(output)
    check_own(against, source)
    # A page is none of the records of a run, in whose folder it may well lie.
    reads: dict[str, Given] = {"the report": source} if not is_run(Path(source)) else {}
    reads |= {"--corpus": None if corpus is None else [corpus], "--against": against or None}
    check_files({"--output": output}, reads, data=data)
    with progress_bar("encode") as report_progress:
        names = [part.strip() for name in task or () for part in name.split(",")]
        found = build_report(
            source,
            corpus=corpus,
            column=text.column,
            format=text.format,
            against=against or None,
            data=data,
            tasks=names,
            progress=report_progress,
        )
        sizes: list[int] = []
        lost = written(output, lambda place: sizes.append(write_report(found, place)))
    show(one_line(found.verdict))
    for names, reason in found.left_out():
        show(one_line(f"- without {', '.join(names)}: {reason}"))
    if lost:
        raise ModelError(lost)
    show(f"wrote {one_line(output)}, {sizes[0] / 1e6:.1f} MB: open it in a browser")


def push(
    folder: Path = argument("DIR", "A saved calibrated model or calibrator."),
    repository: str = argument("USER/NAME", "Name on the hub; it is made there."),
    *,
    private: bool = flag("--private", "Let nobody else see a new repository."),
    update: bool = flag("--update", "The repository may be there already; its card stays."),
    trust_remote_code: bool = trust_option(),
) -> None:
    """Upload a saved model or calibrator, with its card, to the model hub.

    Log in before, by `hf auth login` or HF_TOKEN.
    """
    from bertflow.calibrators.storage import calibrator_folder

    calibrator_folder(folder)  # Refused here it takes no import of an encoder.
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    from bertflow.calibrators import load_calibrator
    from bertflow.models import is_calibrated, load

    what = (
        load(folder, device="cpu", trust_remote_code=trust_remote_code)
        if is_calibrated(folder)
        else load_calibrator(folder)
    )
    try:
        with busy(f"uploading to {repository}"):
            address = what.push_to_hub(
                repository, private=True if private else None, exist_ok=update
            )
    except HFValidationError as error:
        raise InputError(f"{repository!r} is no name on the hub: {error}") from None
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        remedy = "log in by `hf auth login` or HF_TOKEN, or give --update if it is there already"
        raise ModelError(f"cannot push to {repository}: {error}; {remedy}") from error
    show(f"uploaded to {repository}: {address}")


def cache(*, clear: bool = flag("--clear", "Remove what bertflow has written there.")) -> None:
    """Show or clear the cache of sentence vectors and of what was read of .gguf files.

    It lies in $BERTFLOW_CACHE, else bertflow/ in $XDG_CACHE_HOME or ~/.cache, and holds
    $BERTFLOW_CACHE_SIZE (10GB) at most: what was used least recently goes first, and what compare
    has finished has a small part of it.
    """
    from bertflow.encoders import SentenceCache

    found = SentenceCache()
    before = found.contents()
    encoders = [one for one in before if not one.gguf]
    results, room = len(found.results.keys()), found.results.bytes()
    if clear:
        left = found.clear()
        freed = sum(one.bytes for one in before) - sum(one.bytes for one in left)
        freed += room - found.results.bytes()
        gone = len(encoders) - sum(not one.gguf for one in left)
        show(f"removed {gone:,} encoders, {freed / 1e6:,.1f} MB")
        if left:
            show(f"{len(left):,} are in use, or hold what bertflow did not write: {found.folder}")
        return
    show(
        f"{found.folder}\n{len(encoders):,} encoders, "
        f"{sum(one.sentences for one in before):,} sentences, "
        f"{(sum(one.bytes for one in before) + room) / 1e6:,.1f} MB of at most "
        f"{found.size / 1e6:,.0f} MB"
    )
    if read := [one.bytes for one in before if one.gguf]:
        show(f"{len(read):,} .gguf files as they were read, {sum(read) / 1e6:,.1f} MB of that")
    if results:
        show(f"{results:,} fits of comparisons, {room / 1e6:,.1f} MB of that")
