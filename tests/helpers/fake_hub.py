"""A local server with the part of the Hugging Face hub's protocol that its client needs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_COMMIT = "a" * 40


class FakeHub:
    """Uploaded files: repository ("owner/name", data sets as "datasets/owner/name") -> file -> content."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.tokens: set[str | None] = set()

    @contextmanager
    def listen(self) -> Iterator[str]:
        """Answer requests, and yield the address."""
        hub = self

        class Handler(_Handler):
            fake = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    @contextmanager
    def serve(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
        """Answer the client of huggingface_hub in this process."""
        with self.listen() as address:
            use_hub(address, monkeypatch)
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
            yield self


def use_hub(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client of huggingface_hub in this process use the hub at an address."""
    constants = "huggingface_hub.constants."
    monkeypatch.setattr(constants + "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants + "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants + "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants + "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        path = self.path.split("?")[0].strip("/")
        if path == "":
            self._json({})
        elif path.startswith("api/"):
            repository = path.removeprefix("api/").removeprefix("models/")
            repository = repository.split("/revision/")[0].split("/tree/")[0]
            files = self.fake.files.get(repository)
            if files is None:
                self._missing("RepoNotFound")
            elif "/tree/" in path:
                sizes = {file: len(content) for file, content in files.items()}
                self._json([{"type": "file", "path": f, "size": n, "oid": _COMMIT} for f, n in sizes.items()])
            else:
                name = repository.removeprefix("datasets/")
                self._json(
                    {"id": name, "sha": _COMMIT, "siblings": [{"rfilename": f} for f in files], "tags": []}
                )
        else:
            repository, _, rest = path.partition("/resolve/")
            files = self.fake.files.get(repository)
            content = (files or {}).get(rest.partition("/")[2])
            if content is None:
                self._missing("RepoNotFound" if files is None else "EntryNotFound")
            else:
                etag = hashlib.sha256(content).hexdigest()
                self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": _COMMIT}, body)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.fake.tokens.add(self.headers.get("Authorization"))
        path = self.path.split("?")[0].strip("/")
        if path == "api/repos/create":
            request = json.loads(sent)
            name = "/".join(filter(None, (request.get("organization"), request["name"])))
            prefix = "datasets/" if request.get("type") == "dataset" else ""
            self.fake.files.setdefault(prefix + name, {})
            self._json({"url": f"http://{self.headers['Host']}/{prefix}{name}"})
        elif path == "api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            request = json.loads(sent)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in request]
            self._json({"files": modes})
        else:
            repository = path.removeprefix("api/").removeprefix("models/").split("/commit/")[0]
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.fake.files[repository][line["value"]["path"]] = content
            self._json({"commitUrl": f"http://{self.headers['Host']}/{repository}", "commitOid": _COMMIT})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _missing(self, code: str) -> None:
        self._send(404, b"", {"X-Error-Code": code})

    def _send(self, code: int, content: bytes, headers: dict[str, str], body: bool = True) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""
