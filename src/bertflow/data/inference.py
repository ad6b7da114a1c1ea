"""Data sets of inference, declared: QNLI, SNLI and MultiNLI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from bertflow.data.declarations import GLUE, SENTEVAL, DataSet, HubSource, Layout, below

SPLITS = ("train", "dev", "test")
NLI_COLUMNS = ("sentence1", "sentence2", "gold_label")
MNLI_FILES = {
    "train": "train",
    "dev-matched": "dev_matched",
    "dev-mismatched": "dev_mismatched",
}


def _nli_layouts(
    name: str, stem: str, folders: Sequence[str], files: Mapping[str, str]
) -> list[Layout]:
    """The corpus's own files, as objects and as text, and objects under its short name."""
    original = f"{name.upper()}/original"  # Where GLUE keeps them.
    places = (*folders, f"glue/{original}", original, ".")
    forms: list[tuple[Literal["jsonl", "header"], Sequence[str], str]] = [
        ("jsonl", places, f"{stem}{{}}.jsonl"),
        ("header", places, f"{stem}{{}}.txt"),
        ("jsonl", ("nli", name, "."), f"{name}_{{}}.jsonl"),
    ]
    return [
        Layout(
            form=form,
            folders=places,
            files={split: [pattern.format(file)] for split, file in files.items()},
            columns=NLI_COLUMNS,
        )
        for form, places, pattern in forms
    ]


INFERENCE = (
    DataSet(
        name="qnli",
        title="GLUE QNLI",
        kind="qnli",
        splits={"train": 104743, "dev": 5463},
        default_split="dev",
        columns=("question", "sentence", "label"),
        licence="CC BY-SA 4.0",
        citation=(
            "Wang, Singh, Michael, Hill, Levy, Bowman (2019): GLUE: A multi-task benchmark and "
            "analysis platform for natural language understanding. ICLR"
        ),
        homepage="https://gluebenchmark.com",
        layouts=[
            Layout(
                form="header",
                folders=(*below(GLUE, "QNLI"), "."),
                files={"train": ["train.tsv"], "dev": ["dev.tsv"]},
                columns=("question", "sentence", "label"),
                mark="question",
                unlabelled=("train", "dev"),
                cut=True,
                ident="index",
            )
        ],
        hub=HubSource(
            repository="nyu-mll/glue",
            revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
            config="qnli",
            splits={"train": "train", "dev": "validation"},
            columns=("question", "sentence", "label"),
            ident="idx",
        ),
    ),
    DataSet(
        name="snli",
        title="SNLI",
        kind="nli",
        splits={"train": 549367, "dev": 9842, "test": 9824},
        default_split="train",
        columns=NLI_COLUMNS,
        licence="CC BY-SA 4.0",
        citation=(
            "Bowman, Angeli, Potts, Manning (2015): A large annotated corpus for learning natural "
            "language inference. EMNLP"
        ),
        homepage="https://nlp.stanford.edu/projects/snli/",
        layouts=[
            *_nli_layouts(
                "snli",
                "snli_1.0_",
                ("snli_1.0", "SNLI", "nli"),
                {split: split for split in SPLITS},
            ),
            Layout(
                form="header",
                folders=(*below(GLUE, "SNLI"), "."),
                files={split: [f"{split}.tsv"] for split in SPLITS},
                columns=NLI_COLUMNS,
                mark="captionID",
                # train.tsv has five annotators' labels in some rows, where its header has one.
                label_last=True,
            ),
            # Nothing in these files tells SNLI from others laid out like it, so not in ".".
            Layout(
                form="aligned",
                folders=below(SENTEVAL, "SNLI"),
                files={
                    split: [f"s1.{split}", f"s2.{split}", f"labels.{split}"] for split in SPLITS
                },
            ),
        ],
        hub=HubSource(
            repository="stanfordnlp/snli",
            revision="cdb5c3d5eed6ead6e5a341c8e56e669bb666725b",
            config="plain_text",
            splits={"train": "train", "dev": "validation", "test": "test"},
            columns=("premise", "hypothesis", "label"),
        ),
    ),
    DataSet(
        name="mnli",
        title="MultiNLI",
        kind="nli",
        splits={"train": 392702, "dev-matched": 9815, "dev-mismatched": 9832},
        default_split="train",
        columns=NLI_COLUMNS,
        licence="OANC, CC BY-SA 3.0, CC BY 3.0 and MIT, by source of the text",
        citation=(
            "Williams, Nangia, Bowman (2018): A broad-coverage challenge corpus for sentence "
            "understanding through inference. NAACL"
        ),
        homepage="https://aclanthology.org/N18-1101/",
        layouts=[
            *_nli_layouts(
                "mnli",
                "multinli_1.0_",
                ("multinli_1.0", "MultiNLI", "MNLI", "nli"),
                MNLI_FILES,
            ),
            Layout(
                form="header",
                folders=(*below(GLUE, "MNLI"), "."),
                files={split: [f"{file}.tsv"] for split, file in MNLI_FILES.items()},
                columns=NLI_COLUMNS,
                mark="promptID",
            ),
        ],
        hub=HubSource(
            repository="nyu-mll/multi_nli",
            revision="da70db2af9d09693783c3320c4249840212ee221",
            splits={
                "train": "train",
                "dev-matched": "validation_matched",
                "dev-mismatched": "validation_mismatched",
            },
            columns=("premise", "hypothesis", "label"),
        ),
    ),
)
