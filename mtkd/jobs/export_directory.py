"""The directories that `mtkd export` writes: how an export is recognised, and when it may be replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtkd.model_files import EXPORT, read_export
from mtkd.models.saved_model import MODEL_FILES
from mtkd.output_files.output_directory import OutputKind, check_directory, has_claim
from tasks.common.errors import UserError
from tasks.common.records import read_record


def _read_source(directory: Path) -> Any:
    """What the export in a directory was made from; None if the directory holds no export."""
    record = read_record(directory / EXPORT, object) if (directory / EXPORT).is_file() else None
    return record.get("source") if isinstance(record, dict) and {"mtkd", "graphs"} <= record.keys() else None


def _graph_files(directory: Path) -> set[str]:
    """The names of the graph files of a finished export."""
    return {graph["file"] for graph in read_export(directory)["graphs"]}


_GRAPH_PATTERN = r"model[^/]*\.onnx"
EXPORTS = OutputKind(
    "export",
    EXPORT,
    (rf"{EXPORT}|{_GRAPH_PATTERN}|weights\.bin|{MODEL_FILES}",),
    _read_source,
    variable=(_GRAPH_PATTERN,),
    listed=_graph_files,
)
TRANSFORMERS = OutputKind("transformers checkpoint", "config.json", (MODEL_FILES,), lambda directory: None)


def check_export_directory(out: Path, source: Any, overwrite: bool) -> None:
    """Check that writing an export to `out` replaces nothing, or only an export if `overwrite` is set.

    Args:
        source: what the new export is made from.

    Raises:
        UserError: `out` holds other files, or an export that may not be replaced.
    """
    if EXPORTS.finished(out) and not overwrite and not has_claim(out):
        hint = "replace it with `overwrite=True`, or choose another directory with `out`"
        raise UserError(f"{out} already holds an export", hint=hint)
    check_directory(out, EXPORTS, source, overwrite=overwrite)
