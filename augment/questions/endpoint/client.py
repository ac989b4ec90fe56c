"""A client for OpenAI-compatible endpoints, with rate limiting and retries of transient failures."""

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
from tasks.common.errors import UserError

BACKOFF = 1.0  # seconds before a request is tried again; doubled each time
_MAX_BACKOFF = 60.0
_MAX_RETRY_AFTER = 600.0  # seconds; the job ends if a server asks for more
_CONNECT_TIMEOUT = 10.0  # seconds
_MAX_RESPONSE_BYTES = 1 << 20
_MAX_EXCERPT = 200  # characters of a server's message
_MAX_ANSWER = 1000  # characters that are kept of an answer
_RATE_LIMITED_STATUSES = (429, 503)
_RETRYABLE_STATUSES = (408, 409, 425, *_RATE_LIMITED_STATUSES)
_SKIPPED_STATUSES = (400, 413, 422)

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
class _ResponseBody:
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


_RESPONSE = TypeAdapter(_ResponseBody)


@dataclass(frozen=True)
class Completion:
    """What a model answered, without its thinking, and the tokens that the server counted."""

    text: str
    input_tokens: int
    output_tokens: int


class RequestFailed(Exception):
    """The server rejected a request, or its retries are used up. Other requests may still succeed."""

    def __init__(self, reason: str, *, refused: bool = False):
        super().__init__(reason)
        self.refused = refused


class _TransientError(Exception):
    def __init__(self, reason: str, *, wait: float | None = None, rate_limited: bool = False):
        super().__init__(reason)
        self.wait, self.rate_limited = wait, rate_limited


class Client:
    """Sends requests, from any number of threads.

    Args:
        timeout: seconds for one answer.
        retries: maximum retries of a request. A rate limit does not count if other requests succeeded
            meanwhile.
        per_minute: maximum number of requests started in a minute, evenly spaced; None = no limit.
    """

    def __init__(self, address: Address, timeout: float, retries: int, per_minute: float | None = None):
        self.address = address
        self.timeout = timeout
        self.retries = retries
        self._connect_timeout = min(timeout, _CONNECT_TIMEOUT)
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
            timeout=httpx2.Timeout(timeout, connect=self._connect_timeout),
            limits=httpx2.Limits(max_connections=None),
            follow_redirects=False,
            trust_env=not address.local,  # proxies
        )

    def stop(self) -> None:
        """Start no more requests; waiting calls of `complete` raise CancelledError or an earlier error."""
        self._stopping.set()

    def close(self) -> None:
        """Start no more requests, and close the connections."""
        self.stop()
        self._http.close()

    def stop_with(self, reason: str, hint: str | None = None) -> UserError:
        """Stop, and return the error to raise; waiting calls of `complete` also raise it."""
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
            self._wait_for_slot()
            try:
                completion = self._send(body)
                self._answered += 1
                return completion
            except _TransientError as error:
                others_succeed = error.rate_limited and self._answered > answered
                failures = 0 if others_succeed else failures + 1
                answered = self._answered
                if failures > self.retries:
                    raise RequestFailed(str(error)) from error
                wait = error.wait
                if wait is None:
                    wait = min(_MAX_BACKOFF, BACKOFF * 2 ** max(failures - 1, 0)) * random.uniform(0.5, 1)
                if error.rate_limited:
                    with self._lock:
                        self._next = max(self._next, time.monotonic() + wait)
                self._stopping.wait(wait)

    def _wait_for_slot(self) -> None:
        """Wait until a request may start; raise if the client was stopped."""
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
            status, headers, raw = self._post(body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            late = isinstance(error, httpx2.ConnectTimeout)
            reason = f"no connection in {self._connect_timeout:g} s" if late else f"no connection ({error})"
            if self._reached:
                raise _TransientError(reason) from error
            raise self.stop_with(reason, hint="is the server running, and is this its address?") from error
        except httpx2.TimeoutException as error:
            raise _TransientError(f"no answer in {self.timeout:g} s") from error
        except httpx2.HTTPError as error:
            raise _TransientError(f"the connection broke ({type(error).__name__})") from error
        if status == 200:
            return _parse_completion(raw)
        reason = f"status {status}: {_excerpt(raw)}"
        if status in _RETRYABLE_STATUSES or status >= 500:
            wait = _parse_retry_after(headers.get("retry-after"))
            if wait is not None and wait > _MAX_RETRY_AFTER:
                raise self.stop_with(
                    reason, hint=f"the server asks to wait {min(wait, 1e9):,.0f} s; try again then"
                )
            raise _TransientError(reason, wait=wait, rate_limited=status in _RATE_LIMITED_STATUSES)
        if status in _SKIPPED_STATUSES:
            raise RequestFailed(reason, refused=True)
        raise self.stop_with(reason, hint=self._hint(status, headers))

    def _post(self, body: dict[str, Any]) -> tuple[int, httpx2.Headers, bytes]:
        """The status, the headers and the content of an answer, of bounded size and duration."""
        deadline, raw = time.monotonic() + self.timeout, bytearray()
        with self._http.stream("POST", self.address.url, json=body) as response:
            self._reached = True
            for chunk in response.iter_raw():
                raw += chunk
                if len(raw) > _MAX_RESPONSE_BYTES:
                    raise _TransientError(f"the response is longer than {_MAX_RESPONSE_BYTES:,} bytes")
                if time.monotonic() > deadline:
                    raise httpx2.ReadTimeout("too slow")
            text = self._mask_key(raw.decode(errors="surrogateescape"))
            return response.status_code, response.headers, text.encode(errors="surrogateescape")

    def _mask_key(self, text: str) -> str:
        """Mask the API key in text that the server sent."""
        return text.replace(self.address.key, "***") if self.address.key else text

    def _hint(self, status: int, headers: httpx2.Headers) -> str:
        if status in (401, 403):
            if self.address.key:
                return "check the API key in the variable that `api_key_env` names, and what the key may use"
            return "no key was sent; name the environment variable that holds the API key with `api_key_env`"
        if "location" in headers:
            return (
                f"redirects are not followed; the server redirects to {self._mask_key(headers['location'])}"
            )
        return "check that `model` is the right URL and that the server offers `endpoint_model`"


def _parse_completion(raw: bytes) -> Completion:
    try:
        response = _RESPONSE.validate_json(raw)
    except ValidationError as error:
        raise _TransientError(f"the response is not a chat completion: {_excerpt(raw)}") from error
    usage = response.usage or _Usage()
    text = without_thinking(response.choices[0].message.content or "")
    return Completion(text[:_MAX_ANSWER], usage.prompt_tokens or 0, usage.completion_tokens or 0)


def without_thinking(text: str) -> str:
    """Remove what a reasoning model wrote between <think> and </think> before its answer."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def _excerpt(raw: bytes) -> str:
    text = " ".join(raw.decode(errors="replace").split())
    return text[:_MAX_EXCERPT] + "..." * (len(text) > _MAX_EXCERPT) if text else "(nothing)"


def _parse_retry_after(retry_after: str | None) -> float | None:
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
