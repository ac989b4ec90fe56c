"""The order of imports between packages (docs/architecture.md)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
OURS = ("tasks", "augment", "mtkd")
HEAVY = ("torch", "transformers", "datasets", "sklearn", "scipy", "accelerate")

# Inside mtkd, a package imports only packages of its own row and of the rows above.
ROWS = (
    ("output_files",),
    (
        "device",
        "dtypes",
        "strict_settings",
        "selection",
        "outputs",
        "model_files",
        "run_record",
        "runtime",
        "time_trial",
        "torch_state",
    ),
    (
        "settings",
        "train_settings",
        "setting_errors",
        "precision",
        "models",
        "losses",
        "teachers",
        "knowledge_store",
    ),
    ("evaluation", "onnx_export"),
    ("training",),
    ("recipes", "grids"),
    ("jobs",),
    ("reporting",),
    ("api",),
    ("cli", "pipelines"),
)
ROW_OF = {f"mtkd.{part}": number for number, parts in enumerate(ROWS, 1) for part in parts}
# What augment may import of mtkd, and the parts of mtkd that may import augment.
BELOW_AUGMENT = (
    "output_files",
    "device",
    "outputs",
    "torch_state",
    "train_settings",
    "precision",
    "models",
    "losses",
    "teachers",
    "training",
)
ABOVE_AUGMENT = ("cli", "api")

# Modules that import each other: one of them only inside a function, or for its annotations.
CIRCLES = (
    ("mtkd.api.argument_types", "mtkd.api.model"),
    ("mtkd.models.exported", "mtkd.models.multitask"),
    ("mtkd.models.encoders.encoder", "mtkd.models.initialisation"),
    ("tasks.data.combined_source", "tasks.data.sources"),
    ("tasks.data.directory_source", "tasks.data.sources"),
    ("tasks.data.sources", "tasks.data.table_source"),
    ("tasks.task", "tasks.task_types.task_type"),
    ("tasks.task_file", "tasks.task_names"),
)

FILES = [path for package in OURS for path in sorted((REPOSITORY / package).rglob("*.py"))]


def imported(path: Path) -> Iterator[str]:
    """Return the modules of this project that a file imports anywhere."""
    package = path.relative_to(REPOSITORY).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            names = [f"{base}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] in OURS)


def allowed(importer: str, name: str) -> bool:
    """Whether the module `importer` may import `name`, both dotted."""
    package, wanted = importer.split(".")[0], name.split(".")[0]
    if package == "augment" and wanted == "mtkd":
        return name.split(".")[1] in BELOW_AUGMENT
    if package == "mtkd" and wanted == "augment":
        return importer.split(".")[1:2] in [[part] for part in ABOVE_AUGMENT]
    if package != wanted:
        return wanted == "tasks"
    if importer.startswith("tasks.data.") and name.startswith("tasks.checks."):
        return False
    if package != "mtkd" or importer == "mtkd":  # mtkd/__init__.py offers names of all rows
        return True
    above, below = (".".join(module.split(".")[:2]) for module in (importer, name))
    return ROW_OF.get(below, 0) <= ROW_OF.get(above, 0)


def module_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_follow_the_layout(path):
    module = module_of(path)
    if module.startswith("mtkd."):
        assert ".".join(module.split(".")[:2]) in ROW_OF, f"{module} has no row in the layout"
    wrong = [name for name in imported(path) if not allowed(module, name)]
    assert not wrong, f"{module} may not import {wrong}"


def test_no_two_modules_import_each_other():
    modules = {module_of(path): path for path in FILES}
    imports: set[tuple[str, str]] = set()
    for module, path in modules.items():
        for name in imported(path):
            found = name if name in modules else name.rpartition(".")[0]
            imports.add((module, found))
    circles = {frozenset(pair) for pair in imports if pair[::-1] in imports and pair[0] != pair[1]}
    # `mtkd` names what its parts offer.
    circles = {circle for circle in circles if not circle & {"mtkd"}}
    assert circles == {frozenset(circle) for circle in CIRCLES}


def test_the_import_rule_on_examples():
    assert allowed("augment.masking", "tasks.data.rows.Rows")
    assert allowed("mtkd.cli.augment_group", "augment.masking")
    assert allowed("mtkd.jobs.refine", "mtkd.training.trainer.Trainer")
    assert allowed("mtkd.jobs.refine", "mtkd.__version__")
    assert allowed("mtkd.api.training", "mtkd.jobs.refine")
    assert not allowed("mtkd.jobs.refine", "mtkd.api.training")
    assert not allowed("tasks.data.rows", "augment.masking")
    assert allowed("tasks.checks.overlap", "tasks.data.rows")
    assert not allowed("tasks.data.rows", "tasks.checks.overlap")
    assert allowed("augment.masking", "mtkd.training.checkpoint.Position")
    assert not allowed("augment.masking", "mtkd.jobs.request")
    assert not allowed("augment.masking", "mtkd.evaluation.scoring")
    assert not allowed("mtkd.output_files.sharded_output", "mtkd.outputs")
    assert not allowed("mtkd.training.trainer", "augment.masking")
    assert not allowed("mtkd.training.trainer", "mtkd.jobs.refine")
    assert not allowed("mtkd.evaluation.scoring", "mtkd.training.trainer")


@pytest.mark.parametrize(
    "module", ["mtkd.cli.main", "tasks.task_names", "tasks.data.sources", "tasks.checks.data_report"]
)
def test_modules_start_without_heavy_packages(module):
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""
