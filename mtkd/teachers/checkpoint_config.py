"""The configuration of a fine-tuned transformers checkpoint, and the names of its outputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from mtkd.models.encoders.config_checks import check_config_file
from tasks.common.hub_loading import load_named


def checkpoint_config(directory: Path) -> Any:
    """The configuration of a checkpoint.

    Raises:
        UserError: config.json is missing or invalid.
    """
    from transformers import AutoConfig

    check_config_file(directory / "config.json")
    load = partial(AutoConfig.from_pretrained, trust_remote_code=False)
    return load_named(load, str(directory), "configuration")


def output_names(config: Any) -> list[str]:
    """The names of the outputs of a classifier (`id2label`), in their order."""
    return [str(config.id2label.get(number, f"LABEL_{number}")) for number in range(config.num_labels)]
