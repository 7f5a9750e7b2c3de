"""
Files as records: lines of a file of lines, and what can be read in them, however damaged they are.

A record's bytes are never changed. What is read out of a damaged one is told as a defect.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO, NamedTuple

import msgspec

from segue.model import to_us

LINE_MAX = 256 * 1024 * 1024
"""Longest line that is read as one, in bytes. A longer one is kept in parts, and nothing in it is read."""

COUNT_MAX = 1 << 40
"""From here on a number of tokens is none."""

VALUES_MAX = 1_000
"""Most values that are looked for in one line."""

_decode = msgspec.json.decode
_OBJECT = re.compile(r'\{\s*"')
_TRIES = 3  # objects that are asked whether they were cut off: each time all that follows is looked at
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_lenient = json.JSONDecoder(strict=False)


class Line(NamedTuple):
    """
    One line of a file.

    Attributes:
        number: From 1.
        raw: Its bytes, without the line feed.
        ends: Whether a line feed follows it in the file.
        is_part: It is a part of a line that is over ``LINE_MAX``.
    """

    number: int
    raw: bytes
    ends: bool
    is_part: bool = False


class Parsed(NamedTuple):
    """Values found in a line, and what is wrong with it (empty: nothing)."""

    values: list[Any]
    defect: str


def lines(file: BinaryIO) -> Iterator[Line]:
    """The lines of a file, one at a time; memory stays a small multiple of the longest."""
    number = 0
    while raw := file.readline(LINE_MAX):
        number += 1
        ends = raw.endswith(b"\n")
        is_part = not ends and len(raw) == LINE_MAX
        raw = raw[:-1] if ends else raw  # no second copy while the line is looked at
        yield Line(number, raw, ends, is_part)


def parse(raw: bytes) -> Parsed:
    """
    The JSON values of a line: one, or as many as can be read when it is damaged.

    Defects: ``broken`` (no value, or more than values), ``glued`` (several values), ``nul`` (NUL bytes around
    or between them), ``encoding`` (bytes that are not UTF-8, shown as U+FFFD), ``surrogate`` (half a character,
    shown as U+FFFD; or NaN, shown as null), ``loose`` (what only lenient readers take: control characters, a mark at
    the beginning).
    """
    try:
        return Parsed([_decode(raw)], "")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _salvage(raw)


def _salvage(raw: bytes) -> Parsed:
    text, defect = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace"), ""
    if "\N{REPLACEMENT CHARACTER}" in text and b"\xef\xbf\xbd" not in raw:
        defect = "encoding"
    if not text.strip(" \t\r\n\0"):
        return Parsed([], "nul" if "\0" in text else "")
    values, is_whole, has_nul = _values(text)
    if not values:
        return Parsed([], "broken")
    if has_nul:
        defect = defect or "nul"
    if len(values) > 1:
        defect = "glued"
    cleaned = [clean(value) for value in values]
    if cleaned != values:
        defect = defect or "surrogate"
    return Parsed(cleaned, (defect or "loose") if is_whole else "broken")


def _values(text: str) -> tuple[list[Any], bool, bool]:
    """Values one behind the other, whether there was nothing else, and whether NULs were between them."""
    found: list[Any] = []
    is_whole, has_nul, at = True, False, 0
    while len(found) < VALUES_MAX:
        while at < len(text) and text[at] in " \t\r\n\0":
            has_nul = has_nul or text[at] == "\0"
            at += 1
        if at >= len(text):
            break
        try:
            value, at = _lenient.raw_decode(text, at)
        except (ValueError, RecursionError):
            is_whole = False
            at = _next_object(text, at + 1)
            continue
        if isinstance(value, dict | list):
            found.append(value)
        else:
            is_whole = False  # what is left of something torn
    return found, is_whole, has_nul


def _next_object(text: str, at: int) -> int:
    """Where the next record may begin: records of all known tools are objects whose first key is quoted."""
    found = _OBJECT.search(text, at)
    return len(text) if found is None else found.start()


def objects(document: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """
    Place and bytes of the JSON objects that stand one behind the other in damaged text, whatever is between them.

    The last may be one that was cut off; ``value_of`` reads it, too.
    """
    text = document[start:].decode("utf-8", "surrogateescape")
    at, place, tries = 0, start, _TRIES
    while True:
        begin = _next_object(text, at)
        if begin == len(text):
            return
        place += len(text[at:begin].encode("utf-8", "surrogateescape"))
        try:
            end = _lenient.raw_decode(text, begin)[1]
        except (ValueError, RecursionError):
            end, tries = begin + 1, tries - 1
            rest = text[begin:].encode("utf-8", "surrogateescape")
            if tries >= 0 and mended(rest) is not None:
                yield place, rest
                return
        body = text[begin:end].encode("utf-8", "surrogateescape")
        if end > begin + 1:
            yield place, body
        at, place = end, place + len(body)


def value_of(body: bytes) -> Any:
    """The value of an object, or what can be read of it; None when there is none."""
    found = parse(body)
    return found.values[0] if found.values and found.defect != "broken" else mended(body)


def mended(raw: bytes) -> Any:
    """
    What can be read of a JSON object that was cut off: all values that are whole, with what is open closed.

    Returns:
        The object; None when it is damaged in another way.
    """
    text = raw.decode("utf-8", "replace")
    stack: list[str] = []
    safe: list[tuple[int, str]] = []
    for found in _TOKEN.finditer(text):
        mark = found.group()
        if mark in "[{":
            stack.append("]" if mark == "[" else "}")
        elif mark in "]}" and (not stack or stack.pop() != mark):
            return None
        if mark in ",]}" and stack:
            end = found.start() if mark == "," else found.end()
            safe = [*safe[-3:], (end, "".join(reversed(stack)))]
    for end, closers in reversed(safe):
        try:
            return clean(_lenient.decode(text[:end] + closers))
        except (ValueError, RecursionError):
            continue
    return None


def clean(value: Any) -> Any:
    """
    The value as every reader takes it: half characters as U+FFFD, NaN and Infinity as null, bytes as text.

    Returns:
        The value; None for one that is nested so deep that no reader takes it.
    """
    try:
        return _clean(value)
    except RecursionError:
        return None


def as_json(value: Any) -> bytes:
    """JSON of a value, cleaned, however long and deep."""
    return msgspec.json.encode(clean(value))


def as_text(value: Any) -> str:
    """A text as it is, bytes as text, nothing as nothing; anything else as JSON."""
    if value is None:
        return ""
    cleaned = clean(value)
    return cleaned if isinstance(cleaned, str) else msgspec.json.encode(cleaned).decode()


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace_half").decode()
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(one) for key, one in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return None
    return value


def _replace_half(error: UnicodeError) -> tuple[bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    return b"\xef\xbf\xbd" * (error.end - error.start), error.end


def when_us(stamp: Any) -> int | None:
    """
    A claimed time in microseconds since 1970: ISO 8601 text, or seconds or milliseconds since then.

    Text without a zone is taken as UTC, which is what the tools that write it mean. None: no time that can be.
    """
    if isinstance(stamp, str):
        return _read_stamp(stamp)
    if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 < stamp < 1e16:
        return None
    seconds = stamp if stamp < 1e11 else stamp / 1e3 if stamp < 1e14 else stamp / 1e6
    return _in_range(round(seconds * 1e6))


@functools.lru_cache(maxsize=4096)  # a record's stamp stands in it more than once, and copies share theirs
def _read_stamp(stamp: str) -> int | None:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return _in_range(to_us(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)))


def _in_range(us: int) -> int | None:
    return us if 0 < us < 200 * 365 * 86_400_000_000 else None


def count(value: Any, *names: str) -> int:
    """A number of tokens out of an object: the first of the names that has one; 0 when none has."""
    if isinstance(value, dict):
        for name in names:
            found = value.get(name)
            if type(found) is int and 0 <= found < COUNT_MAX:
                return found
    return 0


codecs.register_error("replace_half", _replace_half)
