"""Finding the question in the answer of a language model, and reading the template of its prompt."""

from __future__ import annotations

import re
import string
from pathlib import Path

from tasks.common.errors import UserError
from tasks.common.reading import read_small_file

DEFAULT_TEMPLATE = """\
Text:
{context}

Write one question about this text. Its answer must be exactly this phrase of the text: {answer}
Somebody who knows only the text must be able to answer it. The question must not contain the answer.
Reply with the question alone, in the language of the text."""
_PLACEHOLDERS = ("context", "answer")
_LONGEST_TEMPLATE = 100_000
_END = re.compile(r"[?？؟](?=\s|$)")
_QUOTES = " \t\"'“”‘’«»„*_`"
_LABEL = re.compile(
    r"""[-*•>#]+\s                                  # a list, a heading
    |\(?\d{1,2}[.)](?=\s)                           # a number
    |(?:question|q)\s*\d*\s*[:.)]                   # Question 1:
    |[^?:]*\bquestion\b[^?:]*:                      # Here is a question about the text:
    |(?:sure|certainly|okay|of\ course)\b[,.!:]+""",
    re.VERBOSE | re.IGNORECASE,
)


def find_question(answer: str) -> str | None:
    """The first question in an answer, without labels, numbers and quotation marks; None if there is none."""
    for line in answer.splitlines():
        text = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", line).split())
        while label := _LABEL.match(text := text.strip(_QUOTES)):
            text = text[label.end() :]
        end = _END.search(text)
        question = text[: end.end() if end else max(map(text.rfind, "?？؟")) + 1]
        if sum(map(str.isalpha, question)) > 2:
            return question
    return None


def read_template(file: str | None) -> str:
    """The template in a file, or the default one.

    Raises:
        UserError: the file cannot be read, or has no {context}, or placeholders other than {context} and
            {answer}.
    """
    if file is None:
        return DEFAULT_TEMPLATE
    try:
        raw = read_small_file(Path(file), 4 * _LONGEST_TEMPLATE)
        template = raw.decode().replace("\r\n", "\n").strip()
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read the prompt template {file}: it is not text in UTF-8") from error
    expected = f"at most {_LONGEST_TEMPLATE:,} characters with {{context}}, and {{answer}} or not"
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UserError(
            f"the prompt template {file}: {str(error).lower()}",
            expected=expected,
            hint="write other braces twice: {{ }}",
        ) from error
    placeholders = {
        name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
        for _, name, form, conversion in parts
        if name is not None
    }
    if wrong := sorted(placeholders - set(_PLACEHOLDERS)):
        raise UserError(
            f"the prompt template {file} has the placeholder {{{wrong[0][:50]}}}",
            expected=expected,
            hint="write other braces twice: {{ }}",
        )
    if "context" not in placeholders or len(template) > _LONGEST_TEMPLATE:
        problem = "has no {context}" if "context" not in placeholders else "is too long"
        raise UserError(f"the prompt template {file} {problem}", expected=expected)
    return template
