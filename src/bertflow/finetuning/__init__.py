"""Siamese fine-tuning of an encoder on NLI, as the paper and SBERT do it."""

from bertflow.finetuning.examples import NliCorpus, NliSet, nli_corpus
from bertflow.finetuning.finetuned import Accuracy, FineTuned, save_finetuned
from bertflow.finetuning.recipe import Recipe
from bertflow.finetuning.siamese import finetune, finetune_and_save

__all__ = [
    "Accuracy",
    "FineTuned",
    "NliCorpus",
    "NliSet",
    "Recipe",
    "finetune",
    "finetune_and_save",
    "nli_corpus",
    "save_finetuned",
]
