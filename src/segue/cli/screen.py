"""
Where a command's output goes: lines for people, plain or in colour, or JSON lines for programs.

Every span of every line passes ``text.safe`` here, so no caller can forget it, and nothing is ever
read as rich's markup.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from . import text

Span = str | tuple[str, str]
"""Text, or text and the name of its style."""

STYLES = {
    "dim": "dim",
    "bold": "bold",
    "id": "cyan",
    "tag": "blue",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "user": "bold green",
    "model": "bold magenta",
    "tool": "bold yellow",
    "system": "bold blue",
}
"""What a style looks like, in rich's words."""


def as_json(value: Any, *, ascii_only: bool = False) -> str:
    """One line of JSON; characters that steer a terminal are written as escapes, which mean the same."""
    line = json.dumps(value, ensure_ascii=ascii_only)
    if line.isascii() and line.isprintable():
        return line
    return "".join(json.dumps(char)[1:-1] if text.steers(char) else char for char in line)


class Screen:
    """
    Standard output and error of one command.

    Attributes:
        is_json: True when the output is for programs.
        width: Cells of a line, or None when nothing bounds it (a pipe, a file).
        is_terminal: True when a person's terminal shows the output.
    """

    def __init__(self, *, is_json: bool = False, out: TextIO | None = None, error: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.error = sys.stderr if error is None else error
        self.is_json = is_json
        self.is_terminal = self.out.isatty()
        self.width = max(40, shutil.get_terminal_size().columns) if self.is_terminal else None
        self._ascii_only = not (getattr(self.out, "encoding", None) or "").lower().replace("-", "").startswith("utf8")
        self._console = None if is_json else _console(self.out, is_terminal=self.is_terminal)

    def line(self, *spans: Span) -> None:
        """Print one line for people, on a terminal as so many rows as it needs; with ``--json`` nothing."""
        if self.is_json:
            return
        parts = [(text.safe(span), "") if isinstance(span, str) else (text.safe(span[0]), span[1]) for span in spans]
        for row in _rows(parts, self.width):
            if self._console is None:
                self.out.write("".join(part for part, _ in row).rstrip() + "\n")
            else:
                _print(self._console, row)

    def wrapped(self, *lead: Span, words: str, style: str = "") -> None:
        """Print words behind a lead; on a terminal further rows stand below the first word."""
        taken = sum(text.width(text.safe(span if isinstance(span, str) else span[0])) for span in lead)
        rows = text.wrap(text.safe(words), None if self.width is None else max(20, self.width - taken))
        for n, row in enumerate(rows):
            self.line(*(lead if n == 0 else [" " * taken]), (row, style))

    def emit(self, value: dict[str, Any]) -> None:
        """Print one line of JSON; without ``--json`` nothing."""
        if self.is_json:
            self.out.write(as_json(value, ascii_only=self._ascii_only) + "\n")

    def body(self, body: bytes) -> None:
        """Print a stored body: exactly, then a line end; a terminal gets it made harmless."""
        if not self.is_terminal and hasattr(self.out, "buffer"):
            self.out.flush()
            self.out.buffer.write(body + b"\n")
            self.out.buffer.flush()
            return
        for line in text.lines(body.decode(errors="backslashreplace")):
            self.out.write(line + "\n")

    def note(self, message: str) -> None:
        """Print a remark beside the output, on standard error."""
        self.out.flush()
        remark(self.error, message)
        self.error.flush()

    def progress(self, message: str) -> None:
        """Show what is going on, on one line of a terminal that the next one replaces; elsewhere nothing."""
        if self.error.isatty():
            columns = shutil.get_terminal_size().columns
            self.error.write("\r\x1b[K" + text.cut(text.safe(message), columns - 1))
            self.error.flush()


def remark(error: TextIO, message: str) -> None:
    """Write a line to standard error, on a terminal as so many rows as it needs."""
    columns = max(20, shutil.get_terminal_size().columns) if error.isatty() else None
    error.write("\n".join(text.wrap(text.safe(message), columns)) + "\n")


def _rows(parts: list[tuple[str, str]], cells: int | None) -> Iterator[list[tuple[str, str]]]:
    """The parts of a line as rows of at most so many cells, each part with its style in every row that has of it."""
    line = "".join(part for part, _ in parts).rstrip()
    if cells is None or text.width(line) <= cells:
        yield parts
        return
    at, indent = 0, len(line) - len(line.lstrip(" "))
    for n, row in enumerate(text.wrap(line, cells)):
        words = row if n == 0 else row.lstrip(" ")
        at = line.index(words, at)
        lead = [] if n == 0 else [(" " * min(indent, len(row) - len(words)), "")]
        yield lead + list(_within(parts, at, at + len(words)))
        at += len(words)


def _within(parts: list[tuple[str, str]], start: int, end: int) -> Iterator[tuple[str, str]]:
    """What of the parts lies between two places of their line."""
    at = 0
    for part, style in parts:
        piece = part[max(0, start - at) : max(0, end - at)]
        if piece:
            yield piece, style
        at += len(part)


def _console(out: TextIO, *, is_terminal: bool) -> Any:
    """Rich's console where it is installed and somebody sees the colours, else None."""
    if not (is_terminal or os.environ.get("FORCE_COLOR")):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None  # the extra `cli` is not installed: plain text it is
    return Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _print(console: Any, parts: list[tuple[str, str]]) -> None:
    from rich.text import Text

    line = Text(end="")
    for part, style in parts:
        line.append(part, STYLES.get(style))
    line.rstrip()
    console.print(line)
