"""Choose how much of an int8 export stays in fp32, so that it scores almost as high as the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mtkd.evaluation.differences import Difference
from mtkd.onnx_export.int8 import KEPT, quantise
from tasks.common.errors import UserError
from tasks.common.progress import say
from tasks.common.text_format import markdown_cell

_INT8_TABLE = """\
The weights of this export are rounded to int8. Its scores and those of the fp32 model, in percent, on the
labelled rows with which the export was checked:

| task | int8 | fp32 | difference | 95% interval |
| --- | --- | --- | --- | --- |"""


def write_int8(
    graphs: Mapping[int | None, Any],
    write_and_score: Callable[[Mapping[int | None, Any]], dict[str, Difference]],
    *,
    reduce_range: bool,
    max_drop: float,
) -> tuple[tuple[str, ...], dict[str, Difference]]:
    """Write int8 graphs with as few fp32 parts as the scores allow.

    Args:
        graphs: the fp32 graphs.
        write_and_score: writes graphs, and returns how much higher they score than the model.
        reduce_range, max_drop: see `mtkd.jobs.export.export`.

    Returns:
        The parts that stay in fp32, and how much higher the export scores than the model.

    Raises:
        UserError: the scores are too low with each of `KEPT`.
    """
    worse_tasks: list[str] = []
    for fp32_parts in KEPT:
        say(f"int8{', with fp32 ' + ' and '.join(fp32_parts) if fp32_parts else ''}")
        quantised = {n: quantise(g, fp32_parts, reduce_range=reduce_range) for n, g in graphs.items()}
        scores = write_and_score(quantised)
        if not (worse_tasks := _worse_tasks(scores, max_drop)):
            return fp32_parts, scores
    raise UserError(
        f"an int8 export scores lower on {'; '.join(worse_tasks)}",
        expected=f"at most {max_drop:g} points below the model",
        hint="raise `max_drop`, or export without `int8`",
    )


def _worse_tasks(scores: Mapping[str, Difference], max_drop: float) -> list[str]:
    """The tasks on which the export scores significantly lower, by more than `max_drop` points; as text."""
    return [
        f"{name}: {difference.columns()[2]} points ({difference.columns()[3]})"
        for name, difference in scores.items()
        if difference.verdict == "worse" and -100 * difference.difference > max_drop
    ]


def int8_table(scores: Mapping[str, Difference]) -> str:
    """The scores of an int8 export and of the model, as Markdown."""
    rows = []
    for name, difference in scores.items():
        int8, fp32, points, interval, _ = difference.columns()
        rows.append(f"| {markdown_cell(name)} | {int8} | {fp32} | {points} | {interval} |")
    return "\n".join((_INT8_TABLE, *rows))
