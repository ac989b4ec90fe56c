"""Rows from the Hugging Face hub; unreachable, it fails in a moment, not after a minute of retries."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pyarrow as pa

from tasks.errors import UserError

_PROBE_SECONDS = 5.0


def fetch(dataset: str, configuration: str | None, split: str) -> pa.Table:
    """Load one split by its official name, from the local cache or over the network.

    Raises:
        UserError: the hub cannot be reached and its cache lacks the data set, or it has no such split.
    """
    import datasets

    advice = "give `data=DIR` with the files, or `data=pocket`"
    name = f"{dataset} ({configuration or 'default'}, {split})"
    try:
        with _offline_if_unreachable(dataset):
            rows = datasets.load_dataset(dataset, configuration, split=split)
        return rows.with_format("arrow")[:]
    except ConnectionError as error:
        raise UserError(
            f"the Hugging Face hub cannot be reached, and {name} is not in its local cache: {error}",
            hint=f"connect to the network; or {advice}",
        ) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"cannot load {name} from the Hugging Face hub: {error}", hint=advice) from error


@contextlib.contextmanager
def _offline_if_unreachable(dataset: str) -> Iterator[None]:
    """Put `datasets` into its offline mode (cache only) for the block if the hub does not answer.

    Online, `datasets` tries six times with growing pauses before it looks at its cache.
    """
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    offline = any(before) or not _answers(dataset)
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


@functools.cache
def _answers(dataset: str) -> bool:
    """True if the hub answers one short request, whatever it has to say; asked once a process."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(dataset, timeout=_PROBE_SECONDS)
    except HfHubHTTPError:
        return True
    except Exception:  # the HTTP client's own classes differ between versions of the hub client
        return False
    return True
