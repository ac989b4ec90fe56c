"""Arguments of the library in messages become options of the command line."""

import pytest

from mtkd.cli.flags import as_options


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("name another directory with `out`", "name another directory with --out"),
        ("start over with `overwrite=True`", "start over with --overwrite"),
        ("`eval_limit=400` keeps fewer", "--eval-limit 400 keeps fewer"),
        ("a lower `train.lr=1e-5`", "a lower --set train.lr=1e-5"),
        ('`terms.kd.task_types=["classify"]`', "--set 'terms.kd.task_types=[\"classify\"]'"),
        ("the column `label` and `mtkd recipes`", "the column `label` and `mtkd recipes`"),
        ("`round_trip=False` keeps more", "--no-round-trip keeps more"),
        ("`mtkd.show_recipe(NAME)` lists all settings", "mtkd recipes show NAME --all lists all settings"),
        ("`mtkd.list_recipes()` lists all recipes", "mtkd recipes lists all recipes"),
        ("a run of `mtkd.refine` as `teacher=DIR`", "a run of mtkd refine as --teacher DIR"),
        ("leave out `without=+ questions`", "leave out --without '+ questions'"),
        ("`pairs=cross-encoder`", "--set pairs=cross-encoder"),
        ("`max_length=64`", "--set max_length=64"),
        ("`limit` of `train.lr`", "--limit of `train.lr`"),
        ("`teacher_labels={'rte': ['a', 'b', ...]}`", "--teacher-labels rte=a,b,..."),
        ("`teacher_labels={'x': ['not good', \"isn't\"]}`", """--teacher-labels 'x=not good,isn'"'"'t'"""),
        ("`teacher_labels={'x': ['a, b', 'c']}`", """--teacher-labels 'x=["a, b", "c"]'"""),
    ],
)
def test_arguments_become_options(message: str, shown: str) -> None:
    assert as_options(message) == shown
