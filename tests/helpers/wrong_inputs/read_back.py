# ruff: noqa: E501
"""Files that mtkd wrote and reads again, with other content: predictions, logs, cached logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from wrong_inputs.commands import distill
from wrong_inputs.tiny_inputs import Case, TinyInputs, replace

# The value of the column in every row.
VALUES: dict[str, Any] = {
    "null": None, "text": "x", "struct": {"a": 1}, "big": 10**9, "-1": -1, "inf": float("inf"), "nan": float("nan"),
    "empty": [], "three": [0.1, 0.2, 0.7], "list of null": [None], "half": 0.5,
}  # fmt: skip
LOGS = {
    "digits": f'{{"step": {"9" * 400}, "loss": 1}}', "no step": '{"loss": 1}', "negative": '{"step": -1}',
    "half": '{"step": 1.5}', "list": "[]", "not JSON": "{", "text": '{"step": "1"}',
}  # fmt: skip


def _report(run: Path, directory: Path) -> list[Any]:
    return ["report", "html", run, "--out", directory / "report.html"]


def read_back_cases() -> Iterator[Case]:
    """Yield cases with wrong predictions and logs of a run, and wrong cached logits of a teacher."""
    for column in ("label", "prediction", "probabilities", "uid"):
        for name, value in VALUES.items():

            def predictions(inputs: TinyInputs, directory: Path, column=column, value=value) -> list[Any]:
                run = inputs.copy("student", directory)
                path = run / "predictions/rte/validation.parquet"
                table = pq.read_table(path)
                path.unlink()
                table = table.drop_columns([column]).append_column(column, pa.array([value] * len(table)))
                pq.write_table(table, path)
                return _report(run, directory)

            yield Case(
                f"predictions {column} {name}", predictions, must_fail=(column, name) != ("uid", "text")
            )
    for name, line in LOGS.items():

        def log(inputs: TinyInputs, directory: Path, line=line) -> list[Any]:
            run = inputs.copy("student", directory)
            replace(run / "log.jsonl", line)
            return _report(run, directory)

        yield Case(f"log {name}", log)
    for name in ("rows", "columns", "name", "type", "nothing"):

        def logits(inputs: TinyInputs, directory: Path, name=name) -> list[Any]:
            import torch
            from safetensors.torch import load_file, save_file

            teacher = inputs.copy("teacher", directory)
            _ = inputs.student  # a distillation has cached the logits
            for path in teacher.glob("logits-*/*/*.safetensors"):
                cached = load_file(path)["logits"]
                path.unlink()
                other = {
                    "rows": cached[:0],
                    "columns": cached[:, :1].contiguous(),
                    "type": cached.long(),
                    "nothing": torch.zeros(0),
                }
                save_file({"other" if name == "name" else "logits": other.get(name, cached)}, path)
            return distill(teacher, directory / "out", "--limit", 32)

        yield Case(f"cached logits {name}", logits, must_fail=False)  # they are recomputed
