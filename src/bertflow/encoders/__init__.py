"""Encoders: text to matrices. Calibrated models are in `bertflow.models`."""

from bertflow.encoders.description import describe_encoder, library_versions
from bertflow.encoders.embedding import Computing, Embedded, EncodeOptions, embed, fill
from bertflow.encoders.encoder import Role, side_of
from bertflow.encoders.encoding import DevicesEncoding, parse_devices
from bertflow.encoders.loading import load_encoder, load_layers, load_poolings, load_word_vectors
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.pooling import hidden_states
from bertflow.encoders.precision import Precision, resolved_precision
from bertflow.encoders.sampling import SAMPLE, Sampled, sample_corpus
from bertflow.encoders.sentence_cache import SentenceCache, VectorCache
from bertflow.encoders.streaming import Encoded, Rows, encode_file, encode_rows

__all__ = [
    "CalibratorModule",
    "DevicesEncoding",
    "Computing",
    "Embedded",
    "EncodeOptions",
    "Encoded",
    "Precision",
    "Role",
    "Rows",
    "SAMPLE",
    "Sampled",
    "SentenceCache",
    "VectorCache",
    "describe_encoder",
    "embed",
    "encode_file",
    "encode_rows",
    "fill",
    "hidden_states",
    "library_versions",
    "load_encoder",
    "load_layers",
    "load_poolings",
    "load_word_vectors",
    "parse_devices",
    "resolved_precision",
    "sample_corpus",
    "side_of",
]
