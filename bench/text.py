"""
Conversations for the benchmark: Chinese and English questions, code, calls and their results. All of it is made here.

``turn(n)`` is the same on every machine and in every process. Half of the prose is Chinese; a message has 1.4 KB on
average and half of that in the median; a tenth of the results are about 20 KB, as file listings and logs are.
Every message carries the turn's tag and its own place in the turn, so that what a store gives back can be counted.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

POOL = 240
"""Pieces of each sort; a message takes each at most once."""

LARGE_BYTES = 20_000
"""About the size of a tenth of the results."""

_TAG = re.compile(r"\[\[([^\s\[\]#]+)#(\d+)\.(\d)\]\]")


class Turn(NamedTuple):
    """A question, a call with its result (or none: empty call id), and an answer."""

    question: str
    answer: str
    call: str = ""
    name: str = ""
    arguments: Mapping[str, Any] = {}
    result: str = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """As Anthropic's API has them: four, or two without a call."""
        middle = [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": self.call, "name": self.name, "input": self.arguments}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": self.call, "content": self.result}],
            },
        ]
        ends = [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer}]
        return [ends[0], *(middle if self.call else []), ends[1]]


def turn(n: int, tag: str = "t", *, like: int | None = None) -> Turn:
    """
    The n-th turn.

    Args:
        n: Its number.
        tag: Whose it is (no spaces, no brackets).
        like: Take the text of that turn, which is quick when it was asked for lately.
    """
    plain = _plain(n if like is None else like)
    question, answer, result = (
        f"{text}{_mark(tag, n, part)}" for text, part in ((plain.question, 0), (plain.answer, 3), (plain.result, 2))
    )
    arguments = {name: f"{text}{_mark(tag, n, 1)}" for name, text in plain.arguments.items()}
    return Turn(question, answer, f"call_{tag}_{n:012d}", plain.name, arguments, result)


def _mark(tag: str, n: int, part: int) -> str:
    return f" [[{tag}#{n}.{part}]]"


@lru_cache(256)
def _plain(n: int) -> Turn:
    chance = random.Random(n)
    prose = _pool("zh" if n % 2 else "en")
    question = " ".join(chance.sample(prose, 1 + n % 3))
    name, argument = chance.choice(
        [("query", "sql"), ("run_python", "code"), ("read_file", "path"), ("bash", "command")]
    )
    arguments = {argument: "\n".join([*chance.sample(_pool(name), 1 + n % 2), "#"])}
    code = chance.sample(_pool("code"), n % 3 // 2)
    answer = "\n\n".join([" ".join(chance.sample(prose, 4)), *code, *chance.sample(prose, 2)])
    return Turn(question, answer, "", name, arguments, f"{_result(n, chance)}\n")


def marks(message: object) -> list[tuple[str, int, int]]:
    """Whose messages these are, however a layer wraps them: (tag, turn, place in the turn)."""
    return [(tag, int(n), int(part)) for tag, n, part in dict.fromkeys(_TAG.findall(str(message)))]


def size(turns: list[Turn]) -> int:
    """Bytes of their messages as compact JSON text in UTF-8, each on a line of its own."""
    return sum(len(encoded(message)) + 1 for turn in turns for message in turn.messages)


def encoded(message: dict[str, Any]) -> bytes:
    """A message as compact JSON text, as somebody writes it by hand."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _result(n: int, chance: random.Random) -> str:
    kind = ("rows", "log", "listing", "code")[n % 4]
    if n % 10 == 7:
        return "\n".join(_until(LARGE_BYTES, _pool(kind), chance))
    return "\n".join(chance.sample(_pool(kind), 2 + n % 7 // 2))


def _until(count: int, pool: list[str], chance: random.Random) -> list[str]:
    taken: list[str] = []
    while sum(len(piece.encode()) for piece in taken) < count:
        taken.append(chance.choice(pool))
    return taken


# Pieces: a sentence, or a few lines. A template's <words> is one of these words, <words:x> the same one each time,
# <1..9> a number.

_WORDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "words.json").read_text("utf-8"))
_SLOT = re.compile(r"<(?:(\d+)\.\.(\d+)|(\w+)(?::(\w))?)>")


@cache
def _pool(sort: str) -> list[str]:
    chance = random.Random(sort)
    return [_filled(chance.choice(_WORDS[f"piece {sort}"]), chance) for _ in range(POOL)]


def _filled(template: str, chance: random.Random) -> str:
    known: dict[str, str] = {}

    def fill(slot: re.Match[str]) -> str:
        low, high, words, name = slot.groups()
        if low is not None:
            return str(chance.randint(int(low), int(high)))
        word = chance.choice(_WORDS[words])
        return known.setdefault(f"{words}:{name}", word) if name else word

    return _SLOT.sub(fill, template)
