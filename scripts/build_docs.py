"""Build the documentation as a site: `make docs` runs this and writes `site/`.

The generator (zensical) is installed into `.docs-venv` from the pinned versions in `requirements/docs.txt`.
The pages of `docs/` are written for GitHub. A copy in `build/docs` is changed for the site: README.md becomes
its first page, links to other files of the repository lead to copies of these, and equations become MathML,
which browsers show without JavaScript.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS, STAGED = ROOT / "docs", ROOT / "build" / "docs"
VENV, PINS = ROOT / ".docs-venv", ROOT / "requirements" / "docs.txt"

LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]*)([^)\s]*)\)")
FENCE = re.compile(r"(^```.*?^```$|^(?: {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
EQUATION = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
INLINE = re.compile(r"(`[^`\n]*`)|\$([^$\n]+)\$")


def install() -> Path:
    """The interpreter of `.docs-venv`, which is made again if the pinned versions have changed."""
    python, stamp = VENV / "bin" / "python", VENV / "installed.txt"
    if not stamp.exists() or stamp.read_bytes() != PINS.read_bytes():
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "-r", PINS], check=True)
        shutil.copy(PINS, stamp)
    return python


def staged_path(path: Path) -> Path:
    """Where a file of the repository is in the staged copy."""
    if path.is_relative_to(DOCS):
        return STAGED / path.relative_to(DOCS)
    if path.parent == ROOT and path.suffix == ".md":
        return STAGED / ("index.md" if path.name == "README.md" else path.name.lower())
    return STAGED / "source" / path.relative_to(ROOT)


def relinked(text: str, page: Path) -> str:
    """The text of a page with links as in the staged copy; files that they name are copied.

    Raises:
        SystemExit: a link leads to no file.
    """

    def link(match: re.Match[str]) -> str:
        target = (page.parent / match[1]).resolve()
        if not target.is_file():
            sys.exit(f"{page.relative_to(ROOT)}: the link to {match[1]} leads to no file")
        copy = staged_path(target)
        if not copy.exists() and target.suffix != ".md":
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, copy)
        return f"]({os.path.relpath(copy, staged_path(page).parent)}{match[2]})"

    return LINK.sub(link, text)


def with_mathml(text: str) -> str:
    """The text with its equations, in $...$ and $$...$$, as MathML."""
    if "$$" not in text:
        return text
    from latex2mathml.converter import convert

    text = EQUATION.sub(lambda match: convert(" ".join(match[1].split()), display="block"), text)
    return INLINE.sub(lambda match: match[1] or f"<span>{convert(match[2])}</span>", text)


def unescaped(text: str) -> str:
    """The text without the backslashes that GitHub needs before | in code in a table."""
    return CODE.sub(lambda match: match[0].replace("\\|", "|"), text)


def staged(text: str, page: Path) -> str:
    """The page for the site; code blocks stay as they are."""
    parts = FENCE.split(text)
    parts[::2] = [with_mathml(relinked(unescaped(part), page)) for part in parts[::2]]
    return "".join(parts)


def stage() -> None:
    """Write `build/docs`."""
    shutil.rmtree(STAGED, ignore_errors=True)
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    for page in [*pages, *sorted(DOCS.rglob("*.md"))]:
        staged_path(page).parent.mkdir(parents=True, exist_ok=True)
        staged_path(page).write_text(staged(page.read_text(encoding="utf-8"), page), encoding="utf-8")


def main() -> None:
    """Build the site; broken links and other warnings are errors."""
    if Path(sys.prefix) != VENV:
        sys.exit(subprocess.run([install(), __file__]).returncode)
    started = time.monotonic()
    stage()
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    if subprocess.run([VENV / "bin" / "zensical", "build", "--clean", "--strict"], cwd=ROOT).returncode:
        sys.exit("the documentation was not built")
    print(f"site/index.html: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
