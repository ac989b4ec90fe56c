"""Replacement, compared with a plain Python version of the documented rules; taggers made for the tests."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from augment.corpus_writer import CorpusSpec, write_corpus
from augment.replacement import Replacement
from augment.tagged_text import split_words, tag_rows
from augment.tagging import NoTagger, WorkerTagger, open_tagger
from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError
from tasks.data.corpus_reader import SCHEMA, corpus_rows, read_corpus
from tasks.data.rows import Rows
from tests.helpers.reference_splitmix64 import INCREMENT, reference_splitmix64

WORDS = ["a", "the", "trees", "stood", "by", "rivers", "où", "naïve", "don't", "3.5", "walked", ",", "."]


@dataclass(frozen=True)
class LastLetterTagger:
    """A tagger without a model, which uses the last letter of a word as its tag."""

    name = "endings"

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        return ([word[-1] for word in words] for words in texts)


def make_rows(*texts: list[str], task: str = "mrpc") -> Rows:
    uids = pa.array([f"{task}/train/{number}" for number in range(len(texts[0]))], pa.string())
    columns = tuple(pa.array(part, pa.string()) for part in texts)
    return Rows(task, "train", uids, columns, np.ones(len(texts[0])))


def some_rows(count: int, *, texts: int = 1, task: str = "mrpc") -> Rows:
    draw = random.Random(count)
    lines = [
        [" ".join(draw.choices(WORDS, k=draw.randint(1, 14))) for _ in range(count)] for _ in range(texts)
    ]
    return make_rows(*lines, task=task)


def method_of(rows: Rows, *, tagger=LastLetterTagger(), **options) -> Replacement:
    return Replacement({rows.task: tag_rows(rows, tagger)}, tagger.name, **options)


def scaled_draw(draw: int, limit: int) -> int:
    return (draw >> 32) * limit >> 32


def naive_text(text, counts, method, stream, before, number) -> tuple[str, int, int]:
    """Alter one text word by word; return the text, its word count and the number of changed words."""
    words, spaces, altered = [], [], []
    for position, (space, word) in enumerate(split_words(text)):
        draw = reference_splitmix64(stream + (before + position + 1) * INCREMENT)
        new = word
        if draw / 2**64 < method.p_mask:
            new = method.mask_token
        elif draw / 2**64 < method.p_mask + method.p_pos:
            others = sorted(
                (other, times) for other, times in counts.items() if other[-1] == word[-1] and other != word
            )
            at = scaled_draw(
                reference_splitmix64(draw + INCREMENT), max(1, sum(times for _, times in others))
            )
            for other, times in others:
                if at < times:
                    new = other
                    break
                at -= times
        words.append(new)
        spaces.append(" " if space and position else "")
        altered.append(new != word)
    whether, size, where = (
        reference_splitmix64(stream - (3 * number + step) * INCREMENT) for step in (1, 2, 3)
    )
    start, stop = 0, len(words)
    if words and whether / 2**64 < method.p_ngram:
        n = min(1 + scaled_draw(size, 5), len(words))
        start = scaled_draw(where, len(words) - n + 1)
        stop = start + n
    joined = "".join(space + word for space, word in zip(spaces[start:stop], words[start:stop], strict=True))
    joined = joined.removeprefix(" ")
    return joined, len(words), sum(altered[start:stop]) + len(words) - (stop - start)


def naive(rows: Rows, method: Replacement, copies: int) -> list[tuple[str, int, list[str], int]]:
    columns = [column.to_pylist() for column in rows.texts]
    counts = Counter(word for column in columns for text in column for _, word in split_words(text))
    made = []
    for number, uid in enumerate(rows.uids.to_pylist()):
        raw = hashlib.blake2b(f"{method.seed}:{uid}".encode(), digest_size=8).digest()
        for copy in range(1, copies + 1):
            stream = reference_splitmix64(int.from_bytes(raw, "little") + copy * INCREMENT)
            before, altered, texts = 0, 0, []
            for which, column in enumerate(columns):
                still = len(columns) == 2 and (copy - 1) % 3 == 1 - which
                copies_of = changed(method, p_mask=0, p_pos=0, p_ngram=1e-18) if still else method
                text, words, count = naive_text(column[number], counts, copies_of, stream, before, which)
                before, altered = before + words, altered + count
                texts.append(text)
            made.append((uid, copy, texts, altered))
    return made


def copies_of(rows: Rows, method: Replacement, copies: int) -> list[tuple[str, int, list[str]]]:
    table = pa.concat_tables([part.table for part in method.make_copies(rows, copies)])
    assert table.schema == SCHEMA
    names = ["text", "text_pair"][: len(rows.texts)]
    texts = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [
        (a, b, list(c))
        for a, b, c in zip(table["parent"].to_pylist(), table["copy"].to_pylist(), texts, strict=True)
    ]


lines = st.lists(st.text(st.sampled_from("ab é.,'-\n 3_"), max_size=30), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(lines, st.booleans(), st.floats(0, 0.49), st.floats(0, 0.5), st.floats(0.01, 0.99), st.integers(0, 9))
def test_matches_the_naive_version_on_any_text(texts, pair, p_mask, p_pos, p_ngram, seed):
    rows = make_rows(texts, texts[::-1]) if pair else make_rows(texts)
    method = method_of(rows, p_mask=p_mask, p_pos=p_pos, p_ngram=p_ngram, seed=seed, mask_token="<m>")
    expected = naive(rows, method, 4)
    assert copies_of(rows, method, 4) == [made[:3] for made in expected]
    parts = list(method.make_copies(rows, 4))
    assert sum(part.changed for part in parts) == sum(count for *_, count in expected)
    assert sum(part.unchanged for part in parts) == [count for *_, count in expected].count(0)
    words = sum(len(split_words(text)) for column in rows.texts for text in column.to_pylist())
    assert sum(part.words for part in parts) == 4 * words


def test_white_space_is_normalised_and_punctuation_kept():
    assert "".join(space + word for space, word in split_words("He said:  'No…' to\tU.S. men's")) == (
        "He said:  'No…' to\tU.S. men's"
    )
    assert [word for _, word in split_words("it 's John's 3.5% state-of-the-art (yes).")] == [
        *("it", "'s", "John's", "3.5", "%", "state-of-the-art", "(", "yes", ").")
    ]


def test_chunks_and_parts_do_not_change_the_copies(monkeypatch):
    rows = some_rows(60, texts=2)
    method = method_of(rows, p_mask=0.2, p_pos=0.3)
    full = copies_of(rows, method, 5)
    monkeypatch.setattr("augment.replacement._CHUNK", 7)
    assert copies_of(rows, method, 5) == full
    some = rows.take(np.array([41, 3, 7]))
    assert copies_of(some, method.for_rows(some), 5) == [
        made for uid in some.uids.to_pylist() for made in full if made[0] == uid
    ]
    assert copies_of(rows, method, 2) == [made for made in full if made[1] <= 2]
    assert copies_of(rows, changed(method, seed=1), 5) != full
    with pytest.raises(ValueError, match="not tagged"):
        copies_of(make_rows(["something else"]), method, 1)


def test_two_workers_write_identical_output_and_a_different_vocabulary_is_rejected(tmp_path):
    rows = {"mrpc": some_rows(80, texts=2), "sst2": some_rows(50, task="sst2")}

    def method(parts: dict[str, Rows]) -> Replacement:
        return Replacement(
            {task: tag_rows(part, LastLetterTagger()) for task, part in parts.items()}, "endings"
        )

    spec = CorpusSpec(method(rows), {"mrpc": 6, "sst2": 3}, "made up", "0.1", "mtkd", shard_copies=90)
    write_corpus(spec, rows, tmp_path / "one")
    assert write_corpus(spec, rows, tmp_path / "two", workers=Workers(2)).made > 4
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)
    assert len(corpus_rows(tmp_path / "two", "mrpc")) == 480
    other = changed(spec, augmenter=method({**rows, "sst2": some_rows(51, task="sst2")}))
    with pytest.raises(UserError, match="another corpus"):
        write_corpus(other, rows, tmp_path / "one")


def test_the_texts_of_pairs_are_altered_in_turn():
    rows = make_rows(["one two three four five six"] * 200, ["a b c d e f"] * 200)
    table = copies_of(rows, method_of(rows, tagger=NoTagger(), p_mask=0.9, p_pos=0), 6)
    for _, copy, (first, second) in table:
        assert (first == "one two three four five six") <= (copy % 3 == 2)
        assert (second == "a b c d e f") <= (copy % 3 == 1)
        assert copy % 3 != 2 or first == "one two three four five six"
        assert copy % 3 != 1 or second == "a b c d e f"


def test_replacements_have_the_given_rates_and_the_same_tag():
    draw = random.Random(1)
    rows = make_rows([" ".join(draw.choices(["ax", "bx", "cx", "cx", "dy", "ey"], k=20)) for _ in range(400)])
    method = method_of(rows, p_mask=0.1, p_pos=0.2, p_ngram=0)
    masked = replaced = total = 0
    drawn: Counter[str] = Counter()
    originals = dict(zip(rows.uids.to_pylist(), rows.texts[0].to_pylist(), strict=True))
    for uid, _, (text,) in copies_of(rows, method, 10):
        for old, new in zip(originals[uid].split(), text.split(), strict=True):
            total, masked = total + 1, masked + (new == "[MASK]")
            if new not in ("[MASK]", old):
                replaced += 1
                assert new[-1] == old[-1]
                drawn[old + new] += 1
    assert stats.binomtest(masked, total, 0.1).pvalue > 1e-3
    assert stats.binomtest(replaced, total, 0.2).pvalue > 1e-3
    known = method.texts["mrpc"].vocabulary
    counts = dict(zip(known.words, known.counts, strict=True))
    share = counts["bx"] / (counts["bx"] + counts["cx"])
    assert stats.binomtest(drawn["axbx"], drawn["axbx"] + drawn["axcx"], share).pvalue > 1e-3


def test_without_a_tagger_punctuation_and_clitics_are_replaced_only_by_one_another():
    text = "Maj. Gen. J.E.B. Stuart 's men ( 'the cavalry' ) aren't here - they 've left; 3.5% of_them, no?"
    rows = make_rows([text] * 50)
    method = Replacement(tagger="none", p_mask=0, p_pos=0.9, p_ngram=0).prepare({"mrpc": rows})

    def kinds(text: str) -> list[tuple[str, str]]:
        """The space before each word, and what kind of word it is."""
        return [
            (space, "'s" if word in ("'s", "'ve") else "a" if any(map(str.isalnum, word)) else ".")
            for space, word in split_words(text)
        ]

    made = [copied for _, _, (copied,) in copies_of(rows, method, 5)]
    assert all(kinds(copied) == kinds(text) for copied in made) and len(set(made)) == 250


def test_ngrams_are_one_to_five_words_of_the_text():
    text = [f"w{number}" for number in range(30)]
    rows = make_rows([" ".join(text)] * 300)
    made = [
        made.split()
        for _, _, (made,) in copies_of(rows, method_of(rows, p_mask=0, p_pos=0, p_ngram=0.25), 10)
    ]
    cut = [words for words in made if len(words) < 30]
    assert stats.binomtest(len(cut), 3000, 0.25).pvalue > 1e-3
    assert stats.chisquare([sum(len(words) == n for words in cut) for n in range(1, 6)]).pvalue > 1e-3
    for words in cut:
        start = text.index(words[0])
        assert words == text[start : start + len(words)]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spaCy pipeline on disk that tags articles as DT and all other words as NN."""
    import spacy

    made = spacy.blank("en")
    ruler = made.add_pipe("attribute_ruler")
    ruler.add(patterns=[[{}]], attrs={"TAG": "NN"})
    ruler.add(patterns=[[{"LOWER": {"IN": ["the", "a"]}}]], attrs={"TAG": "DT"})
    directory = tmp_path_factory.mktemp("spacy") / "articles"
    made.to_disk(directory)
    return directory


def test_a_spacy_pipeline_can_tag_words(pipeline, tmp_path):
    tagger = open_tagger(f"spacy:{pipeline}")
    assert tagger.name.startswith("spacy:articles")
    assert list(tagger.tag([["the", "cat"], ["A"]])) == [["DT", "NN"], ["DT"]]
    import spacy

    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(UserError, match=r"did not tag the word 'cat'"):
        list(open_tagger(f"spacy:{tmp_path / 'blank'}").tag([["cat"]]))


def test_workers_tag_words_like_one_process(pipeline, monkeypatch):
    assert_workers_change_nothing(f"spacy:{pipeline}", Workers(2), monkeypatch)


def test_workers_match_one_process_without_a_tagger(monkeypatch, in_process_workers):
    assert_workers_change_nothing("none", in_process_workers, monkeypatch)


def assert_workers_change_nothing(tagger, workers, monkeypatch):
    monkeypatch.setattr("augment.tagged_text.TEXTS_PER_BLOCK", 30)
    rows = {"mrpc": some_rows(100, texts=2), "sst2": some_rows(20, task="sst2")}
    unprepared = Replacement(tagger=tagger)
    one, two = (unprepared.prepare(rows, each) for each in (Workers(), workers))
    assert one.settings == two.settings
    assert one.texts["mrpc"].vocabulary.words == two.texts["mrpc"].vocabulary.words
    for task in rows:
        for values in ("bounds", "ids", "spaced"):
            assert np.array_equal(getattr(one.texts[task], values), getattr(two.texts[task], values))
        assert one.texts[task].texts.equals(two.texts[task].texts)
        assert len(one.texts[task].texts) > 10


def test_workers_with_a_different_tagger_are_rejected(pipeline, in_process_workers):
    elsewhere = WorkerTagger("another tagger", f"spacy:{pipeline}")
    with pytest.raises(UserError, match=r"articles is another model on"):
        tag_rows(some_rows(100, texts=2), elsewhere, workers=in_process_workers)


def test_nltk_tags_words_if_its_data_is_installed(tmp_path, monkeypatch):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(UserError, match=r"nltk's data .* not installed"):
        open_tagger("nltk")
    directory = tmp_path / "taggers" / "averaged_perceptron_tagger_eng"
    directory.mkdir(parents=True)
    for name, value in {
        "weights": {"bias": {"NN": 1.0}},
        "tagdict": {"the": "DT"},
        "classes": ["DT", "NN"],
    }.items():
        (directory / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(value))
    assert list(open_tagger("nltk").tag([["the", "cat"]])) == [["DT", "NN"]]
    assert open_tagger("auto").name.startswith("nltk:")


def test_a_missing_tagger_is_an_error_that_says_what_to_install(mtkd, tmp_path, monkeypatch):
    import nltk
    import spacy

    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(spacy.util, "get_installed_models", list)
    words = (
        "augment",
        "replace",
        "--data",
        "pocket",
        "--tasks",
        "rte",
        "--limit",
        20,
        "--out",
        tmp_path / "c",
    )
    with monkeypatch.context() as patch:
        patch.setattr("mtkd.api.augmentation.load_rows", None)  # no rows are read before this error
        answered = mtkd(*words)
    assert answered.code == 2 and not (tmp_path / "c").exists()
    for part in (
        "no part-of-speech tagger",
        "spacy download",
        "nltk.downloader",
        "--tagger none",
        "--p-pos 0",
    ):
        assert part in answered.err
    assert mtkd(*words, "--p-pos", 0, "--copies", 3, "--quiet").code == 0
    assert read_corpus(tmp_path / "c").rows == 60
    others = ("--tagger", "none", "--p-mask", 0, "--p-ngram", 0, "--copies", 3, "--quiet")
    assert mtkd(*words[:-1], tmp_path / "d", *others).code == 0
    texts = [corpus_rows(tmp_path / name, "rte").texts[0].to_pylist() for name in ("c", "d")]
    assert not any("[MASK]" in text for text in texts[1]) and texts[0] != texts[1]


def test_the_command_writes_a_corpus_with_a_spacy_pipeline(mtkd, pipeline, tmp_path):
    words = ("augment", "replace", "--data", "pocket", "--tasks", "rte,sst2", "--limit", 12, "--seed", 3)
    answered = mtkd(*words, "--tagger", f"spacy:{pipeline}", "--copies", "rte=2", "--out", tmp_path / "c")
    assert answered.code == 0, answered.err
    manifest = read_corpus(tmp_path / "c")
    assert [(task.name, task.copies, task.rows) for task in manifest.tasks] == [
        ("rte", 2, 24),
        ("sst2", 20, 240),
    ]
    assert manifest.method == "replace" and manifest.settings["tagger"].startswith("spacy:articles")
    assert set(pq.read_table(tmp_path / "c/data/rte-00000.parquet")["method"].to_pylist()) == {"replace"}
    assert "part of speech" in (tmp_path / "c/README.md").read_text()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--p-mask", 1), "--p-mask 1.0"),
        (("--p-ngram", -0.1), "--p-ngram -0.1"),
        (("--p-mask", 0.6, "--p-pos", 0.5), "p_mask + p_pos below 1"),
        (("--p-mask", 0, "--p-pos", 0, "--p-ngram", 0), "not all of them 0"),
        (("--mask-token", "a b"), "'a b'"),
        (("--tagger", "brill"), "auto, spacy:MODEL, nltk or none"),
        (("--tagger", "spacy:nowhere"), "no spaCy model 'nowhere'"),
        (("--copies", "sst=2"), "did you mean 'sst2'"),
    ],
)
def test_invalid_options_are_errors(mtkd: Callable, tmp_path, options, part):
    answered = mtkd(
        *("augment", "replace", "--data", "pocket", "--tasks", "sst2", "--out", tmp_path / "c"), *options
    )
    assert answered.code == 2 and part in answered.err and "Traceback" not in answered.err
    assert not (tmp_path / "c").exists()
