"""Benchmark training steps of mtkd against TextBrewer: MiniLMv2 and TinyBERT's general distillation.

The teacher is a BERT-base with random weights, and the students are 6x384 and 4x312. Both sides train on
plain text in fp32 with AdamW and gradient clipping. TextBrewer's loop trains on random batches that are
padded to their longest row. After every block of its steps, mtkd's Trainer takes equally many steps on the
same rows, once in length buckets and once in random batches. Texts are tokenised beforehand. The script first
checks that both losses agree on one batch without padding. Finally, each side trains in a separate process to
measure its peak memory in addition to the weights.

TextBrewer 0.2.1.post1 runs unmodified on current torch and transformers. It has no MiniLMv2 loss, so the loss
is added as its documentation describes: hooks record the queries, keys and values of the last layer, the
adaptor returns them as hidden states, and `register_new` adds a loss that computes the softmax of every
relation head and leaves the gradient to autograd. (Its `custom_matches` fail because of the typo
"match_weghts".) TinyBERT uses eager attention with `output_attentions` and `output_hidden_states`, and
TextBrewer's losses `attention_mse` and `hidden_mse`. Its attention loss compares probabilities, whereas mtkd
compares scores, as in the paper; if both are given scores, they agree.

Install TextBrewer in a separate virtual environment that can import the packages of mtkd's environment:

    python -m venv /tmp/tbvenv
    echo "import site; site.addsitedir('$PWD/.venv/lib/python3.11/site-packages')" \\
        > /tmp/tbvenv/lib/python3.11/site-packages/mtkd.pth
    /tmp/tbvenv/bin/pip install --no-deps textbrewer==0.2.1.post1
    /tmp/tbvenv/bin/python scripts/bench_textbrewer.py ../shared/data/wiki/corpus.parquet
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

from mtkd.losses.layer_maps import spread
from mtkd.losses.objective import build_objective
from mtkd.models.encoders.pretrained_config import DEFAULT_TEACHER, TransformerConfig, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.recipes import load_settings
from mtkd.teachers.live import OnlineTeacher
from mtkd.training.batches import DrawnRows
from mtkd.training.prefetch import prefetched
from mtkd.training.processes import make_accelerator
from mtkd.training.text_batches import TextBatches
from mtkd.training.trainer import Trainer
from tasks.batching import Collator, Encoded
from tasks.plain_text import TEXT, TextFiles
from tasks.tokeniser import Tokeniser

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TextBrewer compares strings by identity
        import textbrewer
        from textbrewer.losses import att_mse_loss
except ImportError:
    sys.exit(f"{sys.argv[0]} needs textbrewer in a separate virtual environment; see its docstring")

KEPT = str(1 << 32)
ALLOCATOR = f"glibc.malloc.mmap_threshold={KEPT}:glibc.malloc.trim_threshold={KEPT}"
LONGEST, SPLITS, LR, DECAY, CLIP = 128, 48, 5e-5, 0.01, 1.0
TEACHER = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
Rows = list[np.ndarray]  # batches of row indices
Block = dict[str, Rows]  # the rows of one round, "in buckets" and "at random"


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


def make_trainer(job: Job, files: TextFiles, batch: int, place: Path) -> Trainer:
    """Build mtkd's trainer as `mtkd distill RECIPE --text` does, but with a random teacher."""
    changes = {"batch_size": batch, "micro_batch": None, "steps": 100_000, "lr": LR, "clip": CLIP}
    settings = load_settings(job.recipe, "distill", {f"train.{key}": value for key, value in changes.items()})
    stage = settings.resolved_stages()[0]
    tokeniser = Tokeniser.load(locate(DEFAULT_TEACHER))

    def model(sizes: dict[str, int]) -> MultiTaskModel:
        config = TransformerConfig(hf={"model_type": "bert", "vocab_size": tokeniser.vocab_size, **sizes})
        return MultiTaskModel(TransformerEncoder(config), [], tokeniser, ModelInfo(LONGEST, 0))

    torch.manual_seed(stage.train.seed)
    student, teacher = model(job.student), model(TEACHER)
    objective = build_objective(stage.terms, student.encoder.shape, teacher.encoder.shape, [TEXT])
    trainer = Trainer(
        make_accelerator(),
        student,
        objective,
        TextBatches(files, Collator(student.reader, teacher.reader), stage.train, held_out=0),
        stage.train,
        place,
        evaluate=None,
        teacher=OnlineTeacher(teacher, objective.teacher_need),
    )
    trainer.start()
    trainer.inner.train()
    return trainer


def train(trainer: Trainer, pool: Encoded, batches: Rows) -> None:
    """Run mtkd's training loop on some batches."""
    with prefetched(trainer.batches.step(DrawnRows(pool, indices)) for indices in batches) as steps:
        for prepared in steps:
            trainer.step(prepared)
            trainer.position.step += 1


# --- TextBrewer


def relation_loss(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """MiniLMv2's loss for one relation, computed directly with (B, splits, L, L) matrices."""
    padding = torch.zeros(mask.shape).masked_fill(mask == 0, torch.finfo(student.dtype).min)[:, None, None]

    def log_relation(x: Tensor) -> Tensor:
        x = x.unflatten(-1, (SPLITS, -1)).transpose(1, 2)
        return (x @ x.mT / x.shape[-1] ** 0.5 + padding).log_softmax(-1)

    log_student, log_teacher = log_relation(student), log_relation(teacher)
    rows = (log_teacher.exp() * (log_teacher - log_student)).sum(-1)
    return (rows * mask.unsqueeze(1)).sum() / (mask.sum() * SPLITS)


class LastVectors:
    """An adaptor that returns the queries, keys and values of the last layer, recorded by hooks."""

    def __init__(self, model: BertModel):
        self._seen: dict[str, Tensor] = {}
        attention = model.encoder.layer[-1].attention.self
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

    def __init__(self, job: Job, trainer: Trainer, place: Path, fused: bool):
        self._trainer, self._place = trainer, place
        student, teacher = self._models(job)
        textbrewer.register_new("match_Loss", "relation_kl", relation_loss)
        self.more = {} if job.relations else {"output_attentions": True, "output_hidden_states": True}
        adaptors = [LastVectors(m) if job.relations else layers_adaptor for m in (teacher, student)]
        self.distiller = textbrewer.GeneralDistiller(
            textbrewer.TrainingConfig(device="cpu", output_dir=str(place), ckpt_steps=1 << 30),
            textbrewer.DistillationConfig(intermediate_matches=self._matches(job)),
            teacher,
            student,
            *adaptors,
        )
        self._give_projections()
        decayed = [p for p in student.parameters() if p.ndim > 1]
        others = [p for p in student.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=LR, fused=fused or None)

    def _models(self, job: Job) -> list[BertModel]:
        found = []
        for source in (self._trainer.inner.model, self._trainer.teacher.model):  # type: ignore[union-attr]
            hf = {k: v for k, v in source.encoder.config.hf.items() if k != "model_type"}
            attention = "sdpa" if job.relations else "eager"
            model = BertModel(BertConfig(**hf, attn_implementation=attention), add_pooling_layer=False)
            model.load_state_dict(source.encoder.body.state_dict())
            found.append(model)
        return found

    @staticmethod
    def _matches(job: Job) -> list[dict[str, Any]]:
        if job.relations:
            same = {"feature": "hidden", "loss": "relation_kl", "weight": 1}
            return [{"layer_T": n, "layer_S": n, **same} for n in range(3)]
        width = job.student["hidden_size"]
        pairs = spread("uniform", job.student["num_hidden_layers"], TEACHER["num_hidden_layers"])
        hidden = {"feature": "hidden", "loss": "hidden_mse", "weight": 1}
        attention = {"feature": "attention", "loss": "attention_mse", "weight": 1}
        return [
            {"layer_T": t, "layer_S": s, **hidden, "proj": ["linear", width, TEACHER["hidden_size"]]}
            for s, t in [(0, 0), *pairs]
        ] + [{"layer_T": t - 1, "layer_S": s - 1, **attention} for s, t in pairs]

    def _give_projections(self) -> None:
        terms = self._trainer.inner.objective.terms
        places = ["embedding", *["hidden"] * (len(self.distiller.projs) - 1)]
        for name, projection in zip(places, self.distiller.projs, strict=True):
            if projection is not None:
                with torch.no_grad():
                    projection.weight.copy_(terms[name].projection.maps["all"].weight)  # type: ignore[union-attr]

    def train(self, batches: Iterator[dict[str, Tensor]], steps: int) -> None:
        """Run TextBrewer's loop for `steps` batches."""
        with self.distiller:
            self.distiller.train(self._optimizer, batches, num_steps=steps, max_grad_norm=CLIP, **self.more)


def padded(pool: Encoded, trainer: Trainer, batches: Rows) -> DataLoader:
    """The rows as a user of TextBrewer would load them: lists of ids, padded to the longest in the batch."""
    before, after = trainer.inner.model.tokeniser.layout(1).specials

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long()
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}

    used = {int(n) for rows in batches for n in rows}
    made = {n: torch.tensor([*before, *pool.texts[0].row(n), *after]) for n in used}
    return DataLoader(made, batch_sampler=[rows.tolist() for rows in batches], collate_fn=collate)  # type: ignore[arg-type]


# --- the comparison


def open_texts(data: Path | None, sentences: bool, place: Path) -> TextFiles:
    """The texts of a file or their sentences; without a file, random words of realistic lengths."""
    if data and data.exists() and not sentences:
        return TextFiles.open(data)
    if data and data.exists():
        texts = next(TextFiles.open(data).chunks()).to_pylist()
        lines = [s for text in texts for s in re.split(r"(?<=[.!?])\s+", text) if len(s.split()) > 2]
    else:
        words = ["a", "river", "of", "the", "old", "town", "was", "named", "after", "its", "king"]
        draws = np.random.default_rng(0)
        counts = np.exp(draws.normal(3.5, 0.6, 4096)).astype(int).clip(3, 126)
        lines = [" ".join(draws.choice(words, count)) for count in counts]
    file = place / "texts.txt"
    file.write_text("\n".join(line.replace("\n", " ") for line in lines), encoding="utf-8")
    return TextFiles.open(file)


def draw_blocks(
    trainer: Trainer, batch: int, steps: int, rounds: int, seed: int
) -> tuple[Encoded, list[Block]]:
    """The rows of the source's first chunk, and the batches of each round, sampled evenly by length.

    Otherwise short rounds would differ in length by chance. The random batches hold the same rows.
    """
    draws = list(islice(trainer.batches.source.epoch(0, 0, {}), 1920 // batch))
    drawn, pool = [draw.indices for draw in draws], draws[-1].rows
    assert draws[-1].cursor["texts"] == 0, "all of one chunk"
    lengths = pool.texts[0].lengths
    full = sorted((rows for rows in drawn if len(rows) == batch), key=lambda rows: lengths[rows].max())
    random = np.random.default_rng(seed)
    strata = [random.permutation(part) for part in np.array_split(np.array(full), steps)]
    blocks = []
    for number in range(rounds):
        bucketed = [stratum[number % len(stratum)] for stratum in strata]
        mixed = random.permutation(np.concatenate(bucketed)).reshape(steps, batch)
        blocks.append(
            {"in buckets": [bucketed[n] for n in random.permutation(steps)], "at random": list(mixed)}
        )
    return pool, blocks


def check(job: Job, trainer: Trainer, other: TextBrewerSide, pool: Encoded, count: int) -> None:
    """Print the losses of both sides on one batch of equally long rows, without dropout.

    Raises:
        AssertionError: the losses differ although they have the same definition.
    """
    lengths = pool.texts[0].lengths
    rows = np.flatnonzero(lengths == np.bincount(lengths).argmax())[:count]
    inner, source, distiller = trainer.inner.eval(), trainer.teacher, other.distiller
    assert source is not None
    batch = trainer.batches.source.collate(pool, rows)
    with torch.no_grad():
        teacher = source.signal(TEXT, batch)
        _, values = inner(TEXT, batch, teacher, inner.objective.num_items(TEXT, batch), 0.0)
        student = inner.model(batch.inputs, TEXT.head, inner.objective.student_need)
        distiller.model_T.eval(), distiller.model_S.eval()
        inputs = next(iter(padded(pool, trainer, [rows])))
        total, parts = distiller.train_on_batch(inputs, other.more)
    inner.train()
    terms = dict(zip(inner.objective.terms, values.tolist(), strict=True))
    if job.relations:
        pairs = {"relations": (terms["relation"], float(total))}
    else:
        hidden = [float(value) for name, value in parts.items() if "hidden_mse" in name]
        layers = zip(student.scores.values(), teacher.scores.values(), strict=True)
        scores = sum(float(att_mse_loss(s, t, inputs["attention_mask"])) for s, t in layers)
        pairs = {
            "embedding": (terms["embedding"], hidden[0]),
            "hidden states": (terms["hidden"], sum(hidden[1:])),
            "attention, given the scores": (terms["attention"], scores),
        }
        probabilities = sum(float(value) for name, value in parts.items() if "attention_mse" in name)
        print(f"  attention: mtkd {terms['attention']:.6g}, textbrewer (probabilities) {probabilities:.6g}")
    for name, (loss, reference) in pairs.items():
        difference = abs(loss / reference - 1)
        print(f"  {name}: mtkd {loss:.7g}, textbrewer {reference:.7g}, relative difference {difference:.1e}")
        if difference > 1e-4:
            raise AssertionError(f"the losses differ: {name}")


def in_turn(
    trainer: Trainer, other: TextBrewerSide, pool: Encoded, blocks: list[Block]
) -> dict[str, list[float]]:
    """Seconds per block after the first, which warms up; mtkd's blocks run between TextBrewer's."""
    seconds: dict[str, list[float]] = {"textbrewer": [], **{f"mtkd {way}": [] for way in blocks[0]}}

    def feeding() -> Iterator[dict[str, Tensor]]:
        for block in blocks:
            batches = padded(pool, trainer, block["at random"])
            started = time.perf_counter()
            yield from batches  # TextBrewer trains on each batch before it asks for the next
            seconds["textbrewer"].append(time.perf_counter() - started)
            for way, rows in block.items():
                started = time.perf_counter()
                train(trainer, pool, rows)
                seconds[f"mtkd {way}"].append(time.perf_counter() - started)
        yield from batches  # one more step, which is not counted, because its loop ends without asking again

    other.train(feeding(), sum(len(block["at random"]) for block in blocks) + 1)
    return {name: times[1:] for name, times in seconds.items()}


def report(seconds: dict[str, list[float]], pool: Encoded, blocks: list[Block], extra: int) -> None:
    """Print rows and real tokens per second, the padded length, and the ratio to TextBrewer."""
    lengths = pool.texts[0].lengths + extra
    tokens = [lengths[np.concatenate(block["at random"])] for block in blocks]
    print(f"  mean length {np.concatenate(tokens).mean():.1f} tokens")
    for name, times in seconds.items():
        way = "in buckets" if name.endswith("in buckets") else "at random"
        padding = np.mean([lengths[rows].max() for block in blocks for rows in block[way]])
        rows_s = statistics.median(len(n) / t for n, t in zip(tokens, times, strict=True))
        tokens_s = statistics.median(n.sum() / t for n, t in zip(tokens, times, strict=True))
        ratios = [a / b for a, b in zip(seconds["textbrewer"], times, strict=True)]
        print(
            f"  {name:15}: {rows_s:6.2f} rows/s, {tokens_s:6.0f} tokens/s, padded to {padding:.0f}; "
            f"ratio: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def extra_memory(side: str, job: Job, data: Path | None, sentences: bool, batch: int) -> float:
    """Peak memory in megabytes of two steps on the longest rows, in addition to what was loaded before."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        trainer = make_trainer(job, open_texts(data, sentences, home), batch, home / "mtkd")
        other = TextBrewerSide(job, trainer, home / "textbrewer", False) if side == "textbrewer" else None
        pool, _ = draw_blocks(trainer, batch, 1, 1, 0)
        rows = list(np.argsort(-pool.texts[0].lengths, kind="stable")[: 2 * batch].reshape(2, batch))
        batches = padded(pool, trainer, rows)
        ctypes.CDLL(None).malloc_trim(0)  # memory freed after loading must not hide what the steps need
        Path("/proc/self/clear_refs").write_text("5")  # reset the recorded peak
        before = status_bytes("VmRSS")
        if other:
            other.train(batches, len(rows))
        else:
            train(trainer, pool, rows)
        return (status_bytes("VmHWM") - before) / 1e6


def status_bytes(key: str) -> int:
    """A size from the status of this process, such as VmRSS (current) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.argument("data", type=click.Path(path_type=Path), required=False)
@click.option("--job", "names", type=click.Choice(list(JOBS)), multiple=True, help="Run only this method.")
@click.option("--batch", default=16, show_default=True, help="Rows per batch.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=8, show_default=True, help="Steps per side and round.")
@click.option("--seed", default=0, show_default=True, help="Seed for choosing the rows.")
@click.option("--sentences", is_flag=True, help="Split the texts into sentences.")
@click.option("--fused", is_flag=True, help="Use fused AdamW for TextBrewer too; mtkd always does.")
@click.option("--bf16-teacher", is_flag=True, help="Time mtkd with teacher.precision=bf16.")
@click.option("--memory/--no-memory", default=True, show_default=True)
def main(
    data: Path | None,
    names: tuple[str, ...],
    batch: int,
    rounds: int,
    steps: int,
    seed: int,
    sentences: bool,
    fused: bool,
    bf16_teacher: bool,
    memory: bool,
) -> None:
    """Print losses, speed and memory."""
    torch.manual_seed(seed)
    for name in names or JOBS:
        job = JOBS[name]
        print(f"{name}: batches of {batch}, {torch.get_num_threads()} threads")
        with tempfile.TemporaryDirectory() as place:
            home = Path(place)
            trainer = make_trainer(job, open_texts(data, sentences, home), batch, home / "mtkd")
            other = TextBrewerSide(job, trainer, home / "textbrewer", fused)
            pool, (first, *blocks) = draw_blocks(trainer, batch, steps, rounds + 1, seed)
            check(job, trainer, other, pool, batch)
            if bf16_teacher and isinstance(trainer.teacher, OnlineTeacher):
                need = trainer.inner.objective.teacher_need
                trainer.teacher = OnlineTeacher(trainer.teacher.model, need, "bf16")
            if rounds:
                layout = trainer.inner.model.tokeniser.layout(1)
                warmup = {way: rows[-1:] for way, rows in first.items()}
                seconds = in_turn(trainer, other, pool, [warmup, *blocks])
                report(seconds, pool, blocks, layout.n_specials)
        for side in ("textbrewer", "mtkd") if memory else ():
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
                extra = fresh.submit(extra_memory, side, job, data, sentences, batch).result()
            print(f"  {side}: {extra:.0f} MB of additional peak memory")


if __name__ == "__main__":
    if os.environ.get("GLIBC_TUNABLES") != ALLOCATOR:
        os.environ["GLIBC_TUNABLES"] = ALLOCATOR
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
