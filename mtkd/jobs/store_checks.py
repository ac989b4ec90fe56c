"""Whether a knowledge store can stand in for the teacher of a run."""

from __future__ import annotations

from pathlib import Path

from mtkd.outputs import OutputSpec
from mtkd.selection import Selection
from mtkd.settings import DistillSettings
from mtkd.store.store_manifest import StoreManifest, read_store_manifest
from mtkd.teachers.reference import TeacherRef, other_teacher
from tasks.errors import UserError


def teacher_of_store(store: Path, teacher: str | None, heads: bool) -> TeacherRef:
    """The teacher of a store; where one is named besides, it has to be that one."""
    manifest = read_store_manifest(store)
    if teacher is not None:
        given = TeacherRef.find(teacher, heads)
        if given.digest != manifest.teacher.digest:
            raise other_teacher(manifest, given)
        found, stored = given.tokeniser().digest, manifest.teacher.tokeniser
        if found != stored:
            raise UserError(
                f"the store {store} was built with another tokeniser (digest {stored[:12]}) than that of "
                f"{teacher} (digest {found[:12]})",
                hint="leave `teacher` out, or build a store with this teacher",
            )
    return TeacherRef.of_store(store, manifest)


def check_selection(selection: Selection, settings: DistillSettings) -> None:
    """Refuse to keep more tokens of a row than the student reads."""
    if selection.tokens is not None and selection.tokens > settings.student.max_length:
        raise UserError(
            f"{selection.tokens} tokens cannot be kept of rows of at most {settings.student.max_length}",
            expected=f"1 to {settings.student.max_length}",
            hint="a smaller terms.NAME.tokens, or a larger student.max_length",
        )


def check_store(
    settings: DistillSettings, need: OutputSpec, aligned: bool, store: Path, manifest: StoreManifest
) -> None:
    """Refuse a store that lacks something, or was read otherwise than this student reads."""
    missing = need.missing_from(manifest.contents.offers)
    if missing:
        raise UserError(
            f"the store {store} lacks what {settings.name} needs: {', '.join(missing)}",
            expected="recipes whose needs it covers: mtkd store info tells what it holds",
            hint=f"build another: mtkd store build --recipe {settings.name} ... --out DIR",
        )
    read, stored = settings.student.max_length, manifest.contents.max_length
    if (need.tokens or aligned) and read != stored:
        raise UserError(
            f"the store {store} was built with at most {stored} tokens a row, this student reads {read}",
            hint=f"`student.max_length={stored}`, or build a store with `student.max_length={read}`",
        )
