"""What the reader sees: calm lines, coloured on a terminal, plain elsewhere; Chinese is two cells wide."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from .model import Reply, Result

WIDTH_MAX = 100
INDENT = "     "
_DIGEST = re.compile(r"[0-9a-f]{64}")

# What stays in one piece: a word with the closing marks behind it, or one wide character with them.
_PIECE = re.compile(r"\s+|[^\s\u2e80-\uffef]+[，。；：、）？！]*|[\u2e80-\uffef][，。；：、）？！]*")


class Screen:
    """A person's terminal, or a file. Also the watcher of the agent's loop."""

    def __init__(self, *, console: Console | None = None, number: int = 0) -> None:
        if console is None:
            console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
            if not console.is_terminal:
                console.width = WIDTH_MAX
        self.console = console
        self.width = min(console.width, WIDTH_MAX)
        self._number = number  # of the last step; later ones may be played by another process

    # Layout

    def line(self, *spans: str | tuple[str, str]) -> None:
        """One line of text and (text, style) spans."""
        self.console.print(Text.assemble(*spans), soft_wrap=True)

    def block(self, text: str, *, style: str = "", before: str = INDENT, mark: tuple[str, str] = ("", "")) -> None:
        """A paragraph, wrapped, behind a margin; the mark stands before its first line."""
        room = self.width - cell_len(before) - cell_len(mark[0])
        for number, part in enumerate(line for whole in text.splitlines() for line in wrap(whole, room)):
            head = mark if number == 0 else (" " * cell_len(mark[0]), "")
            self.line(before, head, (part, style))

    def title(self, name: str, *lines: str) -> None:
        self.line()
        self.line("  ", (name, "bold"))
        for line in lines:
            self.line("  ", line)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, one a line."""
        self.line()
        for name, value in pairs:
            self.line("  ", (pad(name, 8), "dim"), value)

    def step(self, when: str, what: str, chinese: str) -> None:
        """The numbered heading of a step."""
        self._number += 1
        self.line()
        self.line(
            "  ",
            (f"{self._number}", "bold cyan"),
            "  ",
            (when, "bold"),
            ("  ", ""),
            (what, "bold"),
            ("  " + chinese, "dim"),
        )
        self.line()

    def text(self, text: str) -> None:
        """A remark of the narrator."""
        self.block(text, style="dim")

    def fact(self, name: str, value: str, *, good: bool = True) -> None:
        """Something that was found to be so."""
        self.block(value, mark=(f"{'✓' if good else '✗'} {name}  ", "green" if good else "bold red"))

    def quote(self, text: str, *, style: str = "yellow") -> None:
        """Words that somebody is told, exactly."""
        for line in text.splitlines():
            hang = "  " if line.startswith("- ") else ""
            for number, part in enumerate(wrap(line, self.width - len(INDENT) - 4)):
                self.line(INDENT, ("│ ", style), hang if number else "", part)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], *, chosen: int | None = None) -> None:
        """Columns as wide as their longest cell."""
        widths = [max(cell_len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
        self.line(INDENT, ("  ".join(pad(h, w) for h, w in zip(heads, widths, strict=True)).rstrip(), "dim"))
        for number, row in enumerate(rows):
            text = "  ".join(pad(cell, w) for cell, w in zip(row, widths, strict=True)).rstrip()
            self.line(INDENT, (text, "bold" if number == chosen else ""))

    # The agent's loop

    def asked(self, question: str) -> None:
        self.block(question, mark=("林  ", "bold green"))

    def thought(self, reply: Reply) -> None:
        if reply.text:
            self.block(reply.text, mark=("analyst  ", "bold magenta"))

    def used(self, result: Result) -> None:
        arguments = "  ".join(f"{name}={shorten(str(value), 24)}" for name, value in result.call.arguments.items())
        self.line(INDENT, ("→ ", "cyan"), (result.call.name, "cyan"), "  ", arguments)
        if result.is_error:
            self.block(result.text, style="red", before=INDENT + "  ", mark=("✗ ", "bold red"))
        else:
            shown = _DIGEST.sub(lambda found: f"{found[0][:12]}…", result.text.splitlines()[-1])
            self.block(shown, style="dim", before=INDENT + "  ")

    def answered(self, answer: str) -> None:
        self.block(answer, mark=("analyst  ", "bold magenta"))


class Unseen:
    """A watcher that looks away: the steps of sessions that are only there to be listed."""

    def asked(self, question: str) -> None: ...

    def thought(self, reply: Reply) -> None: ...

    def used(self, result: Result) -> None: ...

    def answered(self, answer: str) -> None: ...


def wrap(text: str, width: int) -> Iterator[str]:
    """Lines of at most ``width`` cells; Chinese breaks anywhere but before a closing mark."""
    line = ""
    for piece in _PIECE.findall(text):
        if line and cell_len(line + piece.rstrip()) > width:
            yield line.rstrip()
            line = ""
            if not piece.strip():
                continue
        line += piece
    yield line.rstrip()


def pad(text: str, width: int) -> str:
    """The text, filled up to a width in cells."""
    return text + " " * (width - cell_len(text))


def shorten(text: str, width: int) -> str:
    """The text's first line, at most ``width`` cells."""
    line = text.splitlines()[0] if text else ""
    if cell_len(line) <= width and line == text:
        return line
    while cell_len(line) > width - 1:
        line = line[:-1]
    return line + "…"


def use_utf8() -> None:
    """Write Chinese also where the locale says that nobody can read it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8")
