"""Siamese fine-tuning of an encoder on NLI, as the paper and SBERT do it."""

from bertflow.finetuning.corpus import NliCorpus, NliSet, nli_corpus
from bertflow.finetuning.recipe import Recipe
from bertflow.finetuning.result import Accuracy, FineTuned, save_finetuned
from bertflow.finetuning.training import finetune

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
