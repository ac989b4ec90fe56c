"""Check that a knowledge store can replace the teacher of a run."""

from __future__ import annotations

from pathlib import Path

from mtkd.knowledge_store.shard_files import check_shards
from mtkd.knowledge_store.store_manifest import StoreManifest, read_store_manifest
from mtkd.outputs import OutputSpec
from mtkd.selection import Selection
from mtkd.settings import DistillSettings
from mtkd.teachers.teacher_ref import TeacherRef, other_teacher
from tasks.common.errors import UserError


def teacher_of_store(store: Path, teacher: str | None, heads: bool) -> TeacherRef:
    """The teacher of a store.

    Args:
        teacher: the teacher that the user named too; None = none.
        heads: True if its task heads are needed.

    Raises:
        UserError: the named teacher is not the one that the store was built with.
    """
    manifest = read_store_manifest(store)
    if teacher is not None:
        teacher_ref = TeacherRef.find(teacher, heads)
        if teacher_ref.digest != manifest.teacher.digest:
            raise other_teacher(manifest, teacher_ref)
        digest, stored = teacher_ref.tokeniser().digest, manifest.teacher.tokeniser
        if digest != stored:
            raise UserError(
                f"the store {store} was built with another tokeniser (digest {stored[:12]}) than that of "
                f"{teacher} (digest {digest[:12]})",
                hint="leave `teacher` out, or build a store with this teacher",
            )
    return TeacherRef.of_store(store, manifest)


def check_selection(selection: Selection, settings: DistillSettings) -> None:
    """Raise UserError if a selection keeps more tokens per row than the student reads."""
    if selection.tokens is not None and selection.tokens > settings.student.max_length:
        raise UserError(
            f"cannot keep {selection.tokens} tokens of rows of at most {settings.student.max_length}",
            expected=f"1 to {settings.student.max_length}",
            hint="use a smaller terms.NAME.tokens, or a larger student.max_length",
        )


def check_ranking(selection: Selection, store: Path, manifest: StoreManifest) -> None:
    """Raise UserError if the store of a bi-encoder ranks tokens by attention between the two texts."""
    if selection.ranked and manifest.format < 4:
        raise UserError(
            f"the store {store} is of format {manifest.format}, which ranks the tokens of two texts by "
            "attention between the texts, although its bi-encoder reads each text separately",
            expected="a store of format 4 or newer",
            hint="build the store again with `overwrite=True`",
        )


def check_store(
    settings: DistillSettings,
    need: OutputSpec,
    aligned: bool,
    store: Path,
    manifest: StoreManifest,
    *,
    own_losses: bool = False,
) -> None:
    """Check that a store can replace the teacher of a run.

    Args:
        need: the outputs that the losses need.
        aligned: True if the student must read the same tokens as the teacher.
        own_losses: True if the losses were passed as objects, so that they are not those of the recipe.

    Raises:
        UserError: the store lacks an output, its rows have another maximum length, or a shard is damaged.
    """
    missing = need.missing_from(manifest.contents.offers)
    if missing and own_losses:
        raise UserError(
            f"the store {store} lacks what the losses need: {', '.join(missing)}",
            expected="losses that need only what the store holds (see `mtkd.store_info`)",
            hint="use the teacher in place of the store, or build a store with a term that needs the same, "
            "such as `settings={'terms.extra': {'loss': 'hidden_mse', 'layer_map': [[1, 3]]}}` for the "
            "hidden states of layer 3",
        )
    if missing:
        raise UserError(
            f"the store {store} lacks what {settings.name} needs: {', '.join(missing)}",
            expected="a recipe that needs only what the store holds (see `mtkd.store_info`)",
            hint=f"build another store: `mtkd.build_store(recipe={settings.name!r}, out='DIR', ...)`",
        )
    student_length, stored_length = settings.student.max_length, manifest.contents.max_length
    if (need.has_token_vectors or aligned) and student_length != stored_length:
        raise UserError(
            f"the store {store} was built with at most {stored_length} tokens per row, but this student "
            f"reads {student_length}",
            hint=f"use `student.max_length={stored_length}`, or build a store with "
            f"`student.max_length={student_length}`",
        )
    check_shards(store, manifest)
