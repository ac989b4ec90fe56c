"""Contextual replacement, compared with a plain Python version of the documented rules on a random BERT."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizerFast

from augment.contextual import Contextual
from augment.copy_shards import make_copies
from augment.corpus_writer import CorpusSpec, write_corpus
from augment.masked_lm import open_masked_lm
from mtkd.output_files.worker_pools import Engine, Workers
from tasks.common.errors import UserError
from tasks.data.corpus_reader import SCHEMA, read_corpus
from tasks.data.rows import Rows
from tests.helpers.reference_splitmix64 import INCREMENT, reference_splitmix64

WORDS = ["a", "the", "old", "tree", "stood", "by", "river", "bank", "slow", "quick", "walk", "talk", "play"]
WORDS += ["sun", "moon", "sky", "stone", "house"]
PIECES = ["##ing", "##ed", "##s", "##er", "un", "##b"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *".,'-!", *WORDS, *PIECES]
TEXTS = [
    "The old trees stood by the river, walking.",
    "a Moon-stone  house !",
    "unb talked",
    "",
    "it's the sky 's sun; é xyzzy playing",
    "tree " * 40 + "walking",
]


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with its masked-LM head, which reads 24 tokens of the vocabulary above."""
    directory = tmp_path_factory.mktemp("masked-lm")
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    BertTokenizerFast(vocab=str(directory / "vocab.txt"), model_max_length=24).save_pretrained(directory)
    torch.manual_seed(1)
    model = BertForMaskedLM(config())
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.data.mul_(8.0)
    model.save_pretrained(directory)
    return directory


def config() -> BertConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=24, **sizes)


def make_rows(*texts: list[str], task: str = "mrpc") -> Rows:
    uids = pa.array([f"{task}/train/{number}" for number in range(len(texts[0]))], pa.string())
    columns = tuple(pa.array(part, pa.string()) for part in texts)
    return Rows(task, "train", uids, columns, np.ones(len(texts[0])))


class NaiveReplacement:
    """The rules in the docstring of `augment.contextual`, one word and one forward pass at a time."""

    def __init__(self, directory: Path, k: int, p: float, seed: int, vectors: dict[str, list[float]] | None):
        self.tokenizer = BertTokenizerFast.from_pretrained(directory)
        self.model = BertForMaskedLM.from_pretrained(directory).eval()
        self.k, self.p, self.seed = k, p, seed
        table = self.model.get_input_embeddings().weight.detach().numpy()
        self.whole_words = [word for word in VOCABULARY if word.isalnum() and word[0] != "["]
        self.vectors = vectors or {word: table[VOCABULARY.index(word)] for word in self.whole_words}
        self.table, self.own_vectors = table, vectors is not None

    def neighbours(self, word: str) -> list[str]:
        if self.own_vectors:
            word = word if word in self.vectors else word.lower()
            if word not in self.vectors:
                return []
            query = np.array(self.vectors[word])
        else:
            query = self.table[self.tokenizer.encode(word, add_special_tokens=False)].mean(0)
        others = [other for other in self.vectors if not (self.own_vectors and other == word)]

        def cosine(other: str) -> float:
            vector = np.array(self.vectors[other])
            return float(query @ vector / np.linalg.norm(query) / np.linalg.norm(vector))

        return sorted(sorted(others, key=cosine, reverse=True)[: self.k])

    def candidates(self, text: str, begin: int, stop: int) -> list[str]:
        """Return the candidates for the word text[begin:stop]."""
        before, word = text[:begin], text[begin:stop]
        encode = self.tokenizer.encode
        if len(encode(word, add_special_tokens=False)) > 1:
            return self.neighbours(word)
        position = 1 + len(encode(before, add_special_tokens=False))
        ids = encode(text, add_special_tokens=False)[:22]
        if position > len(ids):
            return []
        ids = [VOCABULARY.index("[CLS]"), *ids, VOCABULARY.index("[SEP]")]
        ids[position] = VOCABULARY.index("[MASK]")
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, position]
        ranked = sorted(self.whole_words, key=lambda other: -float(logits[VOCABULARY.index(other)]))
        return sorted(ranked[: self.k])

    def copy(self, texts: list[str], uid: str, copy: int) -> tuple[list[str], int]:
        raw = hashlib.blake2b(f"{self.seed}:{uid}".encode(), digest_size=8).digest()
        stream = reference_splitmix64(int.from_bytes(raw, "little") + copy * INCREMENT)
        position, made, changed = 0, [], 0
        for number, text in enumerate(texts):
            still = len(texts) == 2 and (copy - 1) % 3 == 1 - number
            new, at = "", 0
            for match in re.finditer(r"['’](?:s|re|ve|ll|d|m)\b|\w+(?:[-'’.,&/]\w+)*", text):
                if match[0][0] in "'’":
                    continue
                position += 1
                draw = reference_splitmix64(stream + position * INCREMENT)
                found = self.candidates(text, match.start(), match.end())
                word = match[0]
                if draw / 2**64 < self.p and found and not still:
                    word = found[(reference_splitmix64(draw + INCREMENT) >> 32) * len(found) >> 32]
                changed += word != match[0]
                new, at = new + text[at : match.start()] + word, match.end()
            made.append(new + text[at:])
        return made, changed


def copies_of(rows: Rows, method: Contextual, copies: int) -> list[list[str]]:
    table = pa.concat_tables([part.table for part in method.make_copies(rows, copies)])
    assert table.schema == SCHEMA
    names = ["text", "text_pair"][: len(rows.texts)]
    return [list(texts) for texts in zip(*(table[name].to_pylist() for name in names), strict=True)]


VECTORS = {
    "walking": [1.0, 0.0, 0.2],
    "talking": [2.0, 0.1, 0.3],
    "running": [0.9, 0.2, 0.0],
    "trees": [0.0, 1.0, 0.0],
    "moon-stone": [0.0, 0.5, 0.6],
    "forest": [0.1, 3.0, 0.2],
    "far": [-1.0, -1.0, -1.0],
}


@pytest.mark.parametrize("with_vectors", [False, True])
@pytest.mark.parametrize("pair", [False, True])
def test_matches_the_naive_version(masked_lm: Path, tmp_path: Path, pair: bool, with_vectors: bool) -> None:
    file = tmp_path / "v.txt"
    file.write_text("".join(f"{word} {' '.join(map(str, v))}\n" for word, v in VECTORS.items()))
    rows = make_rows(TEXTS, TEXTS[::-1]) if pair else make_rows(TEXTS)
    method = Contextual(str(masked_lm), str(file) if with_vectors else None, 0.6, 3, 5, "cpu")
    method = method.prepare({"mrpc": rows})
    naive = NaiveReplacement(masked_lm, 3, 0.6, 5, VECTORS if with_vectors else None)
    expected = [
        naive.copy([column[row].as_py() for column in rows.texts], uid, copy)
        for row, uid in enumerate(rows.uids.to_pylist())
        for copy in range(1, 8)
    ]
    assert copies_of(rows, method, 7) == [texts for texts, _ in expected]
    parts = list(method.make_copies(rows, 7))
    assert sum(part.changed for part in parts) == sum(count for _, count in expected) > 100
    assert sum(part.unchanged for part in parts) == [count for _, count in expected].count(0)
    assert sum(part.words for part in parts) == 7 * (1 + pair) * (8 + 3 + 2 + 0 + 7 + 41)
    assert sorted(method.neighbours) == (
        ["Moon-stone", "trees", "walking"]
        if with_vectors
        else ["Moon-stone", "it's", "playing", "talked", "trees", "unb", "walking"]
    )


def test_chunks_do_not_change_the_copies(masked_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(TEXTS * 3, TEXTS[::-1] * 3)
    method = Contextual(str(masked_lm), device="cpu").prepare({"mrpc": rows})
    copied_texts = copies_of(rows, method, 5)
    monkeypatch.setattr("augment.contextual._CHUNK", 7)
    assert copies_of(rows, method, 5) == copied_texts
    assert copies_of(rows.take(np.array([7, 1])), method, 5) == copied_texts[35:40] + copied_texts[5:10]
    assert copies_of(rows, replace(method, seed=1), 5) != copied_texts


def test_progress_is_reported_after_each_row_and_does_not_change_what_is_written(masked_lm: Path) -> None:
    rows = make_rows(TEXTS * 3)
    method = Contextual(str(masked_lm), device="cpu").prepare({"mrpc": rows})
    advanced: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contextual, "chunk_copies", 35)
        parts = list(make_copies((method, rows, 5), advanced.append))
    assert advanced == [5] * 18
    assert [part.table.num_rows for part in parts] == [30, 30, 15], "7 rows, of which one has no text"
    (whole,) = make_copies((method, rows, 5), advanced.append)
    assert whole.table.equals(pa.concat_tables([part.table for part in parts]))
    assert all(sum(part.counts[name] for part in parts) == whole.counts[name] for name in whole.counts)


def test_words_are_replaced_at_the_rate_and_each_candidate_is_equally_likely(masked_lm: Path) -> None:
    rows = make_rows(["the old tree stood"] * 300)
    method = Contextual(str(masked_lm), candidates=4, device="cpu").prepare({"mrpc": rows})
    lm = open_masked_lm(str(masked_lm), "cpu")
    ids = lm.tokeniser.token_ids(pa.array(["the old tree stood"])).row(0)
    found = lm.fill(ids, [1], 4)[0]
    drawn = [text.split()[1] for (text,) in copies_of(rows, method, 10)]
    assert set(drawn) == {"old", *found}
    kept = 0.6 + 0.4 * ("old" in found) / 4
    assert stats.binomtest(drawn.count("old"), 3000, kept).pvalue > 1e-3
    assert stats.chisquare([drawn.count(word) for word in found if word != "old"]).pvalue > 1e-3


def test_whole_words_are_found_for_tokenisers_that_mark_spaces(tmp_path: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [" ".join(WORDS)] * 50, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    )
    bpe.save_model(str(tmp_path))
    tokeniser = RobertaTokenizerFast(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    tokeniser.save_pretrained(tmp_path)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    roberta = RobertaConfig(
        vocab_size=len(tokeniser), max_position_embeddings=20, pad_token_id=tokeniser.pad_token_id, **sizes
    )
    RobertaForMaskedLM(roberta).save_pretrained(tmp_path)
    lm = open_masked_lm(str(tmp_path), "cpu")
    assert set(WORDS[1:]) <= set(lm.words) and not {"Ġthe", "<mask>"} & set(lm.words)
    rows = make_rows(["the old tree stood by the river"] * 4)
    method = Contextual(str(tmp_path), p=0.9, candidates=3, device="cpu").prepare({"mrpc": rows})
    made = [text.split() for (text,) in copies_of(rows, method, 5)]
    assert all(len(words) == 7 for words in made) and all(set(words) <= set(lm.words) for words in made)


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_two_workers_write_identical_output_and_a_different_model_is_rejected(
    masked_lm: Path, tmp_path: Path, engine: Engine, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("ray_cluster" if engine == "ray" else "in_process_workers")
    rows = {"mrpc": make_rows(TEXTS * 4, TEXTS[::-1] * 4)}
    method = Contextual(str(masked_lm), device="cpu").prepare(rows)
    spec = CorpusSpec(method, {"mrpc": 3}, "made up", "0.1", "mtkd", shard_copies=20)
    write_corpus(spec, rows, tmp_path / "one")
    assert write_corpus(spec, rows, tmp_path / "two", workers=Workers(2, engine)).made == 4
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)
    moved = replace(spec, augmenter=replace(method, model="moved"))
    assert write_corpus(moved, rows, tmp_path / "one").made == 0
    other = replace(spec, augmenter=replace(method, digest="other"))
    with pytest.raises(UserError, match="is another model on"):
        other.augmenter.loader()
    with pytest.raises(UserError, match="another corpus"):
        write_corpus(other, rows, tmp_path / "one")


def test_the_command_writes_a_corpus(mtkd: Callable, masked_lm: Path, tmp_path: Path) -> None:
    words = ("--data", "pocket", "--tasks", "rte,sst2", "--limit", 6, "--copies", "rte=2")
    model = ("--model", masked_lm, "--device", "cpu")
    answered = mtkd("augment", "contextual", *words, *model, "--out", tmp_path / "c")
    assert answered.code == 0, answered.err
    manifest = read_corpus(tmp_path / "c")
    assert {task.name: (task.copies, task.rows) for task in manifest.tasks} == {
        "rte": (2, 12),
        "sst2": (20, 120),
    }
    assert manifest.method == "contextual" and manifest.settings["p"] == 0.4
    assert set(pq.read_table(tmp_path / "c/data/rte-00000.parquet")["method"].to_pylist()) == {"contextual"}
    settings = ("--set", f"model={masked_lm}", "--set", "device=cpu")
    again = mtkd("augment", "run", "contextual", *words, *settings, "--out", tmp_path / "d")
    assert again.code == 0, again.err
    assert read_corpus(tmp_path / "d").settings == manifest.settings


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--p", 1), ("p = 1.0",)),
        (("--model", "minilm"), ("'minilm' has no masked-LM head", "cls.predictions", "hint:")),
        (("--vectors", "nowhere.txt"), ("no such file: nowhere.txt",)),
        (("--device", "cuda:99"), ("cannot run on the device",)),
    ],
)
def test_invalid_options_are_errors(
    mtkd: Callable, masked_lm: Path, tmp_path: Path, options: tuple, parts: tuple[str, ...]
) -> None:
    words = ("--data", "pocket", "--tasks", "sst2", "--limit", 4, "--out", tmp_path / "c")
    model = () if "--model" in options else ("--model", masked_lm)
    answered = mtkd("augment", "contextual", *words, *model, *options)
    assert answered.code == 2 and "Traceback" not in answered.err and not (tmp_path / "c").exists()
    for part in parts:
        assert part in answered.err


def test_an_encoder_without_a_masked_lm_head_is_rejected(masked_lm: Path, tmp_path: Path) -> None:
    BertModel(config()).save_pretrained(tmp_path)
    BertTokenizerFast.from_pretrained(masked_lm).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no masked-LM head"):
        open_masked_lm(str(tmp_path), "cpu")
