"""What `mtkd data check` prints."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from mtkd.cli.main import cli


@pytest.mark.parametrize(
    ("count", "printed"), [(6, "a 33%, b 13%, c 13%, d 13%, e 13%, f 13%"), (7, "7 labels: a 29% to g 12%")]
)
def test_of_many_labels_the_most_and_the_least_frequent_are_printed(
    count: int, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    labels = "abcdefg"[:count]
    rows = [f"text {n} {label},{label}" for label in labels for n in range(5 if label == "a" else 2)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    task = f'name = "topic"\nkind = "classify"\ncolumns = ["text"]\nlabels = {list(labels)}\n'
    (tmp_path / "topic.toml").write_text(f'{task}[files]\ntrain = "train.csv"\n')
    result = CliRunner().invoke(cli, ["data", "check", "--tasks", str(tmp_path / "topic.toml")])
    assert printed in result.stdout
