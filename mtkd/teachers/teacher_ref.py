"""A teacher, by name or as an object: what is known before its weights are loaded, and how to load them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mtkd.knowledge_store.store_manifest import StoreManifest
from mtkd.model_files import refuse_export
from mtkd.models.digest import digest_weights
from mtkd.models.encoders.encoder import EncoderConfig
from mtkd.models.encoders.pretrained_config import digest_encoder, locate, pretrained_config
from mtkd.models.initialisation import InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import (
    ModelInfo,
    SavedModel,
    digest_model,
    is_saved_model,
    read_description,
    read_saved,
    saved_tokeniser,
    write_description,
)
from mtkd.output_files.worker_pools import other_model, path_for_workers
from tasks.common.digests import write_digests
from tasks.common.errors import UserError
from tasks.tokens.tokeniser import Tokeniser


@dataclass(frozen=True)
class TeacherRef:
    """A teacher by name: an mtkd model (from refine, distill or finetune) or a pretrained encoder.

    Attributes:
        name: the name or directory given by the user.
        saved: the description of an mtkd model; None for an encoder without task heads.
        config: the configuration of the encoder.
        store: the knowledge store that the teacher was read from; None if it was given directly.
        manifest: the manifest of that store.
    """

    name: str
    saved: SavedModel | None
    config: EncoderConfig
    store: Path | None = None
    manifest: StoreManifest | None = None

    @staticmethod
    def find(name: str, heads: bool) -> TeacherRef:
        """Find a teacher without loading its weights.

        Args:
            heads: True if task heads are required, which a pretrained encoder does not have.

        Raises:
            UserError: there is no such model or encoder, or it has no task heads.
        """
        if heads or is_saved_model(Path(name)):
            saved = read_saved(Path(name))
            refuse_export(name, "a teacher")
            return TeacherRef(name, saved, saved.config)
        return TeacherRef(name, None, pretrained_config(name))

    @staticmethod
    def of_store(store: Path, manifest: StoreManifest) -> TeacherRef:
        """The teacher of a knowledge store; its weights need not exist any more."""
        saved = read_description(store / "teacher")
        heads = saved if saved.tasks else None
        return TeacherRef(manifest.teacher.name, heads, saved.config, store, manifest)

    def describe(self, directory: Path, max_length: int) -> None:
        """Write the description that `of_store` reads: the teacher without its weights."""
        info = replace(self.saved.info if self.saved else ModelInfo(base=self.name), max_length=max_length)
        tasks = self.saved.tasks if self.saved else []
        directory.mkdir(parents=True, exist_ok=True)
        self.tokeniser().save(directory)
        write_description(directory, self.config, tasks, info)
        write_digests(directory)

    @property
    def init_spec(self) -> InitSpec:
        """What a student of this teacher can be initialised from."""
        saved = read_description(self.store / "teacher") if self.store else self.saved
        encoder = saved.info.base if saved else self.name
        return InitSpec(self.config, encoder, load_tokeniser=self.tokeniser)

    @property
    def digest(self) -> str | None:
        """A digest of the weights; None for an encoder from the hub."""
        if self.manifest:
            return self.manifest.teacher.digest
        return digest_model(Path(self.name)) if self.saved else digest_encoder(self.name)

    def tokeniser(self) -> Tokeniser:
        """The teacher's tokeniser."""
        directory = self.store / "teacher" if self.store else Path(self.name)
        if not self.saved and not self.store:
            return Tokeniser.load(locate(self.name))
        return saved_tokeniser(directory if (directory / "model.json").is_file() else directory / "model")

    def load(self, max_length: int | None) -> MultiTaskModel:
        """Load the teacher model.

        Args:
            max_length: maximum number of tokens per row; None = the value it was trained with.

        Raises:
            UserError: the weights of a store's teacher are missing or have changed.
        """
        if self.manifest:
            self._require_weights(self.manifest)
        if self.saved is None:
            return MultiTaskModel.without_heads(self.name, max_length)
        model = MultiTaskModel.load(Path(self.name))
        if max_length is not None and self.config.input_format != "separate":
            model.set_max_length(max_length)
        return model

    def loader(self, max_length: int | None) -> Callable[[], MultiTaskModel]:
        """A function that loads the same teacher in another process, perhaps on another machine.

        Raises:
            UserError: the teacher is a model in memory.
        """
        return partial(_load_in_worker, self.for_workers(), self.digest, max_length)

    def for_workers(self) -> TeacherRef:
        """This teacher as a process in another directory finds it."""
        return replace(self, name=path_for_workers(self.name))

    def _require_weights(self, manifest: StoreManifest) -> None:
        try:
            teacher = TeacherRef.find(self.name, self.saved is not None)
        except UserError as error:
            raise UserError(
                f"the student is initialised from the store's teacher, {self.name}, which does not exist",
                hint="restore the teacher, or initialise the student differently: "
                "`student.transformer.init=random` (or `init='DIR'`), `student.bilstm.embeddings=random`, "
                "`student.init_heads=random`",
            ) from error
        if teacher.digest != manifest.teacher.digest:
            raise other_teacher(manifest, teacher)


@dataclass(frozen=True)
class TeacherObject(TeacherRef):
    """A teacher passed as an object.

    Its parameters are frozen and may be moved to another device; nothing else about it is changed.
    """

    model: MultiTaskModel | None = None

    @staticmethod
    def of(model: MultiTaskModel) -> TeacherObject:
        """A teacher from a model in memory."""
        config = model.encoder.config
        saved = SavedModel(config.model_dump(), list(model.tasks.values()), model.info)
        return TeacherObject(type(model).__name__, saved, config, model=model)

    @property
    def digest(self) -> str:
        """A digest of the weights."""
        assert self.model is not None
        return digest_weights(self.model)

    def tokeniser(self) -> Tokeniser:
        """The teacher's tokeniser."""
        assert self.model is not None
        return self.model.tokeniser

    def for_workers(self) -> TeacherRef:
        """Raise UserError, since other processes cannot load an object of this process."""
        raise in_memory(self.name)

    def load(self, max_length: int | None) -> MultiTaskModel:
        """A copy of the teacher that shares its weights."""
        assert self.model is not None
        model = copy.copy(self.model)
        model.info = replace(model.info)
        if max_length is not None:
            model.set_max_length(max_length)
        return model.eval()


def in_memory(name: str) -> UserError:
    """The error for a teacher that other processes cannot load."""
    return UserError(
        f"the teacher is a model in memory ({name}), which other processes cannot load",
        hint="save it and name its directory, or leave `engine` and `workers` out",
    )


def _load_in_worker(teacher: TeacherRef, digest: str | None, max_length: int | None) -> MultiTaskModel:
    if teacher.digest != digest:
        raise other_model(teacher.name)
    return teacher.load(max_length)


def name_with_digest(teacher: str, digest: str | None) -> str:
    """The name of a teacher with its digest; encoders from the hub have none."""
    return f"{teacher} (digest {digest[:12]})" if digest else f"{teacher} (from the hub)"


def other_teacher(manifest: StoreManifest, teacher: TeacherRef) -> UserError:
    """The error for a store that was built with a different teacher."""
    built_with = name_with_digest(manifest.teacher.name, manifest.teacher.digest)
    return UserError(
        f"the store was built with the teacher {built_with}, not with "
        f"{name_with_digest(teacher.name, teacher.digest)}",
        hint="omit `teacher`, or build a store with this teacher",
    )
