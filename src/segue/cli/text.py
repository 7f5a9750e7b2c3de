"""
Stored text on a terminal: made harmless, measured in cells, cut, wrapped; times and counts for people.

Titles and bodies come from users, models and tools. What could steer a terminal (escape codes, other
controls) or turn a line around (direction marks) is shown as an escape and never sent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from datetime import datetime, timedelta

from segue.errors import Invalid

_JOINERS = "\u200c\u200d"  # part of Persian, Indic and emoji text; they steer nothing
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_CLOSING = "，。、；：！？）》」』】〕〉”’…"  # never at the beginning of a line
_WIDE = (
    "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6\U0001f300-\U0003fffd"
)
_TOKENS = re.compile(f"[ \t]+|[{_WIDE}][{_CLOSING}]*|[^ \t{_WIDE}]+[{_CLOSING}]*")


def steers(char: str) -> bool:
    """Whether a terminal would do something other than show this character."""
    return unicodedata.category(char) in _STEERING and char not in _JOINERS


def escape(char: str) -> str:
    r"""The character as readable ASCII: ``\x1b``, ``\u202e``."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def safe(text: str) -> str:
    """The text without anything that steers a terminal; each such character is shown as an escape."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(escape(char) if steers(char) else char for char in text)


def one_line(text: str) -> str:
    """The text as one harmless line: runs of white space become one space."""
    return safe(" ".join(text.split()))


def lines(text: str) -> list[str]:
    """The text as harmless lines; tabs become spaces."""
    return [safe(line.expandtabs(4)) for line in re.split(r"\r\n|\n|\r", text)]


def width(text: str) -> int:
    """How many cells of a terminal the text takes; Chinese, Japanese and Korean characters take two."""
    if text.isascii():
        return len(text)
    return sum(_cells(text))


def _cells(text: str) -> Iterator[int]:
    before = 0
    for char in text:
        if char == "\ufe0f":  # "show the one before as emoji": two cells
            before = 2 - before if before in (1, 2) else 0
            yield before
            continue
        before = _cell(char)
        yield before


def _cell(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf") or "\u1160" <= char <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, cells: int) -> str:
    """The text, or its beginning and an ellipsis, in at most ``cells`` cells."""
    if width(text) <= cells:
        return text
    taken, total = [], 0
    for char, cell in zip(text, _cells(text), strict=True):
        if total + cell > cells - 1:
            break
        taken.append(char)
        total += cell
    return "".join(taken).rstrip() + "…" if cells > 0 else ""


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """The text filled with spaces to ``cells`` cells; ``right`` puts it at the right end."""
    space = " " * max(0, cells - width(text))
    return space + text if right else text + space


def wrap(line: str, cells: int | None) -> list[str]:
    """One line as several of at most ``cells`` cells, each with the indentation of the first (None: as it is)."""
    if cells is None or width(line) <= cells:
        return [line]
    indent = line[: len(line) - len(line.lstrip(" "))][: cells // 2]
    done: list[str] = []
    row, used = indent, len(indent)
    for token in _pieces(line.strip(" "), cells - len(indent)):
        size = width(token)
        if used + size > cells and row.strip(" "):
            done.append(row.rstrip(" "))
            row, used = indent, len(indent)
            if token.isspace():
                continue
        row, used = row + token, used + size
    return [*done, row.rstrip(" ")]


def joined(words: list[str], between: str, cells: int | None) -> list[str]:
    """The words in as few lines as they need, broken only between them."""
    done: list[str] = []
    for word in map(one_line, words):
        if done and (cells is None or width(done[-1]) + width(between) + width(word) <= cells):
            done[-1] += between + word
        else:
            done.append(word)
    return done


def _pieces(text: str, cells: int) -> Iterator[str]:
    """Words and single wide characters; what is longer than a line in parts that fit."""
    for token in _TOKENS.findall(text):
        piece, used = "", 0
        for char, cell in zip(token, _cells(token), strict=True):
            if used + cell > cells:
                yield piece
                piece, used = "", 0
            piece, used = piece + char, used + cell
        yield piece


# Times and counts


def ago(moment: datetime, now: datetime) -> str:
    """``18 h ago``, ``3 d ago``, ``in 5 min``: one unit, rounded down."""
    minutes = abs(now - moment) // timedelta(minutes=1)
    if minutes == 0:
        return "just now"
    n, unit = (minutes, "min") if minutes < 60 else (minutes // 60, "h")
    if n >= 48 and unit == "h":
        n, unit = n // 24, "d"
    return f"{n} {unit} ago" if moment <= now else f"in {n} {unit}"


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def clock(moment: datetime, now: datetime) -> str:
    """Local time as short as it is clear: ``15:04``, ``Mon 15:04``, ``28 Aug 15:04``, ``2025-08-28``."""
    there, here = moment.astimezone(), now.astimezone()
    days = (here.date() - there.date()).days
    if days == 0:
        return f"{there:%H:%M}"
    if 0 < days < 7:
        return f"{_DAYS[there.weekday()]} {there:%H:%M}"
    if there.year == here.year:
        return f"{there.day} {_MONTHS[there.month - 1]} {there:%H:%M}"
    return f"{there:%Y-%m-%d}"


def short(number: int) -> str:
    """``950``, ``8.2k``, ``31k``, ``1.2M``."""
    for size, mark in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{mark}" if number < 10 * size else f"{number // size}{mark}"
    return str(number)


def plural(number: int, word: str, many: str = "") -> str:
    """``1 entry``, ``2,310 entries``."""
    return f"{number:,} {word if number == 1 else many or word + 's'}"


_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,6})\s*(s|min|m|h|d|w)")


def span(text: str) -> timedelta:
    """
    A duration such as ``30d``, ``12h``, ``90min``, ``2w``.

    Raises:
        Invalid: It is none.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise Invalid(f"{text!r} is no duration; write it like 45s, 90min, 12h, 30d or 2w", where="duration")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def moment(text: str, now: datetime) -> datetime:
    """
    A time: a date or time in ISO form (local unless it names a zone), or a duration before now.

    Raises:
        Invalid: It is neither.
    """
    if _SPAN.fullmatch(text.strip()):
        return now - span(text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Invalid(f"{text!r} is no time; write 7d (ago), 2026-08-28 or 2026-08-28T15:04", where="time") from None
    return found.astimezone() if found.tzinfo is None else found
