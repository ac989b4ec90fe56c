"""Rows from the Hugging Face hub. If the hub cannot be reached, this fails fast instead of retrying."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from tasks.common.errors import UserError
from tasks.common.hub_loading import hub_error


def fetch(dataset: str, configuration: str | None, split: str) -> pa.Table:
    """Load one split from the local cache or the hub.

    Raises:
        UserError: there is no such split, or the hub cannot be reached and the data set is not cached.
    """
    import datasets

    advice = "pass `data='DIR'` with the files, or `data='pocket'`"
    name = f"{dataset} ({configuration or 'default'}, {split})"
    try:
        with _offline_if_unreachable():
            rows = datasets.load_dataset(dataset, configuration, split=split)
        return rows.with_format("arrow")[:]
    except ConnectionError as error:
        raise UserError(
            f"the Hugging Face hub cannot be reached, and {name} is not in its local cache: {error}",
            hint=f"connect to the network, or {advice}",
        ) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"cannot load {name} from the Hugging Face hub: {error}", hint=advice) from error


@contextlib.contextmanager
def _offline_if_unreachable() -> Iterator[None]:
    """Put `datasets` into offline mode (cache only) inside the block if the hub does not respond.

    In online mode `datasets` retries six times, with growing pauses, before it looks at its cache.
    """
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    offline = any(before) or hub_error(constants.ENDPOINT) is not None
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def fetch_splits(name: str) -> dict[str, pa.Table]:
    """The rows of all splits of a data set, `NAME` or `NAME:CONFIGURATION`.

    Raises:
        UserError: there is no such data set, or the hub cannot be reached and it is not cached.
    """
    import datasets

    dataset, _, configuration = name.partition(":")
    advice = "`NAME:CONFIGURATION` names one of several configurations; or pass files"
    try:
        with _offline_if_unreachable():
            loaded = datasets.load_dataset(dataset, configuration or None)
    except ConnectionError as error:
        raise UserError(
            f"there is no file {name!r}, and the Hugging Face hub cannot be reached: {error}",
            hint="check the path, or connect to the network",
        ) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"there is no file {name!r}, and no such data set on the hub: {error}", hint=advice
        ) from error
    return {str(split): rows.with_format("arrow")[:] for split, rows in loaded.items()}
