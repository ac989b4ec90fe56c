"""Valid and invalid values in a transformers configuration."""

from __future__ import annotations

from typing import Any

import pytest

from mtkd.models.encoders.config_checks import refuse_code, refuse_other_family
from tasks.common.errors import UserError


def nested(levels: int) -> dict[str, Any]:
    """Return a dict nested `levels` deep."""
    return {"a": nested(levels - 1)} if levels else {}


def test_ordinary_values_are_accepted() -> None:
    refuse_code({"hidden_size": 384, "layers": [1, 2], "rope": {"theta": 1e4}, **nested(5)}, "config.json")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map = .* is not allowed"),
        ({"attn_implementation": "owner/kernel"}, "attn_implementation = 'owner/kernel' is not allowed"),
        ({"hidden_size": 1e30}, r"1e\+30 is not allowed"),
        ({"dropout": [float("nan")]}, "nan is not allowed"),
        (nested(30), "is nested too deeply"),
    ],
)
def test_invalid_values_are_rejected(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=f"^config.json.*: .*{problem}"):
        refuse_code(values, "config.json")


@pytest.mark.parametrize(
    ("family", "architectures"),
    [
        *(("bert", None), ("bert", []), ("bert", ["BertModel"]), ("bert", ["BertForQuestionAnswering"])),
        *(("xlm-roberta", ["RobertaForMaskedLM"]), ("bert", ["CustomBert"]), (None, ["BertModel"])),
        *(("deberta-v2", ["DebertaV2ForSequenceClassification"]), (["bert"], ["BertModel"]), ("bert", [[]])),
    ],
)
def test_compatible_architectures_are_accepted(family: Any, architectures: Any) -> None:
    refuse_other_family({"model_type": family, "architectures": architectures}, "config.json")


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert", "electra"])
def test_architectures_of_another_family_are_rejected(family: str) -> None:
    with pytest.raises(UserError, match=rf"model_type = '{family}' contradicts architectures = \['BertMod"):
        refuse_other_family({"model_type": family, "architectures": ["BertModel"]}, "config.json")
