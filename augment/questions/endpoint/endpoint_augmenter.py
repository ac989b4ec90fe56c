"""The augmenter "questions" with `model=URL`, which asks a language model at an endpoint for questions."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from augment.augmenter import Augmenter, Copies
from augment.questions.endpoint.answer_log import AnswerLog
from augment.questions.endpoint.client import Client, Completion, RequestFailed
from augment.questions.endpoint.estimate import REQUEST_COUNTS, CostEstimate, Prices
from augment.questions.endpoint.question_text import find_question
from augment.questions.generation.answer_candidates import choose_answers
from augment.questions.generation.paragraphs import Paragraph
from augment.questions.question_rows import QuestionRow, question_table
from tasks.common.errors import brief
from tasks.common.progress import say
from tasks.common.sha256 import digest_bytes
from tasks.data.corpus_reader import QUESTION_SCHEMA
from tasks.data.rows import Rows

_CHUNK = 16  # paragraphs per table
_MAX_FAILURES = 5  # requests in a row that fail, before no more are sent
_MAX_WITHOUT_QUESTION = 20  # answers in a row without a question
_ABOUT = (
    "The questions were generated from paragraphs by the language model {model}, which was asked through an "
    "OpenAI-compatible endpoint with the prompt below. {counts}"
)


@dataclass(frozen=True)
class EndpointPrompt:
    """What a language model is asked, besides the paragraphs: all that affects its answers.

    Attributes:
        model: the name of the model at the endpoint.
        template: with {context}, and {answer} if an answer is chosen first.
        count: number of questions per paragraph.
        spacy: the spaCy pipeline that finds answers; None = find them by rules.
        max_output: limit of tokens of an answer.
        sample, temperature, top_p: how tokens are chosen; without `sample` the temperature is 0.
        extra: further fields of each request; None leaves a field out.
    """

    model: str
    template: str
    count: int = 1
    spacy: str | None = None
    max_output: int = 128
    sample: bool = False
    temperature: float = 1.0
    top_p: float = 0.95
    seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names_answers(self) -> bool:
        """True if an answer is chosen first and the question is generated for it."""
        return "{answer}" in self.template

    @property
    def settings(self) -> dict[str, float | int | str]:
        """All settings that affect the questions, by name."""
        drawn: dict[str, float | int | str] = (
            {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed} if self.sample else {}
        )
        return {
            "model": self.model,
            "engine": "endpoint",
            "prompt": self.template,
            "max_output": self.max_output,
            "decoding": "sample" if self.sample else "greedy",
            **drawn,
            "extra_body": json.dumps(dict(self.extra), sort_keys=True),
            "answers": (self.spacy or "rule") if self.names_answers else "none",
        }

    def answers(self, text: str) -> list[str | None]:
        """The answers to ask for, one per question; None = the template names none."""
        if not self.names_answers:
            return [None] * self.count
        return [answer.text for answer in choose_answers(text, self.count, self.spacy)]

    def prompt(self, text: str, answer: str | None) -> str:
        """The message that is sent."""
        return self.template.format(context=text, answer=answer)

    def body(self, name: str, text: str, answer: str | None) -> dict[str, Any]:
        """The fields of the request for one question."""
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt(text, answer)}],
            "max_tokens": self.max_output,
            "temperature": self.temperature if self.sample else 0,
        }
        if self.sample:
            seed = int(digest_bytes(f"{self.seed}:{name}")[:8], 16) >> 1
            fields |= {"top_p": self.top_p, "seed": seed}
        return {key: value for key, value in (fields | dict(self.extra)).items() if value is not None}


class _Streak:
    """Counts how often something happens in a row."""

    def __init__(self, limit: int):
        self.limit = limit
        self._count = 0
        self._lock = threading.Lock()

    def reached(self, happened: bool) -> bool:
        """Count once more, or from 0 again; True if it has happened `limit` times in a row."""
        with self._lock:
            self._count = self._count + 1 if happened else 0
            return self._count >= self.limit


class _Pending(NamedTuple):
    """A paragraph whose requests are under way: its uid, text and source, the answers and their futures."""

    uid: str
    text: str
    source: str
    requests: list[tuple[str | None, Future[Completion | None]]]


@dataclass(frozen=True)
class EndpointQuestions(Augmenter):
    """Ask a language model about paragraphs; the two texts of a row are the paragraph and its source.

    Attributes:
        client, log: where requests go, and where answers are kept until the corpus is finished.
        concurrency: number of requests at a time.
        answers: uid -> the answers to ask for.
        words: the word range of the paragraphs, for the manifest; `counts`: how many were used.
        first: the first answer, until there is a log.
        failures, without_question: how many requests in a row failed, or had an answer without a question.
    """

    endpoint_prompt: EndpointPrompt
    client: Client
    log: AnswerLog
    concurrency: int
    answers: Mapping[str, list[str | None]]
    words: str = "any"
    counts: str = ""
    first: dict[str, Completion] = field(default_factory=dict)
    failures: _Streak = field(default_factory=lambda: _Streak(_MAX_FAILURES))
    without_question: _Streak = field(default_factory=lambda: _Streak(_MAX_WITHOUT_QUESTION))

    name = "questions"
    kind = "questions"
    schema = QUESTION_SCHEMA
    count_names = REQUEST_COUNTS

    @property
    def description(self) -> str:
        """How the questions were made, with the paragraph counts."""
        return _ABOUT.format(model=self.endpoint_prompt.model, counts=self.counts).strip()

    @property
    def settings(self) -> dict[str, float | int | str]:
        """All settings that affect the questions. The address does not: another server may resume."""
        return {**self.endpoint_prompt.settings, "words": self.words}

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield up to `copies` questions about each of `rows`, in their order.

        Raises:
            UserError: the endpoint cannot be used, or too many requests in a row fail.
        """
        columns = [column.to_pylist() for column in (rows.uids, *rows.texts)]
        while self.first:
            self.log.add(*self.first.popitem())
        with ThreadPoolExecutor(self.concurrency) as pool:

            def submit(uid: str, number: int, text: str, answer: str | None) -> Future[Completion | None]:
                return pool.submit(self._ask, f"{uid}#{number}", text, answer)

            try:
                pending = [
                    _Pending(uid, text, source, [(a, submit(uid, n, text, a)) for n, a in numbered])
                    for uid, text, source in zip(*columns, strict=True)
                    for numbered in (enumerate(self.answers[uid][:copies], 1),)
                ]
                for start in range(0, len(pending), _CHUNK):
                    yield self._collect(rows.task, pending[start : start + _CHUNK])
            except BaseException as error:
                self.client.stop()
                if isinstance(error, KeyboardInterrupt):
                    say("stopping; waiting for the requests that were sent")
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                self.log.close()

    def _ask(self, name: str, text: str, answer: str | None) -> Completion | None:
        """The answer to one request, from the log or from the endpoint; None if it failed."""
        if name in self.log.answers:
            return self.log.answers[name]
        try:
            completion = self.client.complete(self.endpoint_prompt.body(name, text, answer))
        except RequestFailed as error:
            say(f"the request for {name} failed: {error}")
            if self.failures.reached(True):
                raise self.client.stop_with(
                    f"{self.failures.limit} requests in a row failed, the last with {error}",
                    hint="run the same command again when the server works; it keeps the answers",
                ) from error
            return None
        self.failures.reached(False)
        self.log.add(name, completion)
        if self.without_question.reached(find_question(completion.text) is None):
            raise self.client.stop_with(
                f"{self.without_question.limit} answers in a row hold no question; "
                f"the last is {brief(completion.text)}",
                hint="try another `prompt_template`, or a larger `max_output`, with `limit=20`",
            )
        return completion

    def _collect(self, task: str, pending: Iterable[_Pending]) -> Copies:
        """Wait for the answers about some paragraphs."""
        rows: list[QuestionRow] = []
        counts = Counter(dict.fromkeys(REQUEST_COUNTS, 0))
        for uid, text, source, requests in pending:
            answer_of: dict[str, str | None] = {}
            for answer, future in requests:
                completion = future.result()
                if completion is None:
                    counts["failed"] += 1
                    continue
                counts["requests"] += 1
                counts["input_tokens"] += completion.input_tokens
                counts["output_tokens"] += completion.output_tokens
                question = find_question(completion.text)
                counts["no_question"] += question is None
                counts["repeated"] += question in answer_of
                if question is not None:
                    answer_of.setdefault(question, answer)
            rows += [
                QuestionRow(task, uid, number, question, text, self.name, source, asked_for=answer)
                for number, (question, answer) in enumerate(answer_of.items(), 1)
            ]
        return Copies(question_table(rows), 0, 0, 0, counts)

    def missing(self, paragraphs: Iterable[Paragraph]) -> Iterator[tuple[str, str, str | None]]:
        """The requests that were not answered before: name, text and answer."""
        for paragraph in paragraphs:
            for number, answer in enumerate(self.answers[paragraph.uid], 1):
                if (name := f"{paragraph.uid}#{number}") not in self.log.answers:
                    yield name, paragraph.text, answer

    def try_first(self, paragraphs: Iterable[Paragraph]) -> None:
        """Send requests until one is answered, before anything is written.

        Raises:
            UserError: the endpoint cannot be used. If it answered before, the requests may be at fault.
        """
        new = not self.log.answers
        for number, (name, text, answer) in enumerate(self.missing(paragraphs), 1):
            try:
                completion = self.client.complete(self.endpoint_prompt.body(name, text, answer))
                self.log.answers[name] = self.first[name] = completion
                return
            except RequestFailed as error:
                if not new:
                    return
                if not error.refused or number == _MAX_FAILURES:
                    raise self.client.stop_with(f"no request is answered: {error}") from error

    def estimate(self, paragraphs: Iterable[Paragraph], prices: Prices) -> CostEstimate:
        """The estimated cost of asking about some paragraphs."""
        missing = self.missing(paragraphs)
        sizes = [len(self.endpoint_prompt.prompt(text, answer).encode()) for _, text, answer in missing]
        n_answered = sum(map(len, self.answers.values())) - len(sizes)
        return CostEstimate.of(sum(sizes), len(sizes), n_answered, self.endpoint_prompt.max_output, prices)
