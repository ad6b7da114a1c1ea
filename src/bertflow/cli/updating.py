"""The part of `bertflow fit` that lets a saved model learn from more: --update."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli import console, options
from bertflow.errors import InputError
from bertflow.io.files import clear_part, part_folder, save_or_keep

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator


def update_model(
    folder: Path,
    corpus: list[str],
    read: Callable[[], Iterable[str]],
    output: Path,
    how: options.Encoder,
    sample: int | None,
    devices: str | None,
) -> None:
    """Let a saved model learn from more sentences."""
    from bertflow.models import is_calibrated

    if not is_calibrated(folder):
        raise no_encoder(folder)
    _check_output(folder, output, {"--corpus": corpus})
    sentences = read()
    from bertflow.calibrators import save_calibrator
    from bertflow.encoders import parse_devices
    from bertflow.models import save_model, update

    places, began = parse_devices(devices) if devices else None, time.perf_counter()
    model: Any = how.open_any(str(folder))
    with console.resumable(None, how.cache):
        new = update(
            model, sentences, sample=sample, files=corpus, devices=places, **how.encoding()
        )
    fitted = new.calibrator
    save_or_keep(output, partial(save_model, new), partial(save_calibrator, fitted))
    _show(fitted, "sentences", output, began, folder)


def update_vectors(
    folder: Path, source: str, output: Path, cluster: options.Cluster, limit: int | None
) -> None:
    """Let a saved calibrator learn from more vectors: a file, or a folder's shards."""
    from bertflow.models import is_calibrated

    if is_calibrated(folder):
        raise InputError(f"{folder} is a whole model, whose encoder must read; give --corpus")
    sharded, began = cluster.take(source), time.perf_counter()
    if sharded and limit is not None:
        raise InputError("--limit does not go with shards: moments are of all vectors")
    _check_output(folder, output, {"--vectors": source})
    from bertflow.calibrators import load_calibrator, save_calibrator
    from bertflow.calibrators.updating import note_update
    from bertflow.io.vectors import read_vectors

    before = load_calibrator(folder)
    calibrator = copy.deepcopy(before)
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


def no_encoder(folder: Path) -> InputError:
    """The error for sentences beside a calibrator alone; a ModelError if there is none either."""
    from bertflow.calibrators.storage import calibrator_folder

    calibrator_folder(folder)
    return InputError(
        f"{folder} is a calibrator without an encoder; give --vectors, as its encoder gives them"
    )


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
