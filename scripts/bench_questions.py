"""Benchmark question generation in batches against one call to transformers' `generate` per paragraph.

    python scripts/bench_questions.py --text ../shared/data/wiki/paragraphs.parquet
    python scripts/bench_questions.py --text ... --model runs/generator --backend ctranslate2

Both sides decode the same paragraphs greedily with the same T5, in alternating rounds. Without --model, the
T5 has the size of T5-small and random weights, and every question has --tokens tokens, because random weights
do not generate an end token. The share of equal questions is printed. With `--backend ctranslate2`, int8
CTranslate2 is compared with mtkd's own decoder instead. `--precision` applies to mtkd's decoder; `generate`
computes in fp32.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
import torch

from augment.questions.generation.decoder import Decoder
from augment.questions.generation.decoding import Prompt, Strategy, decode
from augment.questions.generation.paragraphs import Words, open_paragraphs, select_paragraphs
from augment.questions.generator import Generator, Reading, load_generator
from augment.questions.training.from_scratch import NewModelShape, new_model, train_tokenizer

Answers = list[list[int]]


def paragraphs(text: str | None, count: int, words: Words) -> list[str]:
    """Return `count` paragraphs in the word range, sampled from the file or made of random words."""
    draw = random.Random(0)
    if text:
        candidates, _ = select_paragraphs(open_paragraphs(text, "text", "title"), words)
        return [paragraph.text for paragraph in draw.sample(candidates, count)]
    vocabulary = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(5000)]
    return [" ".join(draw.choices(vocabulary, k=draw.randint(words.least, words.most))) for _ in range(count)]


def t5_small(texts: list[str]) -> Generator:
    """A T5 of the size of T5-small with random weights, which never generates its end token."""
    tokenizer = train_tokenizer(texts, NewModelShape(vocab_size=8000), 512)
    model = new_model(tokenizer, NewModelShape(32128, 512, 6, 8, 2048), 0)
    model.resize_token_embeddings(32128, mean_resizing=False)
    model.config.eos_token_id = model.generation_config.eos_token_id = 32127  # an id that it never generates
    return Generator(tempfile.mkdtemp("-t5-small"), model.eval(), tokenizer, Reading())


def one_by_one(generator: Generator, prompts: list[Prompt], tokens: int) -> Answers:
    """Decode with transformers' `generate`, one call per prompt."""
    end = generator.model.config.eos_token_id
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt.ids])
        out = generator.model.generate(ids, max_new_tokens=tokens, do_sample=False)[0, 1:].tolist()
        answers.append(out[: out.index(end)] if end in out else out)
    return answers


def models(
    generator: Generator, prompts: list[Prompt], tokens: int, batch: int, backend: str, precision: str
) -> dict[str, Any]:
    """The two ways that are compared, the slower first."""
    strategy, decoder = Strategy(limit=tokens), Decoder(generator.model, precision)

    def batched() -> Answers:
        return [questions[0] for questions in decode(decoder, prompts, strategy, batch)]

    if backend == "native":
        return {"one by one": lambda: one_by_one(generator, prompts, tokens), "batched": batched}
    from augment.questions.generation.ctranslate import open_engine

    translate = open_engine(generator)
    return {
        "batched": batched,
        "ctranslate2": lambda: [questions[0] for questions in translate(prompts, strategy)],
    }


def seconds(work: Callable[[], Answers]) -> tuple[float, float, Answers]:
    """Wall-clock seconds, the process's CPU seconds, and the answers."""
    wall, cpu = time.perf_counter(), time.process_time()
    answers = work()
    return time.perf_counter() - wall, time.process_time() - cpu, answers


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option("--text", help="Paragraphs (default: random words).")
@click.option("--model", help="A trained generator (default: random weights, the size of T5-small).")
@click.option("--backend", default="native", type=click.Choice(["native", "ctranslate2"]), show_default=True)
@click.option("--precision", default="fp32", type=click.Choice(["fp32", "bf16"]), show_default=True)
@click.option("--words", default="200:320", show_default=True, help="Words per paragraph.")
@click.option("--rows", default=64, show_default=True, help="Paragraphs per round.")
@click.option("--tokens", default=24, show_default=True, help="Maximum tokens per question.")
@click.option("--batch", default=32, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(
    text: str | None,
    model: str | None,
    backend: str,
    precision: str,
    words: str,
    rows: int,
    tokens: int,
    batch: int,
    rounds: int,
) -> None:
    """Alternate the two sides; print medians, ranges, the ratio and the share of equal questions."""
    texts = paragraphs(text, max(rows, 500), Words.parse(words))
    generator = load_generator(model) if model else t5_small(texts)
    ids = generator.tokenizer(texts[:rows], truncation=True, max_length=generator.reading.max_input).input_ids
    prompts = [Prompt(tuple(one)) for one in ids]
    mean = sum(len(p.ids) for p in prompts) / rows
    click.echo(f"{rows} paragraphs of {mean:.0f} tokens on average, {torch.get_num_threads()} threads")
    ways = models(generator, prompts, tokens, batch, backend, precision)
    times: dict[str, list[float]] = {name: [] for name in ways}
    cpus: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, Answers] = {}
    for number in range(rounds):
        for name, work in ways.items():
            wall, cpu, answers[name] = seconds(work)
            times[name].append(wall)
            cpus[name].append(cpu)
        rates = ", ".join(f"{name} {rows / times[name][-1]:.2f}/s" for name in ways)
        click.echo(f"round {number + 1}: {rates}")
    slow, fast = ways
    for name in ways:
        low, high = min(times[name]), max(times[name])
        middle = statistics.median(times[name])
        click.echo(
            f"{name}: median {rows / middle:.2f} questions/s ({rows / high:.2f} to {rows / low:.2f}), "
            f"{statistics.median(cpus[name]) / rows:.3f} CPU s per question"
        )
    ratio = statistics.median(times[slow]) / statistics.median(times[fast])
    cpu_ratio = statistics.median(cpus[slow]) / statistics.median(cpus[fast])
    same = sum(a == b for a, b in zip(answers[slow], answers[fast], strict=True)) / rows
    length = sum(map(len, answers[fast])) / rows
    click.echo(
        f"ratio {ratio:.2f}x wall, {cpu_ratio:.2f}x CPU; {length:.1f} tokens per question; {same:.1%} equal"
    )


if __name__ == "__main__":
    main()
