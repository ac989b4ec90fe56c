"""Errors of encoders that are not part of mtkd name the class and say what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from own_encoder import Mean, MeanConfig, mean_encoder
from torch import nn

import mtkd
from mtkd.models.encoders.run_encoder import check_embedding_count
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from tasks.common.errors import UserError
from tasks.task_names import resolve
from tasks.tokens.tokeniser import Tokeniser


def output(**values: Any) -> mtkd.EncoderOutput:
    return mtkd.EncoderOutput(**values)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            lambda mean: output(pooled=mean[:1]),
            r"the encoder Mean returned `pooled` of shape \(1, 8\) for 8 rows\n"
            r"  expected: a tensor of shape \(8, width\)$",
        ),
        (lambda mean: output(pooled=mean.unsqueeze(1)), r"`pooled` of shape \(8, 1, 8\) for 8 rows"),
        (lambda mean: output(pooled=mean.tolist()), "`pooled` a list for 8 rows"),
        (lambda mean: output(pooled=mean, cls={0: mean[0]}), r"`cls\[0\]` of shape \(8,\) for 8 rows"),
        (
            lambda mean: output(pooled=mean[:, :4]),
            "Mean must return pooled vectors of width 8, not of width 4",
        ),
        (lambda mean: mean, r"the encoder Mean returned a Tensor\n.*mtkd\.EncoderOutput"),
        (lambda mean: None, "the encoder Mean returned None"),
        (
            lambda mean: 1 / 0,
            r"the encoder \(own_encoder:Mean, line \d+\) failed: ZeroDivisionError: division by zero$",
        ),
        (
            lambda mean: output(pooled=mean / 0),
            r"the student's encoder Mean returned values that are not finite at step 1 \(task 'rte'\), in "
            r"`pooled`\n  expected: finite numbers\n  hint: check its `forward` for divisions by 0",
        ),
        (
            lambda mean: mean.missing,
            r"failed: AttributeError: (.|\n)*hint: write `forward.*`inputs` has `joined`",
        ),
    ],
)
def test_a_wrong_result_of_an_encoder_is_an_error(
    result: Callable[[Any], Any], message: str, tiny_teacher: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        mtkd.distill(
            "mkd-lstm",
            teacher=tiny_teacher,
            data="pocket",
            tasks="rte",
            out=tmp_path / "run",
            limit=8,
            eval_limit=8,
            steps=1,
            student=mean_encoder(result),
        )


def test_a_vocabulary_that_is_too_small_names_both_sizes_and_the_setting() -> None:
    problem = "the encoder Mean has 100 embeddings, but the tokeniser has 30,522 tokens\n"
    encoder = Mean(MeanConfig(vocab_size=100))
    with pytest.raises(UserError, match=problem) as error:
        check_embedding_count(encoder, 30522)
    assert error.value.hint == "make it with `MeanConfig(vocab_size=30522, ...)`"
    check_embedding_count(encoder, 100)

    class SizedConfig(mtkd.EncoderConfig):
        kind: Literal["sized"] = "sized"
        spec = MeanConfig.spec

    class Sized(Mean):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.config, self.embeddings = SizedConfig(), nn.Embedding(7, 8)  # type: ignore[assignment]

    without_embeddings = Sized()
    del without_embeddings.embeddings
    with pytest.raises(UserError, match="the encoder Sized has no word embeddings called `embeddings`"):
        check_embedding_count(without_embeddings, 30522)
    with pytest.raises(UserError, match="the encoder Sized has 7 embeddings") as error:
        check_embedding_count(Sized(), 30522)
    assert error.value.hint == "make its `embeddings` with `nn.Embedding(30522, ...)`"


def test_a_student_of_this_session_is_timed_without_its_memory(tiny_encoder: Path, tmp_path: Path) -> None:
    tokeniser = Tokeniser.load(str(tiny_encoder))
    encoder = Mean(MeanConfig(vocab_size=tokeniser.vocab_size))
    MultiTaskModel(encoder, resolve("rte"), tokeniser, ModelInfo(24)).save(tmp_path / "mean")
    (timed,) = mtkd.bench_inference([tmp_path / "mean"], seq_len=8, batch=2, rounds=1, warmup=0)
    assert timed.ms > 0 and timed.peak_bytes is None
