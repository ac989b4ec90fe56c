"""Requests to an OpenAI-compatible endpoint: paced, tried again after failures that may pass."""

from __future__ import annotations

import math
import random
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import httpx2
from pydantic import Field, TypeAdapter, ValidationError

from augment.questions.endpoint.address import Address
from tasks.errors import UserError

BACKOFF = 1.0  # seconds before a request is tried again; doubled each time
_LONGEST_BACKOFF = 60.0
_LONGEST_WAIT = 600.0  # that a server may ask for
_CONNECTING = 10.0  # seconds
_MOST_BYTES = 1 << 20  # of an answer
_MOST_SHOWN = 200  # characters of a server's message
_MOST_TEXT = 1000  # characters that are kept of an answer
_BUSY = (429, 503)
_MAY_PASS = (408, 409, 425, *_BUSY)
_OF_ONE_REQUEST = (400, 413, 422)

_Tokens = Annotated[int, Field(ge=0, le=2**31)] | None


@dataclass(frozen=True)
class _Message:
    content: str | None = None


@dataclass(frozen=True)
class _Choice:
    message: _Message


@dataclass(frozen=True)
class _Usage:
    prompt_tokens: _Tokens = None
    completion_tokens: _Tokens = None


@dataclass(frozen=True)
class _Completion:
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


_COMPLETION = TypeAdapter(_Completion)


@dataclass(frozen=True)
class Completion:
    """What a model answered, without its thinking, and the tokens that the server counted."""

    text: str
    input_tokens: int
    output_tokens: int


class RequestFailed(Exception):
    """A request was refused, or failed as often as it may be tried; others may still succeed."""

    def __init__(self, reason: str, *, refused: bool = False):
        super().__init__(reason)
        self.refused = refused


class _TryAgain(Exception):
    def __init__(self, reason: str, *, wait: float | None = None, busy: bool = False):
        super().__init__(reason)
        self.wait, self.busy = wait, busy


class Client:
    """Sends requests, from any number of threads.

    Args:
        timeout: seconds for one answer.
        retries: how often a request is tried again. While a server that is too busy for it answers others,
            it goes on trying.
        per_minute: at most so many requests are started in a minute, evenly spaced; None = no limit.
    """

    def __init__(self, address: Address, timeout: float, retries: int, per_minute: float | None = None):
        self.address, self.timeout, self.retries = address, timeout, retries
        self._interval = 60 / per_minute if per_minute else 0.0
        self._next = 0.0  # when the next request may start
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._stopped: BaseException = CancelledError()
        self._reached, self._answered = False, 0
        headers = {"Accept-Encoding": "identity", "User-Agent": "mtkd"}
        if address.key:
            headers["Authorization"] = f"Bearer {address.key}"
        self._http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECTING)),
            limits=httpx2.Limits(max_connections=None),
            follow_redirects=False,
            trust_env=not address.local,  # proxies
        )

    def stop(self) -> None:
        """Start no more requests; calls of `complete` that wait raise CancelledError, or the error before."""
        self._stopping.set()

    def close(self) -> None:
        """Start no more requests, and close the connections."""
        self.stop()
        self._http.close()

    def stop_with(self, reason: str, hint: str | None = None) -> UserError:
        """Start no more requests, and return the error for it, which waiting calls of `complete` raise."""
        with self._lock:
            error = UserError(f"the endpoint {self.address.url}: {reason}", hint=hint)
            if not self._stopping.is_set():
                self._stopped = error
                self._stopping.set()
            return error

    def complete(self, body: dict[str, Any]) -> Completion:
        """Send one request until it is answered.

        Raises:
            RequestFailed: the server refuses this request, or it failed too often.
            UserError: the server refuses all requests, or cannot be reached at all.
        """
        failures, answered = 0, self._answered
        while True:
            self._take_turn()
            try:
                completion = self._send(body)
                self._answered += 1
                return completion
            except _TryAgain as problem:
                passing = problem.busy and self._answered > answered
                failures, answered = 0 if passing else failures + 1, self._answered
                if failures > self.retries:
                    raise RequestFailed(str(problem)) from problem
                wait = problem.wait
                if wait is None:
                    wait = min(_LONGEST_BACKOFF, BACKOFF * 2 ** max(failures - 1, 0)) * random.uniform(0.5, 1)
                if problem.busy:
                    with self._lock:
                        self._next = max(self._next, time.monotonic() + wait)
                self._stopping.wait(wait)

    def _take_turn(self) -> None:
        """Wait until a request may start; raise if none may any more."""
        while not self._stopping.is_set():
            with self._lock:
                wait = self._next - time.monotonic()
                if wait <= 0:
                    self._next = time.monotonic() + self._interval
                    return
            self._stopping.wait(wait)
        raise self._stopped

    def _send(self, body: dict[str, Any]) -> Completion:
        try:
            status, headers, raw = self._exchange(body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            reason = f"no connection ({error})"
            if self._reached:
                raise _TryAgain(reason) from error
            raise self.stop_with(reason, hint="is the server running, and is this its address?") from error
        except httpx2.TimeoutException as error:
            raise _TryAgain(f"no answer in {self.timeout:g} s") from error
        except httpx2.HTTPError as error:
            raise _TryAgain(f"the connection broke ({type(error).__name__})") from error
        if status == 200:
            return _completion(raw)
        reason = f"status {status}: {_shown(raw)}"
        if status in _MAY_PASS or status >= 500:
            wait = _seconds(headers.get("retry-after"))
            if wait is not None and wait > _LONGEST_WAIT:
                raise self.stop_with(
                    reason, hint=f"run the same command again in {min(wait, 1e9):,.0f} s, as it asks"
                )
            raise _TryAgain(reason, wait=wait, busy=status in _BUSY)
        if status in _OF_ONE_REQUEST:
            raise RequestFailed(reason, refused=True)
        raise self.stop_with(reason, hint=self._hint(status, headers))

    def _exchange(self, body: dict[str, Any]) -> tuple[int, httpx2.Headers, bytes]:
        """The status, the headers and the content of an answer, of bounded size and duration."""
        deadline, raw = time.monotonic() + self.timeout, bytearray()
        with self._http.stream("POST", self.address.url, json=body) as response:
            self._reached = True
            for chunk in response.iter_raw():
                raw += chunk
                if len(raw) > _MOST_BYTES:
                    raise _TryAgain(f"its answer is longer than {_MOST_BYTES:,} bytes")
                if time.monotonic() > deadline:
                    raise httpx2.ReadTimeout("too slow")
            text = self._without_key(raw.decode(errors="surrogateescape"))
            return response.status_code, response.headers, text.encode(errors="surrogateescape")

    def _without_key(self, text: str) -> str:
        """What a server sent, which may repeat the key."""
        return text.replace(self.address.key, "***") if self.address.key else text

    def _hint(self, status: int, headers: httpx2.Headers) -> str:
        if status in (401, 403):
            sent = "a wrong key was sent" if self.address.key else "no key was sent"
            return f"{sent}; name the environment variable that holds the API key with `api_key_env`"
        if "location" in headers:
            return f"redirects are not followed; it names {self._without_key(headers['location'])}"
        return "compare `model` and `endpoint_model` with what the server offers"


def _completion(raw: bytes) -> Completion:
    try:
        found = _COMPLETION.validate_json(raw)
    except ValidationError as error:
        raise _TryAgain(f"its answer is not a chat completion: {_shown(raw)}") from error
    usage = found.usage or _Usage()
    text = without_thinking(found.choices[0].message.content or "")
    return Completion(text[:_MOST_TEXT], usage.prompt_tokens or 0, usage.completion_tokens or 0)


def without_thinking(text: str) -> str:
    """An answer without what a reasoning model wrote before it between <think> and </think>."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def _shown(raw: bytes) -> str:
    text = " ".join(raw.decode(errors="replace").split())
    return text[:_MOST_SHOWN] + "..." * (len(text) > _MOST_SHOWN) if text else "(nothing)"


def _seconds(retry_after: str | None) -> float | None:
    """How long a server asks to wait; None if it does not say so."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
