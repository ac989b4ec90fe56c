"""Run `mtkd` in a process that is prepared first, for example for a fake hub."""

from __future__ import annotations

import sys

import pytest
from fake_hub import use_hub

from mtkd.cli.main import main


def with_hub(address: str, *words: str) -> None:
    """Run `mtkd WORDS` with the Hugging Face hub at an address; see `FakeHub`."""
    use_hub(address, pytest.MonkeyPatch())
    _run(words)


def with_site(site: str, *words: str) -> None:
    """Run `mtkd WORDS` with the packages that are installed in a directory."""
    sys.path.insert(0, site)
    _run(words)


def _run(words: tuple[str, ...]) -> None:
    sys.argv = ["mtkd", *words]
    main()
