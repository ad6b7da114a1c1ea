"""The part of `bertflow fit` that lets a saved model learn from more: --update."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli import console, options
from bertflow.errors import InputError
from bertflow.io.files import clear_part, part_folder, save_or_keep

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator


@dataclass(frozen=True)
class MoreText:
    """The new sentences: their files, how they are read, and how many of them are enough."""

    corpus: list[str]
    text: options.Text
    limit: int | None
    sample: int | None
    devices: str | None


def fit_more(
    folder: Path,
    more: MoreText,
    vectors: str | None,
    output: Path,
    how: options.Encoder,
    cluster: options.Cluster,
) -> None:
    """Let what was saved in a folder learn from more sentences, or from more vectors."""
    if vectors is not None:
        _learn_vectors(folder, vectors, output, how.device, cluster, more.limit)
    elif more.corpus:
        _learn_text(folder, more, output, how)
    else:
        raise InputError("give --update with --corpus of a model, or --vectors of a calibrator")


def _learn_text(folder: Path, more: MoreText, output: Path, how: options.Encoder) -> None:
    from bertflow.models import is_calibrated

    if not is_calibrated(folder):
        raise no_encoder(folder)
    _check_output(folder, output, {"--corpus": more.corpus})
    from bertflow.data import checked_corpus

    sentences = checked_corpus(more.corpus, limit=more.limit, **asdict(more.text))
    from bertflow.calibrators import save_calibrator
    from bertflow.encoders import parse_devices
    from bertflow.models import save_model, update

    began = time.perf_counter()
    places = parse_devices(more.devices) if more.devices else None
    model: Any = how.open_any(str(folder))
    _train_on(how.device, model.calibrator)
    given: dict[str, Any] = {"sample": more.sample, "files": more.corpus, "devices": places}
    with console.resumable(None, how.cache):
        new = update(model, sentences, **given, **how.encoding())
    fitted = new.calibrator
    save_or_keep(output, partial(save_model, new), partial(save_calibrator, fitted))
    _show(fitted, "sentences", output, began, folder)


def _learn_vectors(
    folder: Path,
    source: str,
    output: Path,
    device: str,
    cluster: options.Cluster,
    limit: int | None,
) -> None:
    from bertflow.models import is_calibrated

    if is_calibrated(folder):
        raise InputError(f"{folder} is a whole model, whose encoder must read; give --corpus")
    sharded, began = cluster.take(source), time.perf_counter()
    if sharded and limit is not None:
        raise InputError("--limit does not go with shards: moments are of all vectors")
    _check_output(folder, output, {"--vectors": source})
    from bertflow.calibrators import load_calibrator, save_calibrator
    from bertflow.calibrators.updates import note_update
    from bertflow.io.vectors import read_vectors

    before = load_calibrator(folder)
    calibrator = copy.deepcopy(before)
    _train_on(device, calibrator)
    if sharded:
        import numpy as np

        from bertflow.scale import fit_folder
        from bertflow.scale.folders import sampled_rows

        with _unfinished(output) as place, cluster.running("moments") as how:
            fit_folder(calibrator, source, place, vector=cluster.vector, more=True, **how)
        drawn = sampled_rows(source, cluster.vector)
        rows = np.empty((0, calibrator.n_features_in_)) if drawn is None else drawn
        calibrator.provenance_ = before.provenance_
    else:
        rows = read_vectors(source)[:limit]
        with console.vectors_named(source):
            calibrator.partial_fit(rows)
    added = {"rows": calibrator.n_samples_ - before.n_samples_, "vectors": source}
    note_update(calibrator, before, rows, added)
    save_or_keep(output, partial(save_calibrator, calibrator))
    _show(calibrator, "rows", output, began, folder)


def _train_on(device: str, calibrator: Calibrator) -> None:
    """Train on this device; that of the first fit may not be there."""
    if "device" in calibrator.get_params(deep=False):
        calibrator.set_params(device=device)


def no_encoder(folder: Path) -> InputError:
    """The error for sentences beside what is no whole model."""
    from bertflow.calibrators.storage import is_calibrator

    if not folder.exists():
        return InputError(f"{folder} does not exist; give a folder that bertflow has saved")
    if is_calibrator(folder):
        return InputError(
            f"{folder} is a calibrator without an encoder; give --vectors that its encoder gave"
        )
    return InputError(f"{folder} is no calibrated model; bertflow fit --encoder makes one")


def _check_output(folder: Path, output: Path, reads: dict[str, console.Given]) -> None:
    """The output may be the model itself, which is read before it is replaced."""
    same = output.exists() and output.samefile(folder)
    console.check_folder(output, reads if same else {"--update": folder, **reads})


@contextmanager
def _unfinished(output: Path) -> Iterator[Path]:
    with part_folder(output) as folder:
        with console.resumable(folder / "moments", errors=True):
            yield folder / "moments"
        clear_part(folder)


def _show(calibrator: Calibrator, what: str, output: Path, began: float, folder: Path) -> None:
    told = calibrator.provenance_["updates"][-1]
    given = {"told": told, "count": told[what], "what": what, "folder": folder, "output": output}
    given |= {"seconds": time.perf_counter() - began, "replaced": output.samefile(folder)}
    console.show_form("updated.txt", calibrator=calibrator, **given)
