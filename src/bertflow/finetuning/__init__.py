"""Siamese fine-tuning of an encoder on NLI, as the paper and SBERT do it."""

from bertflow.finetuning.examples import NliCorpus, NliSet, nli_corpus
from bertflow.finetuning.finetuned import Accuracy, FineTuned, save_finetuned
from bertflow.finetuning.siamese import Recipe, finetune

__all__ = [
    "Accuracy",
    "FineTuned",
    "NliCorpus",
    "NliSet",
    "Recipe",
    "finetune",
    "nli_corpus",
    "save_finetuned",
]
