"""`mtkd verify` detects and names every damaged file in the output of mtkd."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bit_flips import files, undetected_flips

import mtkd as library
from tasks.common.errors import UserError


@pytest.fixture
def place(tmp_path: Path, tiny_teacher: Path) -> Path:
    """A run, a corpus, and the digests of an export."""
    shutil.copytree(tiny_teacher, tmp_path / "all" / "run")
    library.augment.mask(data="pocket", tasks="rte", copies=1, limit=5, out=tmp_path / "all" / "corpus")
    (tmp_path / "all" / "export").mkdir()
    (tmp_path / "all" / "export" / "model.onnx").write_bytes(b"graph")
    digest = "81b4a0645d08d55a80ef6a38aa5f29f7b00ec0f4bc21eb8f5a2b4a2a1d3e6c77"
    (tmp_path / "all" / "export" / "export.json").write_text(json.dumps({"files": {"model.onnx": digest}}))
    return tmp_path / "all"


def test_damaged_files_are_named(place: Path, mtkd: Callable) -> None:
    before = library.verify(place)
    assert list(before.damaged) == [str(place / "export" / "model.onnx")], "it has another digest"
    shutil.rmtree(place / "export")
    whole = mtkd("verify", place)
    assert whole.code == 0 and f"{before.files - 1} of {before.files - 1} files are intact" in whole.out
    (shard,) = (place / "corpus" / "data").glob("*.parquet")
    for file in (shard, place / "run" / "model" / "heads.safetensors"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 8
        file.write_bytes(content)
        found = mtkd("verify", place)
        assert found.code == 2 and str(file) in found.out, found.err
    (place / "run" / "run.json").write_text("{}")
    assert str(place / "run" / "run.json") in library.verify(place).damaged
    (place / "run" / "model" / "digests.json").write_text("{}")
    assert str(place / "run" / "model" / "digests.json") in library.verify(place).damaged


@pytest.mark.parametrize("content", ["{}", '["a"]', '{"a": 3}', '{"../a": "0"}', "3"])
def test_digest_files_of_the_wrong_form_are_named(content: str, tmp_path: Path, mtkd: Callable) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "digests.json").write_text(f'{{"files": {content}}}')
    if content == "{}":
        with pytest.raises(UserError, match="no digests were found"):
            library.verify(tmp_path)
        return
    found = library.verify(tmp_path)
    assert list(found.damaged) == [str(tmp_path / "digests.json")]
    answered = mtkd("verify", tmp_path)
    assert answered.code == 2 and "is not a list of digests as mtkd writes it" in " ".join(
        answered.out.split()
    )


def test_flipped_bits_are_found(place: Path) -> None:
    shutil.rmtree(place / "export")
    assert {"run.json", "log.jsonl", "manifest.json", "model.safetensors"} < {
        file.name for file in files(place)
    }
    assert not list(undetected_flips(place, 3 * len(files(place)), seed=0))


def test_a_directory_without_digests_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no digests were found"):
        library.verify(tmp_path)
    with pytest.raises(UserError, match="there is no directory"):
        library.verify(tmp_path / "no")
