"""Layer maps: which teacher layer each student layer is compared with."""

from __future__ import annotations

import math

from mtkd.outputs import EncoderSpec
from tasks.common.errors import UserError

LayerPairs = list[tuple[int, int]]
NAMES = ("uniform", "skip", "last", "first", "top:L", "last-only", "minilmv2", "emd")

# MiniLMv2 section 3.2: for 24 layers an upper middle layer is best; which one depends on the family.
_MINILMV2_OF_24 = {"bert": 21, "roberta": 19, "xlm-roberta": 19}


def named_map_pairs(name: str, student_layers: int, teacher_layers: int) -> LayerPairs:
    """Build a named layer map: for each student layer n = 1 .. N, a teacher layer from 1 .. M.

    `uniform`: n M / N, rounded half up (TinyBERT, MLKD-BERT). `top:L`: n L / N, rounded half up (with L below
    M, the last teacher layers are unused). `skip`: n floor(M / N) (BERT-PKD). `last`: M - N + n. `first`: n.

    Args:
        name: the name of the map.
        student_layers, teacher_layers: the numbers of layers N and M.

    Raises:
        UserError: there is no map of that name, or the teacher has too few layers for it.
    """
    kind, _, top = name.partition(":")
    if kind in ("uniform", "top"):
        highest = int(top) if kind == "top" else teacher_layers
        _require(1 <= highest <= teacher_layers, name, student_layers, teacher_layers)
        return [
            (n, max(1, math.floor(n * highest / student_layers + 0.5))) for n in range(1, student_layers + 1)
        ]
    _require(
        kind in ("skip", "last", "first") and student_layers <= teacher_layers,
        name,
        student_layers,
        teacher_layers,
    )
    stride = teacher_layers // student_layers if kind == "skip" else 1
    offset = teacher_layers - student_layers if kind == "last" else 0
    return [(n, n * stride + offset) for n in range(1, student_layers + 1)]


def layer_pairs(spec: str | LayerPairs, student: EncoderSpec, teacher: EncoderSpec) -> LayerPairs:
    """Resolve a layer map to (student layer, teacher layer) pairs.

    Args:
        spec: a name that `named_map_pairs` knows; `minilmv2`: the student's last layer with the teacher layer
            that MiniLMv2 found best (the last one; of 24 layers the 21st, or the 19th in the RoBERTa family);
            `last-only`: the last layers of both (MiniLM, DistilBERT); `emd`: all pairs; or a list of
            pairs, in which 0 is the embedding layer.

    Raises:
        UserError: a layer does not exist.
    """
    if not isinstance(spec, str):
        for pair in spec:
            for who, layer, model in zip(("student", "teacher"), pair, (student, teacher), strict=True):
                if not 0 <= layer <= model.layers:
                    raise UserError(
                        f"the layer map {spec} names layer {layer} of the {who}, which has {model.layers}",
                        expected=f"0 (embeddings) to {model.layers}",
                    )
        return list(spec)
    if spec == "last-only":
        return [(student.layers, teacher.layers)]
    if spec == "minilmv2":
        last = _MINILMV2_OF_24.get(teacher.family, 21) if teacher.layers == 24 else teacher.layers
        return [(student.layers, last)]
    if spec == "emd":
        return [(n, m) for n in range(1, student.layers + 1) for m in range(1, teacher.layers + 1)]
    return named_map_pairs(spec, student.layers, teacher.layers)


def _require(fits: bool, name: str, student_layers: int, teacher_layers: int) -> None:
    if not fits:
        raise UserError(
            f"the layer map {name!r} does not fit {student_layers} student layers and {teacher_layers} "
            "teacher layers",
            expected=f"{', '.join(NAMES)} with L up to {teacher_layers}, or pairs such as [[1, 3], [2, 6]]",
        )
