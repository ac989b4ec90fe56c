"""The registry of students, and a student from another installed package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mtkd.models.encoders.config_checks import build_configuration
from mtkd.models.encoders.encoder import Encoder
from mtkd.models.encoders.encoder_registry import ENCODERS, encoder_classes
from mtkd.models.multitask import MultiTaskModel
from mtkd.recipes import load_settings
from tasks.common.errors import UserError

CODE = """
from typing import ClassVar, Literal

import torch
from torch import nn

from mtkd.strict_settings import StrictSettings
from mtkd.models.encoders.encoder import Encoder, EncoderConfig, StudentSettings
from mtkd.outputs import EncoderOutput, EncoderSpec, OutputSpec


class Table(StrictSettings):
    '''The sizes.

    Attributes:
        size: the width of
            the vectors.
    '''

    size: int = 8


class Settings(StudentSettings):
    kind: Literal["first_word"] = "first_word"
    first_word: Table = Table()


class Config(EncoderConfig):
    input_format: ClassVar = "separate"
    kind: Literal["first_word"] = "first_word"
    vocab_size: int
    size: int

    @property
    def spec(self):
        return EncoderSpec(self.kind, pooled_size=self.size, offers=OutputSpec(pooled=True))


class FirstWord(Encoder[Settings, Config]):
    Settings = Settings
    Config = Config

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.size)

    @classmethod
    def config_from_settings(cls, settings, init_spec, vocab_size):
        return Config(vocab_size=vocab_size, size=settings.first_word.size)

    @classmethod
    def build(cls, settings, context):
        return cls(cls.config_from_settings(settings, context.init_spec, context.tokeniser.vocab_size))

    def forward(self, inputs, need=OutputSpec(pooled=True)):
        return EncoderOutput(pooled=sum(self.embeddings(text.ids[:, 0]) for text in inputs.texts))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with a student; the file that names its entry points."""
    place = tmp_path / "site"
    info = place / "first_word-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: first-word\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mtkd.students]\nfirst_word = first_word:FirstWord\n")
    (place / "first_word.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(place))
    yield info / "entry_points.txt"
    sys.modules.pop("first_word", None)


def test_every_registered_kind_has_an_encoder_and_settings() -> None:
    for kind, encoder in encoder_classes().items():
        assert issubclass(encoder, Encoder)
        assert encoder.Settings(kind=kind).kind == kind
    assert list(ENCODERS) == sorted(ENCODERS)


def test_a_recipe_can_build_a_student_from_another_package(
    package: Path, mtkd: Callable[..., Any], tiny_teacher: Path, tmp_path: Path
) -> None:
    words = "distill mkd-lstm --data pocket --tasks sst2 --limit 32 --eval-limit 16 --epochs 1 --quiet"
    kind = ["--set", "student.kind=first_word"]
    given = [*words.split(), *kind, "--teacher", tiny_teacher, "--out", tmp_path / "run"]
    (recipe := tmp_path / "mine.toml").write_text('extends = "mkd-lstm"\n[student]\nkind = "first_word"\n')
    shown = mtkd("recipes", "show", recipe, "--all")
    assert "student.first_word.size" in shown.out and "the width of the vectors" in shown.out
    refused = mtkd(*given, "--set", "student.first_word.sice=5")
    assert refused.code == 2 and "did you mean 'student.first_word.size'" in refused.err
    run = mtkd(*given, "--set", "student.first_word.size=5")
    assert run.code == 0, run.err
    model = MultiTaskModel.load(tmp_path / "run")
    assert model.encoder.config.kind == "first_word" and model.encoder.width == 5
    rows = ["--data", "pocket", "--limit", 16, "--quiet"]
    assert mtkd("evaluate", "--model", tmp_path / "run", *rows).code == 0


def test_the_error_for_an_unknown_kind_lists_plugin_kinds(package: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)'firstword'.*did you mean 'first_word'.*waldorf"):
        load_settings("mkd-lstm", "distill", {"student.kind": "firstword"})
    package.write_text("[mtkd.students]\nfirst_word = first_word:Settings\n")
    with pytest.raises(UserError, match="not a subclass of Encoder"):
        load_settings("mkd-lstm", "distill", {"student.kind": "first_word"})


def test_a_plugin_that_declares_another_kind_is_named(package: Path) -> None:
    package.write_text("[mtkd.students]\nbroken = first_word:FirstWord\n")
    problem = r"the plugin 'broken' \(first_word:FirstWord\) declares the kind 'first_word' in Settings\n"
    with pytest.raises(UserError, match=rf"{problem}  expected: 'broken', the name of its entry point"):
        load_settings("mkd-lstm", "distill", {"student.kind": "broken"})


def test_tables_of_other_kinds_are_ignored_in_recipes_and_rejected_in_settings() -> None:
    sets = {"student.kind": "waldorf", "student.waldorf.layers": 2}
    student = load_settings("mkd-lstm", "distill", sets).student
    assert student.waldorf.layers == 2 and "bilstm" not in student.model_dump()
    with pytest.raises(UserError, match="has no effect: the student of this recipe is of kind 'waldorf'"):
        load_settings("mkd-lstm", "distill", {**sets, "student.transformer.layers": 3})


@pytest.mark.parametrize("family", ["clip", "vit", "evil"])
def test_model_families_for_other_modalities_are_rejected(family: str) -> None:
    with pytest.raises(UserError, match="the configuration of the encoder cannot be used"):
        build_configuration({"model_type": family})
