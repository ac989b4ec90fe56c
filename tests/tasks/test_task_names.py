import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_names import GROUPS, resolve
from tasks.task_types import check_metrics

REPOSITORY = Path(__file__).parents[2]
DATA = (REPOSITORY / os.environ.get("MTKD_SHARED_DATA", "../shared/data")).resolve()

OWN_TASK = """
name = "mine"
kind = "classify"
columns = ["question1", "question2"]
labels = ["no", "yes"]
metrics = {metrics}
[files]
train = "train.parquet"
"""


def names(spec: str) -> list[str]:
    return [task.name for task in resolve(spec)]


def custom_task(folder: Path, metrics: tuple[str, ...] = ("accuracy",)) -> Path:
    path = folder / f"{'-'.join(metrics)}.toml"
    path.write_text(OWN_TASK.format(metrics=json.dumps(metrics)), encoding="utf-8")
    return path


def test_task_names_and_groups_are_resolved_in_order_without_duplicates():
    assert names("rte") == ["rte"]
    assert names("glue") == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    assert names("mkd") == ["sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    assert names("sentiment,paraphrase") == ["sst2", "mrpc", "qqp"], "MKD table 3; STS-B is a similarity task"
    assert names("similarity") == ["stsb"]
    assert names(" rte , nli,ax,rte,") == ["rte", "mnli", "qnli", "ax"]


def test_every_group_a_task_claims_can_be_named():
    assert {group for task in TASKS.values() for group in task.groups} == set(GROUPS)


def test_built_in_records_agree_with_each_other():
    for name, task in TASKS.items():
        check_metrics(task)
        assert task.name == name
        assert set(task.submission) <= set(task.test)
        assert TASKS[task.head].labels == task.labels
        assert (task.range is not None) == (task.kind == "regress")
    submitted = [file for task in TASKS.values() for file in task.submission.values()]
    assert len(set(submitted)) == len(submitted) == 11


def test_tasks_can_be_hashed_and_name_files_by_paths():
    assert len(set(TASKS.values())) == len(TASKS)
    named = {"files": {"train": "rows/train.csv"}, "unlabelled": ("rows/more.csv",)}
    task = Task(name="tickets", kind="regress", columns="text", **named)
    for more in (Path("rows/more.csv"), [Path("rows/more.csv")]):
        files = {"train": Path("rows/train.csv")}
        assert Task(name="tickets", kind="regress", columns="text", files=files, unlabelled=more) == task


def test_qnli_rank_has_one_group_per_question():
    rows, pairs = (load_rows(open_data("pocket"), TASKS[name], "train") for name in ("qnli_rank", "qnli"))
    assert TASKS["qnli_rank"].kind == "rank" and rows.texts == pairs.texts
    assert rows.labels.tolist() == pairs.labels.tolist()
    questions = rows.texts[0].to_pylist()
    assert len(set(rows.groups.tolist())) == len(set(questions)) < len(questions)
    assert len(set(zip(rows.groups.tolist(), questions, strict=True))) == len(set(questions))


def test_task_files_and_names_can_be_mixed(tmp_path):
    path = custom_task(tmp_path)
    assert names(f"rte,{path},{path}") == ["rte", "mine"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rt", ["unknown task 'rt'", "did you mean 'rte'"]),
        ("rte,paraphrases", ["'paraphrases'", "did you mean 'paraphrase'"]),
        (" , ", ["no task is named in ' , '", "cola"]),
        ([], ["no task is named", "cola"]),
        ("nowhere/mine.toml", ["nowhere/mine.toml"]),
        (".", ["unknown task '.'"]),
        ("/", ["unknown task '/'"]),
        ("x" * 300, ["unknown task 'xxx"]),
    ],
)
def test_invalid_task_lists_are_one_error(spec, words):
    with pytest.raises(UserError) as caught:
        resolve(spec)
    assert all(word in str(caught.value) for word in words)


def test_a_custom_task_in_memory_is_described() -> None:
    rows = [{"text": "a", "label": 0}]
    for data in ({"tickets": {"train": rows}}, open_data({"tickets": {"train": rows}})):
        with pytest.raises(UserError) as error:
            resolve("tickets", data=data)
        assert "did you mean" not in error.value.problem, "no name is similar"
        hint = "describe a task of your own, and pass it as `tasks`: `mtkd.Task(name='tickets', ...)`"
        assert error.value.hint == hint


def test_two_tasks_with_the_same_name_are_rejected(tmp_path):
    one, other = custom_task(tmp_path), custom_task(tmp_path, metrics=("matthews",))
    with pytest.raises(UserError, match="two different tasks are called 'mine'"):
        resolve(f"{one},{other}")
    changed = tmp_path / "changed.toml"
    changed.write_text('extends = "rte"\ncopies = 3\n', encoding="utf-8")
    with pytest.raises(UserError, match="two different tasks are called 'rte'"):
        resolve(f"nli,{changed}")
    assert resolve(str(changed))[0].copies == 3


def test_a_custom_task_with_a_metric_of_another_task_type_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"'pearson' does not suit task 'mine'[^$]*expected: accuracy"):
        resolve(str(custom_task(tmp_path, metrics=("pearson",))))


@pytest.mark.skipif(not (DATA / "glue").is_dir(), reason="the shared GLUE data is not here")
def test_columns_and_labels_match_the_hub_files():
    for path in sorted((DATA / "glue").glob("*/*.parquet")):
        task = TASKS[path.parent.name]
        assert path.stem in task.splits
        labels = pq.read_table(path, columns=[*task.columns, task.label])[task.label].unique().to_pylist()
        if labels in ([-1], [-1.0]):
            continue
        if task.kind == "classify":
            assert sorted(labels) == list(range(len(task.labels)))
        else:
            assert (min(labels), max(labels)) == task.range


def test_a_task_cannot_have_the_name_of_a_group():
    with pytest.raises(UserError, match="name = 'nli' is a built-in group of tasks: "):
        resolve(Task("nli", "classify", ("text",), labels=("no", "yes")))


def test_a_misspelt_task_file_gets_a_suggestion(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for name in ("tickets", "pipeline"):
        (job / f"{name}.toml").touch()
    for word in (str(job), str(job / "tickets")):
        with pytest.raises(UserError) as error:
            resolve(word)
        assert error.value.hint == f"a task of your own is named by its file: {job / 'tickets.toml'}"
    for data in (job, str(job)):
        for known in ([], [TASKS["rte"]]):
            with pytest.raises(UserError) as error:
                resolve("tickets", known, data)
            assert error.value.hint == f"a task of your own is named by its file: {job / 'tickets.toml'}"


def test_a_mistyped_task_file_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "tickets.toml").touch()
    with pytest.raises(UserError) as caught:
        resolve(str(tmp_path / "tickets.tml"))
    assert f"did you mean {str(tmp_path / 'tickets.toml')!r}?" in str(caught.value.hint)
