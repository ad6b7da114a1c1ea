"""Corpora and vectors in shards: folders of parquet, in one process or on a cluster."""

from importlib.util import find_spec

from bertflow.errors import MissingDependencyError

if find_spec("pyarrow") is None:
    raise MissingDependencyError("shards need pyarrow: pip install 'bertflow[parquet]'")

from bertflow.scale.engines import Engine, opened_engine
from bertflow.scale.folders import Outcome, files_of, fit_folder, folder_moments, run
from bertflow.scale.workers import BlockMoments, Encode, Transform, Worker, merged_moments

__all__ = [
    "BlockMoments",
    "Encode",
    "Engine",
    "Outcome",
    "Transform",
    "Worker",
    "files_of",
    "fit_folder",
    "folder_moments",
    "merged_moments",
    "opened_engine",
    "run",
]
