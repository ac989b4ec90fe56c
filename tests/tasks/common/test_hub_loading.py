"""Loading models by name leaves the settings of transformers and of the hub's client as they were."""

from __future__ import annotations

import threading
from pathlib import Path

import huggingface_hub.utils as hub
import pytest
from transformers.utils import logging

from mtkd.models.encoders.transformer import TransformerEncoder
from tasks.common.hub_loading import load_named, quiet_transformers


def settings() -> tuple[int, bool, bool]:
    return logging.get_verbosity(), logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()


@pytest.fixture(params=[(True, True), (True, False), (False, True)], ids=["all", "no hub", "hub only"])
def before(request: pytest.FixtureRequest) -> object:
    """The settings of a caller, with progress bars of transformers and of the hub on or off."""
    changed = settings()
    bars, hub_bars = request.param
    logging.set_verbosity_info()
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    (hub.enable_progress_bars if hub_bars else hub.disable_progress_bars)()
    assert settings() == (logging.INFO, bars, hub_bars)
    yield settings()
    logging.set_verbosity(changed[0])
    (logging.enable_progress_bar if changed[1] else logging.disable_progress_bar)()
    (hub.enable_progress_bars if changed[2] else hub.disable_progress_bars)()


def test_loading_restores_messages_and_progress_bars(before: object, tiny_encoder: Path) -> None:
    inside = load_named(lambda name, local_files_only: settings(), "x", "encoder")
    assert inside == (logging.ERROR, False, False) and settings() == before
    TransformerEncoder.pretrained(str(tiny_encoder))
    assert settings() == before


def test_overlapping_blocks_of_threads_restore_the_settings_once(before: object) -> None:
    inside, first_left = threading.Event(), threading.Event()

    def load() -> None:
        with quiet_transformers():
            inside.set()
            assert first_left.wait(60)

    thread = threading.Thread(target=load)
    with quiet_transformers():
        thread.start()
        assert inside.wait(60)
    assert settings() != before
    first_left.set()
    thread.join()
    assert settings() == before
