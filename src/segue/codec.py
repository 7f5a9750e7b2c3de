"""
The door: what may become the body of an entry, and nothing else.

What is accepted here can always be read back, on every store and by every common JSON reader;
what is not is refused before anything is written. Bodies are kept as the bytes they came in.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec

from .errors import Invalid

BODY_MAX_BYTES = 4 * 1024 * 1024
"""Largest body of one entry, in bytes. A larger one is refused; keep it elsewhere and store a reference."""

DEPTH_MAX = 128
"""Deepest nesting of arrays and objects in a body."""

NUMBER_MAX = 1_000
"""Longest number in a body, in characters: longer ones are refused by common readers."""

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NUMERIC = bytes(ord("0") if chr(byte) in "-+.0123456789eE" else ord(" ") for byte in range(256))
_LONG_NUMBER = b"0" * (NUMBER_MAX + 1)


def digest(body: bytes) -> bytes:
    """SHA-256 of a plain body, 32 bytes: it detects damage and makes entry ids idempotent."""
    return hashlib.sha256(body).digest()


def decode(body: bytes) -> Any:
    """The value of a JSON body. Key order is kept."""
    return _decode(body)


def encode(value: Any, *, where: str = "body") -> bytes:
    """
    Encode a Python value as a body, once, keeping key order.

    Args:
        value: dict, list, str, int, float, bool or None, nested at most 128 deep, 4 MiB encoded.
        where: How an error names the value.

    Returns:
        UTF-8 JSON, from which ``decode`` gives back an equal value.

    Raises:
        Invalid: The value would not come back as it is: NaN, a lone surrogate, a key that is not
            a str, a tuple, bytes, an object. Convert it first.

    Guarantees: G4 exact.
    """
    try:
        body = _encode(value)
        same = _decode(body) == value
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        place = _culprit(value, where) or where
        raise Invalid(f"{place} cannot be stored as JSON: {error}", where=place) from error
    if not same:
        place = _culprit(value, where) or where
        raise Invalid(
            f"{place} would not come back as it is (NaN, a key that is no str, a tuple, bytes or an object?); "
            "convert it to plain JSON values first",
            where=place,
        )
    _check_limits(body, where)
    return body


def _culprit(value: Any, where: str, depth: int = 0) -> str | None:
    """The path of the first value that is no plain JSON; None when it is not found."""
    if depth > DEPTH_MAX or value is None or type(value) in (bool, int):
        return None
    if type(value) is dict:
        inner = ((f"{where}.{key}" if isinstance(key, str) else where, key, each) for key, each in value.items())
        return next((found for place, key, each in inner if (found := _culprit_of(place, key, each, depth))), None)
    if type(value) is list:
        places = (_culprit(each, f"{where}[{n}]", depth + 1) for n, each in enumerate(value))
        return next((found for found in places if found), None)
    try:
        return None if isinstance(value, (str, float)) and _decode(_encode(value)) == value else where
    except (TypeError, ValueError, msgspec.MsgspecError):
        return where


def _culprit_of(place: str, key: Any, value: Any, depth: int) -> str | None:
    return place if not isinstance(key, str) else _culprit(value, place, depth + 1)


def check(body: bytes, *, where: str = "body") -> None:
    """
    Refuse bytes that are not well-formed JSON, or that some reader would change or not read.

    Raises:
        Invalid: Not UTF-8 JSON; NaN or Infinity; duplicate keys; lone surrogates; nested deeper
            than 128; a number over 1,000 characters or out of range; over 4 MiB.
    """
    _check_limits(body, where)
    try:
        _decode(body)
        json.loads(body, object_pairs_hook=_distinct_keys)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Invalid(f"{where} is not JSON that every reader gives back: {error}", where=where) from error


def check_raw(body: bytes, *, where: str = "body") -> None:
    """Refuse a body of format ``raw`` that is over the size limit; any bytes may be in it."""
    if len(body) > BODY_MAX_BYTES:
        raise Invalid(
            f"{where} has {len(body):,} bytes, the limit is {BODY_MAX_BYTES:,}; "
            "keep it elsewhere and store a reference to it",
            where=where,
        )


def _check_limits(body: bytes, where: str) -> None:
    check_raw(body, where=where)
    # Cheap bounds first: neither can be exceeded unless these byte counts are.
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _depth(body) > DEPTH_MAX:
        raise Invalid(f"{where} is nested deeper than {DEPTH_MAX}; flatten it", where=where)
    if len(body) > NUMBER_MAX and _has_long_number(body) and _has_long_number(_STRINGS.sub(b'""', body)):
        raise Invalid(f"{where} has a number over {NUMBER_MAX:,} characters; store it as a string", where=where)


def _has_long_number(body: bytes) -> bool:
    return _LONG_NUMBER in body.translate(_NUMERIC)


def _depth(body: bytes) -> int:
    depth = deepest = 0
    for byte in _STRINGS.sub(b"", body):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {twice[:80]!r}")
    return found
