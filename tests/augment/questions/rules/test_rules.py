"""Questions by rules: hand-written sentences with their questions, corpora, and unusable text."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mtkd as library
from augment.corpus_writer import write_corpus
from augment.questions.generation.config import GenerationConfig
from augment.questions.generation.prepare_generation import prepare_generation
from augment.questions.rules.generate import generate_rule_questions, is_english
from augment.questions.rules.verbs import FORMS, third_person
from mtkd.output_files.distributed import ProcessGroup
from mtkd.output_files.sharded_output import DIGEST
from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError
from tasks.common.sha256 import digest_file
from tasks.data.corpus_reader import QUESTION_SCHEMA, read_corpus

SENTENCES = {
    "In 1856, Nikola Tesla was born in the village of Smiljan.": {
        "When was Nikola Tesla born in the village of Smiljan?": "1856",
        "Who was born in the village of Smiljan in 1856?": "Nikola Tesla",
    },
    "Marie Curie discovered radium in Paris in 1898.": {
        "Who discovered radium in Paris in 1898?": "Marie Curie",
        "What did Marie Curie discover in Paris in 1898?": "radium",
        "Where did Marie Curie discover radium in 1898?": "Paris",
        "When did Marie Curie discover radium in Paris?": "1898",
    },
    "The bridge was designed by Joseph Strauss and opened in May 1937.": {
        "Who was the bridge designed by?": "Joseph Strauss"
    },
    "The French chemist Louis Pasteur developed a vaccine in 1885.": {
        "Which French chemist developed a vaccine in 1885?": "Louis Pasteur",
        "In what year did the French chemist Louis Pasteur develop a vaccine?": "1885",
    },
    "The county has over 27 small towns.": {"How many small towns does the county have?": "over 27"},
    "More than 300 people died in the fire on May 4, 1901.": {
        "How many people died in the fire on May 4, 1901?": "More than 300",
        "When did more than 300 people die in the fire?": "May 4, 1901",
    },
    "The committee consists of twelve elected members.": {
        "Of how many elected members does the committee consist?": "twelve"
    },
    "There are 84 islands in the bay.": {"How many islands are there in the bay?": "84"},
    "The tower is 324 meters tall.": {"How tall is the tower?": "324 meters"},
    "The project cost $5 million in 2010.": {
        "How much did the project cost in 2010?": "$5 million",
        "When did the project cost $5 million?": "2010",
    },
    "The median income was $30,500.": {"What was the median income?": "$30,500"},
    "Robert studied at Yale University for three years.": {
        "Who studied at Yale University for three years?": "Robert",
        "Where did Robert study for three years?": "Yale University",
        "How long did Robert study at Yale University?": "three years",
    },
    "The company moved its headquarters to Houston, Texas, in 1981.": {
        "Where did the company move its headquarters in 1981?": "Houston, Texas",
        "In what year did the company move its headquarters to Houston, Texas?": "1981",
    },
    "Thomas Watson, Jr., was elected chairman of the board in 1961.": {
        "Who was elected chairman of the board in 1961?": "Thomas Watson, Jr.",
        "In what year was Thomas Watson, Jr. elected chairman of the board?": "1961",
    },
    "The Amazon River flows through Peru.": {"Which river flows through Peru?": "The Amazon River"},
    "Since 1990, the festival has attracted many young artists.": {
        "Since when has the festival attracted many young artists?": "1990"
    },
    "The museum can be reached from the station because a tunnel was built under the river.": {
        "Why can the museum be reached from the station?": "a tunnel was built under the river"
    },
    "The treaty, which ended a long war, was signed at Utrecht in 1713.": {
        "Where was the treaty signed in 1713?": "Utrecht",
        "In what year was the treaty signed at Utrecht?": "1713",
    },
    "The old mill burned down in 1931 and was rebuilt by Anna Berg.": {
        "What burned down in 1931?": "The old mill",
        "In what year did the old mill burn down?": "1931",
    },
    "The city is famous for its wooden churches.": {"What is the city famous for?": "its wooden churches"},
    "Graz is the capital of Styria.": {"What is the capital of Styria?": "Graz"},
    "Ludwig Wittgenstein was an Austrian philosopher.": {
        "Who was Ludwig Wittgenstein?": "an Austrian philosopher"
    },
    "However, the festival takes place in Porto in summer.": {
        "Where does the festival take place in summer?": "Porto",
        "When does the festival take place in Porto?": "summer",
    },
    # Nothing is better than a bad question:
    "He said that it was late.": {},  # nobody knows who
    "It is likely that the work was lost.": {},
    "The law passed in 1960 was repealed in 1975.": {},  # "passed" is not the verb of the clause
    "The city exports lace, wine, and paper.": {},  # no part of the enumeration is the answer
    "The board did not meet in 1970.": {},
    "If the tower is old, the city closes it.": {},
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_gets_the_expected_questions(sentence):
    assert {
        one.text: sentence[one.start : one.stop] for one in generate_rule_questions(sentence)
    } == SENTENCES[sentence]


def test_pronouns_are_replaced_by_their_antecedents():
    text = (
        "Ada Lovelace was born in London in 1815. She published the first program in 1843. "
        "Her notes were printed by Richard Taylor. "
        "The rain lasted for three days. It caused a flood in Dublin in 1850."
    )
    answers = {one.text: text[one.start : one.stop] for one in generate_rule_questions(text)}
    assert answers["What did Ada Lovelace publish in 1843?"] == "the first program"
    assert answers["Who were Ada Lovelace's notes printed by?"] == "Richard Taylor"
    assert answers["When did the rain cause a flood in Dublin?"] == "1850"
    assert generate_rule_questions("She published the first program in 1843.") == []


def test_the_best_questions_come_from_different_sentences():
    text = "Marie Curie discovered radium in Paris in 1898. The museum has over 40 old rooms."
    two = generate_rule_questions(text, 2)
    assert [text[one.start : one.stop] for one in two] == ["1898", "over 40"]
    assert (
        len(generate_rule_questions(text)) == 5
        and generate_rule_questions(text, 9) == generate_rule_questions(text)
        and [one for one in generate_rule_questions(text) if one in two] == two
    )


VERBS = (
    "stopped stop carried carry used use travelled travel wrote write taught teach occurred occur led lead"
)


@pytest.mark.parametrize(("form", "base"), [*zip(VERBS.split()[::2], VERBS.split()[1::2], strict=True)])
def test_verbs_are_reduced_to_their_base_form(form, base):
    assert FORMS[form].base == base and "b" in FORMS[base].kinds
    assert FORMS[third_person(base)].base == base


PARAGRAPHS = [
    "In 1903, the firm moved to Leeds. The firm had 40 workers in 1910.",
    "Marie Curie discovered radium (with her husband) in Paris in 1898. She received two prizes in 1911.",
    "Der Fluss ist lang und fließt durch die Stadt in das Meer. Er war im Jahr 1850 sehr breit.",
    "La ville est située dans le nord de la France. Elle a été fondée en 1850 par les moines.",
    "東京は日本の首都である。人口は約一千四百万人。",
    "Why not? Because.",
    "The Amazon River flows through Peru. The Nile is the longest river in Africa.",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"text": PARAGRAPHS * 3, "title": ["T"] * 21}), tmp_path / "p.parquet")
    return tmp_path / "p.parquet"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_the_corpus_has_answers_and_counts_unusable_paragraphs(text, tmp_path, mtkd):
    command = [
        "augment",
        "questions",
        "generate",
        "--text",
        str(text),
        "--per-paragraph",
        "3",
        "--shard-rows",
        "6",
    ]
    result = mtkd(*command, "--out", tmp_path / "c", "--json", "-")
    assert result.code == 0, result.err
    counts = json.loads(result.out)["paragraphs"]
    assert (counts["read"], counts["not_english"], counts["kept"]) == (21, 9, 12)
    manifest = read_corpus(tmp_path / "c")
    assert manifest.settings["model"] == "rules" and len(manifest.settings["model_digest"]) == 64
    tables = [pq.read_table(tmp_path / "c" / shard.file) for shard in manifest.shards]
    assert all(table.schema.remove_metadata() == QUESTION_SCHEMA for table in tables)
    rows = pa.concat_tables(tables).to_pylist()
    assert len(rows) == manifest.rows == 3 * (3 + 3 + 0 + 3)
    for row in rows:
        start = row["answer_start"]
        assert row["text_pair"][start : start + len(row["answer"])] == row["answer"] == row["asked_for"]
        assert row["text_pair"] in PARAGRAPHS and row["text"].endswith("?") and row["source"] == "T"
    assert [row["copy"] for row in rows[:6]] == [1, 2, 3, 1, 2, 3]
    again = mtkd(*command, "--out", tmp_path / "c")
    shown = again.out
    assert (
        "9 skipped because the rules work for English only" in again.err and "paragraphs without any" in shown
    )
    assert shown.split("squad")[1].split()[:4] == ["12", "27", "9", "3"]


def test_the_corpus_does_not_depend_on_processes_or_interruptions(text, tmp_path, in_process_workers):
    def write(name: str, workers: Workers = Workers()):  # noqa: B008
        config = GenerationConfig(str(text), per_paragraph=3, shard_rows=6)
        ready = prepare_generation(config, "squad", None, "0.1", "mtkd")
        return write_corpus(ready.spec, ready.rows, tmp_path / name, workers=workers)

    write("one")
    expected_files = contents(tmp_path / "one")
    assert len([name for name in expected_files if not name.startswith(".")]) == 8
    shards = sorted((tmp_path / "one/data").iterdir())
    for path in shards[1::2]:  # as an unfinished corpus has them
        path.with_name(path.name + DIGEST).write_text(digest_file(path))
    for path in (*shards[::2], tmp_path / "one/manifest.json"):
        path.unlink()
    assert write("one").kept == 3 and contents(tmp_path / "one") == expected_files

    barrier = threading.Barrier(2, timeout=60)
    ready = prepare_generation(
        GenerationConfig(str(text), per_paragraph=3, shard_rows=6), "squad", None, "0.1", "mtkd"
    )
    threads = [
        threading.Thread(
            target=write_corpus,
            args=(ready.spec, ready.rows, tmp_path / "ranks"),
            kwargs={"group": ProcessGroup(rank, 2, barrier.wait)},
        )
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(tmp_path / "ranks") == expected_files
    assert (
        write("elsewhere", in_process_workers).made == 6
        and contents(tmp_path / "elsewhere") == expected_files
    )


def test_rules_need_no_torch(text, tmp_path):
    code = (
        "import sys; from mtkd.api.questions import generate_questions as g; "
        f"g({str(text)!r}, {str(tmp_path / 'c')!r}); print('torch' in sys.modules, 'spacy' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["False", "False"]


def test_spacy_entities_can_be_answers(tmp_path, monkeypatch):
    def pipeline(text: str) -> SimpleNamespace:
        names = {"Qorin": "PERSON", "Zelm": "GPE"}
        return SimpleNamespace(ents=[SimpleNamespace(text=name, label_=names[name]) for name in names])

    load = "augment.questions.generation.answer_candidates.load_spacy"
    monkeypatch.setattr(load, {"names": pipeline}.__getitem__)
    text = "Qorin opened a school near the gate. Zelm opened a school near the gate."
    (tmp_path / "t.txt").write_text(text)
    config = GenerationConfig(str(tmp_path / "t.txt"), per_paragraph=9, spacy="names")
    ready = prepare_generation(config, "squad", None, "0.1", "mtkd")
    (copies,) = ready.spec.augmenter.make_copies(ready.rows["squad"], 9)
    answers = {row["text"]: row["answer"] for row in copies.table.to_pylist()}
    assert answers["Who opened a school near the gate?"] == "Qorin"
    assert answers["What opened a school near the gate?"] == "Zelm"
    assert not any(text[one.start : one.stop] in ("Qorin", "Zelm") for one in generate_rule_questions(text))


def test_other_languages_are_recognised():
    assert [is_english(text) for text in PARAGRAPHS] == [True, True, False, False, False, True, True]
    assert is_english("Marie Curie discovered radium in Paris in 1898. She won two Nobel Prizes.")
    assert not is_english("Die Stadt liegt in der Nähe von Berlin und wurde im Jahr 1898 gegründet.")


def test_unusable_text_and_options_are_errors(text, tmp_path):
    def refused(spec: Path = text, **options) -> str:
        with pytest.raises(UserError) as caught:
            prepare_generation(GenerationConfig(str(spec), **options), "squad", None, "0.1", "mtkd")
        return str(caught.value)

    for line, expected in (
        (PARAGRAPHS[2], "1 skipped because the rules work for English only"),
        (PARAGRAPHS[5], "the rules cannot generate any question from "),
    ):
        (tmp_path / "t.txt").write_text(line)
        assert expected in refused(tmp_path / "t.txt")
    assert "`beams=2` with `model='rules'`" in refused(beams=2)
    assert "`format='answer'` with `model='rules'`" in refused(form="answer")
    assert "`precision='bf16'` with `model='rules'`" in refused(precision="bf16")


@pytest.mark.parametrize(
    "options",
    [
        {"batch": -1},
        {"batch": "7"},
        {"limit": -1},
        {"shard_rows": 0},
        {"per_paragraph": 0},
        {"max_output": -1},
        {"precision": "fp8"},
        {"extra_body": {"x": float("nan")}, "endpoint_model": "tiny"},
        {"extra_body": {"x": {1}}, "endpoint_model": "tiny"},
        {"extra_body": {"x": "\ud800"}, "endpoint_model": "tiny"},
        {"temperature": "1", "endpoint_model": "tiny"},
    ],
)
def test_options_out_of_range_are_errors(tmp_path: Path, options: dict[str, Any]) -> None:
    text = tmp_path / "paragraphs.txt"
    text.write_text("Ada Lovelace wrote the first program in 1843.")
    model = "http://127.0.0.1:9/v1" if "endpoint_model" in options else "rules"
    with pytest.raises(UserError, match=next(iter(options))):
        library.augment.generate_questions(text, tmp_path / "out", model=model, **options)
    assert not (tmp_path / "out").exists()
