"""Reading data sets from the model hub, at the revision the catalogue pins."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from bertflow.data.catalog import DataSet, HubSource
from bertflow.data.layouts import Row
from bertflow.errors import InputError
from bertflow.network import hub_answers

log = logging.getLogger(__name__)


class NotOnHubError(Exception):
    """The hub gives nothing; the message is the reason."""


def available_hub(data_set: DataSet) -> HubSource:
    """Where the hub has a data set, once it is known that it can be asked.

    Raises:
        NotOnHubError: It has no such data, the extra is missing, or it does not answer.
    """
    if data_set.hub is None:
        raise NotOnHubError(f"not asked, because {data_set.no_hub}")
    if find_spec("datasets") is None:
        raise NotOnHubError("needs datasets: pip install 'bertflow[hub]'")
    # What `datasets` has in its cache is no substitute: it does not say of which revision.
    if not hub_answers():
        raise NotOnHubError("no connection")
    return data_set.hub


def read_hub(hub: HubSource, split: str) -> tuple[str, Iterator[Row]]:
    """The rows of a split as repository@revision has them.

    Returns:
        The source and its rows, labels by the names that their feature gives them.

    Raises:
        NotOnHubError: The client fails.
        InputError: A column is missing.
    """
    import datasets

    source = f"{hub.repository}@{hub.revision}"
    log.info("reading %s %s of the hub", source, hub.splits[split])
    try:
        table = datasets.load_dataset(
            hub.repository, hub.config, split=hub.splits[split], revision=hub.revision
        )
    except Exception as error:  # The client has many; all mean that it gives nothing.
        detail = str(error).strip().split("\n")[0]
        raise NotOnHubError(f"{type(error).__name__}: {detail}") from error
    lacking = [column for column in hub.columns if column not in table.column_names]
    if lacking:
        raise InputError(
            f"{source} has no column {', '.join(lacking)}; it has {', '.join(table.column_names)}"
        )
    feature = table.features[hub.columns[2]]
    names = feature.names if isinstance(feature, datasets.ClassLabel) else None
    ident = hub.ident if hub.ident in table.column_names else None
    columns = table.select_columns([*hub.columns, *([ident] if ident else [])]).to_dict()
    return source, _rows(source, hub, columns, names, ident)


def _rows(
    source: str,
    hub: HubSource,
    columns: dict[str, list[Any]],
    names: list[str] | None,
    ident: str | None,
) -> Iterator[Row]:
    cells = zip(*(columns[column] for column in hub.columns), strict=True)
    for number, (first, second, label) in enumerate(cells, start=1):
        if names is not None and label is not None:
            label = names[label] if label >= 0 else None  # −1 stands for no label.
        place = f"{source}, row {number}"
        row = str(columns[ident][number - 1] if ident else number)
        yield Row(place, first, second, label, place, row=row)
