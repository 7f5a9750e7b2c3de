"""
What a restored conversation does to answers, and what helps: scripted models in generated stories.

    python -m bench.stale_readings [--stories 200] [--write]

A story: on Monday questions are asked and answered from a database; in the night some rows change;
on Tuesday the session goes on, answers more questions, and publishes a report. Five ways to go on,
five habits of models. ``--write`` puts the tables into docs/stale-readings.md. With ANTHROPIC_API_KEY
set (and ``pip install anthropic``), ``--model ID`` plays some stories with a real model.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import segue
from segue.briefing import brief
from segue.formats import rules
from segue.probes import Sql
from segue.world import Gone, Sources

PAGE = Path(__file__).parents[1] / "docs" / "stale-readings.md"
KEYS = [f"k{n}" for n in range(8)]
NIGHT = timedelta(hours=18)
CHANGED, TOUCHED, BACKFILLED = 0.35, 0.10, 0.03
"""Shares of rows that change in the night: stamped; only the stamp; only the value, which no watermark shows."""
TALKING = 0.3
"""How often a row that a report names changes between the last look at it and the publication."""
ATTEMPTS_MAX = 3
OBEDIENCE = 0.6
"""How often the forgetful habit does what a note says; no model aligned better than 65 % in arXiv 2510.23853."""

WAYS = {
    "nothing": "the messages, restored",
    "time": "a note that tells the time that passed",
    "note": "Segue's note: what changed, how to read it again",
    "mask": "the note, and changed results masked in the view",
    "guard": "no note; the publication is a guarded write",
    "note+guard": "the note, and the guarded write",
}
HABITS = {
    "reuses all": "takes any figure in its context, its own prose included",
    "reuses results": "takes the newest tool result, reads when there is none",
    "forgetful": f"obeys notes in {OBEDIENCE:.0%} of the cases, else reuses results",
    "obeys notes": "reads again what a note names; after a note on the time alone, everything",
    "re-reads all": "reads again for every question",
}


class World:
    """A table of figures; each row is a source, versioned by its stamp."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self._path = path
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE facts (key TEXT PRIMARY KEY, value INTEGER, stamp INTEGER)")
        self._dice = dice
        self.values = {key: dice.randint(100, 999) for key in KEYS}
        self._stamp = 0
        for key, value in self.values.items():
            self._database.execute("INSERT INTO facts VALUES (?, ?, 0)", [key, value])
        self.sources = Sources()
        self.published: dict[str, int] | None = None
        for key in KEYS:
            query = "SELECT stamp FROM facts WHERE key = ?"
            self.sources.register(f"facts:{key}", Sql(self._connect, query, parameters=[key]))
        self.sources.register("wiki:report", Gone)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def change(self, key: str, *, value: bool = True, stamp: bool = True) -> None:
        if value:
            self.values[key] = self._dice.choice([n for n in range(100, 1000) if n != self.values[key]])
        self._stamp += stamp
        new = "value = ?, stamp = ?" if stamp else "value = ?"
        self._database.execute(
            f"UPDATE facts SET {new} WHERE key = ?", [self.values[key], *([self._stamp] if stamp else []), key]
        )

    def night(self) -> None:
        for key in KEYS:
            chance = self._dice.random()
            if chance < CHANGED:
                self.change(key)
            elif chance < CHANGED + TOUCHED:
                self.change(key, value=False)
            elif chance < CHANGED + TOUCHED + BACKFILLED:
                self.change(key, stamp=False)

    def close(self) -> None:
        self._database.close()


@dataclass
class Count:
    """What is counted over all stories of one habit and one way."""

    n: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("resume", "read", "publish"), 0.0))


# The model: it sees the messages, and nothing else.


_SAID = re.compile(r"\b(k\d) is (\d+)")
_NAMED = re.compile(r"facts:(k\d)\b")


@dataclass
class Heard:
    """What the messages hold: figures by key and place, notes, and what is asked."""

    results: dict[str, tuple[int, int]] = field(default_factory=dict)  # key: place, value
    prose: dict[str, tuple[int, int]] = field(default_factory=dict)
    note: int = -1
    stale: frozenset[str] = frozenset()  # keys that the note names
    is_time_alone: bool = False
    question: str = ""
    asked: int = -1
    attempts: int = 0
    refused: frozenset[str] = frozenset()
    refused_at: int = -1
    is_published: bool = False


def hear(messages: list[Any]) -> Heard:
    heard, calls = Heard(), {}
    for place, message in enumerate(messages):
        for block in _blocks(message["content"]):
            if block["type"] == "tool_use":
                calls[block["id"]] = (block["name"], block["input"])
            elif block["type"] == "tool_result":
                _result(heard, place, calls[block["tool_use_id"]], block)
            elif message["role"] == "assistant":
                heard.prose |= {key: (place, int(value)) for key, value in _SAID.findall(block["text"])}
            elif "[Session resumed" in block["text"]:
                named = [line for line in block["text"].splitlines() if line.startswith("- ")]
                heard.note, heard.stale = place, frozenset(_NAMED.findall(" ".join(named)))
                heard.is_time_alone = "Readings of the world" not in block["text"]
            else:
                heard.question, heard.asked = block["text"], place
                heard.attempts, heard.is_published, heard.refused = 0, False, frozenset()
    return heard


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _result(heard: Heard, place: int, call: tuple[str, Any], block: dict[str, Any]) -> None:
    name, arguments = call
    text = "".join(part["text"] for part in _blocks(block["content"]))
    if name == "publish":
        heard.attempts += 1
        heard.is_published = not block.get("is_error")
        heard.refused = frozenset(_NAMED.findall(text)) if block.get("is_error") else frozenset()
        heard.refused_at = place
    elif text.startswith("[superseded"):
        heard.results.pop(arguments["key"], None)
    else:
        heard.results[arguments["key"]] = (place, json.loads(text.partition("\n")[0])["value"])


def decide(habit: str, heard: Heard, dice: random.Random) -> tuple[str, Any]:
    """The next step: ("read", key), ("publish", figures) or ("say", text)."""
    keys = [key for key in KEYS if re.search(rf"\b{key}\b", heard.question)]
    for key in keys:
        if not _has(habit, heard, key, dice):
            return "read", key
    figures = {key: _figure(habit, heard, key) for key in keys}
    if "Publish" in heard.question and not heard.is_published and heard.attempts < ATTEMPTS_MAX:
        return "publish", figures
    if "Publish" in heard.question:
        return "say", "Published." if heard.is_published else "Not published."
    return "say", ", ".join(f"{key} is {value}" for key, value in figures.items())


Mind = Callable[[list[Any]], tuple[str, Any]]


def _scripted(habit: str, dice: random.Random, messages: list[Any]) -> tuple[str, Any]:
    return decide(habit, hear(messages), dice)


def _has(habit: str, heard: Heard, key: str, dice: random.Random) -> bool:
    place, _ = heard.results.get(key, (-1, 0))
    if key in heard.refused and place < heard.refused_at:
        return False  # whatever its habit, it does what an error says
    if habit == "reuses all":
        return place >= 0 or key in heard.prose
    if place < 0 or habit == "re-reads all":
        return place > heard.asked
    is_warned = place < heard.note and (heard.is_time_alone or key in heard.stale)
    if habit == "forgetful":
        is_warned = is_warned and dice.random() < OBEDIENCE
    return habit == "reuses results" or not is_warned


def _figure(habit: str, heard: Heard, key: str) -> int:
    seen = [heard.results.get(key, (-1, 0))]
    if habit == "reuses all" and key in heard.prose:
        seen.append(heard.prose[key])
    return max(seen)[1]


# The story.


class Story:
    """Monday, the night, and Tuesday by one way, with one habit."""

    def __init__(
        self, seed: int, folder: Path, way: str, habit: str, *, count: Count, mind: Mind | None = None
    ) -> None:
        self._dice = random.Random(seed)  # the same world and questions for every way and habit
        self._world = World(folder / f"{seed}-{way}-{habit}.db", random.Random(f"world {seed}"))
        self._way, self._count = way, count
        self._mind = mind or partial(_scripted, habit, random.Random(f"{seed}{way}{habit}"))
        self._calls = 0
        self._moves: str | None = None  # this row changes right before the publication
        self._is_tuesday = False
        self._tells = self._tools()

    def play(self) -> None:
        with segue.open("memory:") as db:
            me = db.scope(user="lin")
            session = me.create()
            read_on_monday = self._dice.sample(KEYS, 4)
            with session.run() as run, self._using(run):
                for key in read_on_monday:
                    self._turn(run, f"What is {key}?")
            self._world.night()
            db.engine.store.shift_clock(NIGHT // timedelta(microseconds=1))
            self._is_tuesday = True
            with self._back(me, session) as run, self._using(run):
                for key in [*read_on_monday[:3], self._dice.choice(KEYS)]:
                    self._turn(run, f"What is {key}?")
                report = self._dice.sample(read_on_monday, 2)
                self._moves = report[0] if self._dice.random() < TALKING else None
                self._turn(run, f"Publish a report on {report[0]} and {report[1]}.")
        self._world.close()

    def _using(self, run: segue.Run) -> AbstractContextManager[None]:
        return segue.using(run, self._world.sources)

    @contextmanager
    def _back(self, me: segue.Scope, session: segue.Session) -> Iterator[segue.Run]:
        began = time.perf_counter()
        if self._way in ("nothing", "time", "guard"):
            run = session.run()
            if self._way == "time":
                run.append_drafts((_time_note(session),))
        else:
            stale = "mask" if self._way == "mask" else "note"
            run = me.resume(session, sources=self._world.sources, stale=stale).run()
        self._count.seconds["resume"] += time.perf_counter() - began
        with run:
            yield run

    def _turn(self, run: segue.Run, question: str) -> None:
        run.append({"role": "user", "content": question})
        while True:
            messages = run.messages()
            what, about = self._mind(messages)
            if what == "say":
                run.append({"role": "assistant", "content": about})
                self._score(question, about)
                return
            self._calls += 1
            id, arguments = f"toolu_{self._calls}", {"key": about} if what == "read" else {"figures": about}
            call = {"type": "tool_use", "id": id, "name": what, "input": arguments}
            if what == "read" and self._is_tuesday:
                self._needless(messages, about)
            run.append({"role": "assistant", "content": [call]})
            with segue.calling(id):
                text, is_error = self._do(what, about)
            answer = {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": is_error}
            run.append({"role": "user", "content": [answer]})

    def _tools(self) -> dict[str, Callable[..., str]]:
        def read(key: str) -> str:
            return json.dumps({"key": key, "value": self._world.values[key]})

        def publish(figures: dict[str, int]) -> str:
            self._world.published = figures
            return "published"

        tools: dict[str, Callable[..., str]] = {"read": segue.reads("facts:{key}")(read), "publish": publish}
        if "guard" in self._way:
            guarded = segue.writes("wiki:report", rests_on=lambda figures: [f"facts:{key}" for key in figures])
            tools["publish"] = guarded(publish)
        return tools

    def _do(self, what: str, about: Any) -> tuple[str, bool]:
        if what == "publish" and self._moves is not None:
            self._world.change(self._moves)
            self._moves = None
        began = time.perf_counter()
        try:
            return self._tells[what](about), False
        except segue.StaleRead as refused:
            is_false = all(self._world.values[key] == value for key, value in about.items())
            self._count.n["false blocks"] += is_false
            self._count.n["blocks"] += 1
            return str(refused), True
        finally:
            self._count.seconds[what] += time.perf_counter() - began
            self._count.n[what] += 1

    def _needless(self, messages: list[Any], key: str) -> None:
        """A reading that gives what a result in the context already said."""
        known = hear(messages).results.get(key)
        self._count.n["reads"] += 1
        self._count.n["needless"] += known is not None and known[1] == self._world.values[key]

    def _score(self, question: str, answer: str) -> None:
        if not self._is_tuesday:
            return
        if "Publish" in question:
            figures = self._world.published
            self._count.n["reports"] += figures is not None
            self._count.n["given up"] += figures is None
            is_stale = figures is not None and any(self._world.values[k] != v for k, v in figures.items())
            self._count.n["stale reports"] += is_stale
            return
        for key, value in _SAID.findall(answer):
            self._count.n["answers"] += 1
            self._count.n["stale answers"] += self._world.values[key] != int(value)


def _time_note(session: segue.Session) -> segue.Draft:
    """A note that says how much time passed, and nothing else."""
    info = session.refresh()
    now = session.log.engine.store.now_us()
    text = brief(now=segue.model.from_us(now), last_active_at=info.active_at, entries=info.head).text()
    form = rules(info.format)
    assert form is not None
    body = {"facts": {}, "language": "en", "text": text, "for": info.format, "message": form.note(text)}
    return segue.draft(body, kind="note", format="segue", origin="system", refs=("note",))


def measure(stories: int) -> dict[tuple[str, str], Count]:
    """All habits, all ways, the same stories."""
    counts: dict[tuple[str, str], Count] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(stories):
            for habit in HABITS:
                for way in WAYS:
                    Story(seed, Path(folder), way, habit, count=counts.setdefault((habit, way), Count())).play()
    return counts


# The tables.


def table(
    counts: dict[tuple[str, str], Count],
    title: str,
    cell: Callable[[Count], str],
    *,
    habits: Iterable[str] = tuple(HABITS),
) -> str:
    lines = [f"**{title}**", "", f"| habit | {' | '.join(WAYS)} |", f"|---|{'---|' * len(WAYS)}"]
    lines += [f"| {habit} | {' | '.join(cell(counts[habit, way]) for way in WAYS)} |" for habit in habits]
    return "\n".join(lines)


def share(part: str, whole: str) -> Callable[[Count], str]:
    def shown(count: Count) -> str:
        n, of = count.n[part], count.n[whole]
        return "–" if not of else f"{n / of:.1%}" if n else "0"

    return shown


def tables(counts: dict[tuple[str, str], Count]) -> str:
    parts = [
        table(counts, "Stale answers (of all answers on Tuesday)", share("stale answers", "answers")),
        table(counts, "Stale reports (of all published)", share("stale reports", "reports")),
        table(counts, "Needless readings (of all on Tuesday)", share("needless", "reads")),
        table(counts, "Refused publications that were right (of all refusals)", share("false blocks", "blocks")),
        table(counts, "Reports given up (number)", lambda count: str(count.n["given up"])),
        latency(counts),
    ]
    return "\n\n".join(parts)


def latency(counts: dict[tuple[str, str], Count]) -> str:
    lines = ["**Time, mean (measured)**", "", "| | " + " | ".join(WAYS) + " |", f"|---|{'---|' * len(WAYS)}"]
    for what, label in (("resume", "coming back, ms"), ("publish", "one publication, ms"), ("read", "one reading, ms")):
        cells = []
        for way in WAYS:
            mine = [counts[habit, way] for habit in HABITS]
            n = (
                sum(c.n[what] for c in mine)
                if what != "resume"
                else sum(c.n["given up"] + c.n["reports"] for c in mine)
            )
            cells.append(f"{sum(c.seconds[what] for c in mine) / max(n, 1) * 1_000:.1f}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(text: str, stories: int) -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- measured -->", "<!-- /measured -->"
    head, tail = page.partition(begin)[0], page.partition(end)[2]
    note = f"{stories} stories, each played by every habit in every way: {stories * len(WAYS) * len(HABITS):,} plays."
    PAGE.write_text(f"{head}{begin}\n\n{note}\n\n{text}\n\n{end}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Stale readings, by way of going on and by habit.")
    parser.add_argument("--stories", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/stale-readings.md")
    parser.add_argument("--model", help="play 20 stories with this model of Anthropic instead")
    options = parser.parse_args()
    if options.model:
        from bench.stale_model import play

        print(play(options.model, min(options.stories, 20)))
        return
    text = tables(measure(options.stories))
    print(text)
    if options.write:
        write(text, options.stories)


if __name__ == "__main__":
    main()
