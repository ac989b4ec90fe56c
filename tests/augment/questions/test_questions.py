"""Question generation with a tiny T5: training, decoding compared with transformers, and reproducibility."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import signal
import sys
import threading
import types
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, MT5Config, MT5ForConditionalGeneration, T5Config
from transformers import T5ForConditionalGeneration as T5

import mtkd
from augment.corpus_writer import write_corpus
from augment.counter_rng import draw_number
from augment.questions.answer_context import sentences_around
from augment.questions.generation import precision as precision_module
from augment.questions.generation.answer_candidates import Candidate, candidates_by_rule, spread_over_text
from augment.questions.generation.batch_size import BatchSize, bytes_per_prompt, choose_batch_size
from augment.questions.generation.config import GenerationConfig
from augment.questions.generation.decoder import Decoder
from augment.questions.generation.decoding import Prompt, Strategy, decode
from augment.questions.generation.generate import QuestionOptions, decode_questions, readable
from augment.questions.generation.paragraphs import Words, open_paragraphs, select_paragraphs
from augment.questions.generation.prepare_generation import prepare_generation
from augment.questions.generator import Reading, load_generator
from augment.questions.prompt_formats import PROMPT_FORMATS, check_prompt_vocabulary, published_format
from augment.questions.sentences import group_sentences, sentences
from augment.questions.training.config import GeneratorTrainingConfig
from augment.questions.training.from_scratch import NewModelShape
from augment.questions.training.prompts import read_reference_questions
from augment.questions.training.text_scores import bleu, rouge_l
from augment.questions.training.train_generator import TrainingPlace, train_generator
from mtkd.cli.main import cli
from mtkd.output_files.distributed import ProcessGroup
from tasks.common.errors import MtkdWarning, UserError
from tasks.data.corpus_reader import QUESTION_SCHEMA, corpus_rows, read_corpus
from tasks.data.sources import open_data
from tasks.glue import TASKS

CPU = torch.device("cpu")
STOPS = [1, *range(50, 56)]  # several end tokens, so that random models stop
SQUAD = TASKS["squad"]
CONFIG = GeneratorTrainingConfig(
    "scratch",
    Reading(max_input=64, max_output=12),
    NewModelShape(vocab_size=150, d_model=16, layers=1, heads=2, d_ff=32),
    steps=12,
    batch_size=8,
    precision="fp32",
)


def span_rows(count: int, seed: int) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        name, town = draw.choice(["Anna", "Boris", "Clara"]), draw.choice(["Rome", "Oslo", "Paris"])
        context = f"{name} was born in {town} in {draw.randint(1800, 1999)}. "
        context += " ".join(
            f"A river is {draw.randint(2, 99)} miles long." for _ in range(draw.randint(1, 4))
        )
        answers = {"text": [town], "answer_start": [context.index(town)]}
        question = f"Where was {name} born?"
        rows.append(dict(id=str(number), title=name, context=context, question=question, answers=answers))
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    (root / "squad").mkdir()
    pq.write_table(pa.Table.from_pylist(span_rows(120, 0)), root / "squad/train.parquet")
    pq.write_table(pa.Table.from_pylist(span_rows(12, 1)), root / "squad/validation.parquet")
    texts = [row["context"] for row in span_rows(40, 2)]
    pq.write_table(pa.table({"text": [*texts, "", "  "], "title": ["T"] * 42}), root / "paragraphs.parquet")
    return root


def train_small_generator(out: Path, data: Path, config: GeneratorTrainingConfig = CONFIG, **changes) -> dict:
    return train_generator(
        config, open_data(str(data)), SQUAD, TrainingPlace(out, CPU, "0.1", "mtkd", **changes)
    )


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "whole"
    train_small_generator(out, data)
    return out


def generate(out: Path, model: Path, data: Path, advance=lambda count: None, **options):
    config = GenerationConfig(str(data / "paragraphs.parquet"), str(model), shard_rows=7, **options)
    ready = prepare_generation(config, "squad", CPU, "0.1", "mtkd")
    return write_corpus(ready.spec, ready.rows, out, advance=advance)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def random_t5(seed: int = 0) -> T5:
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    model = T5(config).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.randn(60, 16) * 4)
    model.config.eos_token_id = model.generation_config.eos_token_id = STOPS
    return model


def random_prompts(count: int = 14) -> list[Prompt]:
    draw = random.Random(3)
    return [Prompt(tuple(draw.choices(range(3, 60), k=draw.randint(2, 30))), n) for n in range(count)]


# Decoding


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["t5", "mt5"])
def test_one_decoding_step_matches_the_logits_of_transformers(kind):
    sizes = dict(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    model = random_t5() if kind == "t5" else MT5ForConditionalGeneration(MT5Config(**sizes))
    decoder, prompts = Decoder(model.eval()), [[5, 6, 7, 8, 9], [11, 12]]
    state, tokens = decoder.start(prompts, 2, 4), torch.randint(3, 50, (4, 4))
    of_mtkd = torch.stack([decoder.step(state, tokens[:, step]) for step in range(4)], dim=1)
    for row in range(4):
        of_transformers = model(
            input_ids=torch.tensor([prompts[row // 2]]), decoder_input_ids=tokens[row : row + 1]
        ).logits
        torch.testing.assert_close(of_mtkd[row], of_transformers[0], rtol=1e-4, atol=1e-4)


def test_batched_greedy_decoding_matches_transformers():
    model, prompts = random_t5(), random_prompts()
    of_mtkd = decode(Decoder(model), prompts, Strategy(limit=15), batch_size=8)
    for prompt, (question,) in zip(prompts, of_mtkd, strict=True):
        generated = model.generate(torch.tensor([prompt.ids]), max_new_tokens=15, do_sample=False)[
            0, 1:
        ].tolist()
        end = next((position for position, token in enumerate(generated) if token in STOPS), 15)
        assert question == generated[:end]
    assert len({len(question) for (question,) in of_mtkd}) > 1


@pytest.mark.parametrize(
    "strategy",
    [Strategy(limit=10), Strategy(beams=3, limit=10), Strategy(sample=True, top_p=0.9, limit=10)],
    ids=["greedy", "beams", "sample"],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_batch_size_does_not_change_the_questions(strategy, precision):
    decoder, prompts = Decoder(random_t5(), precision), random_prompts()
    alone = decode(decoder, prompts, strategy, batch_size=1)
    for batch in (2, 7, 100):
        assert decode(decoder, prompts, strategy, batch) == alone
    assert decode(decoder, prompts[::-1], strategy, batch_size=7) == alone[::-1]


def test_bf16_is_close_to_fp32_and_does_not_change_the_model():
    model, tokens = random_t5(), torch.tensor([5, 6])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits = []
    with torch.inference_mode():
        for precision in ("fp32", "bf16"):
            decoder = Decoder(model, precision)
            logits.append(decoder.step(decoder.start([[5, 6, 7], [8, 9]], 1, 4), tokens))
    assert logits[1].dtype == torch.float32 and not torch.equal(*logits)
    torch.testing.assert_close(logits[1], logits[0], rtol=0.05, atol=0.05 * float(logits[0].abs().max()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.get_float32_matmul_precision() == "highest"


def test_beam_search_matches_transformers():
    model, prompts = random_t5(1), random_prompts(12)
    of_mtkd = decode(Decoder(model), prompts, Strategy(beams=3, limit=6), batch_size=5)
    same = 0
    for prompt, questions in zip(prompts, of_mtkd, strict=True):
        generated = model.generate(torch.tensor([prompt.ids]), max_new_tokens=6, num_beams=3, do_sample=False)
        line = [token for token in generated[0, 1:].tolist() if token not in (0, *STOPS)]
        same += line == [token for token in questions[0] if token != 0]
        assert len(questions) == 3
    assert same >= 10  # here the length of a finished question includes its end token, and ties differ


def test_samples_follow_the_distribution_of_the_model():
    model = random_t5()
    model.lm_head.weight.data.mul_(0.2)
    ids, decoder = (7, 8, 9), Decoder(model)
    streams = [draw_number(0, "p", number, 0) for number in range(3000)]
    drawn = decode(decoder, [Prompt(ids, s) for s in streams], Strategy(sample=True, top_p=1.0, limit=1), 500)
    logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    expected = logits.softmax(-1).detach().numpy()
    counts = np.bincount([q[0] if q else 1 for (q,) in drawn], minlength=60) / 3000
    expected[1], counts[STOPS[1:]] = expected[STOPS].sum(), 0
    expected[STOPS[1:]] = 0
    assert np.abs(counts - expected).max() < 4 * np.sqrt(expected.max() / 3000)
    narrow = decode(
        decoder, [Prompt(ids, s) for s in streams[:50]], Strategy(sample=True, top_p=1e-6, limit=1), 9
    )
    assert {tuple(q) for (q,) in narrow} <= {(int(logits.argmax()),), ()}


# Training


def test_a_trained_model_loads_in_transformers(trained):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert tokenizer.is_fast and tokenizer.unk_token_id not in tokenizer("Anna was born in Rome?").input_ids
    assert tokenizer("Anna").input_ids[-1] == tokenizer.eos_token_id == 1
    model = T5.from_pretrained(trained)
    assert model.config.vocab_size % 64 == 0
    record = json.loads((trained / "questions.json").read_text())
    assert record["reading"] == {"form": "context", "max_input": 64, "max_output": 12}
    assert record["steps"] == 12 and record["scores"]["questions"] == 12 and len(record["samples"]) >= 3
    assert record["losses"][-1] < 6 and record["scores"]["perplexity"] < 400
    assert not (trained / "unfinished").exists()


def test_interrupted_training_ends_with_the_same_weights(trained, data, tmp_path, monkeypatch):
    import augment.questions.training.train_generator as module

    real, calls = module.batch_loss, 0

    def stop(*args):
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "batch_loss", stop)
        train_small_generator(tmp_path / "m", data, save_every=5)
    assert not (tmp_path / "m/config.json").exists()
    with pytest.raises(UserError, match="not a model"):
        load_generator(str(tmp_path / "m"))
    tokeniser = tmp_path / "m/unfinished/tokenizer/tokenizer.json"
    written = tokeniser.read_bytes()
    tokeniser.write_bytes(written.replace(b"{", b"[", 1))
    with pytest.raises(UserError, match=r"tokenizer\.json is missing or damaged"):
        train_small_generator(tmp_path / "m", data, save_every=5)
    tokeniser.write_bytes(written)
    train_small_generator(tmp_path / "m", data, save_every=5)
    saved, original = (load_file(directory / "model.safetensors") for directory in (tmp_path / "m", trained))
    assert all(torch.equal(saved[name], original[name]) for name in original)


def test_a_signal_leaves_a_checkpoint_from_which_training_resumes(data, tmp_path, monkeypatch, mtkd):
    import augment.questions.training.train_generator as module

    def command(out: str) -> list[str]:
        sizes = "--vocab-size 150 --d-model 16 --layers 1 --heads 2 --d-ff 32 --max-input 64 --max-output 12"
        words = f"augment questions train --model scratch --steps 53 --batch 8 {sizes} --data"
        return [*words.split(), str(data), "--out", str(tmp_path / out)]

    real, steps = module.batch_loss, iter(range(100))

    def interrupted(*options):
        if next(steps) == 6:
            signal.raise_signal(signal.SIGTERM)
        return real(*options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "batch_loss", interrupted)
        stopped = mtkd(*command("stopped"))
    assert stopped.code == 143 and "interrupted" in stopped.err and "Traceback" not in stopped.err
    assert [path.name for path in (tmp_path / "stopped/checkpoints").iterdir()] == ["step-000000007"]
    assert mtkd(*command("stopped")).code == 0
    losses = []

    def noted(*options):
        loss = real(*options)
        losses.append(loss.item())
        return loss

    monkeypatch.setattr(module, "batch_loss", noted)
    assert mtkd(*command("whole")).code == 0
    weights, uninterrupted = (
        load_file(tmp_path / name / "model.safetensors") for name in ("stopped", "whole")
    )
    assert all(torch.equal(weights[name], uninterrupted[name]) for name in uninterrupted)
    one, other = (json.loads((tmp_path / n / "questions.json").read_text()) for n in ("stopped", "whole"))
    means = [np.mean(losses[:50]), np.mean(losses[50:])]
    assert one["losses"] == other["losses"] == pytest.approx(means, abs=1e-4)
    logged = [json.loads(line)["step"] for line in (tmp_path / "stopped/log.jsonl").read_text().splitlines()]
    assert logged == sorted(set(logged)) and logged[-1] == 53
    assert not (tmp_path / "stopped/checkpoints").exists()


def test_a_loss_that_is_not_finite_stops_training(data, tmp_path, monkeypatch):
    import augment.questions.training.train_generator as module

    real = module.batch_loss
    monkeypatch.setattr(module, "batch_loss", lambda *options: real(*options) * float("nan"))
    with pytest.raises(UserError, match=r"not finite at step 1 \(task 'squad'\)"):
        train_small_generator(tmp_path / "m", data)


def test_a_finished_run_is_kept_and_a_different_run_rejected(trained, data, tmp_path):
    before = contents(trained)
    train_small_generator(trained, data)
    assert contents(trained) == before
    with pytest.raises(UserError, match="another question generator"):
        train_small_generator(trained, data, dataclasses.replace(CONFIG, seed=1))
    (tmp_path / "questions.json").write_text("[]")  # a foreign file
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"do not belong to a question generator: questions\.json"):
            train_small_generator(tmp_path, data, overwrite=overwrite)
    other = shutil.copytree(trained, tmp_path / "other")
    (other / "notes").mkdir()
    (other / "notes/thesis.tex").write_text("")
    with pytest.raises(UserError, match="do not belong to a question generator: notes"):
        train_small_generator(other, data, dataclasses.replace(CONFIG, seed=1), overwrite=True)
    assert (other / "notes/thesis.tex").is_file()


def test_a_different_base_model_of_the_same_name_is_rejected(trained, data, tmp_path):
    base = shutil.copytree(trained, tmp_path / "base")
    config = dataclasses.replace(CONFIG, model=str(base), steps=1)
    train_small_generator(tmp_path / "out", data, config)
    report = train_small_generator(tmp_path / "out", data, config)
    moved = shutil.copytree(base, tmp_path / "moved")
    assert (
        train_small_generator(tmp_path / "out", data, dataclasses.replace(config, model=str(moved))) == report
    )
    weights = load_file(base / "model.safetensors")
    (base / "digests.json").unlink()
    save_file(
        {name: value * 1.01 for name, value in weights.items()}, base / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(UserError, match="another question generator"):
        train_small_generator(tmp_path / "out", data, config)


def test_prompts_by_format(data):
    source = open_data(str(data))
    plain = read_reference_questions(source, SQUAD, "train", PROMPT_FORMATS["context"], None, 0)
    marked = read_reference_questions(source, SQUAD, "train", PROMPT_FORMATS["answer"], 20, 0)
    assert sum(len(one.questions) for one in plain) == 120 and plain[0].prompt == plain[0].context
    assert all(" was born in " in one.prompt and "Where was" in one.questions[0] for one in plain)
    assert marked[0].prompt.startswith("answer: ") and " context: " in marked[0].prompt
    assert sum(len(one.questions) for one in marked) == 20
    (narrow, *_) = read_reference_questions(source, SQUAD, "train", PROMPT_FORMATS["sentence"], 20, 0)
    assert " was born in " in narrow.prompt and "river" not in narrow.prompt and "river" in narrow.context


def test_a_trained_generator_can_be_fine_tuned_with_answers_in_bf16(trained, data, tmp_path):
    reading = Reading("answer", 64, 12)
    config = dataclasses.replace(CONFIG, model=str(trained), steps=2, precision="bf16", reading=reading)
    with pytest.raises(UserError, match="no tokens for 'answer:"):
        train_small_generator(tmp_path / "none", data, config)
    assert not (tmp_path / "none").exists()
    fresh = dataclasses.replace(config, model="scratch")
    train_small_generator(tmp_path / "marked", data, fresh)
    train_small_generator(
        tmp_path / "again", data, dataclasses.replace(config, model=str(tmp_path / "marked"))
    )
    written = generate(tmp_path / "corpus", tmp_path / "again", data, per_paragraph=2)
    assert written.manifest.settings["answers"] == "rule" and written.manifest.settings["format"] == "answer"


def test_question_scores_on_examples():
    assert rouge_l([["where was she born"]], ["where was he born"]) == pytest.approx(75)
    assert rouge_l([["a b c d", "x"]], ["X"]) == pytest.approx(100)
    assert bleu([["the cat is on the mat today"]], ["the cat is on the mat today"]) == pytest.approx(100)
    assert bleu([["a b c d e"]], ["a b c d"]) == pytest.approx(100 * np.exp(1 - 5 / 4))


# Generating


def test_generated_questions_become_a_corpus(trained, data, tmp_path):
    written = generate(tmp_path / "c", trained, data, sample=True, per_paragraph=3)
    manifest = read_corpus(tmp_path / "c")
    entry = manifest.tasks[0]
    assert manifest.kind == manifest.method == "questions" and manifest.settings["seed"] == 0
    assert (entry.texts, entry.copies, entry.source_rows) == (2, 3, 40) and entry.rows == manifest.rows
    tables = [pq.read_table(tmp_path / "c" / shard.file) for shard in manifest.shards]
    assert all(table.schema.remove_metadata() == QUESTION_SCHEMA for table in tables)
    rows = pa.concat_tables(tables).to_pylist()
    contexts = pq.read_table(data / "paragraphs.parquet")["text"].to_pylist()
    for row in rows:
        assert row["text_pair"] == contexts[int(row["parent"].removeprefix("paragraphs/"))]
        assert (
            row["text"]
            and row["source"] == "T"
            and row["answer"] is row["answer_start"] is row["label"] is None
        )
    by_parent: dict[str, list[str]] = {}
    for row in rows:
        by_parent.setdefault(row["parent"], []).append(row["text"])
    assert all(len(set(texts)) == len(texts) <= 3 for texts in by_parent.values())
    assert len(corpus_rows(tmp_path / "c", "squad")) == len(rows) > 100
    card = (tmp_path / "c" / "README.md").read_text()
    assert "2 blank" in card and "| squad | 40 | 3 |" in card and written.made == 20


def test_the_corpus_does_not_depend_on_batches_interruptions_or_processes(trained, data, tmp_path):
    options = dict(sample=True, per_paragraph=2)
    generate(tmp_path / "whole", trained, data, **options)
    uninterrupted = contents(tmp_path / "whole")
    generate(tmp_path / "small", trained, data, batch=3, **options)
    assert contents(tmp_path / "small") == uninterrupted

    def stop(count: int) -> None:
        if len(list((tmp_path / "again/data").glob("*.parquet"))) > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "again", trained, data, advance=stop, **options)
    assert generate(tmp_path / "again", trained, data, **options).kept > 2
    assert contents(tmp_path / "again") == uninterrupted

    barrier = threading.Barrier(2, timeout=300)
    config = GenerationConfig(str(data / "paragraphs.parquet"), str(trained), shard_rows=7, **options)
    ready = prepare_generation(
        config, "squad", CPU, "0.1", "mtkd"
    )  # not in threads: transformers cannot load models concurrently
    others = [
        threading.Thread(
            target=write_corpus,
            args=(ready.spec, ready.rows, tmp_path / "two"),
            kwargs={"group": ProcessGroup(rank, 2, barrier.wait)},
        )
        for rank in range(2)
    ]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    assert contents(tmp_path / "two") == uninterrupted
    moved = shutil.copytree(trained, tmp_path / "moved")
    assert generate(tmp_path / "two", moved, data, **options).made == 0
    with pytest.raises(UserError, match="another corpus"):
        generate(tmp_path / "two", trained, data, seed=1, **options)


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_worker_processes_load_the_generator(trained, data, tmp_path, monkeypatch, engine, request):
    request.getfixturevalue("ray_cluster" if engine == "ray" else "in_process_workers")
    monkeypatch.chdir(trained.parent)
    options = dict(model=trained.name, shard_rows=7, beams=2, per_paragraph=2, command="test", device="cpu")
    write = partial(mtkd.augment.generate_questions, data / "paragraphs.parquet", **options)
    write(tmp_path / "one")
    written, ready = write(tmp_path / "other", workers=2, engine=engine)
    assert written.made > 5 and contents(tmp_path / "other") == contents(tmp_path / "one")
    load = ready.spec.augmenter.loader
    assert load().settings == {**ready.spec.augmenter.settings, "model": str(trained)}
    with pytest.raises(UserError, match="is another model on"):
        partial(load.func, load.args[0], "0" * 64, load.args[2])()


def test_beam_search_returns_several_questions_and_greedy_decoding_cannot(trained, data, tmp_path):
    assert generate(tmp_path / "b", trained, data, beams=3, per_paragraph=2).manifest.rows > 60
    with pytest.raises(UserError, match="greedy decoding cannot generate"):
        generate(tmp_path / "g", trained, data, per_paragraph=2)
    assert not (tmp_path / "g").exists()


def test_a_long_paragraph_is_truncated_for_the_model_but_stored_whole(trained, tmp_path):
    long = "Anna was born in Rome in 1850. " * 30
    (tmp_path / "t.txt").write_text(f"Anna was born in Oslo.\n\n{long}\n{'river' * 200}\n")
    config = GenerationConfig(str(tmp_path / "t.txt"), str(trained), sample=True)
    ready = prepare_generation(config, "squad", CPU, "0.1", "mtkd")
    counts = ready.counts
    assert (counts.read, counts.empty, counts.shortened, counts.too_long, counts.kept) == (4, 1, 1, 1, 2)
    written = write_corpus(ready.spec, ready.rows, tmp_path / "c").manifest
    assert long.strip() in corpus_rows(tmp_path / "c", "squad").texts[1].to_pylist() and written.rows <= 2
    tokenizer = load_generator(str(trained)).tokenizer
    (part,) = readable(tokenizer, [long], Reading(max_input=64))
    assert part and long.startswith(part) and len(tokenizer(part).input_ids) <= 64
    (tmp_path / "u.txt").write_text("river" * 200)
    with pytest.raises(UserError, match="no paragraph"):
        prepare_generation(
            dataclasses.replace(config, text=str(tmp_path / "u.txt")), "squad", CPU, "0.1", "mtkd"
        )


class Letters:
    """A tokeniser with one token per letter."""

    def __call__(self, texts, **_):
        return type("Ids", (), {"input_ids": [[ord(letter) for letter in text] for text in texts]})

    def batch_decode(self, answers, **_):
        return ["".join(map(chr, answer)) for answer in answers]


def test_answer_formats_use_one_candidate_per_question():
    seen: list[list[int]] = []

    def echo(prompts, strategy):
        seen.extend(list(prompt.ids) for prompt in prompts)
        return [[list(prompt.ids)] for prompt in prompts]

    options = QuestionOptions(Reading("answer"), Strategy(), count=2)
    (generated,) = decode_questions(
        Letters(), echo, options, ["u"], ["In 1850 Anna Berg left Oslo for Rome."]
    )
    assert generated == [
        (f"answer: {answer} context: In 1850 Anna Berg left Oslo for Rome.", answer)
        for answer in ("Anna Berg", "Rome")
    ]
    late = "The train, which was late, was long, as trains were, and went to Rome."
    text = f"In 1850 Anna Berg left Oslo. {late} End."
    options = dataclasses.replace(options, reading=Reading("sentence", max_input=80))
    assert readable(Letters(), [text], options.reading) == ["In 1850 Anna Berg left Oslo. End."]
    (generated,) = decode_questions(Letters(), echo, options, ["u"], [text])
    assert generated == [
        (f"answer: {answer} context: In 1850 Anna Berg left Oslo.", answer) for answer in ("1850", "Oslo")
    ]


# Text


def test_rules_find_candidate_answers():
    text = "The river rose. On 4 May 1901 Anna Berg of Oslo paid $1,200 to the Bank of Norway."
    found = ["4 May 1901", "Anna Berg of Oslo", "$1,200", "Bank of Norway"]
    assert candidates_by_rule(text) == [(answer, text.index(answer)) for answer in found]
    assert candidates_by_rule("nothing remarkable there") == [("nothing", 0), ("remarkable", 8)]
    assert candidates_by_rule("so it is")[0] == ("so", 0) and candidates_by_rule("") == []
    inside = "The Roman stadium opened in 1985. Later the club of Milan won 5 titles there, and 5 cups."
    assert dict(candidates_by_rule(inside))["5"] == inside.index(" 5 ") + 1
    opening = (
        "However, he stayed. In the Bay of Fundy he said: I'll sleep. Italy was near, and in Italy, Rome."
    )
    assert [one.text for one in candidates_by_rule(opening)] == ["Bay of Fundy", "Italy", "Rome"]
    assert all(opening.startswith(one.text, one.start) for one in candidates_by_rule(opening))
    letters = [Candidate(letter, position) for position, letter in enumerate("abcdef")]
    assert (
        spread_over_text(letters, 2) == [letters[1], letters[4]]
        and spread_over_text(letters[:1], 3) == letters[:1]
    )


def test_beams_use_every_answer_before_repeating_one():
    def echo(prompts, strategy):
        return [[[65 + n, 65 + rank] for rank in range(strategy.beams)] for n, _ in enumerate(prompts)]

    options = QuestionOptions(Reading("answer"), Strategy(beams=3), count=3)
    (generated,) = decode_questions(
        Letters(), echo, options, ["u"], ["In 1850 Anna Berg left for the station."]
    )
    assert generated == [("AA", "1850"), ("BA", "Anna Berg"), ("AB", "1850")]


def test_sentences_end_where_they_should():
    text = 'Gen. J.E.B. Stuart left. He said "no." Then, at 5 p.m., it rained! (Twice.) So what?'
    assert sentences(text) == [
        "Gen. J.E.B. Stuart left.",
        'He said "no."',
        "Then, at 5 p.m., it rained!",
        "(Twice.)",
        "So what?",
    ]
    assert sentences("") == [] and sentences("no end") == ["no end"]
    for part, found in (
        ("p.m.", "Then, at 5 p.m., it rained!"),
        ('no." Then', 'He said "no." Then, at 5 p.m., it rained!'),
        ("what", "So what?"),
    ):
        assert sentences_around(text, text.find(part), text.find(part) + len(part)) == found


def test_long_paragraphs_are_split_into_pieces_within_the_range():
    draw = random.Random(0)
    for _ in range(200):
        sizes = [draw.randint(5, 40) for _ in range(draw.randint(1, 60))]
        pieces = group_sentences(sizes, 200, 320)
        assert [position for start, stop in pieces for position in range(start, stop)] == list(
            range(len(sizes))
        )
        totals = [sum(sizes[start:stop]) for start, stop in pieces]
        assert all(total <= 320 for total in totals)
        if sum(sizes) > 640:
            assert sum(total >= 200 for total in totals) == len(totals)


def test_the_word_range_selects_and_splits_paragraphs(tmp_path):
    ten = "One two three four five six seven eight nine ten."
    lines = [ten, " ".join([ten] * 5), "short one", ""]
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"text": line, "title": "x"}) + "\n" for line in lines)
    )
    chosen, counts = select_paragraphs(
        open_paragraphs(str(tmp_path / "t.jsonl"), "text", "title"), Words.parse("10:30")
    )
    assert [(p.uid, len(p.text.split())) for p in chosen] == [("t/0", 10), ("t/1.0", 30), ("t/1.1", 20)]
    assert (counts.read, counts.empty, counts.outside, counts.cut, counts.pieces) == (4, 1, 1, 1, 2)
    assert {p.source for p in chosen} == {"x"}


# Invalid usage


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["augment", "questions", *arguments])
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_invalid_training_usage_is_one_error(data, trained, tmp_path):
    out = tmp_path / "out"

    def training(*more: str, model: str = "scratch", text: Path = data) -> str:
        return refused("train", "--data", str(text), "--model", model, "--out", str(out), *more)

    assert "unknown task 'squat'" in training("--task", "squat")
    assert "is a classify task" in training("--task", "rte")
    assert "`format='answers'` is not valid" in training("--format", "answers")
    assert "`d_model=100` cannot be divided among `heads=3`" in training("--d-model", "100", "--heads", "3")
    assert "not a model" in training(model=str(data))
    twice = tmp_path / "twice"
    (twice / "squad").mkdir(parents=True)
    rows = span_rows(3, 0)
    rows[2]["id"] = "0"
    pq.write_table(pa.Table.from_pylist(rows), twice / "squad/train.parquet")
    assert "id '0' is also at" in training(text=twice)
    rows = [{**row, "id": str(number), "context": " "} for number, row in enumerate(rows)]
    rows = [{**row, "answers": {"text": [" "], "answer_start": [0]}} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), twice / "squad/train.parquet")
    assert "empty context" in training(text=twice)
    assert not out.exists()


def test_invalid_generation_usage_is_one_error(data, trained, tmp_path):
    out = tmp_path / "out"

    def generating(*more: str, model: Path = trained, text: str = str(data / "paragraphs.parquet")) -> str:
        return refused("generate", "--model", str(model), "--text", text, "--out", str(out), *more)

    for words in ("200", "320:200", "0:5", "a:b", "200-320"):
        assert f"`words={words!r}`" in generating("--words", words)
    assert "unknown task" in generating("--task", "squat")
    assert "is a classify task" in generating("--task", "rte")
    assert "not a model" in generating(model=data)
    assert "unknown text column" in generating("--text-column", "txt")
    assert "no such file" in generating(text=str(tmp_path / "none.txt"))
    assert "`backend='onnx'` is not valid" in generating("--backend", "onnx")
    assert "no tokens for 'answer:" in generating("--format", "answer")
    assert "hub:a/b/c/d" in generating(text="hub:a/b/c/d")
    assert "one of the two" in generating("--sample", "--beams", "2")
    (tmp_path / "blank.txt").write_text("\n\n")
    assert "2 blank" in generating(text=str(tmp_path / "blank.txt"))
    assert not out.exists()


def test_missing_packages_are_named(trained, data, tmp_path, monkeypatch):
    from augment.questions.generation.answer_candidates import load_spacy

    def spacy_load(name):
        raise OSError(f"[E050] Can't find model {name!r}")

    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"spacy='en_core_none'.*spaCy is not installed") as error:
        load_spacy("en_core_none")
    assert error.value.hint == "python -m pip install spacy; or omit `spacy` to find answers by rules"
    installed = types.ModuleType("spacy")
    installed.load = spacy_load
    installed.util = SimpleNamespace(get_installed_models=lambda: ["en_core_web_sm"])
    monkeypatch.setitem(sys.modules, "spacy", installed)
    with pytest.raises(UserError, match=r"(?s)no such spaCy pipeline.*en_core_web_sm") as error:
        load_spacy("en_core_none")
    assert error.value.hint == (
        "python -m spacy download en_core_none; or omit `spacy` to find answers by rules"
    )
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"ctranslate2 is not installed[\s\S]*pip install ctranslate2"):
        generate(tmp_path / "c", trained, data, backend="ctranslate2")


def test_a_vocabulary_without_the_tokens_of_the_format_is_rejected(trained):
    tokenizer, config = AutoTokenizer.from_pretrained(trained), T5.from_pretrained(trained).config
    check_prompt_vocabulary(tokenizer, config, PROMPT_FORMATS["context"])
    other = dataclasses.replace(PROMPT_FORMATS["answer"], template="<hl> {answer} ß: {context}")
    with pytest.raises(UserError, match="no token <hl>"):
        check_prompt_vocabulary(tokenizer, config, other)
    for name, value in (("eos_token_id", 7), ("pad_token_id", None)):
        before = getattr(config, name)
        setattr(config, name, value)
        with pytest.raises(UserError, match=name):
            check_prompt_vocabulary(tokenizer, config, PROMPT_FORMATS["context"])
        setattr(config, name, before)


def test_ctranslate2_generates_the_same_questions(trained, data, tmp_path):
    pytest.importorskip("ctranslate2")
    from augment.questions.generation.ctranslate import open_engine

    generator = load_generator(str(trained))
    draw = random.Random(0)
    token_ids = range(3, len(generator.tokenizer))
    prompts = [Prompt((*draw.choices(token_ids, k=20), 1)) for _ in range(10)]
    of_mtkd = decode(Decoder(generator.model), prompts, Strategy(limit=8), batch_size=4)
    of_ctranslate2 = open_engine(generator)(prompts, Strategy(limit=8))
    assert sum(a == b for a, b in zip(of_mtkd, of_ctranslate2, strict=True)) >= 5
    assert len(list(trained.glob("ctranslate2-int8-*"))) == 1


def test_formats_of_published_generators():
    text = ("Ada wrote it in 1843.", "1843", 16)
    assert {
        name: PROMPT_FORMATS[name].prompt(*text) for name in ("lmqg", "lmqg-mt5", "valhalla", "flan")
    } == {
        "lmqg": "generate question: Ada wrote it in <hl> 1843 <hl>.",
        "lmqg-mt5": "Ada wrote it in <hl> 1843 <hl>.",
        "valhalla": "generate question: Ada wrote it in  <hl> 1843 <hl> .",
        "flan": 'Write a question about this text whose answer is "1843": Ada wrote it in 1843.',
    }
    names = {
        "lmqg/t5-small-squad-qg": "lmqg",
        "lmqg/flan-t5-base-squad-qg": "lmqg",
        "lmqg/mt5-small-squad-qg": "lmqg-mt5",
        "lmqg/mt5-small-jaquad-qg-ae-trimmed-50000": "lmqg",
        "lmqg/t5-base-squad-qag": None,  # writes questions and answers at once
        "valhalla/t5-small-qa-qg-hl": "valhalla",
        "valhalla/t5-base-qg-prepend": "answer",
        "valhalla/t5-base-e2e-qg": None,
        "google/flan-t5-small": "flan",
        "google/t5-v1_1-small": "t5-v1_1",
        "t5-small": None,
    }
    assert {name: published_format(name) for name in names} == names


def test_the_format_of_a_published_generator_is_recognised(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lmqg/t5-tiny-qg", "someone/t5-tiny"):
        copy = Path(shutil.copytree(trained, name))
        for file in ("questions.json", "digests.json"):
            (copy / file).unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"no token <hl>, which the format 'lmqg' needs"):
        load_generator("lmqg/t5-tiny-qg")
    tokenizer, model = AutoTokenizer.from_pretrained(trained), T5.from_pretrained(trained)
    tokenizer.add_tokens(["<hl>"], special_tokens=True)
    tokenizer.add_tokens(["generate", "question:"])  # whose letters are not all in the tiny vocabulary
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for part in (tokenizer, model):
        part.save_pretrained("lmqg/t5-tiny-qg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generator = load_generator("lmqg/t5-tiny-qg")
    assert generator.reading.form == "lmqg"
    assert load_generator("lmqg/t5-tiny-qg", form="context").reading.form == "context"
    with pytest.warns(MtkdWarning, match=r"like 'Ada wrote it in 1843\.'. `format` selects another"):
        assert load_generator("someone/t5-tiny").reading.form == "context"


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_max_length", "x"), ("model_max_length", {}), ("unk_token", ""), ("extra_ids", 10**30)],
)
def test_an_invalid_tokeniser_configuration_is_rejected(trained, tmp_path, key, value):
    shutil.copytree(trained, tmp_path / "m", ignore=shutil.ignore_patterns("digests.json"))
    file = tmp_path / "m/tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {key} = .* is not valid"):
        load_generator(str(tmp_path / "m"))


def test_t5_v1_1_generates_by_filling_in_a_blank(trained, data, tmp_path, monkeypatch, mtkd):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    blanks = ["<extra_id_0>", "<extra_id_1>"]
    tokenizer.add_tokens(blanks, special_tokens=True)
    tokenizer.add_tokens(["Answer:", "Question:"])
    torch.manual_seed(0)
    sizes = dict(vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    config = T5Config(
        **sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0
    )
    model = T5(config)
    assert hasattr(model.encoder.block[0].layer[1].DenseReluDense, "wi_1")  # gated
    own = torch.randn(len(tokenizer), 16)
    model.lm_head.weight = torch.nn.Parameter(own.clone())
    monkeypatch.chdir(tmp_path)
    directory = Path("google/t5-v1_1-tiny")
    for part in (tokenizer, model):
        part.save_pretrained(directory)
    saved = json.loads((directory / "config.json").read_text())
    del saved["scale_decoder_outputs"]  # as in the published configuration
    (directory / "config.json").write_text(json.dumps({**saved, "tie_word_embeddings": False}))
    generator = load_generator(str(directory))
    assert generator.reading.form == "t5-v1_1" and not generator.model.config.scale_decoder_outputs
    assert torch.equal(generator.model.lm_head.weight, own)
    assert not torch.equal(generator.model.shared.weight, own)
    prompt = tokenizer("Anna was born in Rome. Answer: Rome Question: <extra_id_0>").input_ids
    generated = generator.model.generate(torch.tensor([prompt]), max_new_tokens=9, do_sample=False)
    (question,) = decode(Decoder(generator.model), [Prompt(tuple(prompt))], Strategy(limit=9), 1)[0]
    assert question == [token for token in generated[0, 1:].tolist() if token != 1]
    arguments = ["--text", str(data / "paragraphs.parquet"), "--limit", "6", "--max-output", "9"]
    for name, more in (("known", []), ("named", ["--preset", "t5-v1_1"]), ("auto", ["--batch", "auto"])):
        command = ["augment", "questions", "generate", "--model", "google/t5-v1_1-tiny", *arguments]
        result = mtkd(*command, "--out", name, *more)
        assert result.code == 0, result.err
        assert contents(tmp_path / name / "data") == contents(tmp_path / "known/data")
    assert len(corpus_rows(tmp_path / "known", "squad")) > 3


def test_a_question_ends_at_the_end_token_of_its_format():
    form = dataclasses.replace(PROMPT_FORMATS["context"], name="short", end="#")
    letters = Letters()
    letters.convert_tokens_to_ids = ord
    options = QuestionOptions(Reading("short"), Strategy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROMPT_FORMATS, "short", form)
        (generated,) = decode_questions(
            letters, lambda prompts, _: [[list(map(ord, "Why? # or"))]], options, ["u"], ["Text."]
        )
    assert generated == [("Why?", None)]


def test_a_model_of_the_wrong_type_is_an_error(data, tmp_path):
    from transformers import BertConfig

    BertConfig().save_pretrained(tmp_path / "bert")
    config = GenerationConfig(str(data / "paragraphs.parquet"), str(tmp_path / "bert"))
    with pytest.raises(UserError, match=r"is a model of type 'bert', not a T5[\s\S]*t5 or mt5"):
        prepare_generation(config, "squad", CPU, "0.1", "mtkd")


# Batch size


def test_an_automatic_batch_is_halved_until_it_fits(monkeypatch):
    from augment.questions.generation import decoding

    decoder, prompts = Decoder(random_t5()), random_prompts()
    strategy = Strategy(limit=10)
    expected = decode(decoder, prompts, strategy, batch_size=1)
    real, sizes = decoding._decode_single, []

    def small_memory(decoder, prompts, strategy):
        sizes.append(len(prompts))
        if len(prompts) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory (fake)")
        return real(decoder, prompts, strategy)

    monkeypatch.setattr(decoding, "_decode_single", small_memory)
    batch = BatchSize(16, halves=True)
    assert decode(decoder, prompts, strategy, batch) == expected
    assert sizes[:3] == [14, 7, 4] and batch.prompts == 2
    with pytest.raises(torch.OutOfMemoryError):  # a number that the user chose is kept
        decode(decoder, prompts, strategy, 16)
    monkeypatch.setattr(decoding, "_decode_single", lambda *_: small_memory(None, [0] * 9, None))
    with pytest.raises(torch.OutOfMemoryError):
        decode(decoder, prompts, strategy, BatchSize(16, halves=True))


def test_an_automatic_batch_uses_half_of_the_free_memory(monkeypatch):
    model = random_t5()
    sizes = dict(max_input=64, rows=2, steps=10)
    assert choose_batch_size(7, model, **sizes).prompts == 7
    assert choose_batch_size("auto", model, **sizes).prompts == 32  # on a CPU
    on_gpu = SimpleNamespace(device=torch.device("cuda"), config=model.config)
    need = bytes_per_prompt(model.config, **sizes)
    for free, expected in ((need, 1), (2 * need, 1), (200 * need, 64), (10**6 * need, 1024)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, free))
        chosen = choose_batch_size("auto", on_gpu, **sizes)
        assert (chosen.prompts, chosen.halves) == (expected, True)


@pytest.mark.parametrize("fast", [False, True])
def test_automatic_precision_and_batch_size(trained, data, tmp_path, monkeypatch, fast):
    monkeypatch.setattr(precision_module, "supports_bf16", lambda device: fast)
    precision = "bf16" if fast else "fp32"
    automatic = generate(tmp_path / "auto", trained, data, precision="auto", batch="auto").manifest
    assert automatic.settings["precision"] == precision
    generate(tmp_path / "fixed", trained, data, precision=precision)
    assert contents(tmp_path / "auto") == contents(tmp_path / "fixed")
    for batch in ("aut", 0):
        with pytest.raises(UserError, match="`batch="):
            GenerationConfig("t.txt", batch=batch)


def test_the_batch_size_is_a_number_or_auto(mtkd):
    for value in ("aut", "0"):
        result = mtkd(*f"augment questions generate --text t --out o --batch {value}".split())
        assert result.code == 2 and "or auto" in result.err and "Traceback" not in result.err


def test_an_installed_spacy_pipeline_is_suggested_but_not_used(tmp_path, monkeypatch, mtkd):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("Marie Curie discovered radium in Paris in 1898.\n")
    command = "augment questions generate --text text.txt --out"
    assert "spaCy" not in mtkd(*command.split(), "without").err
    package = tmp_path / "site/en_core_web_xx-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: en_core_web_xx\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[spacy_models]\nen_core_web_xx = en_core_web_xx\n")
    monkeypatch.syspath_prepend(package.parent)
    result = mtkd(*command.split(), "with")
    assert "spaCy's en_core_web_xx is installed; --spacy en_core_web_xx uses it" in result.err
    assert contents(tmp_path / "with/data") == contents(tmp_path / "without/data")


def test_a_misspelling_of_rules_is_not_looked_up_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Marie Curie discovered radium in Paris in 1898.\n")
    config = GenerationConfig(str(tmp_path / "text.txt"), "rulez")
    with pytest.raises(UserError, match=r"unknown model 'rulez' \(did you mean 'rules'\?\)"):
        prepare_generation(config, "squad", CPU, "0.1", "mtkd")
