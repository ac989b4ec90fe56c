"""The address of an endpoint, and the key that is sent to it."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field

import httpx2

from tasks.common.errors import UserError

_KEY = "OPENAI_API_KEY"
_PATH = "/chat/completions"
_EXPECTED = "http://HOST:PORT/v1 or https://HOST/v1"


@dataclass(frozen=True)
class Address:
    """Where requests go.

    Attributes:
        url: the URL of the chat completions.
        local: whether it is on this machine.
        key: the API key; None = none is sent.
    """

    url: str
    local: bool
    key: str | None = field(default=None, repr=False)

    @staticmethod
    def parse(model: str, variable: str | None) -> Address:
        """Parse the URL that was given as `model`.

        Args:
            variable: the environment variable with the API key; "" = send no key; None = `OPENAI_API_KEY`, if
                it is set.

        Raises:
            UserError: not the address of an endpoint, the variable is not set, or the key would be sent
                unencrypted.
        """
        try:
            url = httpx2.URL(model)
        except httpx2.InvalidURL as error:
            raise UserError(f"`model={model[:200]!r}` is not a URL: {error}", expected=_EXPECTED) from error
        if url.userinfo or url.query or url.fragment:
            raise UserError(
                "the URL in `model` holds more than an address",  # not shown: it may hold a secret
                expected=_EXPECTED,
                hint="name the environment variable that holds the API key with `api_key_env`",
            )
        if url.scheme not in ("http", "https") or not url.host:
            raise UserError(f"`model={model[:200]!r}` is not valid", expected=_EXPECTED)
        path = url.path.rstrip("/").removesuffix(_PATH) + _PATH
        local, key = _is_local(url.host), _key(variable)
        if key and url.scheme == "http" and not local:
            raise UserError(
                f"the API key in {variable or _KEY} would be sent unencrypted to {url.host}",
                expected="https, or a server on this machine",
                hint="send none with `api_key_env=''`, or use https",
            )
        return Address(str(url.copy_with(path=path)), local, key)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _key(variable: str | None) -> str | None:
    if variable == "":
        return None
    name = _KEY if variable is None else variable
    key = os.environ.get(name, "").strip()
    if not key and variable is not None:
        raise UserError(
            "the environment variable that `api_key_env` names is not set",  # not shown: it may be a key
            expected="the name of the variable that holds the API key, not the key itself",
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(f"the API key in {name} holds characters that no key has")
    return key or None
