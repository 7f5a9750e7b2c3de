"""
Readings that need no declaration: what a response, a file, a query's rows or an MCP resource says of itself.

Each function makes an ``Observation`` in the very kind of version that the probe of that sort of
source compares; ``run.observe(...)`` or ``segue.guard.record(...)`` records it. For httpx there are
hooks that record every page that a client reads inside ``using``:

    client = httpx.Client(event_hooks={"response": [segue.inferred.on_response]})
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from .errors import Invalid
from .guard import record
from .ledger import Observation, Version, digest_of
from .probes import from_headers, rows_version

_READS = frozenset({"GET", "HEAD"})


def from_response(response: Any, *, source: str | None = None, body: bytes | None = None) -> Observation:
    """
    What an HTTP response read: compare it with ``probes.Http``.

    Args:
        response: Of httpx or requests: anything with ``status_code``, ``url`` and ``headers``.
        source: The source's name; None: the address, without the name and password in it.
        body: What was read, where the server sends no validator: its SHA-256 is the version then.

    Returns:
        Version by ``ETag``, ``Last-Modified`` or the body; lifetime by ``Cache-Control`` and ``Age``.

    Raises:
        Invalid: The response is no success, so nothing was read; or its address is too long for a name.
    """
    status = response.status_code
    if not 200 <= status < 300 or status == 206:
        raise Invalid(f"HTTP {status} is no reading of the whole page", where="response")
    version, max_age = from_headers(response.headers)
    digest = None if body is None else hashlib.sha256(body).hexdigest()
    if version is None and digest is not None:
        version = Version("sha256", digest)
    return Observation(source or _address(str(response.url)), version, digest, max_age=max_age)


def _address(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def on_response(response: Any) -> None:
    """An httpx hook: record what was read with GET or HEAD, in the run in use. It does not read the body."""
    if str(response.request.method).upper() in _READS and 200 <= response.status_code < 300:
        observation = _observed(response)
        if observation is not None:
            record(observation)


async def on_response_async(response: Any) -> None:
    """The same for ``httpx.AsyncClient``; it records on a thread, not on the event loop."""
    import asyncio

    await asyncio.to_thread(on_response, response)


def _observed(response: Any) -> Observation | None:
    try:
        return from_response(response)
    except Invalid:  # a part of a page, or an address that is no name of a source: not a reading of anything named
        return None


def from_file(path: str | Path, data: str | bytes, *, root: str | Path | None = None) -> Observation:
    """
    What was read of a file: compare it with ``probes.File``.

    Args:
        path: The file.
        data: The whole content as it was read (a str as UTF-8, its line ends as in the file): no second
            look is taken, so no change falls in between.
        root: The first of the probe's folders, to name the file inside it; None: by its whole path.
    """
    whole = Path(os.path.realpath(path))
    name = whole.as_posix() if root is None else whole.relative_to(os.path.realpath(root)).as_posix()
    raw = data.encode() if isinstance(data, str) else data
    digest = hashlib.sha256(raw).hexdigest()
    return Observation(f"file:{name}", Version("sha256", digest), digest)


def from_rows(source: str, rows: Iterable[Sequence[Any]], *, collection: bool = True) -> Observation:
    """
    What a query gave: compare it with ``probes.Rows`` of the same query.

    Args:
        source: The source's name.
        rows: All rows, in the order and with the values that the driver gave.
        collection: False when rows cannot be added.
    """
    kept = [tuple(row) for row in rows]
    digest = digest_of([[str(value) for value in row] for row in kept])
    return Observation(source, rows_version(kept), digest, collection=collection)


def from_mcp(result: Any, *, source: str | None = None) -> Observation:
    """
    What an MCP server answered to ``resources/read``.

    Args:
        result: A ``ReadResourceResult``, as an object of the SDK or as JSON.
        source: The source's name; None: the URI of the first content.

    Returns:
        A reading that holds for the server's ``ttlMs`` (2026-07-28, SEP-2549) and has no version, as the
        protocol has none: to compare contents register a probe that reads the resource, and give ``version``.

    Raises:
        Invalid: There is no content, and no source was given.
    """
    contents = _field(result, "contents") or []
    name = source or next((str(uri) for uri in (_field(one, "uri") for one in contents) if uri), None)
    if name is None:
        raise Invalid("an answer to resources/read has contents with a uri; give source=", where="result")
    bodies = [_field(one, "text") or _field(one, "blob") or "" for one in contents]
    ttl = _field(result, "ttlMs", "ttl_ms")
    return Observation(name, None, digest_of([str(body) for body in bodies]), max_age=_lifetime(ttl))


def _lifetime(ttl_ms: Any) -> timedelta | None:
    """No hint: unknown. One that is malformed or negative: none at all, as the protocol has it."""
    if ttl_ms is None:
        return None
    if type(ttl_ms) is not int or not 0 <= ttl_ms <= 10**13:
        return timedelta()
    return timedelta(milliseconds=ttl_ms)


def _field(thing: Any, *names: str) -> Any:
    for name in names:
        value = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
        if value is not None:
            return value
    return None
