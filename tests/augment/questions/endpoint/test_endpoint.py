"""Questions from a language model behind an endpoint, tested with a local server."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_endpoint import FakeEndpoint, Reply, chat_completion, serve

import mtkd
from augment.questions.endpoint import client as client_module
from augment.questions.endpoint.address import Address
from augment.questions.endpoint.client import Client, RequestFailed
from augment.questions.endpoint.estimate import CostEstimate, Prices
from augment.questions.endpoint.question_text import DEFAULT_TEMPLATE, find_question, read_template
from augment.questions.generation.config import GenerationConfig
from mtkd.cli.augment_questions_generate import generate as command
from tasks.common.errors import UserError
from tasks.data.corpus_reader import MANIFEST, QUESTION_SCHEMA, corpus_rows, read_corpus

TOWNS = ["Rome", "Oslo", "Paris", "Quito", "Lima", "Cairo", "Delhi", "Kyiv", "Bern", "Baku", "Doha", "Riga"]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEndpoint]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(client_module, "BACKOFF", 0.01)
    with serve() as running:
        running.reply = lambda prompt: chat_completion(f"Which town is {town_in(prompt)} near?")
        yield running


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "towns.txt"
    path.write_text("".join(f"A long river flows near the town of {town} today.\n" for town in TOWNS))
    return path


def town_in(prompt: str) -> str:
    result = re.search(r"town of (\w+)", prompt)
    assert result
    return result[1]


def generate(endpoint: FakeEndpoint, text: Path, out: Path, **options: Any) -> Any:
    options = {"endpoint_model": "tiny", "timeout": 5, "retries": 2, **options}
    return mtkd.augment.generate_questions(text, out, model=endpoint.url, **options)[0]


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [row for shard in read_corpus(out).shards for row in pq.read_table(out / shard.file).to_pylist()]


def files_in(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


# Corpora


def test_questions_from_an_endpoint_become_a_corpus(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path
) -> None:
    written = generate(endpoint, text, tmp_path / "c", shard_rows=5)
    rows = rows_of(tmp_path / "c")
    assert [row["text"] for row in rows] == [f"Which town is {town} near?" for town in TOWNS]
    assert [row["parent"] for row in rows] == [f"towns/{number}" for number in range(12)]
    assert all(row["asked_for"] == town for row, town in zip(rows, TOWNS, strict=True))
    assert all(row["answer"] is row["label"] is None and row["copy"] == 1 for row in rows)
    schemas = {pq.read_schema(tmp_path / "c" / s.file).remove_metadata() for s in written.manifest.shards}
    assert schemas == {QUESTION_SCHEMA} and len(written.manifest.shards) == 3
    assert len(corpus_rows(tmp_path / "c", "squad")) == 12
    assert set(endpoint.paths) == {"/v1/chat/completions"} and len(endpoint.bodies) == 12
    first = endpoint.bodies[endpoint.prompts.index(min(endpoint.prompts, key=lambda p: "Rome" not in p))]
    context = "A long river flows near the town of Rome today."
    assert first == {
        "model": "tiny",
        "messages": [{"role": "user", "content": DEFAULT_TEMPLATE.format(context=context, answer="Rome")}],
        "max_tokens": 128,
        "temperature": 0,
    }
    assert all("Authorization" not in headers for headers in endpoint.headers)
    manifest = json.loads((tmp_path / "c" / MANIFEST).read_text())
    assert manifest["counts"] == {
        "requests": 12, "input_tokens": 600, "output_tokens": 120,
        "no_question": 0, "repeated": 0, "failed": 0,
    }  # fmt: skip
    assert not (tmp_path / "c/answers.jsonl").exists()
    card = (tmp_path / "c/README.md").read_text()
    assert "the language model tiny" in card and "Reply with the question alone" in card


def test_the_order_of_answers_does_not_matter(endpoint: FakeEndpoint, text: Path, tmp_path: Path) -> None:
    options = {"per_paragraph": 2, "command": "same"}
    generate(endpoint, text, tmp_path / "one", concurrency=1, **options)
    most, now, lock, together = 0, 0, threading.Lock(), threading.Barrier(4)

    def answer_first_prompt_late(prompt: str) -> Reply:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        if town_in(prompt) in TOWNS[1:5]:  # the first is asked about alone
            together.wait(60)
        time.sleep(0.02 if town_in(prompt) < "K" else 0)
        with lock:
            now -= 1
        return chat_completion(f"Which town is {town_in(prompt)} near?")

    endpoint.reply = answer_first_prompt_late
    generate(endpoint, text, tmp_path / "many", concurrency=4, **options)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "many")
    assert most == 4


def test_damaged_answers_are_requested_again(endpoint: FakeEndpoint, text: Path, tmp_path: Path) -> None:
    generate(endpoint, text, tmp_path / "whole", command="same", shard_rows=5)
    answer, out = endpoint.reply, tmp_path / "out"
    endpoint.reply = lambda prompt: Reply(401, "gone") if "Bern" in prompt else answer(prompt)
    with pytest.raises(UserError, match=r"status 401: gone"):
        generate(endpoint, text, out, command="same", shard_rows=5, concurrency=1)
    lines = (out / "answers.jsonl").read_text().splitlines()
    lines[5] = lines[5].replace("near", "neaf")
    without_check = json.loads(lines[6])
    del without_check["check"]  # as an earlier version wrote it
    lines[6] = json.dumps(without_check)
    (out / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))
    endpoint.bodies.clear()
    endpoint.reply = answer
    generate(endpoint, text, out, command="same", shard_rows=5)
    assert sorted(map(town_in, endpoint.prompts)) == sorted([*TOWNS[5:7], *TOWNS[8:]])
    assert files_in(out) == files_in(tmp_path / "whole")


def test_a_resumed_corpus_requests_only_missing_answers(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path
) -> None:
    generate(endpoint, text, tmp_path / "whole", command="same", shard_rows=5)
    answer, out, killed = endpoint.reply, tmp_path / "failed", tmp_path / "killed"
    answered: list[str] = []

    def failing(prompt: str) -> Reply:
        if len(answered) == 7:
            shutil.copytree(out, killed, dirs_exist_ok=True)  # the state that a process killed here leaves
            return Reply(401, "gone")
        answered.append(town_in(prompt))
        return answer(prompt)

    endpoint.reply = failing
    with pytest.raises(UserError, match=r"status 401: gone"):
        generate(endpoint, text, out, command="same", shard_rows=5, concurrency=1)
    assert len((out / "answers.jsonl").read_text().splitlines()) == 7
    with open(killed / "answers.jsonl", "a") as log:
        log.write('{"question": "towns/9#1", "te')  # a truncated line
    endpoint.reply = answer
    for directory in (out, killed):
        endpoint.bodies.clear()
        with pytest.raises(UserError, match="another corpus"):
            generate(endpoint, text, directory, shard_rows=5, max_output=9)
        assert not endpoint.bodies, "nothing is paid for in vain"
        plan = mtkd.augment.estimate_questions(
            text, directory, model=endpoint.url, endpoint_model="tiny", shard_rows=5
        )
        assert plan.estimate and (plan.estimate.requests, plan.estimate.answered) == (5, 7)
        assert generate(endpoint, text, directory, command="same", shard_rows=5).kept == 1
        assert sorted(map(town_in, endpoint.prompts)) == sorted(set(TOWNS) - set(answered))
        assert files_in(directory) == files_in(tmp_path / "whole")
    endpoint.bodies.clear()
    assert generate(endpoint, text, out, shard_rows=5).kept == 3 and not endpoint.bodies, (
        "nothing is asked again"
    )
    with pytest.raises(UserError, match="another corpus"):
        generate(endpoint, text, out, shard_rows=5, endpoint_model="other")
    generate(endpoint, text, out, shard_rows=5, endpoint_model="other", overwrite=True)
    assert [body["model"] for body in endpoint.bodies] == ["other"] * 12


def test_failed_requests_of_a_finished_shard_are_not_sent_again(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path
) -> None:
    answer, out = endpoint.reply, tmp_path / "out"
    options: dict[str, Any] = {"shard_rows": 5, "concurrency": 1, "retries": 0}

    def failing(prompt: str) -> Reply:
        number = TOWNS.index(town_in(prompt))
        return Reply(500, "busy") if number == 2 else Reply(401, "gone") if number > 6 else answer(prompt)

    endpoint.reply = failing
    with pytest.raises(UserError, match="status 401"):
        generate(endpoint, text, out, **options)
    endpoint.reply = answer
    endpoint.bodies.clear()
    plan = mtkd.augment.estimate_questions(text, out, model=endpoint.url, endpoint_model="tiny", shard_rows=5)
    assert plan.estimate and (plan.estimate.requests, plan.estimate.answered) == (5, 7)
    assert generate(endpoint, text, out, **options).kept == 1
    assert sorted(map(town_in, endpoint.prompts)) == sorted(TOWNS[7:])


def test_ctrl_c_waits_for_requests_in_flight(endpoint: FakeEndpoint, text: Path, tmp_path: Path) -> None:
    began, answer = threading.Barrier(4), endpoint.reply

    def answer_slowly(prompt: str) -> Reply:
        if "Rome" not in prompt:  # the first, which is sent alone
            began.wait(60)
            time.sleep(0.1)
        return answer(prompt)

    def interrupted(self: Future[Any], timeout: float | None = None) -> Any:
        began.wait(60)
        raise KeyboardInterrupt

    endpoint.reply = answer_slowly
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Future, "result", interrupted)
        generate(endpoint, text, tmp_path / "c", concurrency=3)
    logged = (tmp_path / "c/answers.jsonl").read_text().splitlines()
    assert len(endpoint.bodies) == len(logged) == 4
    endpoint.reply = answer
    generate(endpoint, text, tmp_path / "c")
    assert len(endpoint.bodies) == 12 and len(rows_of(tmp_path / "c")) == 12


def test_answers_without_a_question_are_counted_and_skipped(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    replies = {"Rome": None, "Oslo": "I cannot help with that.", "Paris": "", "Quito": "<think>What?"}
    endpoint.reply = lambda prompt: (
        Reply(400, "too long")
        if "Lima" in prompt
        else chat_completion(replies.get(town_in(prompt), "Which town?"))
    )
    answered = mtkd(
        "augment", "questions", "generate", "--model", endpoint.url, "--endpoint-model", "tiny",
        "--text", text, "--out", tmp_path / "c", "--price-in", 2, "--price-out", 1000,
    )  # fmt: skip
    assert answered.code == 0, answered.err
    assert [row["text_pair"] for row in rows_of(tmp_path / "c")] == [
        f"A long river flows near the town of {town} today." for town in TOWNS[5:]
    ]
    assert "the request for towns/4#1 failed: status 400: too long" in answered.err
    assert (
        "11 answers, 4 without a question, 1 more failed; 550 input and 110 output tokens, which cost 0.11"
        in answered.err
    )
    assert answered.err.index("to send: 12 requests, about") < answered.err.index("11 answers")


def test_several_questions_per_paragraph_without_answers_in_the_prompt(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path
) -> None:
    template = tmp_path / "t.txt"
    template.write_text('Ask: {context} Reply like {{"question": ...}}.')
    with pytest.raises(UserError, match="would be the same for all 3"):
        generate(endpoint, text, tmp_path / "c", prompt_template=str(template), per_paragraph=3)
    options = {
        "prompt_template": str(template),
        "per_paragraph": 3,
        "sample": True,
        "temperature": 0.7,
        "limit": 2,
    }
    extra = {"top_k": 5, "max_tokens": None, "max_completion_tokens": 9}
    generate(endpoint, text, tmp_path / "c", **options, extra_body=extra)
    assert endpoint.prompts[0].endswith('today. Reply like {"question": ...}.')
    assert len({body["seed"] for body in endpoint.bodies}) == 6
    for body in endpoint.bodies:
        del body["messages"], body["seed"]
        assert body == {
            "model": "tiny", "temperature": 0.7, "top_p": 0.95, "top_k": 5, "max_completion_tokens": 9
        }  # fmt: skip
    counts = read_corpus(tmp_path / "c").counts
    assert (counts["requests"], counts["repeated"]) == (6, 4)
    assert all(row["asked_for"] is None for row in rows_of(tmp_path / "c"))


# Failures


@pytest.mark.parametrize(
    "problem",
    [
        Reply(500, "oops"),
        Reply(503, "loading"),
        Reply(429, "slow down"),
        Reply(200, "<html>"),
        Reply(200, {"choices": []}),
        Reply(200, {"choices": [{"message": {"content": ["a part"]}}]}),
        Reply(200, '{"choices": ' + "[" * 100_000),
        Reply(200, {"choices": [{"message": {"content": "x" * 2_000_000}}]}),
    ],
)
def test_transient_errors_are_retried(endpoint: FakeEndpoint, problem: Reply) -> None:
    replies = iter([problem, problem, chat_completion("Why?"), *[problem] * 3])
    endpoint.reply = lambda prompt: next(replies)
    client = make_client(endpoint)
    assert client.complete(request()).text == "Why?"
    with pytest.raises(RequestFailed) as failed:
        client.complete(request())
    assert len(endpoint.bodies) == 6
    assert len(str(failed.value)) < 300
    client.close()


def make_client(endpoint: FakeEndpoint, **options: Any) -> Client:
    return Client(Address.parse(endpoint.url, None), **{"timeout": 5.0, "retries": 2, **options})


def request() -> dict[str, Any]:
    return {"messages": [{"content": "hello"}]}


def test_the_retry_after_header_is_respected(endpoint: FakeEndpoint) -> None:
    replies = iter([Reply(429, "", {"Retry-After": "0.3"}), chat_completion("Why?")])
    endpoint.reply = lambda prompt: next(replies)
    started = time.monotonic()
    client = make_client(endpoint)
    assert client.complete(request()).text == "Why?"
    assert time.monotonic() - started >= 0.3
    tomorrow = formatdate(time.time() + 86_400.9, usegmt=True)
    endpoint.reply = lambda prompt: Reply(429, "quota", {"Retry-After": tomorrow})
    with pytest.raises(UserError, match=r"quota[\s\S]*wait 86,[34]\d\d s"):
        client.complete(request())
    client.close()


def test_requests_to_a_busy_server_are_retried(endpoint: FakeEndpoint, text: Path, tmp_path: Path) -> None:
    """Each of 4 threads gets status 429 more often than `retries`, but one of them always succeeds."""
    lock, calls = threading.Lock(), 0

    def answer_every_fourth(prompt: str) -> Reply:
        nonlocal calls
        with lock:
            calls += 1
            return (
                chat_completion("Which town?") if calls % 4 == 0 else Reply(429, "", {"Retry-After": "0.01"})
            )

    endpoint.reply = answer_every_fourth
    generate(endpoint, text, tmp_path / "c", concurrency=4, retries=5)
    assert read_corpus(tmp_path / "c").counts["failed"] == 0 and calls >= 45


@pytest.mark.slow(reason="waits for timeouts")
def test_a_server_that_does_not_answer_times_out(endpoint: FakeEndpoint, text: Path, tmp_path: Path) -> None:
    release = threading.Event()

    def never_answer(prompt: str) -> Reply:
        if len(endpoint.bodies) > answered:
            release.wait(5)
        return chat_completion("Why?")

    endpoint.reply, answered = never_answer, 0
    with pytest.raises(UserError, match=r"no request is answered: no answer in 0\.25 s"):
        generate(endpoint, text, tmp_path / "c", timeout=0.25, retries=1)
    assert len(endpoint.bodies) == 2 and not (tmp_path / "c").exists()
    answered = 3
    for _ in range(2):  # the second time it resumes
        with pytest.raises(  # a busy machine may not even accept the connection in time
            UserError, match=r"5 requests in a row failed, the last with no (answer|connection) in 1 s"
        ):
            generate(endpoint, text, tmp_path / "c", timeout=1, retries=1)
    release.set()
    assert not (tmp_path / "c" / MANIFEST).exists()


def test_a_server_that_rejects_every_request_stops_the_job(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path
) -> None:
    endpoint.reply = lambda prompt: Reply(400, "unsupported: 'max_tokens'")
    with pytest.raises(UserError, match=r"no request is answered: status 400: unsupported: 'max_tokens'"):
        generate(endpoint, text, tmp_path / "c")
    assert len(endpoint.bodies) == 5 and not (tmp_path / "c").exists()


def test_too_many_answers_without_a_question_stop_the_job(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    text = tmp_path / "many.txt"
    text.write_text("Rome lies here.\n" * 100)
    endpoint.reply = lambda prompt: chat_completion("I am only a model.")
    with pytest.raises(
        UserError, match=r"20 answers in a row hold no question; the last is 'I am only a model"
    ):
        generate(endpoint, text, tmp_path / "c", concurrency=2)
    assert len(endpoint.bodies) < 25


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(401, {"error": {"message": "Incorrect API key"}}), r"401: .*Incorrect[\s\S]*no key was sent"),
        (Reply(403, "no"), "status 403"),
        (Reply(404, "model 'tiny' not found"), "'tiny' not found[\\s\\S]*`endpoint_model`"),
        (
            Reply(302, "", {"Location": "http://127.0.0.1:9/v1"}),
            r"not followed; the server redirects to http://127\.0\.0\.1:9",
        ),
    ],
)
def test_permanent_errors_are_not_retried(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path, reply: Reply, message: str
) -> None:
    endpoint.reply = lambda prompt: reply
    with pytest.raises(UserError, match=message):
        generate(endpoint, text, tmp_path / "c", concurrency=1)
    assert len(endpoint.bodies) == 1
    assert not (tmp_path / "c").exists()


def test_an_unreachable_server_is_an_error(endpoint: FakeEndpoint, text: Path, tmp_path: Path) -> None:
    with serve() as gone:
        pass
    with pytest.raises(UserError, match=r"no connection[\s\S]*is the server running"):
        generate(gone, text, tmp_path / "c")


def test_requests_per_minute_are_limited(endpoint: FakeEndpoint, text: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    generate(endpoint, text, tmp_path / "c", requests_per_minute=1500, limit=10)
    assert time.monotonic() - started >= 9 * 0.04


# Keys and addresses


def test_the_api_key_is_sent_but_never_shown(
    endpoint: FakeEndpoint,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mtkd: Callable[..., Any],
) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    words = ["augment", "questions", "generate", "--model", endpoint.url, "--endpoint-model", "tiny"]
    words += ["--text", text, "--out", tmp_path / "c", "--api-key-env", "OWN_KEY"]
    endpoint.reply = lambda prompt: Reply(401, "wrong key sk-secret")
    refused = mtkd(*words)
    assert refused.code == 2 and "wrong key ***" in refused.err and "check the API key" in refused.err
    endpoint.reply = lambda prompt: chat_completion("Why is it sk-secret?")
    answered = mtkd(*words)
    assert answered.code == 0, answered.err
    assert {headers["Authorization"] for headers in endpoint.headers} == {"Bearer sk-secret"}
    shown = [refused.out, refused.err, answered.out, answered.err]
    assert not any("sk-secret" in part for part in shown)
    raw = b"".join(files_in(tmp_path / "c").values()) + str(rows_of(tmp_path / "c")).encode()
    assert b"sk-secret" not in raw and b"Why is it ***?" in raw


def test_addresses_of_endpoints_are_parsed_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    full = "http://localhost:8000/v1/chat/completions"
    for url in ("http://localhost:8000/v1", "http://localhost:8000/v1/", full, full + "/"):
        assert Address.parse(url, None) == Address(full, True)
    assert Address.parse("http://gpu.example:80/v1", None).key is None
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert Address.parse("https://api.example/v1", None).key == "sk-1"
    for local in ("http://[::1]:1/v1", "http://127.1.2.3/v1", "http://a.localhost/v1"):
        assert Address.parse(local, None) == Address(f"{local}/chat/completions", True, "sk-1")
    assert "sk-1" not in repr(Address.parse("https://api.example/v1", None))
    for plain in ("http://gpu.example/v1", "http://10.0.0.1/v1", "http://localhost.example/v1"):
        with pytest.raises(UserError, match="would be sent unencrypted"):
            Address.parse(plain, None)
        assert Address.parse(plain, "").key is None
    for wrong in ("ftp://host/v1", "file:///etc/passwd", "http://", "https://host/v1?api-key=sk-2#x"):
        with pytest.raises(UserError) as caught:
            Address.parse(wrong, "")
        assert "sk-2" not in str(caught.value)
    with pytest.raises(UserError, match="holds more than an address") as caught:
        Address.parse("https://user:word@host/v1", "")
    assert "word" not in str(caught.value)
    with pytest.raises(UserError, match="is not set"):
        Address.parse("https://host/v1", "NO_SUCH_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\nX-Header: 1")
    with pytest.raises(UserError, match="characters that no key has") as caught:
        Address.parse("https://host/v1", None)
    assert "sk-1" not in str(caught.value)


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint_model": None}, "does not say which model"),
        ({"beams": 2}, "`beams=2` with an endpoint"),
        ({"workers": 2}, "an endpoint can only be used by one process"),
        ({"engine": "ray"}, "an endpoint can only be used by one process"),
        ({"concurrency": 0}, "`concurrency=0`"),
        ({"timeout": float("nan")}, "`timeout=nan`"),
        ({"retries": -1}, "`retries=-1`"),
        ({"requests_per_minute": 0}, "`requests_per_minute=0`"),
        ({"price_in": -1.0}, "`price_in=-1.0`"),
        ({"extra_body": [1]}, "`extra_body` cannot be a list"),
        ({"extra_body": {"messages": []}}, "'messages', which mtkd sets itself"),
        ({"prompt_template": "NONE"}, "no such file: NONE"),
    ],
)
def test_options_are_checked_before_anything_is_sent(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generate(endpoint, text, tmp_path / "c", **options)
    assert not endpoint.bodies and not (tmp_path / "c").exists()


def test_every_option_of_the_command_is_a_keyword() -> None:
    options = {option.name for option in command.params} - {"json_file", "quiet", "dry_run", "format"}
    keywords = set(inspect.signature(mtkd.augment.generate_questions).parameters)
    assert options <= keywords | {field.name for field in dataclasses.fields(GenerationConfig)}


def test_options_of_endpoints_are_rejected_with_rules(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`concurrency=2` with `model='rules'`"):
        mtkd.augment.generate_questions(text, tmp_path / "c", concurrency=2)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{context} {question}", r"placeholder \{question\}"),
        ("{context.__class__}", r"placeholder \{context.__class__\}"),
        ("{context!r}", r"placeholder \{context!r\}"),
        ("{context:9}", r"placeholder \{context:9\}"),
        ("{} {context}", r"placeholder \{\}"),
        ('{"a": 1} {context}', "write other braces twice"),
        ("{context} }", "write other braces twice"),
        ("Ask about {answer}.", r"has no \{context\}"),
        ("{context}" + "x" * 100_000, "is too long"),
        (b"\xff{context}", "not text in UTF-8"),
    ],
)
def test_invalid_prompt_templates_are_rejected(tmp_path: Path, template: str | bytes, message: str) -> None:
    file = tmp_path / "t.txt"
    file.write_bytes(template if isinstance(template, bytes) else template.encode())
    with pytest.raises(UserError, match=message):
        read_template(str(file))


def test_the_cost_is_estimated_before_anything_is_sent(
    endpoint: FakeEndpoint, text: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    words = ["augment", "questions", "generate", "--model", endpoint.url, "--endpoint-model", "tiny"]
    words += ["--text", text, "--out", tmp_path / "c", "--dry-run", "--price-in", 3, "--price-out", 15]
    shown = mtkd(*words)
    assert (
        shown.code == 0
        and "12 requests, about 1," in shown.out
        and "about 0.01, and at most 0.03" in shown.out
    )
    result = json.loads(mtkd(*words, "--json").out)["estimate"]
    size = sum(
        len(
            DEFAULT_TEMPLATE.format(context=f"A long river flows near the town of {town} today.", answer=town)
        )
        for town in TOWNS
    )
    assert result["input_tokens"] == size // 4 + 12 * 8
    assert (result["output_tokens"], result["most_output_tokens"]) == (240, 12 * 128)
    assert result["cost"] == pytest.approx((result["input_tokens"] * 3 + 240 * 15) / 1e6)
    assert not endpoint.bodies and not (tmp_path / "c").exists()
    assert CostEstimate.of(4000, 10, 0, 100, Prices()).cost is None
    text.write_text("Anna Berg was born in Oslo in 1850.\n")
    rules = mtkd("augment", "questions", "generate", "--text", text, "--out", tmp_path / "c", "--dry-run")
    assert rules.code == 0 and "1 paragraph read" in rules.out and not (tmp_path / "c").exists()


# Texts


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("Who wrote it?", "Who wrote it?"),
        ('  "Who wrote it?"  \n', "Who wrote it?"),
        ("**Question:** Who wrote it?\n**Answer:** Ada", "Who wrote it?"),
        ("Question 1: Who wrote it?", "Who wrote it?"),
        ("Q: Who wrote it?", "Who wrote it?"),
        ("1. Who wrote it?\n2. When was it written?", "Who wrote it?"),
        ("- (2) Who wrote it?", "Who wrote it?"),
        ("Sure! Here is a question about the text:\n\n> Who wrote it?", "Who wrote it?"),
        ("Here's a question whose answer is Ada: Who wrote it?", "Who wrote it?"),
        ("Who wrote it? (Answer: Ada)", "Who wrote it?"),
        ('"Who wrote it?" is a good one.', "Who wrote it?"),
        ('Who wrote "What Is Life?" in 1944?', 'Who wrote "What Is Life?" in 1944?'),
        ("3.5 million people live where?", "3.5 million people live where?"),
        ("What\x07 is\tit?", "What is it?"),
        ("谁发现了镭？", "谁发现了镭？"),
        ("من كتب ذلك؟", "من كتب ذلك؟"),
        ("I'm sorry, but I cannot do that.", None),
        ("The author of the text", None),
        ("?", None),
        ("", None),
    ],
)
def test_the_question_is_extracted_from_an_answer(answer: str, question: str | None) -> None:
    assert find_question(answer) == question


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>What?</think>\n\nWho?", "Who?"),
        ("so I ask what?</think> Who?", "Who?"),
        ("<think>What? Why?", ""),
        ("Who?", "Who?"),
    ],
)
def test_thinking_is_removed_from_the_answer(content: str, text: str) -> None:
    assert client_module.without_thinking(content) == text


def test_an_answer_with_half_a_surrogate_pair_is_not_used(endpoint: FakeEndpoint) -> None:
    replies = iter(
        [Reply(200, r'{"choices": [{"message": {"content": "\ud83d Why?"}}]}'), chat_completion("Why?")]
    )
    endpoint.reply = lambda prompt: next(replies)
    client = make_client(endpoint)
    result = client.complete(request()).text
    client.close()
    assert pa.array([result]).to_pylist() == [result]
