"""The two sides of `bench_textbrewer.py`: mtkd's trainer, and TextBrewer with the same weights."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

from mtkd.losses.layer_maps import named_map_pairs
from mtkd.losses.objective import build_objective
from mtkd.models.encoders.pretrained_config import TransformerConfig, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.recipes import load_settings
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.training.batches import DrawnRows
from mtkd.training.prefetch import prefetched
from mtkd.training.processes import make_accelerator
from mtkd.training.text_batches import TextBatches
from mtkd.training.trainer import Trainer
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.data.plain_text import TEXT_TASK, TextFiles
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.tokeniser import Tokeniser

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TextBrewer compares strings by identity
        import textbrewer
        from textbrewer.losses import att_mse_loss as att_mse_loss
except ImportError:
    sys.exit(f"{sys.argv[0]} needs textbrewer in a separate virtual environment; see its docstring")

LONGEST, RELATION_HEADS, LR, DECAY, MAX_GRAD_NORM = 128, 48, 5e-5, 0.01, 1.0
TEACHER = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
Rows = list[np.ndarray]  # batches of row indices


@dataclass(frozen=True)
class Job:
    """One method: its recipe and the sizes of the student."""

    recipe: str
    student: dict[str, int]

    @property
    def relations(self) -> bool:
        """True for MiniLMv2, False for TinyBERT."""
        return self.recipe.startswith("minilmv2")


def _student(layers: int, width: int, between: int) -> dict[str, int]:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": between}
    return sizes | {"num_attention_heads": 12}


JOBS = {
    "minilmv2": Job("minilmv2-6x384", _student(6, 384, 1536)),
    "tinybert": Job("tinybert-4", _student(4, 312, 1200)),
}


# --- mtkd


def make_trainer(job: Job, files: TextFiles, batch: int, directory: Path) -> Trainer:
    """Build mtkd's trainer as `mtkd distill RECIPE --text` does, but with a random teacher."""
    changes = {
        "batch_size": batch,
        "micro_batch_size": None,
        "steps": 100_000,
        "lr": LR,
        "max_grad_norm": MAX_GRAD_NORM,
    }
    settings = load_settings(job.recipe, "distill", {f"train.{key}": value for key, value in changes.items()})
    stage = settings.resolved_stages()[0]
    tokeniser = Tokeniser.load(locate(DEFAULT_ENCODER))

    def model(sizes: dict[str, int]) -> MultiTaskModel:
        config = TransformerConfig(hf={"model_type": "bert", "vocab_size": tokeniser.vocab_size, **sizes})
        return MultiTaskModel(TransformerEncoder(config), [], tokeniser, ModelInfo(LONGEST, 0))

    torch.manual_seed(stage.train.seed)
    accelerator = make_accelerator()
    student, teacher = model(job.student), model(TEACHER).to(accelerator.device)
    objective = build_objective(stage.terms, student.encoder.spec, teacher.encoder.spec, [TEXT_TASK])
    trainer = Trainer(
        accelerator,
        student,
        objective,
        TextBatches(files, Collator(student.reader, teacher.reader), stage.train, held_out=0),
        stage.train,
        directory,
        evaluate=None,
        teacher=OnlineTeacher(teacher, objective.teacher_need),
    )
    trainer.start()
    trainer.train_module.train()
    return trainer


def train(trainer: Trainer, pool: Encoded, batches: Rows) -> None:
    """Run mtkd's training loop on some batches."""
    with prefetched(trainer.batches.step(DrawnRows(pool, indices)) for indices in batches) as steps:
        for prepared in steps:
            trainer.step(prepared)
            trainer.position.step += 1


# --- TextBrewer


def relation_loss(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """MiniLMv2's loss for one relation, computed directly with (B, relation_heads, L, L) matrices."""
    lowest = torch.finfo(student.dtype).min
    padding = torch.zeros_like(mask, dtype=student.dtype).masked_fill(mask == 0, lowest)[:, None, None]

    def log_relation(x: Tensor) -> Tensor:
        x = x.unflatten(-1, (RELATION_HEADS, -1)).transpose(1, 2)
        return (x @ x.mT / x.shape[-1] ** 0.5 + padding).log_softmax(-1)

    log_student, log_teacher = log_relation(student), log_relation(teacher)
    rows = (log_teacher.exp() * (log_teacher - log_student)).sum(-1)
    return (rows * mask.unsqueeze(1)).sum() / (mask.sum() * RELATION_HEADS)


class LastVectors:
    """An adaptor that returns the queries, keys and values of the last layer, recorded by hooks."""

    def __init__(self, model: BertModel):
        self._seen: dict[str, Tensor] = {}
        layer: Any = model.encoder.layer[-1]
        attention = layer.attention.self
        for name in ("query", "key", "value"):
            getattr(attention, name).register_forward_hook(self._note(name))

    def _note(self, name: str) -> Callable[..., None]:
        return lambda module, inputs, output: self._seen.update({name: output})

    def __call__(self, batch: dict[str, Tensor], outputs: Any) -> dict[str, Any]:
        vectors = [self._seen.pop(name) for name in ("query", "key", "value")]
        return {"hidden": vectors, "inputs_mask": batch["attention_mask"]}


def layers_adaptor(batch: dict[str, Tensor], outputs: Any) -> dict[str, Any]:
    """An adaptor that returns the attention and hidden states of all layers."""
    mask = batch["attention_mask"]
    return {"hidden": outputs.hidden_states, "attention": outputs.attentions, "inputs_mask": mask}


class TextBrewerSide:
    """TextBrewer's side; its student and teacher have the same weights as mtkd's.

    Attributes:
        distiller: TextBrewer's GeneralDistiller.
        more: keyword arguments that its loop passes to both models.
    """

    def __init__(self, job: Job, trainer: Trainer, directory: Path, fused: bool):
        self._trainer, self._directory = trainer, directory
        student, teacher = self._models(job)
        textbrewer.register_new("match_Loss", "relation_kl", relation_loss)
        self.more = {} if job.relations else {"output_attentions": True, "output_hidden_states": True}
        adaptors = [LastVectors(m) if job.relations else layers_adaptor for m in (teacher, student)]
        device = trainer.accelerator.device
        self.distiller = textbrewer.GeneralDistiller(
            textbrewer.TrainingConfig(device=device, output_dir=str(directory), ckpt_steps=1 << 30),
            textbrewer.DistillationConfig(intermediate_matches=self._matches(job)),
            teacher,
            student,
            *adaptors,
        )
        self._copy_projections()
        decayed = [p for p in student.parameters() if p.ndim > 1]
        others = [p for p in student.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=LR, fused=fused or None)

    def _models(self, job: Job) -> list[BertModel]:
        models = []
        source: Any
        for source in (self._trainer.train_module.model, self._trainer.teacher.model):  # type: ignore[union-attr]
            hf = {k: v for k, v in source.encoder.config.hf.items() if k != "model_type"}
            attention = "sdpa" if job.relations else "eager"
            model = BertModel(BertConfig(**hf | {"attn_implementation": attention}), add_pooling_layer=False)
            model.load_state_dict(source.encoder.body.state_dict())
            models.append(model.to(self._trainer.accelerator.device))
        return models

    @staticmethod
    def _matches(job: Job) -> list[dict[str, Any]]:
        if job.relations:
            same = {"feature": "hidden", "loss": "relation_kl", "weight": 1}
            return [{"layer_T": n, "layer_S": n, **same} for n in range(3)]
        width = job.student["hidden_size"]
        pairs = named_map_pairs("uniform", job.student["num_hidden_layers"], TEACHER["num_hidden_layers"])
        hidden = {"feature": "hidden", "loss": "hidden_mse", "weight": 1}
        attention = {"feature": "attention", "loss": "attention_mse", "weight": 1}
        return [
            {"layer_T": t, "layer_S": s, **hidden, "proj": ["linear", width, TEACHER["hidden_size"]]}
            for s, t in [(0, 0), *pairs]
        ] + [{"layer_T": t - 1, "layer_S": s - 1, **attention} for s, t in pairs]

    def _copy_projections(self) -> None:
        """Copy the weights of mtkd's projections to TextBrewer's."""
        terms: Any = self._trainer.train_module.objective.terms
        term_names = ["embedding", *["hidden"] * (len(self.distiller.projs) - 1)]
        for name, projection in zip(term_names, self.distiller.projs, strict=True):
            if projection is not None:
                with torch.no_grad():
                    projection.weight.copy_(terms[name].projection.maps["all"].weight)

    def train(self, batches: Iterable[dict[str, Tensor]], steps: int) -> None:
        """Run TextBrewer's loop for `steps` batches."""
        with self.distiller:
            self.distiller.train(
                self._optimizer, batches, num_steps=steps, max_grad_norm=MAX_GRAD_NORM, **self.more
            )


def padded(pool: Encoded, trainer: Trainer, batches: Rows) -> DataLoader:
    """The rows as a user of TextBrewer would load them: lists of ids, padded to the longest in the batch."""
    before, after = trainer.train_module.model.tokeniser.layout(1).specials

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long()
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}

    used = {int(n) for rows in batches for n in rows}
    id_rows = {n: torch.tensor([*before, *pool.texts[0].row(n), *after]) for n in used}
    return DataLoader(id_rows, batch_sampler=[rows.tolist() for rows in batches], collate_fn=collate)  # type: ignore[arg-type]
