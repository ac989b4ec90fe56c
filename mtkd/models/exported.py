"""An exported model that can replace a torch model: `mtkd evaluate`, `predict` and `bench` accept both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from mtkd.model_files import exported
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import SavedModel
from mtkd.outputs import LOGITS, ModelOutput, OutputSpec
from mtkd.runtime import OnnxModel
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.encoding import TokenArrays


class ExportedModel(MultiTaskModel):
    """A model that ONNX Runtime runs on the CPU, with as many threads as torch uses; it returns only logits.

    Args:
        directory: the directory of the export.
        saved: the contents of its model.json.
    """

    def __init__(self, directory: Path, saved: SavedModel):
        nn.Module.__init__(self)
        self.runtime = OnnxModel(directory, threads=torch.get_num_threads())
        self.tasks = {task.head: task for task in saved.tasks}
        self.info = saved.info
        self.tokeniser = self.runtime.reader.tokeniser
        self.head_modules = nn.ModuleDict()
        config = saved.config
        # The attributes of an encoder that callers read.
        self.encoder: Any = SimpleNamespace(
            config=config, spec=config.spec, offers=OutputSpec(), input_format=config.input_format
        )
        self.encoder.positions = saved.info.max_length
        self._device = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, inputs: ModelInputs, head: str, need: OutputSpec = LOGITS) -> ModelOutput:
        """The logits of a batch; see `MultiTaskModel.forward`.

        Raises:
            UserError: anything else is requested.
        """
        if need != LOGITS:
            raise UserError("an exported model gives logits only", hint="use the model that was exported")
        texts = inputs.texts if inputs.joined is None else (inputs.joined,)
        assert texts is not None
        logits = self.runtime.run(tuple(map(_arrays, texts)), head)
        return ModelOutput(logits=torch.from_numpy(logits))

    def set_tasks(self, tasks: Iterable[Task]) -> None:
        """Refuse to be trained: training starts by choosing the heads."""
        raise exported("this is an exported model", "trained further")

    def save(self, directory: Path) -> None:
        """Refuse to be saved as a model."""
        raise UserError("an exported model cannot be saved again", hint="copy its directory")


def _arrays(tokens: Tokens) -> TokenArrays:
    parts = (None if part is None else part.cpu().numpy() for part in vars(tokens).values())
    return TokenArrays(*parts)  # type: ignore[arg-type]
