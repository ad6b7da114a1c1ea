"""Siamese fine-tuning of an encoder on NLI, as the paper and SBERT do it."""

from bertflow.finetuning.examples import NliCorpus, NliSet, nli_corpus
from bertflow.finetuning.siamese import Accuracy, FineTuned, Recipe, finetune, save_finetuned

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
