"""Parts of speech, from spaCy or nltk where their data are installed; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import UserError

_NLTK = "averaged_perceptron_tagger_eng"
_INSTALL = (
    "python -m spacy download en_core_web_sm, or python -m nltk.downloader averaged_perceptron_tagger_eng; "
    "with `p_pos=0` no tagger is needed"
)
_UNUSED = ("parser", "ner", "lemmatizer", "senter", "textcat")  # components that tag nothing


class Tagger(Protocol):
    """Gives words their parts of speech."""

    @property
    def name(self) -> str:
        """Tagger, model and version, for the manifest."""

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """The tag of every word of every text, in order; a text has one word at least."""


@dataclass(frozen=True)
class NoTagger:
    """One tag for all words: where no word is replaced by another of its tag."""

    name = "none"

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """An empty tag for every word."""
        return ([""] * len(words) for words in texts)


@dataclass(frozen=True)
class SpacyTagger:
    """A spaCy pipeline's fine tags (`token.tag_`), or its coarse ones where it gives no fine ones."""

    name: str
    pipeline: Any

    @staticmethod
    def load(model: str) -> SpacyTagger:
        """The pipeline of an installed model, or of a directory.

        Raises:
            UserError: there is no such model.
        """
        import spacy

        try:
            pipeline = spacy.load(model, exclude=_UNUSED)
        except (OSError, ValueError) as error:
            installed = ", ".join(sorted(spacy.util.get_installed_models())) or "none is installed"
            raise UserError(
                f"no spaCy model {model!r}",
                expected=f"an installed model ({installed}) or a directory saved by spaCy",
                hint=_INSTALL,
            ) from error
        version = pipeline.meta.get("version", "")
        return SpacyTagger(f"spacy:{Path(model).name} {version}".strip(), pipeline)

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """The tag of every word; UserError if the pipeline gives a word none."""
        from spacy.tokens import Doc

        for doc in self.pipeline.pipe(Doc(self.pipeline.vocab, words=words) for words in texts):
            tags = [token.tag_ or token.pos_ for token in doc]
            if not all(tags):
                raise UserError(
                    f"{self.name} gives the word {doc[tags.index('')].text!r} no part of speech",
                    hint="name a model with a tagger, such as `tagger=spacy:en_core_web_sm`",
                )
            yield tags


@dataclass(frozen=True)
class NltkTagger:
    """nltk's averaged perceptron for English."""

    name: str
    model: Any

    @staticmethod
    def load() -> NltkTagger:
        """The tagger; UserError where its data are not installed."""
        from nltk import __version__
        from nltk.tag.perceptron import PerceptronTagger

        try:
            return NltkTagger(f"nltk:{_NLTK} {__version__}", PerceptronTagger())
        except LookupError as error:
            raise UserError(f"nltk's data {_NLTK!r} are not installed", hint=_INSTALL) from error

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """The tag of every word."""
        return ([tag for _, tag in self.model.tag(words)] for words in texts)


def open_tagger(spec: str) -> Tagger:
    """The tagger that `--tagger` names.

    Args:
        spec: "auto" (an English model of spaCy, else nltk), "spacy:MODEL" or "nltk".

    Raises:
        UserError: another word, or the model is not installed.
    """
    kind, _, model = spec.partition(":")
    if kind == "spacy" and model:
        return SpacyTagger.load(model)
    if spec == "nltk":
        return NltkTagger.load()
    if spec != "auto":
        raise UserError(f"`tagger={spec!r}`", expected="auto, spacy:MODEL or nltk")
    return _any_tagger()


def _any_tagger() -> Tagger:
    import spacy

    models = sorted(name for name in spacy.util.get_installed_models() if name.startswith("en_"))
    if models:
        return SpacyTagger.load("en_core_web_sm" if "en_core_web_sm" in models else models[0])
    try:
        return NltkTagger.load()
    except UserError as error:
        raise UserError(
            "no tagger for parts of speech is installed: no English model of spaCy, nor nltk's tagger",
            expected="`tagger=spacy:MODEL` or nltk",
            hint=_INSTALL,
        ) from error
