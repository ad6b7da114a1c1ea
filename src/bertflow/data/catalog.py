"""The data sets bertflow knows, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from bertflow.data.declarations import DataSet, Kind
from bertflow.data.inference import INFERENCE
from bertflow.data.semeval import SEMEVAL
from bertflow.errors import unknown

CATALOG: Mapping[str, DataSet] = MappingProxyType({one.name: one for one in (*SEMEVAL, *INFERENCE)})
STS_TASKS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sick-r")
# All whose pairs have a score or a label.
TASKS = tuple(name for name, one in CATALOG.items() if one.kind in ("sts", "qnli"))
KINDS: tuple[Kind, ...] = ("sts", "qnli", "nli")


def find_data_set(name: str, kinds: Sequence[Kind] = KINDS) -> DataSet:
    """The declaration of a data set.

    Args:
        name: A key of `CATALOG`.
        kinds: Which kinds will do.

    Raises:
        InputError: There is none of that name and kind.

    Example:
        >>> find_data_set("stsb").splits["test"]
        1379
    """
    data_set = CATALOG.get(name)
    if data_set is None or data_set.kind not in kinds:
        what = "NLI data set" if tuple(kinds) == ("nli",) else "task"
        raise unknown(what, name, (key for key, one in CATALOG.items() if one.kind in kinds))
    return data_set
