"""A local server with the part of the OpenAI API that question generation needs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Reply(NamedTuple):
    """A reply of the server: a status, a body (text, or JSON values), and headers."""

    status: int = 200
    body: Any = ""
    headers: dict[str, str] = {}  # noqa: RUF012 (it is not changed)


def chat_completion(text: str | None, read: int = 50, written: int = 10) -> Reply:
    """Return a chat completion with this text and these numbers of tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return Reply(200, {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})


class FakeEndpoint:
    """Answers with `reply(prompt)`, and records the requests: paths, headers and bodies."""

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}/v1"
        self.reply: Callable[[str], Reply] = lambda prompt: chat_completion("Who wrote it?")
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []

    @property
    def prompts(self) -> list[str]:
        """The prompts of all requests."""
        return [body["messages"][0]["content"] for body in self.bodies]


@contextlib.contextmanager
def serve() -> Iterator[FakeEndpoint]:
    """Run a server in threads until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.paths.append(self.path)
            endpoint.headers.append(dict(self.headers))
            endpoint.bodies.append(body)
            reply = endpoint.reply(body["messages"][0]["content"])
            raw = reply.body if isinstance(reply.body, bytes) else str(reply.body).encode()
            if isinstance(reply.body, dict):
                raw = json.dumps(reply.body).encode()
            with contextlib.suppress(OSError):  # the client has closed the connection
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(raw)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # connections that wait to be accepted; by default 5

    server = Server(("127.0.0.1", 0), Handler)
    server.handle_error = lambda request, client_address: None  # the client has closed the connection
    endpoint = FakeEndpoint(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
