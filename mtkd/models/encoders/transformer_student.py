"""The settings of Transformer students, and the choice of the encoder that they start from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from mtkd.models.encoders.bi_encoders import bi_encoder_for
from mtkd.models.encoders.encoder import StudentSettings
from mtkd.models.encoders.transformer_init import (
    first_available,
    require_encoder,
    require_teacher_vocabulary,
    source_name,
)
from mtkd.models.encoders.transformer_settings import TransformerSettings
from mtkd.models.initialisation import InitSpec
from tasks.common.hub_loading import refuse_path
from tasks.common.urls import url_of
from tasks.task import Task


class TransformerStudentSettings(StudentSettings):
    """The settings of a Transformer student."""

    kind: Literal["transformer"] = "transformer"
    transformer: TransformerSettings = TransformerSettings()

    @property
    def needs_teacher_weights(self) -> bool:
        """True if the student's layers or embeddings are copied from the teacher."""
        return super().needs_teacher_weights or self.transformer.init == "teacher"

    @property
    def needs_importance(self) -> bool:
        """True if the teacher is pruned into the student."""
        return self.transformer.prune

    def pretrained_encoder(self, init_spec: InitSpec) -> str | None:
        """The name of the encoder that `init` names; None for the teacher and for random weights."""
        if self.transformer.init in ("teacher", "random"):
            return None
        return source_name(self.transformer, init_spec.encoder)

    def check_start(self) -> None:
        """Check that `init` names no directory that does not exist; a name on the hub is not looked up."""
        init = self.transformer.init
        if isinstance(init, str) and not url_of(init) and not Path(init).exists():
            refuse_path("encoder that the student starts from", init)

    def resolved(self, init_spec: InitSpec) -> tuple[StudentSettings, list[str]]:
        """The settings with the first of several encoders that the student can start from.

        A checkpoint stands for the encoder that it was fine-tuned from, whose name is unknown. So a student
        of a checkpoint in memory starts from the teacher where it would start from the checkpoint's files.
        """
        self.check_start()
        transformer = self.transformer
        if init_spec.in_memory and transformer.init == "encoder" and not transformer.prune:
            transformer = transformer.model_copy(update={"init": "teacher"})
        reads_own_tokens = self.vocabulary == "encoder"
        transformer, warnings = first_available(transformer, init_spec, reads_own_tokens=reads_own_tokens)
        if reads_own_tokens:
            require_encoder(transformer)
        elif self.vocabulary in ("teacher", "pruned"):
            require_teacher_vocabulary(transformer, init_spec)
        return self.model_copy(update={"transformer": transformer}), warnings

    def for_tasks(self, tasks: Iterable[Task]) -> StudentSettings:
        """The settings, in which `pairs` lists heads instead of tasks.

        Raises:
            UserError: it lists a task that a bi-encoder cannot read.
        """
        if isinstance(self.transformer.pairs, str):
            return self
        pairs = bi_encoder_for(self.transformer.pairs, tasks)
        return self.model_copy(update={"transformer": self.transformer.model_copy(update={"pairs": pairs})})
