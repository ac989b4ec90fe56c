"""Recipes and grids have the values of the papers' tables, which are copied here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mtkd.grids import grid_names, load_grid
from mtkd.jobs.grid.grid_plan import GridInputs, plan_runs
from mtkd.losses.hidden_knowledge import HiddenKnowledge
from mtkd.losses.layer_maps import layer_pairs
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import ModelPair
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.recipes import load_settings
from mtkd.settings import DistillSettings
from tasks.glue import TASKS
from tasks.task_names import resolve

HSK = {"hsk-tinybert-4": 4, "hsk-rosita-6": 6}
# Liu et al. 2021, table 4: task -> length, batch, epochs on hidden states, rate of the predictions.
TABLE_4 = {
    "cola": (64, 32, 30, 2e-5),
    "sst2": (64, 32, 10, 2e-5),
    "qnli": (128, 64, 5, 2e-5),
    "mnli": (128, 64, 5, 5e-5),
    "mrpc": (128, 32, 20, 2e-5),
    "rte": (128, 32, 20, 2e-5),
    "stsb": (128, 32, 20, 2e-5),
}
# The titles of the panels of figures 9 and 8.
L_TOP = {
    "hsk-tinybert-4": {"cola": 8, "sst2": 8, "qnli": 10, "mnli": 12, "mrpc": 8, "rte": 10, "stsb": 10},
    "hsk-rosita-6": {"cola": 8, "sst2": 10, "qnli": 10, "mnli": 10, "mrpc": 10, "rte": 8, "stsb": 8},
}


def spec(layers: int, width: int = 48, heads: int = 12) -> EncoderSpec:
    states = frozenset(range(layers + 1))
    kinds = ("hidden", "query", "key", "value", "context", "scores")
    return EncoderSpec("bert", layers, width, width, heads, width, OutputSpec(**dict.fromkeys(kinds, states)))


def top_of(settings: DistillSettings, student: int, teacher: int) -> int:
    """The teacher layer that the student's last layer is compared with."""
    models = ModelPair(spec(student), spec(teacher), (TASKS["rte"],))
    return HiddenKnowledge.from_settings("hidden", settings.terms["hidden"], models).layer_pairs[-1][1]


@pytest.mark.parametrize("recipe", HSK)
@pytest.mark.parametrize("task", TABLE_4)
def test_hidden_knowledge_has_the_settings_of_table_4_and_figures_8_and_9(recipe: str, task: str) -> None:
    settings: DistillSettings = load_settings(recipe, "distill", {}, task)
    hidden, prediction = (stage.train for stage in settings.resolved_stages())
    length, batch, epochs, rate = TABLE_4[task]
    assert settings.student.max_length == length
    assert (hidden.batch_size, prediction.batch_size) == (batch, batch)
    assert (hidden.lr, hidden.schedule, hidden.warmup, hidden.epochs) == (5e-5, "constant", 0, epochs)
    assert (prediction.lr, prediction.schedule, prediction.epochs) == (rate, "linear", 5)
    assert top_of(settings, HSK[recipe], 12) == L_TOP[recipe][task]


def test_the_top_layer_may_be_a_fraction_but_covers_the_student() -> None:
    def top(value: Any, student: int, teacher: int) -> int:
        settings = load_settings("hsk-tinybert-4", "distill", {"terms.hidden.top": value})
        return top_of(settings, student, teacher)

    assert top(0.8333, 4, 12) == 10 and top(0.6667, 6, 12) == 8
    assert top(0.5, 4, 9) == 5, "half up"
    assert top(0.6667, 6, 6) == 6, "at least one teacher layer for each of the student's"
    assert top("none", 4, 12) == 12 and top(11, 4, 12) == 11


@pytest.mark.parametrize("recipe", HSK)
def test_grids_hold_everything_and_the_uniform_map_as_reference(recipe: str) -> None:
    grid = load_grid(f"{recipe}-grid", {}, {})
    found = []
    for name in ("all hidden states", "all hidden states, g(l, 12)"):
        settings = load_settings(grid.recipe_of(name), "distill", grid.set | grid.cells[name].set, "cola")
        hidden = settings.terms["hidden"]
        assert (hidden.depth, hidden.tokens, hidden.width) == (HSK[recipe] + 1, None, 1.0)
        found.append(top_of(settings, HSK[recipe], 12))
    assert found == [L_TOP[recipe]["cola"], 12]


def test_figures_3_to_7_vary_one_dimension() -> None:
    whole = {"depth": None, "tokens": None, "width": 1.0}
    for number, free in ((3, "depth"), (4, "tokens"), (5, "tokens"), (7, "width")):
        grid = load_grid(f"hsk-figure-{number}", {}, {})
        for name, cell in grid.cells.items():
            hidden = load_settings(grid.recipe_of(name), "distill", grid.set | cell.set).terms["hidden"]
            layers = HSK[grid.recipe_of(name)] + 1
            kept = {key: getattr(hidden, key) for key in whole if key != free}
            kept = {key: None if key == "depth" and value == layers else value for key, value in kept.items()}
            assert kept == {key: value for key, value in whole.items() if key != free}, (number, name)


def test_the_tuning_grid_has_both_students_epochs_and_rates() -> None:
    grid = load_grid("hsk-tuning", {}, {})
    found = set()
    for name, cell in grid.cells.items():
        settings = load_settings(grid.recipe_of(name), "distill", grid.set | cell.set, "rte")
        train = settings.resolved_stages()[1].train
        found.add((grid.recipe_of(name), train.epochs, train.lr))
        assert settings.terms["hidden"].top is None, "tuned for the uniform map"
    assert found == {(recipe, epochs, lr) for recipe in HSK for epochs in (5, 10) for lr in (2e-5, 5e-5)}


@pytest.mark.parametrize(("layers", "width", "relation_heads"), [(12, 768, 48), (24, 1024, 64)])
def test_minilmv2_has_48_relation_heads_for_base_and_64_for_large_teachers(
    layers: int, width: int, relation_heads: int
) -> None:
    for recipe, student in (("minilmv2-6x384", spec(6, 384)), ("minilmv2-12x768", spec(12, 768))):
        settings = load_settings(recipe, "distill", {}).terms["relation"]
        models = ModelPair(student, spec(layers, width), (TASKS["rte"],))
        assert (
            loss_class("relation").from_settings("relation", settings, models)._relation_heads
            == relation_heads
        )


def test_minilmv2_trains_as_in_section_4_1() -> None:
    for recipe in ("minilmv2-6x384", "minilmv2-6x768", "minilmv2-12x384", "minilmv2-12x768"):
        settings = load_settings(recipe, "distill", {})
        train, encoder = settings.train, settings.student.transformer
        assert (train.batch_size, train.lr, train.steps, train.warmup * train.steps) == (
            256,
            6e-4,
            400_000,
            4000,
        )
        assert (train.schedule, train.weight_decay, train.optimizer) == ("linear", 0.01, "adamw")
        assert settings.student.max_length == 512 and settings.pack_texts
        assert (encoder.heads, encoder.init) == (12, "random")
        assert f"{encoder.layers}x{encoder.hidden_size}" == recipe.removeprefix("minilmv2-")
        assert train.betas == ((0.9, 0.98) if recipe.endswith("12x768") else None), "torch's are 0.9, 0.999"


def test_minilm_and_distilbert_compare_the_last_layers_of_any_teacher() -> None:
    for loss in ("attention_kl", "hidden_cosine"):
        default = load_settings("minilm-6", "distill", {"terms.attention": {"loss": loss}}).terms["attention"]
        assert default.layer_map == "last-only", "also in a recipe of one's own"
    for recipe, names in (("minilm-6", ("relation", "attention")), ("distilbert-6", ("cosine",))):
        terms = load_settings(recipe, "distill", {}).terms
        for name in names:
            assert layer_pairs(terms[name].layer_map, spec(6), spec(24)) == [(6, 24)], "minilmv2 would be 21"


def test_minilmv2_is_fine_tuned_as_in_appendix_c() -> None:
    glue = load_settings("minilmv2-finetune", "finetune", {}, "rte")
    assert glue.learning_rates == [1e-5, 1.5e-5, 2e-5, 3e-5, 5e-5] and glue.epoch_counts == [3, 5, 10]
    assert (glue.max_length, glue.train.batch_size, glue.train.warmup) == (128, 32, 0.1)
    assert glue.train.weight_decay == 0.01
    assert load_settings("minilmv2-finetune", "finetune", {}, "cola").epoch_counts == [25]
    squad = load_settings("minilmv2-finetune", "finetune", {}, "squad_v2")
    assert squad.learning_rates == [3e-5, 6e-5, 8e-5, 9e-5] and squad.epoch_counts == [3]
    assert squad.max_length == 384
    for task, length, batch, epochs in (("xnli", 256, 64, 10), ("mlqa", 512, 32, 4)):
        tuned = load_settings("minilmv2-finetune", "finetune", {}, task)
        assert tuned.learning_rates == [3e-5, 4e-5, 5e-5, 6e-5] and tuned.epoch_counts == [epochs]
        assert (tuned.max_length, tuned.train.batch_size) == (length, batch)
        # Section 4.3: the joint development set of all languages, and the English one.
        assert tuned.train.metric == {"xnli": "score", "mlqa": "mlqa/validation_en/f1"}[task]
    assert load_settings("minilmv2-finetune", "finetune", {"train.epochs": 2}, "cola").epoch_counts == []


def test_minilmv2_grids_follow_appendix_c() -> None:
    names = [name for name in grid_names() if name.startswith("minilmv2-")]
    assert len(names) == 12
    for name in names:
        grid = load_grid(name, {}, {})
        for cell in grid.cells:
            assert grid.recipe_of(cell) == "minilmv2-finetune" and not grid.sets_of(cell), (name, cell)
    ours = {name.removeprefix("minilmv2-"): load_grid(name, {}, {}).tasks for name in names}
    assert ours["figure-2-xlmr"] == ["xnli"]
    assert ours["table-5"] == ["xnli", "mlqa"] and len(ours["table-1"]) == 8
    nine = {*ours["table-1"], "stsb"}  # tables 2, 3 and 9 also have STS-B
    assert all({*ours[table]} == nine for table in ("table-2", "table-3", "table-9"))
    three = ["squad_v2", "mnli", "sst2"]
    assert ours["table-4"] == ours["table-7"] == ours["table-10"] == three and ours["table-8"] == [
        "mnli",
        "squad_v2",
    ]


def test_minilmv2_fine_tunes_one_student_with_several_seeds() -> None:
    for name in grid_names():
        if name.startswith("minilmv2-"):
            grid = load_grid(name, {}, {})
            assert {first.seed for cell in grid.cells if (first := grid.first_of(cell))} == {0}, name
            assert grid.seeds == ([0, 1, 2, 3] if name[9:] in ("table-1", "table-3") else [0]), name


def test_minilmv2_multilingual_students_train_for_a_million_steps() -> None:
    for grid in ("minilmv2-table-5", "minilmv2-figure-2-xlmr"):
        for name, settings in first_settings(grid).items():
            assert (settings.train.steps, settings.train.warmup) == (1_000_000, 4000), name
            assert settings.student.transformer.embedding_size is None, "117M weights with 12 layers"


def test_figure_2_of_minilmv2_takes_the_same_layers_of_both_large_teachers() -> None:
    english, multilingual = (
        {
            name: settings.terms["relation"].layer_map
            for name, settings in first_settings(f"minilmv2-figure-2-{teacher}").items()
        }
        for teacher in ("large", "xlmr")
    )
    assert english == multilingual == {f"layer {n}": [(6, n)] for n in range(16, 25)}


def test_mkd_trains_as_in_section_6_2() -> None:
    for recipe in ("mkd-lstm", "mkd-transformer"):
        settings = load_settings(recipe, "distill", {})
        train = settings.train
        assert (train.optimizer, train.lr, train.batch_size, train.epochs) == ("adam", 5e-4, 128, 16)
        assert train.max_grad_norm == 1.0 and settings.terms["logits"].reduction == "sum"
        assert settings.student.head_hidden_size == 512
    teacher = load_settings("mkd-refine", "refine", {}).train
    assert (teacher.epochs, teacher.lr) == (1, 5e-4)
    tuned = load_settings("mkd-finetune", "finetune", {})
    assert tuned.learning_rates == [1e-5, 1.5e-5, 5e-5]
    assert (tuned.train.epochs, tuned.train.patience, tuned.train.metric) == (16, None, "loss")


def test_table_2_of_mkd_has_single_task_and_joint_students() -> None:
    grid = load_grid("mkd-table-2", {}, {})
    inputs = GridInputs("pocket", None, Path("out"), encoder="E", corpus="copies")
    runs: dict[str, list[str]] = {}
    for planned in plan_runs(grid, inputs)[1:]:
        runs.setdefault(planned.cell[0], []).append(planned.task_spec)
        assert ("--corpus" in planned.trained[-1].argv) == (planned.cell[0] != "1")
    seven = ["sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    assert runs == {"1": seven, "2": seven, **{row: [",".join(seven)] for row in "345"}}


@pytest.mark.parametrize(
    "name", ["mlkd-table-1", "mlkd-table-2", "mlkd-table-7", "mkd-table-1", "waldorf-accuracy"]
)
def test_tables_have_a_student_of_labels_alone_with_as_many_steps_as_the_method(name: str) -> None:
    method, control, *_ = (cells := load_grid(name, {}, {}).cells)
    assert control == f"{method}, labels" and cells[control].steps_of == method
    assert cells[control].set["supervision"] == "labels" and not cells[control].corpus


@pytest.mark.parametrize("name", ["mkd-table-1", "mkd-table-2", "mkd-table-3"])
def test_the_tables_of_mkd_refine_one_teacher_on_all_tasks(name: str) -> None:
    inputs = GridInputs("pocket", None, Path("out"), encoder="E", corpus="copies")
    teacher, *students = plan_runs(load_grid(name, {}, {}), inputs)
    words = teacher.jobs[0].argv
    assert words[:1] == ("refine",) and "mkd-refine" in words
    tasks = words[words.index("--tasks") + 1]
    assert [task.name for task in resolve(tasks)] == [task.name for task in resolve("mkd")]
    for run in students:
        distilled = next(job.argv for job in run.jobs if job.argv[0] == "distill")
        assert distilled[distilled.index("--teacher") + 1] == str(teacher.jobs[0].out)


def test_tinybert_trains_for_the_epochs_of_the_hidden_knowledge_paper() -> None:
    def train(task: str) -> Any:
        return load_settings("tinybert-4", "distill", {}, task).resolved_stages()[0].train

    found = {task: (train(task).epochs, train(task).batch_size) for task in TABLE_4}
    assert found == {
        "cola": (50, 32), "sst2": (10, 32), "qnli": (10, 256), "mnli": (5, 256),
        "mrpc": (20, 32), "rte": (20, 32), "stsb": (20, 32),
    }  # fmt: skip


# Zhang et al. 2024, table 9: task -> length, batch, rate, epochs of the two stages.
TABLE_9 = {
    "cola": (64, 32, 1e-5, 50, 30),
    "mnli": (128, 32, 3e-5, 6, 6),
    "mrpc": (128, 32, 2e-5, 20, 15),
    "sst2": (64, 32, 2e-5, 15, 10),
    "stsb": (128, 32, 3e-5, 20, 15),
    "qqp": (128, 32, 2e-5, 6, 6),
    "qnli": (128, 32, 2e-5, 10, 10),
    "rte": (128, 32, 2e-5, 20, 15),
    "squad": (384, 16, 3e-5, 4, 3),
    "squad_v2": (384, 16, 3e-5, 4, 3),
}


@pytest.mark.parametrize("recipe", ["mlkd-bert-4", "mlkd-bert-6"])
@pytest.mark.parametrize("task", TABLE_9)
def test_mlkd_has_the_settings_of_table_9(recipe: str, task: str) -> None:
    settings = load_settings(recipe, "distill", {}, task)
    first, second = (stage.train for stage in settings.resolved_stages())
    length, batch, rate, *epochs = TABLE_9[task]
    assert settings.student.max_length == length
    assert [first.epochs, second.epochs] == epochs
    assert {(train.batch_size, train.lr) for train in (first, second)} == {(batch, rate)}
    assert settings.terms["sc"].temperature == 0.07 and settings.terms["kd"].temperature == 1.0


def first_settings(grid_name: str) -> dict[str, Any]:
    """Cell -> the settings of its student on plain text."""
    grid = load_grid(grid_name, {}, {})
    firsts = {name: grid.first_of(name) for name in grid.cells}
    return {
        name: load_settings(first.recipe, "distill", first.set) for name, first in firsts.items() if first
    }


def test_minilmv2_tables_2_to_9_have_the_students_of_the_paper() -> None:
    shapes = {2: (6, 768, None), 3: (12, 768, None), 4: (12, 384, 128), 9: (12, 384, 128)}
    for number, shape in shapes.items():
        for name, settings in first_settings(f"minilmv2-table-{number}").items():
            encoder = settings.student.transformer
            assert (encoder.layers, encoder.hidden_size, encoder.embedding_size) == shape, (number, name)
            assert (settings.train.steps, settings.train.batch_size) == (400_000, 256)
    ours, more = first_settings("minilmv2-table-9").values()
    assert len(ours.terms["relation"].relations) == 3 and len({*more.terms["relation"].relations}) == 9
    last, middle, v2 = first_settings("minilmv2-table-4").values()
    student, teacher = spec(12, 384, heads=16), spec(24, 1024, heads=16)
    for settings, layer in ((last, 24), (middle, 21)):
        assert settings.student.transformer.heads == 16, "those of BERT-large"
        assert settings.terms["relation"].relations == ["v-v"]
        assert {*settings.terms} == {"relation", "attention"}
        for term in settings.terms.values():
            assert layer_pairs(term.layer_map, student, teacher) == [(12, layer)]
            models = ModelPair(student, teacher, (TASKS["rte"],))
            assert loss_class(term.loss).from_settings("x", term, models) is not None
    assert {*v2.terms} == {"relation"} and v2.student.transformer.heads == 12


def test_mkd_table_1_has_the_teacher_and_both_students_fine_tuned() -> None:
    seven = ["sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    grid = load_grid("mkd-table-1", {}, {})
    teacher, *students = plan_runs(
        grid, GridInputs("pocket", None, Path("out"), encoder="E", corpus="copies")
    )
    assert teacher.jobs[0].argv[0] == "refine" and "mkd-refine" in teacher.jobs[0].argv
    control = students.pop(1)
    assert control.cell == "MKD-LSTM, labels" and "--corpus" not in control.trained[0].argv
    assert [run.cell for run in students] == ["MKD-LSTM", "MKD-Transformer"]
    for run, recipe in zip(students, ("mkd-lstm", "mkd-transformer"), strict=True):
        distilled = run.trained[0].argv
        assert distilled[:4] == ("distill", recipe, "--tasks", ",".join(seven))
        assert distilled[4:8] == ("--teacher", str(teacher.jobs[0].out), "--corpus", "copies")
        assert [job.argv[4] for job in run.scored] == seven
        assert all(job.argv[5:7] == ("--recipe", "mkd-finetune") for job in run.scored)
    settings = load_settings("mkd-transformer", "distill", grid.sets_of("MKD-Transformer"))
    start = settings.student.transformer
    assert (start.init, start.layers, start.init_layers) == ("bert-base-uncased", 3, "first")


def test_mlkd_tables_1_and_2_compare_students_of_equal_shape() -> None:
    glue, squad = (load_grid(f"mlkd-table-{number}", {}, {}) for number in (1, 2))
    assert {*glue.tasks} == {"mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte"}
    assert squad.tasks == ["squad", "squad_v2"]
    for grid in (glue, squad):
        for name in grid.cells:
            for task in grid.tasks:
                settings = load_settings(grid.recipe_of(name), "distill", grid.sets_of(name), task)
                assert settings.student.transformer.layers == int(re.sub(r"\D", "", name)), name
                assert task in glue.tasks or settings.student.max_length == 384, name


def test_table_2_of_hidden_knowledge_compares_all_with_the_crucial_part() -> None:
    grid = load_grid("hsk-table-2", {}, {})
    assert grid.tasks == [*TABLE_4] and grid.seeds == [0, 1, 2], "means of three runs"
    kept = {}
    for name in grid.cells:
        settings = load_settings(grid.recipe_of(name), "distill", grid.sets_of(name), "rte")
        hidden = settings.terms["hidden"]
        kept[name] = (top_of(settings, settings.student.transformer.layers, 12), hidden.depth, hidden.tokens)
        assert hidden.width == (0.1 if "compressed" in name else 1.0)
    everything = (12, None, None)
    assert kept == {
        "TinyBERT4": everything, "TinyBERT4, compressed": (10, 1, 9),
        "ROSITA6": everything, "ROSITA6, compressed": (8, 1, 9),
    }  # fmt: skip


def test_the_accuracy_table_of_waldorf_has_one_length() -> None:
    grid = load_grid("waldorf-accuracy", {}, {})
    for name, cell in grid.cells.items():
        settings = load_settings(grid.recipe_of(name), "distill", grid.sets_of(name), "squad_v2")
        assert settings.student.max_length == 384 == grid.bench.seq_len
        assert cell.corpus is (name == "WaLDORf"), "only WaLDORf learns from generated questions"
