"""Corpora and vectors in shards: folders of parquet, in one process or on a cluster."""

from bertflow.scale.engines import ENGINES, Engine, Local, RayEngine, opened_engine
from bertflow.scale.learning import fit_folder, folder_moments
from bertflow.scale.places import Place
from bertflow.scale.running import Outcome, files_of, run
from bertflow.scale.shards import Bad
from bertflow.scale.workers import BlockMoments, Encode, Transform, Worker, merged_moments

__all__ = [
    "ENGINES",
    "Bad",
    "BlockMoments",
    "Encode",
    "Engine",
    "Local",
    "Outcome",
    "Place",
    "RayEngine",
    "Transform",
    "Worker",
    "files_of",
    "fit_folder",
    "folder_moments",
    "merged_moments",
    "opened_engine",
    "run",
]
