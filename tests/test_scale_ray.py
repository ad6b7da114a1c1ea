"""Folders of parquet on a real Ray cluster, which these tests start on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertflow import InputError, ModelError, Whitening
from bertflow.calibrators import Moments
from bertflow.scale import (
    BlockMoments,
    Encode,
    Transform,
    files_of,
    fit_folder,
    folder_moments,
    merged_moments,
    opened_engine,
    run,
)

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bertflow[ray]'")

pytestmark = [
    pytest.mark.nightly,
    # Ray Data sets switches of its own that it calls deprecated.
    pytest.mark.filterwarnings("ignore:`use_.*is deprecated:DeprecationWarning:ray.data.context"),
]
WORKERS = 2
WIDTH = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster with more logical CPUs than these tests have actors: its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Workers find bertflow and these tests where this process does.
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        home = tempfile.mkdtemp(prefix="r")  # Short: sockets have their names below it.
        ray.init(
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            _temp_dir=home,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()
            shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def engine(cluster: str) -> Iterator[Any]:
    with opened_engine("ray", workers=WORKERS) as engine:
        yield engine


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(800, WIDTH)).astype(np.float32) * 3 + 20


@pytest.fixture
def shards(tmp_path: Path, vectors: np.ndarray) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for n, part in enumerate(np.array_split(vectors, 4)):
        table = pyarrow.table({"id": np.arange(200 * n, 200 * n + 200), "vector": part.tolist()})
        parquet.write_table(table, folder / f"{n}.parquet")
    return folder


def write_texts(folder: Path, count: int, rows: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"sentence {n} {'is long ' * (n % 5)}" for n in range(count * rows)]
    for n in range(count):
        span = range(rows * n, rows * n + rows)
        table = pyarrow.table({"id": list(span), "text": [texts[i] for i in span]})
        parquet.write_table(table, folder / f"{n:02d}.parquet")
    return texts


def rows_of(folder: Path) -> tuple[list[int], np.ndarray]:
    whole = pyarrow.concat_tables([parquet.read_table(file) for file in files_of(folder)])
    return whole.column("id").to_pylist(), np.array(whole.column("vector").to_pylist())


def shards_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def slow_encoder(calls: Path, seconds: float) -> Callable[[], Any]:
    """Makes an encoder that takes its time, and notes which process encoded what.

    A function in a function travels as it is, so that workers need not find this file.
    """

    def made() -> Any:
        import os
        import time

        import numpy as np
        import torch
        from sentence_transformers import SentenceTransformer

        class Two(torch.nn.Module):
            def get_embedding_dimension(self) -> int:
                return 2

        class Slow(SentenceTransformer):
            def encode(self, texts: list[str], **keywords: Any) -> Any:
                numbers = [int(t.split()[1]) if t.startswith("sentence ") else -1 for t in texts]
                if min(numbers) >= 0:  # Not one that the encoder is tried out with.
                    with calls.open("a") as file:
                        file.write(f"{os.getpid()} {min(numbers)}\n")
                    time.sleep(seconds)
                rows = [[len(text), number] for text, number in zip(texts, numbers, strict=True)]
                return np.array(rows, dtype=np.float32)

        return Slow(modules=[Two()], device="cpu")

    return made


def noted(calls: Path) -> list[tuple[int, int]]:
    """The process and the first sentence of each batch that was begun."""
    if not calls.exists():
        return []
    pairs = (line.split() for line in calls.read_text().splitlines())
    return [(int(process), int(first)) for process, first in pairs]


def test_a_cluster_encodes_what_one_process_does_to_the_bit(
    tmp_path, engine, tiny_bert, tiny_sentences
):
    for n in range(4):
        table = pyarrow.table({"id": list(range(75)), "text": tiny_sentences[75 * n : 75 * n + 75]})
        (tmp_path / "in").mkdir(exist_ok=True)
        parquet.write_table(table, tmp_path / "in" / f"{n}.parquet")
    worker = Encode(str(tiny_bert), precision="float32")
    progress: list[tuple[int, int]] = []
    outcome = run(
        worker,
        tmp_path / "in",
        tmp_path / "ray",
        engine=engine,
        progress=lambda *step: progress.append(step),
    )
    assert (outcome.shards, outcome.rows) == (4, 300)
    assert progress == [(0, 300), (75, 300), (150, 300), (225, 300), (300, 300)]
    run(worker, tmp_path / "in", tmp_path / "local")
    one, other = rows_of(tmp_path / "ray"), rows_of(tmp_path / "local")
    assert one[0] == other[0]
    np.testing.assert_allclose(one[1], other[1], rtol=0, atol=1e-6)
    again = run(worker, tmp_path / "in", tmp_path / "ray", engine=engine)
    assert again.done_before == 4


def test_a_cluster_transforms_and_takes_moments_as_one_process_does(
    tmp_path, engine, shards, vectors
):
    found, _ = folder_moments(shards, tmp_path / "moments", engine=engine)
    once = Moments(WIDTH)
    once.update(torch.from_numpy(vectors))
    assert found.count == 800
    torch.testing.assert_close(found.mean, once.mean, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.second, once.second, rtol=1e-10, atol=1e-10 * 800)
    # Merged in the order of the shards, whichever was there first.
    alone, _ = folder_moments(shards, tmp_path / "alone")
    assert bool((alone.second == found.second).all())
    calibrator = Whitening()
    fit_folder(calibrator, shards, tmp_path / "moments", engine=engine)
    run(Transform(calibrator), shards, tmp_path / "out", engine=engine)
    run(Transform(calibrator), shards, tmp_path / "local")
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "local")
    ids, calibrated = rows_of(tmp_path / "out")
    assert ids == list(range(800))
    expected = Whitening().fit(vectors).transform(vectors)
    np.testing.assert_allclose(calibrated, expected, rtol=0, atol=1e-4)


def test_a_bad_shard_is_named_or_skipped_and_a_failing_model_named(tmp_path, engine, vectors):
    texts = write_texts(tmp_path / "in", 3, 4)
    worker = Encode(slow_encoder(tmp_path / "calls", 0.0))
    whole = bytearray((tmp_path / "in" / "01.parquet").read_bytes())
    whole[4:60] = b"\xff" * 56  # The footer is good, what it points to is not.
    (tmp_path / "in" / "01.parquet").write_bytes(bytes(whole))
    with pytest.raises(InputError, match=r"01\.parquet"):
        run(worker, tmp_path / "in", tmp_path / "out", engine=engine)
    outcome = run(worker, tmp_path / "in", tmp_path / "out", engine=engine, skip_unreadable=True)
    assert list(outcome.skipped) == ["01.parquet"]
    assert rows_of(tmp_path / "out")[0] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert len(texts) == 12


def test_the_classes_work_in_anyones_own_map_batches(tmp_path, cluster, shards, vectors):
    import ray.data

    calibrator = Whitening(dim=3).fit(vectors)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    data = ray.data.read_parquet(str(shards))
    pool = ray.data.ActorPoolStrategy(size=1)
    mapped = data.map_batches(
        Transform,
        fn_constructor_args=(calibrator,),
        compute=pool,
        batch_size=100,
        batch_format="pyarrow",
    )
    rows = sorted(mapped.take_all(), key=lambda row: row["id"])
    found = np.stack([row["vector"] for row in rows])
    np.testing.assert_allclose(found, calibrator.transform(vectors), rtol=0, atol=1e-6)
    blocks = data.map_batches(BlockMoments(), batch_size=100, batch_format="pyarrow").take_all()
    moments = merged_moments(blocks)
    once = Moments(WIDTH)
    once.update(torch.from_numpy(vectors))
    assert moments.count == 800
    torch.testing.assert_close(moments.second, once.second, rtol=1e-10, atol=1e-10 * 800)
    texts = ray.data.from_items([{"id": n, "text": f"sentence {n}"} for n in range(20)])
    encoded = texts.map_batches(
        Encode,
        fn_constructor_args=(slow_encoder(tmp_path / "calls", 0.0),),
        compute=pool,
        batch_format="pyarrow",
    )
    rows = sorted(encoded.take_all(), key=lambda row: row["id"])
    assert [list(row["vector"])[1] for row in rows] == list(range(20))


def test_an_actor_that_is_killed_mid_run_loses_nothing(tmp_path, engine):
    texts = write_texts(tmp_path / "in", 10, 5)
    calls = tmp_path / "calls"
    killed: list[int] = []

    def killing(done: int, total: int) -> None:
        if done and not killed:
            killed.append(noted(calls)[-1][0])
            os.kill(killed[0], signal.SIGKILL)

    worker = Encode(slow_encoder(calls, 0.3))
    outcome = run(worker, tmp_path / "in", tmp_path / "out", engine=engine, progress=killing)
    assert killed
    assert (outcome.shards, outcome.rows) == (10, 50)
    ids, vectors = rows_of(tmp_path / "out")
    assert ids == list(range(50))
    assert vectors.tolist() == [[len(text.strip()), n] for n, text in enumerate(texts)]
    # Others than the two that were there have worked.
    assert len({process for process, _ in noted(calls)}) >= 3


DRIVER = """
import sys
from pathlib import Path
from test_scale_ray import slow_encoder
from bertflow.scale import Encode, opened_engine, run

address, source, output, calls = sys.argv[1:]
with opened_engine("ray", address=address, workers=2) as engine:
    run(Encode(slow_encoder(Path(calls), 0.5)), source, output, engine=engine)
"""


def test_a_driver_that_is_killed_mid_run_goes_on_with_what_is_missing(tmp_path, cluster, engine):
    texts = write_texts(tmp_path / "in", 12, 5)
    calls, out = tmp_path / "calls", tmp_path / "out"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
    }
    arguments = [cluster, str(tmp_path / "in"), str(out), str(calls)]
    with (tmp_path / "said").open("w") as said:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments], env=environment, stdout=said, stderr=said
        )
        deadline = time.monotonic() + 300
        while len(list(out.glob("*.parquet"))) < 3:
            assert driver.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        driver.kill()
        driver.wait()
    there = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert 3 <= len(there) < 12
    outcome = run(Encode(slow_encoder(calls, 0.0)), tmp_path / "in", out, engine=engine)
    assert (outcome.shards, outcome.rows) == (12, 60)
    assert outcome.done_before == len(there)
    assert all((out / name).stat().st_mtime_ns == time for name, time in there.items())
    ids, vectors = rows_of(out)
    assert ids == list(range(60))
    assert vectors.tolist() == [[len(text.strip()), n] for n, text in enumerate(texts)]


def test_more_workers_than_the_cluster_has_room_for_are_refused(cluster):
    with pytest.raises(
        InputError, match="9 workers do not fit on the cluster, which has 8 CPUs and 0 GPUs"
    ):
        with opened_engine("ray", workers=9):
            pass


def test_a_model_that_cannot_be_loaded_is_said_in_one_line(tmp_path, engine, shards):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        run(Transform(tmp_path / "nowhere"), shards, tmp_path / "out", engine=engine)
