"""
Runs the code of a page of documentation, as a reader would, in a folder of its own.

```python blocks run in order in one namespace. An ```output block holds what the last of them printed.
```console blocks run their `$ segue …` lines and hold what they print. `<!-- no-run: why -->` right before a
block leaves it out. `<!-- run` … `-->` is code that the reader is not shown: the night that passes.

Output is compared without what differs from run to run: ids, times of day, how long ago. `…` stands for any
text within a line, a line of its own for any lines.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_BLOCK = re.compile(
    r"(?P<skip><!-- no-run: [^>]+ -->\n+)?^```(?P<language>[a-z]*)\n(?P<code>.*?)^```$|^<!-- run\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_VARIES = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "0123456789abcdef0123456789abcdef"),
    (re.compile(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{8}\b"), "01234567"),
    (re.compile(r"(?<!\d)\d{4}-\d\d-\d\d"), "2026-08-28"),
    (re.compile(rf"\b((Mon|Tue|Wed|Thu|Fri|Sat|Sun)|\d{{1,2}} ({_MONTHS})) (?=\d\d:\d\d|\d{{4}}-)"), ""),
    (re.compile(r"(?<!\d)\d\d:\d\d(?!\d)"), "15:04"),
    (re.compile(r"\b(today|yesterday)\b"), "today"),
    (re.compile(r"just now|\d+ (min|h|d) ago|\bin \d+ (min|h|d)\b"), "18 h ago"),
    (re.compile(r" {2,}"), "  "),
)


class Block(NamedTuple):
    """A piece of a page: its language (python, hidden, console, output …), its text, the line it begins on."""

    language: str
    text: str
    line: int
    is_left_out: bool


def blocks(path: Path) -> list[Block]:
    """All code of a page, in order."""
    page = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(page):
        name = "hidden" if match["hidden"] is not None else "code"
        line = page.count("\n", 0, match.start(name)) + 1
        found.append(Block(match["language"] or name, match[name], line, match["skip"] is not None))
    return found


def run(path: Path) -> None:
    """Run a page in the current folder; AssertionError when it prints something else than it says."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    environment = dict(os.environ)
    with _closing(namespace):
        for block in blocks(path):
            place = f"{path}:{block.line}"
            if block.is_left_out:
                continue
            if block.language in ("python", "hidden"):
                printed = _python(block, place, namespace)
            elif block.language == "output":
                _compare(block.text, printed, place)
            elif block.language == "console":
                _console(block, place, environment)


def _python(block: Block, place: str, namespace: dict[str, Any]) -> str:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, place.rpartition(":")[0], "exec")
    with contextlib.redirect_stdout(out):
        exec(code, namespace)
    return out.getvalue()


@contextlib.contextmanager
def _closing(namespace: dict[str, Any]) -> Iterator[None]:
    """Close what a page opened and left open, as the end of its program would."""
    try:
        yield
    finally:
        for value in list(namespace.values()):
            if type(value).__name__ in ("Database", "Anthropic", "OpenAI"):
                value.close()


def _console(block: Block, place: str, environment: dict[str, str]) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        words = shlex.split(line, comments=True)
        if words[0] == "export":
            environment.update(word.split("=", 1) for word in words[1:])
            continue
        assert words[0] == "segue", f"{place}: a console block runs segue, not {words[0]}"
        ran = subprocess.run(
            [sys.executable, "-m", "segue", *words[1:]],
            env=environment, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip
        _compare(expected, ran.stdout + ran.stderr, f"{place}: {line}")


def plain(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, same in _VARIES:
        text = pattern.sub(same, text)
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def _compare(expected: str, actual: str, place: str) -> None:
    wanted = "\n".join(re.escape(line).replace("…", ".*") for line in plain(expected).split("\n"))
    wanted = re.sub(r"^\.\*\n", "(?:.*\n)*?", wanted, flags=re.MULTILINE)
    wanted = re.sub(r"^\.\*\Z", "(?:.*\n?)*", wanted, flags=re.MULTILINE)
    assert re.fullmatch(wanted, plain(actual)), f"{place} says\n{expected}\nand prints\n{actual}"
