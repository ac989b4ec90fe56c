"""Part-of-speech taggers: spaCy or nltk, where their data is installed; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from mtkd.output_files.worker_pools import other_model, path_for_workers
from tasks.common.errors import UserError

_NLTK = "averaged_perceptron_tagger_eng"
_INSTALL = (
    "python -m spacy download en_core_web_sm, or python -m nltk.downloader averaged_perceptron_tagger_eng; "
    "`tagger='none'` (any word can replace any other) and `p_pos=0` need no tagger"
)
_UNUSED = ("parser", "ner", "lemmatizer", "senter", "textcat")  # components that do not tag


class Tagger(Protocol):
    """Assigns parts of speech to words."""

    @property
    def name(self) -> str:
        """The tagger, its model and version, for the manifest."""

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield the tags of the words of each text, in order; texts have at least one word."""


@dataclass(frozen=True)
class NoTagger:
    """Gives all words the same tag, so that any word can replace any other.

    Attributes:
        kinds: whether punctuation and clitics ('s) have tags of their own. They often follow a word without a
            space, so a word in their place would be joined to it.
    """

    kinds: bool = True
    name = "none"

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield the tags of the words of each text: "", or the kind of what is not a word."""
        return ([_kind(word) if self.kinds else "" for word in words] for words in texts)


@dataclass(frozen=True)
class SpacyTagger:
    """A spaCy pipeline's fine-grained tags (`token.tag_`), or its coarse ones if it has no others."""

    name: str
    pipeline: Any

    @staticmethod
    def load(model: str) -> SpacyTagger:
        """Load the pipeline of an installed model or from a directory.

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
        """Yield the tags of each text; UserError if the pipeline leaves a word untagged."""
        from spacy.tokens import Doc

        for doc in self.pipeline.pipe(Doc(self.pipeline.vocab, words=words) for words in texts):
            tags = [token.tag_ or token.pos_ for token in doc]
            if not all(tags):
                raise UserError(
                    f"{self.name} did not tag the word {doc[tags.index('')].text!r}",
                    hint="use a model that has a tagger, such as `tagger='spacy:en_core_web_sm'`",
                )
            yield tags


@dataclass(frozen=True)
class NltkTagger:
    """nltk's averaged perceptron tagger for English."""

    name: str
    model: Any

    @staticmethod
    def load() -> NltkTagger:
        """Load the tagger; UserError if its data is not installed."""
        from nltk import __version__
        from nltk.tag.perceptron import PerceptronTagger

        try:
            return NltkTagger(f"nltk:{_NLTK} {__version__}", PerceptronTagger())
        except LookupError as error:
            raise UserError(f"nltk's data {_NLTK!r} are not installed", hint=_INSTALL) from error

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield the tags of each text."""
        return ([tag for _, tag in self.model.tag(words)] for words in texts)


@dataclass(frozen=True)
class WorkerTagger:
    """A tagger that can be sent to other processes, each of which opens it once.

    Attributes:
        name: the name of the tagger in the process of the command.
        spec: the argument of `open_tagger`.
    """

    name: str
    spec: str

    @staticmethod
    def of(tagger: Tagger, spec: str) -> Tagger:
        """The tagger that `open_tagger(spec)` has opened, for other processes."""
        if isinstance(tagger, NoTagger):
            return tagger
        kind, _, model = spec.partition(":")
        return WorkerTagger(tagger.name, f"{kind}:{path_for_workers(model)}" if model else spec)

    def tag(self, texts: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield the tags of each text; UserError if the tagger is another one in this process."""
        tagger = open_once(self.spec)
        if tagger.name != self.name:
            raise other_model(self.spec)
        return tagger.tag(texts)


def _kind(word: str) -> str:
    """ "" for a word, "clitic" for 's and the like, "punctuation" for other marks."""
    if not any(character.isalnum() or character == "_" for character in word):
        return "punctuation"
    return "clitic" if word[0] in "'’" else ""


def open_tagger(spec: str) -> Tagger:
    """Open the tagger named by the setting `tagger`.

    Args:
        spec: "auto" (an English spaCy model, else nltk), "spacy:MODEL", "nltk", or "none" (words of any part
            of speech).

    Raises:
        UserError: the spec is invalid, or the model is not installed.
    """
    kind, _, model = spec.partition(":")
    if kind == "spacy" and model:
        return SpacyTagger.load(model)
    if spec == "nltk":
        return NltkTagger.load()
    if spec == "none":
        return NoTagger()
    if spec != "auto":
        raise UserError(f"`tagger={spec!r}` is not valid", expected="auto, spacy:MODEL, nltk or none")
    return _any_tagger()


@cache
def open_once(spec: str) -> Tagger:
    """The tagger that `open_tagger` opens, once in each process."""
    return open_tagger(spec)


def _any_tagger() -> Tagger:
    import spacy

    models = sorted(name for name in spacy.util.get_installed_models() if name.startswith("en_"))
    if models:
        return SpacyTagger.load("en_core_web_sm" if "en_core_web_sm" in models else models[0])
    try:
        return NltkTagger.load()
    except UserError as error:
        raise UserError(
            "no part-of-speech tagger is installed: neither an English spaCy model nor nltk's tagger",
            expected="an installed tagger, or `tagger='none'`",
            hint=_INSTALL,
        ) from error
