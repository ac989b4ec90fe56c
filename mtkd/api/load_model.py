"""`mtkd.load`: load a saved model from a directory or from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from mtkd.api.model import Model
from mtkd.models.encoders.pretrained_config import locate
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import is_saved_model, model_directory
from mtkd.output_files.remote_paths import remote_paths
from mtkd.teachers.transformers_checkpoint import checkpoint_directory
from tasks.common.arguments import Device, checked
from tasks.common.errors import UserError
from tasks.common.hub_loading import CHECKPOINT_FILES, DEFAULT_ENCODER, load_named


@checked
@remote_paths("name")
def load(name: str | Path, *, device: Device | None = None) -> Model:
    """Load a saved model.

    Args:
        name: a run directory, the `model/` inside it, or the name of an mtkd model on the Hugging Face hub. A
            pretrained encoder (such as "minilm") gives a model without task heads.
        device: where the model runs; by default the GPU if there is one.

    Raises:
        UserError: there is no such model, its files are damaged, or it is a fine-tuned transformers model,
            whose head would be lost (`mtkd.evaluate`, and `teacher` in `mtkd.distill`, take one).
    """
    if is_saved_model(Path(name)):
        return Model(name, device=device)
    copy = None if Path(name).is_dir() else _hub_copy(str(name))
    if copy is not None:
        return Model(copy, device=device)
    if checkpoint_directory(str(name)) is not None:
        raise UserError(
            f"{name} is a fine-tuned transformers model, which does not know its task",
            expected="an mtkd model, or a pretrained encoder without a head",
            hint=f"`mtkd.evaluate({str(name)!r}, DATA, TASK)` scores it, and `mtkd.distill` takes it as "
            f"`teacher={str(name)!r}`",
        )
    if Path(name).is_dir() and not (Path(locate(str(name))) / "config.json").is_file():
        model_directory(Path(name))  # raises an error that describes the directory
    return Model(MultiTaskModel.without_heads(str(name), 128), device=device)


def _hub_copy(name: str) -> Path | None:
    """Download an mtkd model from the hub to the local cache; None if the name is that of an encoder."""
    from huggingface_hub import snapshot_download

    if name == DEFAULT_ENCODER:
        return None

    def fetch(repository: str, local_files_only: bool) -> str:
        patterns = list(CHECKPOINT_FILES)
        return snapshot_download(repository, local_files_only=local_files_only, allow_patterns=patterns)

    directory = Path(load_named(fetch, name, "model"))
    return directory if is_saved_model(directory) else None
