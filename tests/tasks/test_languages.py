"""Tasks in several languages: where the rows of each language come from, and how answers are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.scoring.squad import exact_match, gold_answers, normalise_answer, token_f1
from tasks.task_file import load_task

XNLI, MLQA = TASKS["xnli"], TASKS["mlqa"]


def write_pairs(file: Path, *premises: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = {"premise": premises, "hypothesis": ["h"] * len(premises), "label": range(len(premises))}
    pq.write_table(pa.table({name: list(values) for name, values in rows.items()}), file)


def write_question(file: Path, context: str, answer: str) -> None:
    """One question in the hub's layout of MLQA, whose answers name their offsets first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    answers = {"answer_start": [context.index(answer)], "text": [answer]}
    rows = [{"id": "a", "context": context, "question": "q?", "answers": answers}]
    pq.write_table(pa.Table.from_pylist(rows), file)


def test_each_language_has_its_own_splits(tmp_path: Path) -> None:
    write_pairs(tmp_path / "xnli/train.parquet", "one")
    write_pairs(tmp_path / "xnli/validation_de.parquet", "eins", "zwei")
    write_pairs(tmp_path / "xnli/en/validation-00000-of-00001.parquet", "two")  # as the hub has it
    write_pairs(tmp_path / "xnli/de/validation.parquet", "drei")
    source = open_data(str(tmp_path))
    assert source.splits(XNLI) == ["train", "validation_en", "validation_de"]
    found = {split: load_rows(source, XNLI, split).texts[0].to_pylist() for split in source.splits(XNLI)}
    assert found == {"train": ["one"], "validation_en": ["two"], "validation_de": ["eins", "zwei"]}
    assert [XNLI.language(split) for split in ("train", "validation_de", "test_zh")] == ["en", "de", "zh"]
    assert TASKS["mnli"].language("validation_matched") is None


def test_mlqa_is_trained_on_squad(tmp_path: Path) -> None:
    write_question(tmp_path / "squad/train.parquet", "It is red.", "red")
    write_question(tmp_path / "mlqa/validation_es.parquet", "Es rojo.", "rojo")
    write_question(tmp_path / "xtreme/MLQA.zh.zh/test.parquet", "它是红色的。", "红色")
    source = open_data(str(tmp_path))
    assert source.splits(MLQA) == ["train", "validation_es", "test_zh"]
    train = load_rows(source, MLQA, "train")
    assert train.answers is not None and gold_answers(train.answers) == [["red"]]
    write_question(tmp_path / "mlqa/train.parquet", "It is blue.", "blue")
    own_rows = load_rows(source, MLQA, "train")
    assert own_rows.answers is not None and gold_answers(own_rows.answers) == [["blue"]], (
        "its own rows come first"
    )
    for file in ("squad/train.parquet", "mlqa/train.parquet"):
        (tmp_path / file).unlink()
    with pytest.raises(UserError, match="no split 'train' of task 'mlqa'") as caught:
        load_rows(source, MLQA, "train")
    assert "squad/train" in str(caught.value)


def test_each_language_is_a_configuration_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(*name: str) -> pa.Table:
        fetched.append(name)
        answers = [{"text": ["c"], "answer_start": [0]}]
        return (
            pa.table({name: ["c"] for name in (*XNLI.columns, *MLQA.columns)})
            .append_column("answers", pa.array(answers))
            .append_column("label", pa.array([0]))
        )

    monkeypatch.setattr("tasks.data.hub_data.fetch", fetch)
    source = open_data("hub")
    for task, splits in ((XNLI, ("train", "validation_en", "test_ur")), (MLQA, ("train", "validation_ar"))):
        assert source.splits(task) == list(task.splits)
        for split in splits:
            load_rows(source, task, split)
    assert fetched == [
        ("facebook/xnli", "en", "train"),
        ("facebook/xnli", "en", "validation"),
        ("facebook/xnli", "ur", "test"),
        ("rajpurkar/squad", "plain_text", "train"),
        ("google/xtreme", "MLQA.ar.ar", "validation"),
    ]


# Worked by hand from the description of MLQA's evaluation: language, text, the words that are compared.
@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "The “Old” Bridge, a landmark", "old bridge landmark"),
        ("en", "der Hund", "der hund"),
        ("de", "Der Hund und die Katze eines Mannes", "hund und katze mannes"),
        ("de", "derselbe, anderen", "derselbe anderen"),
        ("de", "„the“ a", "the a"),
        ("es", "¿Los perros de la Señora?", "perros de señora"),
        ("es", "ella", "ella"),
        ("vi", "những con mèo của Lan", "con mèo lan"),
        ("hi", "एक बिल्ली।", "एक बिल्ली"),
        ("ar", "القط في البيت", "قط في بيت"),
        ("ar", "قطة، كلب؟", "قطة كلب"),
        ("zh", "《红楼梦》第120回", "红 楼 梦 第 120 回"),
        ("zh", "使用 Python 语言。", "使 用 python 语 言"),
        ("zh", "the 猫", "the 猫"),
        ("tr", "Kedi, ve köpek!", "kedi ve köpek"),
        (None, "The “Old” Bridge, a landmark", "“old” bridge landmark"),
    ],
)
def test_answers_are_normalised_by_language(language: str | None, text: str, words: str) -> None:
    assert normalise_answer(text, language) == words


def test_answers_are_scored_by_language() -> None:
    # zh: 2 of 3 and of 4 characters: 2 * 2 / (3 + 4).
    assert token_f1("红楼梦", ["红楼小说"], "zh") == pytest.approx(4 / 7)
    assert token_f1("红楼梦", ["红楼小说"]) == 0, "without its language, a Chinese answer is one word"
    assert exact_match("Die Katze!", ["katze"], "de") == 1 and exact_match("Die Katze!", ["katze"]) == 0
    # de: hund, grosse | hund, kleine; the articles do not count.
    assert token_f1("der grosse Hund", ["ein kleiner Hund", "den Wolf"], "de") == pytest.approx(0.5)
    answers = pa.array([{"text": ["der"], "answer_start": [0]}])
    assert gold_answers(answers, "de") == [[""]] and gold_answers(answers, "en") == [["der"]]


def test_a_task_file_may_name_languages(tmp_path: Path) -> None:
    def write(**changes: Any) -> Path:
        keys = {"name": '"own"', "kind": '"span"', "columns": '["question", "context"]'} | changes
        lines = [f"{key} = {value}" for key, value in keys.items()]
        files = ["[files]", 'train = "t.parquet"', 'validation_de = "v.parquet"']
        (tmp_path / "own.toml").write_text("\n".join(lines + files), encoding="utf-8")
        return tmp_path / "own.toml"

    task = load_task(write(languages='["es", "de"]'))
    assert (task.language("train"), task.language("validation_de")) == ("es", "de")
    assert load_task(write()).language("validation_de") is None
    with pytest.raises(UserError, match=r"languages = \['German'\] is not valid[^$]*ISO 639-1"):
        load_task(write(languages='["German"]'))
    with pytest.raises(UserError, match="classify tasks have no key 'languages'"):
        load_task(write(kind='"classify"', labels='["a", "b"]', languages='["de"]'))
