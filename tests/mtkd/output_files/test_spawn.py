"""Worker processes do not run the user's script again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import mtkd

print("the script runs")
copies = {"rte": 1, "sst2": 1}
written = mtkd.augment.mask("pocket", ["rte", "sst2"], "corpus", copies=copies, limit=16, workers=2)
print(written.manifest.rows, "rows;", __file__)
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the script runs", f"32 rows; {tmp_path / 'script.py'}"]
