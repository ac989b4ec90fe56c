"""The documentation: generated pages are up to date, and every page and public name is on the site."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import mtkd
from mtkd.losses.loss_registry import BUILT_IN

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_command_line_reference_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "cli_reference.py"))["page"]()
    assert (DOCS / "cli.md").read_text() == page, "python scripts/cli_reference.py > docs/cli.md"


def test_the_python_reference_has_every_public_name() -> None:
    names = re.findall(r"^::: mtkd\.(\S+)", (DOCS / "api.md").read_text(), re.MULTILINE)
    public = set(mtkd.__all__) - {"__version__", "augment", "losses"}
    losses = {f"losses.{place}" for place in BUILT_IN.values()}
    augment = {name for name in names if name.startswith("augment.")}
    assert sorted(names) == sorted(public | losses | augment)
    assert all(callable(getattr(mtkd.augment, name.removeprefix("augment."))) for name in augment)


def test_every_page_is_in_the_navigation() -> None:
    navigation = str(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    pages = {path.name for path in DOCS.glob("*.md")} | {"index.md", "changelog.md", "decisions/README.md"}
    assert set(re.findall(r"[\w/-]+\.md", navigation)) == pages
