"""What an HTTP server serves at an address."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from segue.errors import Invalid, MissingExtra
from segue.ledger import Answer, Denied, Gone, Unanswered, Version

from .reach import Reach

_GONE = frozenset({404, 410})
_DENIED = frozenset({401, 403, 407, 451})
_NO_HEAD = frozenset({405, 501})
_MAX_AGE = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?(\d{1,10})", re.IGNORECASE)
_REVALIDATE = re.compile(r"(?:^|,)\s*(?:no-cache|no-store)\b", re.IGNORECASE)


class Http:
    """
    The version is the ``ETag``, else ``Last-Modified``, else the SHA-256 of the body.

    Args:
        url: The address; None: the source's name is the address, which must lie below one of ``allow``.
        allow: Addresses below which sources may be looked at.
        headers: Sent along (authorization), or a callable that makes them for a principal.
        timeout_seconds: For each step of the request.
        body_max_bytes: Larger bodies are not hashed: unverifiable.
        client: An ``httpx.Client`` of your own (certificates, proxies); it is not closed.

    It asks with HEAD and the validator that was seen, by GET where the server has no HEAD or no
    validator. Redirects are not followed: a source that moved is unverifiable.

    Blind spots: ``Last-Modified`` has a resolution of one second. A weak ETag calls equal what the server deems
    equivalent. Some servers answer 404 for what one may not see. A cache in between may answer for the server.
    Without a validator, a page that differs at every request (a date, a token) always alarms.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        allow: Iterable[str] = (),
        headers: Mapping[str, str] | Callable[[str | None], Mapping[str, str]] | None = None,
        timeout_seconds: float = 5.0,
        body_max_bytes: int = 16 * 1024 * 1024,
        client: Any = None,
    ) -> None:
        self._url = url
        self._reach = Reach(allow)
        self._headers = headers
        self._timeout_seconds = timeout_seconds
        self._body_max_bytes = body_max_bytes
        self._client = client
        if url is None and not tuple(allow):
            raise Invalid("give the url, or allow=… the addresses that sources may name", where="url")

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """What the server says now."""
        url = self._url or source
        if self._url is None and not self._reach.covers(url):
            return Unanswered("outside the addresses that may be looked at")
        headers = self._request_headers(principal, seen)
        if self._client is not None:
            return self._ask(self._client, url, headers, seen)
        with _httpx().Client(timeout=self._timeout_seconds, verify=_trust()) as client:
            return self._ask(client, url, headers, seen)

    def _request_headers(self, principal: str | None, seen: Version | None) -> dict[str, str]:
        own = self._headers(principal) if callable(self._headers) else self._headers or {}
        conditional = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}.get(seen.kind if seen else "")
        return {**own, "Cache-Control": "no-cache", **({conditional: seen.value} if seen and conditional else {})}

    def _ask(self, client: Any, url: str, headers: dict[str, str], seen: Version | None) -> Answer:
        if seen is None or seen.kind != "sha256":
            response = client.request("HEAD", url, headers=headers, follow_redirects=False)
            if response.status_code not in _NO_HEAD:
                answer = _answer(response, seen)
                if answer is not None:
                    return answer
        with client.stream("GET", url, headers=headers, follow_redirects=False) as response:
            return (None if seen and seen.kind == "sha256" and response.is_success else _answer(response, seen)) or (
                self._hashed(response)
            )

    def _hashed(self, response: Any) -> Answer:
        hashing, size = hashlib.sha256(), 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > self._body_max_bytes:
                return Unanswered(f"a body over {self._body_max_bytes:,} bytes and no validator")
            hashing.update(chunk)
        return Version("sha256", hashing.hexdigest())


def from_headers(headers: Mapping[str, str], *, prefer: str | None = None) -> tuple[Version | None, timedelta | None]:
    """
    What the headers of a response say of it: its version, and how long it may be relied on.

    Args:
        headers: Of any HTTP client; names in any case.
        prefer: The kind of version to take where there are several (``last-modified``).

    Returns:
        The version (``ETag`` before ``Last-Modified``) or None, and the rest of ``max-age`` after
        ``Age`` (zero for no-cache), or None where nothing is said.
    """
    said = {name.lower(): value for name, value in headers.items()}
    kinds = sorted(("etag", "last-modified"), key=lambda kind: kind != prefer)
    version = next((Version.of(said[kind].strip(), kind) for kind in kinds if said.get(kind, "").strip()), None)
    control = said.get("cache-control", "")
    if _REVALIDATE.search(control):
        return version, timedelta()
    found = _MAX_AGE.search(control)
    if found is None:
        return version, None
    age = said.get("age", "0").strip()
    rest = int(found[1]) - (int(age) if age.isdecimal() and len(age) < 11 else 0)
    return version, timedelta(seconds=max(rest, 0))


def _answer(response: Any, seen: Version | None) -> Answer | None:
    """What a status and headers say; None: only the body can tell."""
    status = response.status_code
    if status in _GONE:
        return Gone(f"HTTP {status}")
    if status in _DENIED:
        return Denied(f"HTTP {status}")
    if status == 304 and seen is not None:
        return seen
    if not 200 <= status < 300:
        return Unanswered(f"HTTP {status}")
    return from_headers(response.headers, prefer=seen.kind if seen else None)[0]


@functools.cache
def _trust() -> Any:
    """Reading the certificates takes longer than most requests: once for all looks of this process."""
    return _httpx().create_ssl_context()


def _httpx() -> Any:
    try:
        return import_module("httpx")
    except ImportError as error:
        raise MissingExtra("world", "httpx") from error
