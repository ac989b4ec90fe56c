"""The teacher as the stages know it: what it is before its weights are loaded, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mtkd.model import MultiTaskModel, SavedModel, digest_model, is_saved_model, read_saved
from mtkd.students.build import Ancestry, AnyConfig
from mtkd.students.hf_config import TransformerConfig, digest_encoder, locate, pretrained_config
from tasks.tokenise import Tokeniser


@dataclass(frozen=True)
class TeacherRef:
    """A teacher by name: a model of ours (a run of refine, distill or finetune), or a pretrained encoder.

    Attributes:
        name: as it was given.
        saved: what the model says of itself; None for an encoder without task heads.
        config: its encoder's configuration.
    """

    name: str
    saved: SavedModel | None
    config: AnyConfig

    @staticmethod
    def find(name: str, heads: bool) -> TeacherRef:
        """Look at a teacher; no weights are loaded.

        Args:
            heads: True if task heads are wanted, which a pretrained encoder does not have.

        Raises:
            UserError: there is no such model or encoder, or it has no heads.
        """
        if heads or is_saved_model(Path(name)):
            saved = read_saved(Path(name))
            return TeacherRef(name, saved, saved.config)
        return TeacherRef(name, None, pretrained_config(name))

    @property
    def ancestry(self) -> Ancestry:
        """What a student of this teacher may start from."""
        return Ancestry(self.config, self.saved.info.base if self.saved else self.name)

    @property
    def digest(self) -> str | None:
        """A digest of the weights; None for an encoder of the hub."""
        return digest_model(Path(self.name)) if self.saved else digest_encoder(self.name)

    def tokeniser(self) -> Tokeniser:
        """The teacher's tokeniser."""
        place = Path(self.name)
        if not self.saved:
            return Tokeniser.load(locate(self.name))
        return Tokeniser.load(str(place if (place / "model.json").is_file() else place / "model"))

    def load(self, max_length: int | None) -> MultiTaskModel:
        """The teacher itself.

        Args:
            max_length: tokens it reads of a row; None = as many as it was trained on.
        """
        if self.saved is None:
            return MultiTaskModel.without_heads(self.name, max_length or 128)
        model = MultiTaskModel.load(Path(self.name))
        if max_length is not None and isinstance(self.config, TransformerConfig):
            model.read_at_most(max_length)
        return model
