"""Data sets of graded similarity, most of them from SemEval, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertflow.data.declarations import GLUE, SENTEVAL, DataSet, HubSource, Kind, Layout, below

SPLITS = ("train", "dev", "test")


def _sts(
    year: int,
    *,
    subsets: Mapping[str, int],
    archives: Sequence[str],
    revision: str,
    title: str,
    authors: str,
    venue: str,
    homepage: str,
) -> DataSet:
    name, folder = f"sts{year - 2000}", f"STS{year - 2000}-en-test"
    # 2016's archive puts the year into the names of its files. Subsets are in an order whose first
    # is in no other year, because its file tells the data set.
    prefixes = ("STS", "STS2016") if year == 2016 else ("STS",)
    return DataSet(
        name=name,
        title=f"STS {year}, English",
        kind="sts",
        splits={"test": sum(subsets.values())},
        default_split="test",
        subsets=subsets,
        score_range=(0, 5),
        columns=("sentence 1", "sentence 2", "score"),
        licence="CC BY-SA",
        citation=f"{authors} ({year}): {title}. {venue}",
        homepage=homepage,
        layouts=[
            Layout(
                form="sts",
                folders=(
                    *below(SENTEVAL, f"STS/{folder}"),
                    folder,
                    *archives,
                    f"STS{year}-en-test/{archives[0]}",
                    ".",
                ),
                files={
                    "test": [
                        f"{prefix}.{part}.{subset}.txt"
                        for subset in subsets
                        for part in ("input", "gs")
                    ]
                },
            )
            for prefix in prefixes
        ],
        hub=HubSource(
            repository=f"mteb/{name}-sts",
            revision=revision,
            splits={"test": "test"},
            columns=("sentence1", "sentence2", "score"),
        ),
    )


def _sick(name: str, title: str, kind: Kind, label: str, single_label: str) -> DataSet:
    folders = (*below(SENTEVAL, "SICK"), ".")
    names = {"train": "SICK_train", "dev": "SICK_trial", "test": "SICK_test_annotated"}
    columns = ("sentence_A", "sentence_B", label)
    return DataSet(
        name=name,
        title=title,
        kind=kind,
        splits={"train": 4500, "dev": 500, "test": 4927},
        default_split="test" if kind == "sts" else "train",
        score_range=(1, 5) if kind == "sts" else None,
        columns=columns,
        licence="CC BY-NC-SA 3.0",
        citation=(
            "Marelli, Menini, Baroni, Bentivogli, Bernardi, Zamparelli (2014): A SICK cure for the "
            "evaluation of compositional distributional semantic models. LREC"
        ),
        homepage="https://aclanthology.org/L14-1314/",
        layouts=[
            Layout(
                form="header",
                folders=folders,
                files={split: [f"{file}.txt"] for split, file in names.items()},
                columns=columns,
            ),
            Layout(  # SemEval has an archive for each, which unpacks to a folder.
                form="header",
                folders=("SICK", "."),
                files={split: [f"{file.lower()}/{file}.txt"] for split, file in names.items()},
                columns=columns,
            ),
            Layout(  # The authors' own release, which lacks 87 of the pairs.
                form="header",
                folders=folders,
                files=dict.fromkeys(SPLITS, ["SICK.txt"]),
                columns=("sentence_A", "sentence_B", single_label),
                rows=("SemEval_set", {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}),
            ),
        ],
        no_hub="its copies of SICK have all splits in one, or fewer pairs than SemEval's test",
    )


SEMEVAL = (
    _sts(
        2012,
        subsets={
            "MSRpar": 750,
            "MSRvid": 750,
            "SMTeuroparl": 459,
            "surprise.OnWN": 750,
            "surprise.SMTnews": 399,
        },
        archives=("test-gold",),
        revision="a0d554a64d88156834ff5ae9920b964011b16384",
        title="SemEval-2012 Task 6: A pilot on semantic textual similarity",
        authors="Agirre, Cer, Diab, Gonzalez-Agirre",
        venue="*SEM",
        homepage="https://aclanthology.org/S12-1051/",
    ),
    _sts(
        2013,  # Without SMT, whose text may not be passed on.
        subsets={"FNWN": 189, "headlines": 750, "OnWN": 561},
        archives=("test-gs",),
        revision="7e90230a92c190f1bf69ae9002b8cea547a64cca",
        title="*SEM 2013 shared task: Semantic textual similarity",
        authors="Agirre, Cer, Diab, Gonzalez-Agirre, Guo",
        venue="*SEM",
        homepage="https://aclanthology.org/S13-1004/",
    ),
    _sts(
        2014,
        subsets={
            "deft-forum": 450,
            "deft-news": 300,
            "headlines": 750,
            "images": 750,
            "OnWN": 750,
            "tweet-news": 750,
        },
        archives=("sts-en-test-gs-2014", "sts-en-gs-2014"),
        revision="6031580fec1f6af667f0bd2da0a551cf4f0b2375",
        title="SemEval-2014 Task 10: Multilingual semantic textual similarity",
        authors=("Agirre, Banea, Cardie, Cer, Diab, Gonzalez-Agirre, Guo, Mihalcea, Rigau, Wiebe"),
        venue="SemEval",
        homepage="https://aclanthology.org/S14-2010/",
    ),
    _sts(
        2015,
        subsets={
            "answers-forums": 375,
            "answers-students": 750,
            "belief": 375,
            "headlines": 750,
            "images": 750,
        },
        archives=("test_evaluation_task2a",),
        revision="ae752c7c21bf194d8b67fd573edf7ae58183cbe3",
        title=(
            "SemEval-2015 Task 2: Semantic textual similarity, English, Spanish and pilot on "
            "interpretability"
        ),
        authors=(
            "Agirre, Banea, Cardie, Cer, Diab, Gonzalez-Agirre, Guo, Lopez-Gazpio, Maritxalar, "
            "Mihalcea, Rigau, Uria, Wiebe"
        ),
        venue="SemEval",
        homepage="https://aclanthology.org/S15-2045/",
    ),
    _sts(
        2016,
        subsets={
            "answer-answer": 254,
            "headlines": 249,
            "plagiarism": 230,
            "postediting": 244,
            "question-question": 209,
        },
        archives=("sts2016-english-with-gs-v1.0",),
        revision="4d8694f8f0e0100860b497b999b3dbed754a0513",
        title=(
            "SemEval-2016 Task 1: Semantic textual similarity, monolingual and cross-lingual "
            "evaluation"
        ),
        authors="Agirre, Banea, Cer, Diab, Gonzalez-Agirre, Mihalcea, Rigau, Wiebe",
        venue="SemEval",
        homepage="https://aclanthology.org/S16-1081/",
    ),
    DataSet(
        name="stsb",
        title="STS benchmark",
        kind="sts",
        splits={"train": 5749, "dev": 1500, "test": 1379},
        default_split="test",
        score_range=(0, 5),
        columns=("sentence 1", "sentence 2", "score"),
        licence="CC BY-SA",
        citation=(
            "Cer, Diab, Agirre, Lopez-Gazpio, Specia (2017): SemEval-2017 Task 1: Semantic textual "
            "similarity, multilingual and crosslingual focused evaluation. SemEval"
        ),
        homepage="https://aclanthology.org/S17-2001/",
        layouts=[
            Layout(
                form="positions",
                folders=(
                    *below(SENTEVAL, "STS/STSBenchmark"),
                    "STSBenchmark",
                    "stsbenchmark",
                    ".",
                ),
                files={split: [f"sts-{split}.csv"] for split in SPLITS},
                columns=(5, 6, 4),
            ),
            Layout(
                form="header",
                folders=(*below(GLUE, "STS-B"), "."),
                files={split: [f"{split}.tsv"] for split in SPLITS},
                columns=("sentence1", "sentence2", "score"),
                mark="score",
                unlabelled=("test",),
            ),
        ],
        hub=HubSource(
            repository="mteb/stsbenchmark-sts",
            revision="b0fddb56ed78048fa8b90373c8a3cfc37b684831",
            splits={"train": "train", "dev": "validation", "test": "test"},
            columns=("sentence1", "sentence2", "score"),
        ),
    ),
    _sick("sick-r", "SICK relatedness", "sts", "relatedness_score", "relatedness_score"),
    _sick("sick-e", "SICK entailment", "nli", "entailment_judgment", "entailment_label"),
)
