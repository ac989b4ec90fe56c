"""Students with a pruned vocabulary: they have the teacher's embeddings, and work like other students."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from exportable_models import slow_export
from tokenizers import Tokenizer, models
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

import mtkd as library
from mtkd.models.encoders.encoder_registry import build_student, student_settings
from mtkd.models.encoders.static import teacher_states
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.initialisation import InitContext, InitSpec
from mtkd.recipes import parse_set
from tasks.common.errors import UserError
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.pruned_vocabulary import prune_vocabulary
from tasks.tokens.tokeniser import Tokeniser

TEXTS = pa.array(["the cat sat on the mat", "a dog and the cat", "playing in the rain"])


@pytest.fixture(scope="module")
def contexts(tiny_encoder: Path) -> tuple[InitContext, InitContext]:
    """A student with the teacher's vocabulary, and one with the tokens of TEXTS."""
    teacher = TransformerEncoder.pretrained(str(tiny_encoder)).eval()
    full = Tokeniser.load(str(tiny_encoder))
    small, kept = prune_vocabulary(full, [TEXTS], 60_000)
    spec = InitSpec(teacher.config, str(tiny_encoder))
    context = InitContext(full, teacher, full, spec, texts=[TEXTS])
    return context, replace(context, tokeniser=small, kept=kept)


def test_embeddings_of_kept_tokens_match_the_teacher(contexts: tuple[InitContext, InitContext]) -> None:
    full, pruned = contexts
    assert full.teacher is not None and pruned.kept is not None
    kept = pruned.kept
    lstm = student_settings({"kind": "bilstm", "bilstm": {"embeddings": "teacher"}})
    table = full.teacher.embeddings.weight
    assert torch.equal(build_student(lstm, pruned).embeddings.weight, table[kept])
    assert build_student(lstm, pruned).config.embedding_size == table.shape[1]
    states = teacher_states(full.teacher, full)[kept]
    torch.testing.assert_close(teacher_states(full.teacher, pruned), states, rtol=1e-4, atol=1e-5)
    static = build_student(student_settings({"kind": "static", "static": {"width": 4}}), pruned)
    assert static.embeddings.weight.shape == (len(kept), 4)


@pytest.mark.parametrize("more", [{"init": "teacher"}, {"init": "random"}, {"init": "random", "layers": 1}])
def test_a_pruned_vocabulary_does_not_change_the_outputs(
    more: dict[str, Any], contexts: tuple[InitContext, InitContext]
) -> None:
    full, pruned = contexts
    assert pruned.kept is not None
    made = []
    for context in (full, pruned):
        torch.manual_seed(1)
        made.append(build_student(student_settings({"kind": "transformer", "transformer": more}), context))
    ids = np.array([[2, 3, 500, len(pruned.kept) - 1], [7, 30, 1, 0]])
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    vectors = [
        encoder.eval()(
            ModelInputs(
                joined=Tokens(torch.from_numpy(given), mask, torch.zeros_like(mask, dtype=torch.long))
            )
        ).pooled
        for encoder, given in zip(made, (pruned.kept[ids], ids), strict=True)
    ]
    assert torch.equal(*vectors)
    less = (full.tokeniser.vocab_size - len(pruned.kept)) * made[0].width
    full_size, pruned_size = (sum(w.numel() for w in encoder.parameters()) for encoder in made)
    assert full_size - pruned_size == less
    assert made[1].body.config.vocab_size == len(pruned.kept)


def test_a_roberta_student_with_a_pruned_unigram_vocabulary_has_the_same_outputs(tmp_path: Path) -> None:
    names = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
    names["mask_token"] = "<mask>"
    scores = [*((name, 0.0) for name in names.values()), ("the", -1.0), ("cat", -1.5), ("dog", -1.5)]
    backend = Tokenizer(models.Unigram([*scores, *((letter, -5.0) for letter in " acdeghot")], unk_id=3))
    hf = RobertaConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=17,
        max_position_embeddings=18,
    )  # fmt: skip
    RobertaModel(hf).save_pretrained(tmp_path)
    full = Tokeniser(PreTrainedTokenizerFast(tokenizer_object=backend, **names))
    teacher = TransformerEncoder.pretrained(str(tmp_path)).eval()
    small, kept = prune_vocabulary(full, [pa.array(["the cat"])], 60_000)
    assert full.vocab_size == 17 and len(kept) == 16  # without "dog"
    context = InitContext(small, teacher, full, InitSpec(teacher.config, str(tmp_path)), kept=kept)
    student = build_student(
        student_settings({"kind": "transformer", "transformer": {"init": "teacher"}}), context
    )
    pooled = []
    for tokeniser, encoder in ((full, teacher), (small, student.eval())):
        ids = [tokeniser.token_ids(pa.array([text])).values for text in ("the cat hat", "a cat")]
        rows = pad_sequence([torch.from_numpy(row).long() for row in ids], True, tokeniser.pad_id)
        tokens = Tokens(rows, rows != tokeniser.pad_id, torch.zeros_like(rows))
        pooled.append(encoder(ModelInputs(joined=tokens)).pooled)
    torch.testing.assert_close(*pooled)


SMALL = ["student.max_length=24", "student.head_hidden_size=8"]
LSTM = [f"student.bilstm.{size}=8" for size in ("projection_size", "hidden_size", "output_size")]
LSTM += ["student.bilstm.embeddings=teacher"]
RUNS = {"mkd-lstm": LSTM, "static": ["student.static.width=8"]}
RUNS["mkd-transformer"] = ["student.transformer.init=teacher", "student.transformer.layers=1"]


def command(recipe: str, teacher: Path, out: Path, *sets: str) -> list[Any]:
    rows = ["--tasks", "rte,sst2", "--data", "pocket", "--limit", 24, "--eval-limit", 8, "--batch", 8]
    options = [word for text in (*SMALL, "student.vocabulary=pruned", *sets) for word in ("--set", text)]
    return ["distill", recipe, *rows, "--teacher", teacher, "--steps", 4, "--out", out, *options]


@pytest.mark.parametrize("recipe", [name if name == "mkd-lstm" else slow_export(name) for name in RUNS])
def test_a_student_is_trained_saved_exported_and_fine_tuned(
    recipe: str, tiny_teacher: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    made = [mtkd(*command(recipe, tiny_teacher, tmp_path / name, *RUNS[recipe])) for name in "ab"]
    assert [one.code for one in made] == [0, 0], made[0].err
    assert "of the 30,522 tokens" in made[0].err
    one, other = (library.load(tmp_path / name) for name in "ab")
    for first, second in zip(one.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(first, second)
    assert len(one.module.encoder.embeddings.weight) == one.module.tokeniser.vocab_size < 3000
    pair = [("Quaint 中文 zebras", "a man sleeps")]
    expected = one.predict("rte", pair)
    library.export(tmp_path / "a", out=tmp_path / "x", tasks="rte")
    exported = library.load(tmp_path / "x").predict("rte", pair)
    assert exported[0]["probabilities"] == pytest.approx(expected[0]["probabilities"], abs=1e-4)
    tuned = library.finetune(
        one, task="rte", data="pocket", out=tmp_path / "tuned", steps=2, limit=16, eval_limit=8
    )
    assert tuned.module.tokeniser.digest == one.module.tokeniser.digest


def test_terms_that_compare_tokens_are_rejected(
    tiny_teacher: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    answered = mtkd(*command("layerwise-3", tiny_teacher, tmp_path / "run"))
    assert answered.code == 2 and "student.vocabulary=teacher" in answered.err, answered.err
    (tmp_path / "text.txt").write_text("a line of text\n" * 30)
    with pytest.raises(UserError, match="vocabulary=pruned cannot be used on plain text"):
        library.distill(
            "minilmv2-6x384", teacher=tiny_teacher, text=tmp_path / "text.txt", out=tmp_path / "run",
            steps=2, settings={"student.vocabulary": "pruned"},
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_resumes(tiny_teacher: Path, tmp_path: Path) -> None:
    class Stop(library.Callback):
        """Interrupts after the first epoch's checkpoint."""

        def on_save(self, state: Any, control: Any) -> None:
            raise KeyboardInterrupt

    def run(out: str, *callbacks: library.Callback) -> library.Model:
        return library.distill(
            "mkd-lstm", teacher=tiny_teacher, data="pocket", tasks="sst2", limit=16, eval_limit=8, epochs=2,
            out=tmp_path / out, settings=sets, callbacks=callbacks,
        )  # fmt: skip

    sets = parse_set(["student.vocabulary=pruned", *SMALL, *LSTM])
    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("resumed", Stop())
    states = [model.module.state_dict() for model in (whole, run("resumed"))]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
