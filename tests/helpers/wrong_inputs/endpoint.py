# ruff: noqa: E501
"""Endpoints that fail, and options that do not apply to endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fake_endpoint import Reply, chat_completion

from wrong_inputs.commands import generate
from wrong_inputs.json_files import DEEP
from wrong_inputs.tiny_inputs import Case, TinyInputs

REPLIES = {
    "ok": chat_completion("Where was Anna born?"), "no text": chat_completion(None), "empty": chat_completion(""), "no question": chat_completion("I cannot."),
    "escape": chat_completion("\x1b[31mWhere was Anna born?"), "surrogate": Reply(200, b'{"choices": [{"message": {"content": "\\ud800?"}}]}'),
    "long": chat_completion("Why " + "x" * 10**6 + "?"), "nothing": Reply(), "HTML": Reply(200, "<html>"), "list": Reply(200, "[]"),
    "deep": Reply(200, "[" * DEEP), "no choices": Reply(200, {"choices": []}), "choices": Reply(200, {"choices": "x"}),
    "usage": Reply(200, chat_completion("Where was Anna born?").body | {"usage": {"prompt_tokens": "x", "completion_tokens": -1}}),
    "NULs": Reply(200, b"\x00" * 99), "latin-1": Reply(200, b'{"choices": "\xe9"}'), "moved": Reply(301, "", {"Location": "http://127.0.0.1:1/"}),
    "unauthorised": Reply(401, "\x1b[31mno"), "missing": Reply(404), "too many": Reply(429, "", {"Retry-After": "x"}),
    "wait": Reply(429, "", {"Retry-After": "1e300"}), "broken": Reply(500, b"\xff"), "length": Reply(200, "x", {"Content-Length": "9999"}),
}  # fmt: skip
# Questions, or too few answers without a question to stop the job.
KEPT = ("ok", "escape", "surrogate", "long", "usage", "no text", "empty", "no question")
OPTIONS: dict[str, list[Any]] = {
    "no model": ["--endpoint-model", ""], "body": ["--extra-body", "[]"], "body deep": ["--extra-body", "[" * DEEP],
    "body nan": ["--extra-body", '{"temperature": NaN}'], "template": ["--prompt-template", "{"],
    "price": ["--price-in", "nan"], "concurrency": ["--concurrency", 0], "rate": ["--requests-per-minute", "0"],
    "timeout": ["--timeout", "nan"], "retries": ["--retries", "-1"], "key": ["--api-key-env", "="],
}  # fmt: skip
URLS = (
    "http://",
    "http://[",
    "http://127.0.0.1:1/v1",
    "http://127.0.0.1:99999/v1",
    "http://a b/v1",
    "https://x.invalid/v1",
)


def _url(inputs: TinyInputs, reply: str) -> str:
    """Return the address at which the fake server gives a reply: the first part of the path names it."""
    endpoint = inputs.endpoint
    endpoint.reply = lambda prompt: REPLIES[endpoint.paths[-1].split("/")[1].replace("_", " ")]
    return endpoint.url.replace("/v1", f"/{reply.replace(' ', '_')}/v1")


def endpoint_cases() -> Iterator[Case]:
    """Yield cases with wrong replies, options and addresses of an endpoint that generates questions."""
    few = ("--endpoint-model", "m", "--retries", 0, "--timeout", 5, "--words", "5:10")
    for name in REPLIES:

        def ask(inputs: TinyInputs, directory: Path, name=name) -> list[Any]:
            return generate(_url(inputs, name), inputs.texts, directory / "out", *few)

        yield Case(
            f"endpoint answers {name}",
            ask,
            must_fail=name not in KEPT,
        )
    for name, more in OPTIONS.items():
        yield Case(
            f"endpoint option {name}",
            lambda inputs, directory, more=more: generate(
                _url(inputs, "ok"), inputs.texts, directory / "out", *few, *more
            ),
        )
    for url in URLS:
        yield Case(
            f"endpoint at {url}",
            lambda inputs, directory, url=url: generate(url, inputs.texts, directory / "out", *few),
        )
