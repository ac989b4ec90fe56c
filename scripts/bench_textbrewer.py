"""A whole training step of mtkd against TextBrewer's: MiniLMv2 and TinyBERT's general distillation.

A BERT-base shaped teacher with random weights, students 6x384 and 4x312, plain text, fp32, AdamW, gradients
clipped. TextBrewer's own loop trains on random batches, padded to the longest row; after every block of its
steps mtkd's Trainer takes as many on the same rows: in the buckets of its batches, and in random batches.
Texts are tokenised beforehand. First one batch without padding goes through both: the losses must
agree. Then each side trains in a process of its own for its peak memory on top of the weights.

Longer than other files: either side is of use only beside the other, and they share data, sizes and checks.

TextBrewer 0.2.1.post1 runs as it is on today's torch and transformers; nothing of it is patched. The loss of
MiniLMv2, which it does not have, is added as its documentation says: hooks note queries, keys and values of
the last layer, the adaptor gives them as hidden states, and `register_new` adds a loss that makes the softmax
of every relation head and leaves the gradient to autograd. (Its own `custom_matches` fail: "match_weghts".)
For TinyBERT it gets eager attention with `output_attentions` and `output_hidden_states`, and its own losses
`attention_mse` and `hidden_mse`. So its attention loss compares probabilities; ours compares scores, as the
paper does. Given scores, both agree.

TextBrewer goes into a virtual environment of its own, which sees that of mtkd:

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
from mtkd.models.multitask import ModelInfo, MultiTaskModel
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
        warnings.simplefilter("ignore")  # it compares strings by identity
        import textbrewer
        from textbrewer.losses import att_mse_loss
except ImportError:
    sys.exit(f"{sys.argv[0]} needs textbrewer in a virtual environment of its own: its first lines say how")

KEPT = str(1 << 32)
ALLOCATOR = f"glibc.malloc.mmap_threshold={KEPT}:glibc.malloc.trim_threshold={KEPT}"
LONGEST, SPLITS, LR, DECAY, CLIP = 128, 48, 5e-5, 0.01, 1.0
TEACHER = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
Rows = list[np.ndarray]  # batches of row numbers
Block = dict[str, Rows]  # one round's rows, "in buckets" and "at random"


@dataclass(frozen=True)
class Job:
    """One method: its recipe, and the student's shape."""

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
    """Our side, as `mtkd distill RECIPE --text` has it, but for the teacher's random weights."""
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
    """Steps of our loop."""
    with prefetched(trainer.batches.step(DrawnRows(pool, indices)) for indices in batches) as steps:
        for prepared in steps:
            trainer.step(prepared)
            trainer.position.step += 1


# --- TextBrewer


def relation_loss(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """MiniLMv2's loss of one relation as its equations have it, over (B, splits, L, L) matrices."""
    padding = torch.zeros(mask.shape).masked_fill(mask == 0, torch.finfo(student.dtype).min)[:, None, None]

    def log_relation(x: Tensor) -> Tensor:
        x = x.unflatten(-1, (SPLITS, -1)).transpose(1, 2)
        return (x @ x.mT / x.shape[-1] ** 0.5 + padding).log_softmax(-1)

    ours, theirs = log_relation(student), log_relation(teacher)
    rows = (theirs.exp() * (theirs - ours)).sum(-1)
    return (rows * mask.unsqueeze(1)).sum() / (mask.sum() * SPLITS)


class LastVectors:
    """An adaptor that gives queries, keys and values of a model's last layer, which hooks have noted."""

    def __init__(self, model: BertModel):
        self._seen: dict[str, Tensor] = {}
        attention = model.encoder.layer[-1].attention.self
        for name in ("query", "key", "value"):
            getattr(attention, name).register_forward_hook(self._note(name))

    def _note(self, name: str) -> Callable[..., None]:
        return lambda module, given, output: self._seen.update({name: output})

    def __call__(self, batch: dict[str, Tensor], outputs: Any) -> dict[str, Any]:
        vectors = [self._seen.pop(name) for name in ("query", "key", "value")]
        return {"hidden": vectors, "inputs_mask": batch["attention_mask"]}


def layers_adaptor(batch: dict[str, Tensor], outputs: Any) -> dict[str, Any]:
    """Attention and hidden states of all layers."""
    mask = batch["attention_mask"]
    return {"hidden": outputs.hidden_states, "attention": outputs.attentions, "inputs_mask": mask}


class Theirs:
    """TextBrewer's side, its student and teacher with the weights of ours.

    Attributes:
        distiller: its GeneralDistiller.
        more: what its loop passes on to both models.
    """

    def __init__(self, job: Job, ours: Trainer, place: Path, fused: bool):
        self._ours, self._place = ours, place
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
        for ours in (self._ours.inner.model, self._ours.teacher.model):  # type: ignore[union-attr]
            hf = {k: v for k, v in ours.encoder.config.hf.items() if k != "model_type"}
            attention = "sdpa" if job.relations else "eager"
            model = BertModel(BertConfig(**hf, attn_implementation=attention), add_pooling_layer=False)
            model.load_state_dict(ours.encoder.body.state_dict())
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
        terms = self._ours.inner.objective.terms
        places = ["embedding", *["hidden"] * (len(self.distiller.projs) - 1)]
        for name, theirs in zip(places, self.distiller.projs, strict=True):
            if theirs is not None:
                with torch.no_grad():
                    theirs.weight.copy_(terms[name].projection.maps["all"].weight)  # type: ignore[union-attr]

    def train(self, batches: Iterator[dict[str, Tensor]], steps: int) -> None:
        """Its own loop over so many of the batches."""
        with self.distiller:
            self.distiller.train(self._optimizer, batches, num_steps=steps, max_grad_norm=CLIP, **self.more)


def padded(pool: Encoded, trainer: Trainer, batches: Rows) -> DataLoader:
    """The rows as a user of TextBrewer reads them: a list of ids each, padded to the longest of the batch."""
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
    """The texts; or their sentences; or, where there are none, words of real lengths at random."""
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
    """Rows of the source's first chunk, and for each round some of its batches, evenly from short to long.

    By chance alone short rounds would differ in length. The random batches hold the same rows.
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


def check(job: Job, ours: Trainer, theirs: Theirs, pool: Encoded, count: int) -> None:
    """Print the losses of both models on one batch of rows of one length, without dropout.

    Raises:
        AssertionError: they differ where they are defined alike.
    """
    lengths = pool.texts[0].lengths
    rows = np.flatnonzero(lengths == np.bincount(lengths).argmax())[:count]
    inner, source, distiller = ours.inner.eval(), ours.teacher, theirs.distiller
    assert source is not None
    batch = ours.batches.source.collate(pool, rows)
    with torch.no_grad():
        teacher = source.signal(TEXT, batch)
        _, values = inner(TEXT, batch, teacher, inner.objective.num_items(TEXT, batch), 0.0)
        student = inner.model(batch.inputs, TEXT.head, inner.objective.student_need)
        distiller.model_T.eval(), distiller.model_S.eval()
        given = next(iter(padded(pool, ours, [rows])))
        total, parts = distiller.train_on_batch(given, theirs.more)
    inner.train()
    terms = dict(zip(inner.objective.terms, values.tolist(), strict=True))
    if job.relations:
        pairs = {"relations": (terms["relation"], float(total))}
    else:
        hidden = [float(value) for name, value in parts.items() if "hidden_mse" in name]
        layers = zip(student.scores.values(), teacher.scores.values(), strict=True)
        scores = sum(float(att_mse_loss(mine, its, given["attention_mask"])) for mine, its in layers)
        pairs = {
            "embedding": (terms["embedding"], hidden[0]),
            "hidden states": (terms["hidden"], sum(hidden[1:])),
            "attention, given the scores": (terms["attention"], scores),
        }
        probabilities = sum(float(value) for name, value in parts.items() if "attention_mse" in name)
        print(f"  attention: ours {terms['attention']:.6g}, theirs of probabilities {probabilities:.6g}")
    for name, (mine, its) in pairs.items():
        print(f"  {name}: ours {mine:.7g}, theirs {its:.7g}, apart by {abs(mine / its - 1):.1e} of it")
        if abs(mine / its - 1) > 1e-4:
            raise AssertionError(f"the losses differ: {name}")


def in_turn(ours: Trainer, theirs: Theirs, pool: Encoded, blocks: list[Block]) -> dict[str, list[float]]:
    """Seconds of each block but the first, which warms up; our Trainer's blocks lie between TextBrewer's."""
    seconds: dict[str, list[float]] = {"textbrewer": [], **{f"mtkd {way}": [] for way in blocks[0]}}

    def feeding() -> Iterator[dict[str, Tensor]]:
        for block in blocks:
            batches = padded(pool, ours, block["at random"])
            started = time.perf_counter()
            yield from batches  # it trains on each before it asks for the next
            seconds["textbrewer"].append(time.perf_counter() - started)
            for way, rows in block.items():
                started = time.perf_counter()
                train(ours, pool, rows)
                seconds[f"mtkd {way}"].append(time.perf_counter() - started)
        yield from batches  # its loop ends without asking again: one more step, which is not counted

    theirs.train(feeding(), sum(len(block["at random"]) for block in blocks) + 1)
    return {name: times[1:] for name, times in seconds.items()}


def report(seconds: dict[str, list[float]], pool: Encoded, blocks: list[Block], extra: int) -> None:
    """Rows and real tokens a second, what rows are padded to, and ratios to TextBrewer round by round."""
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
    """Megabytes that two steps on the longest rows take at their peak on top of what was loaded before."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        ours = make_trainer(job, open_texts(data, sentences, home), batch, home / "ours")
        theirs = Theirs(job, ours, home / "theirs", False) if side == "textbrewer" else None
        pool, _ = draw_blocks(ours, batch, 1, 1, 0)
        rows = list(np.argsort(-pool.texts[0].lengths, kind="stable")[: 2 * batch].reshape(2, batch))
        batches = padded(pool, ours, rows)
        ctypes.CDLL(None).malloc_trim(0)  # what loading took and gave back shall not hide what steps take
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
        before = status_bytes("VmRSS")
        if theirs:
            theirs.train(batches, len(rows))
        else:
            train(ours, pool, rows)
        return (status_bytes("VmHWM") - before) / 1e6


def status_bytes(key: str) -> int:
    """A size in this process's status, such as VmRSS (now) or VmHWM (at its peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.argument("data", type=click.Path(path_type=Path), required=False)
@click.option("--job", "names", type=click.Choice(list(JOBS)), multiple=True, help="Only this one.")
@click.option("--batch", default=16, show_default=True, help="Rows a batch.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=8, show_default=True, help="Steps of each side in a round.")
@click.option("--seed", default=0, show_default=True, help="Which rows.")
@click.option("--sentences", is_flag=True, help="Split the texts into sentences.")
@click.option("--fused", is_flag=True, help="Fused AdamW on TextBrewer's side too; ours always is.")
@click.option("--bf16-teacher", is_flag=True, help="Time our side with teacher.precision=bf16.")
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
            ours = make_trainer(job, open_texts(data, sentences, home), batch, home / "ours")
            theirs = Theirs(job, ours, home / "theirs", fused)
            pool, (first, *blocks) = draw_blocks(ours, batch, steps, rounds + 1, seed)
            check(job, ours, theirs, pool, batch)
            if bf16_teacher and isinstance(ours.teacher, OnlineTeacher):
                need = ours.inner.objective.teacher_need
                ours.teacher = OnlineTeacher(ours.teacher.model, need, "bf16")
            if rounds:
                layout = ours.inner.model.tokeniser.layout(1)
                warmup = {way: rows[-1:] for way, rows in first.items()}
                seconds = in_turn(ours, theirs, pool, [warmup, *blocks])
                report(seconds, pool, blocks, layout.n_specials)
        for side in ("textbrewer", "mtkd") if memory else ():
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
                extra = fresh.submit(extra_memory, side, job, data, sentences, batch).result()
            print(f"  {side}: {extra:.0f} MB extra at its peak")


if __name__ == "__main__":
    if os.environ.get("GLIBC_TUNABLES") != ALLOCATOR:
        os.environ["GLIBC_TUNABLES"] = ALLOCATOR
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
