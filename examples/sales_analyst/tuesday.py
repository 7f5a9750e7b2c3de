"""
Tuesday, in a process of its own: the list, the resume, the answer on today's data, a guarded publication,
a fork, and two requests at once.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import segue

from . import agent
from .clock import NIGHT, ZONE, local, move_clock
from .facts import Facts
from .model import Model
from .screen import Screen, Unseen, shorten
from .story import TENANT, USER, Place
from .tools import Tools
from .warehouse import Warehouse

WAIT = timedelta(seconds=60)
"""How long the second of two requests waits for the first."""


@dataclass
class Desk:
    """What Tuesday works with."""

    place: Place
    db: segue.Database
    me: segue.Scope
    model: Model
    warehouse: Warehouse
    tools: Tools
    screen: Screen
    facts: Facts

    @property
    def config(self) -> segue.AgentConfig:
        return agent.config(self.model, self.place.year)

    def answer(self, run: segue.Run, question: str, **options: Any) -> str:
        """One question, on the screen unless told otherwise."""
        return agent.answer(
            run,
            question,
            **{"model": self.model, "tools": self.tools, "year": self.place.year, "watch": self.screen, **options},
        )


def tuesday(place: Place, model: Model, screen: Screen) -> None:
    """The whole day."""
    with segue.open(place.store) as db, Warehouse(place.warehouse) as warehouse:
        me = db.scope(tenant=TENANT, user=USER)
        tools = Tools(warehouse, place.folder)
        desk = Desk(place, db, me, model, warehouse, tools, screen, Facts(place.facts))
        yesterday = find(desk)
        move_clock(db, yesterday.info.active_at + NIGHT)
        session = resume(desk, yesterday)
        for at, step in ((12, publish), (20, fork), (30, at_once)):
            move_clock(db, place.story.at(1, 9, at))
            step(desk, session)


# 3. The list, and the way back


def find(desk: Desk) -> segue.Session:
    """The session that was active last on the day before today, by the user's calendar."""
    move_clock(desk.db, desk.place.story.at(1, 9))
    today = midnight(desk.db.now())
    return desk.me.latest(since=today - timedelta(days=1), until=today)


def resume(desk: Desk, session: segue.Session) -> segue.Session:
    """List the sessions, learn what changed since yesterday's, and go on."""
    screen = desk.screen
    screen.step(local(desk.db.now()), "Another process, on the next day", "周二上午：新进程，接着昨天的")
    screen.text(
        f"Process {os.getpid()}; all it has is the store, whose clock was moved on by "
        f"{NIGHT // timedelta(hours=1)} hours. The sessions of {TENANT}/{USER}:"
    )
    listed = _show_list(desk, session)
    back = desk.me.resume(session, agent=desk.config, sources=desk.tools.sources, time_zone=ZONE, language="zh")
    briefing = back.briefing
    screen.line()
    screen.text("The briefing, for a person (nothing is written yet):")
    screen.quote(str(replace(briefing, language="en")), style="cyan")
    with back.run() as run:
        _show_note(desk, session)
        screen.line()
        desk.answer(run, "接着昨天那个，把 SKU 维度也拆一下。")
    desk.facts.add(
        tuesday_pid=os.getpid(),
        listed=listed,
        resumed=session.id,
        gap_seconds=briefing.gap.total_seconds(),
        counts=dict(briefing.counts),
        changed=[finding.observation.source for finding in briefing.findings],
    )
    return session


def _show_list(desk: Desk, chosen: segue.Session) -> list[str]:
    today = midnight(desk.db.now())
    sessions = desk.me.list().sessions
    number = [info.id for info in sessions].index(chosen.id)
    rows = [_row(desk, n, info, today) for n, info in enumerate(sessions, 1)]
    desk.screen.line()
    desk.screen.table(("", "title", "last active", "state", "entries", "asked last"), rows, chosen=number)
    desk.screen.line()
    desk.screen.text(
        f"“昨天那个” is number {number + 1}, the last that was active yesterday: a rule of this program, by time alone."
    )
    return [info.title for info in sessions]


def _row(desk: Desk, number: int, info: segue.SessionInfo, today: datetime) -> tuple[str, ...]:
    """What makes a session recognisable: its title, when it was used in the user's words, the last question."""
    there = info.active_at.astimezone(ZONE)
    days = (today.date() - there.date()).days
    day = {0: "today", 1: "yesterday"}.get(days, f"{there:%a}")
    asked = _last_question(desk.me.open(info.id))
    return str(number), info.title, f"{day} {there:%H:%M}", info.status, str(info.head), shorten(asked, 30)


def midnight(moment: datetime) -> datetime:
    """When the user's day began."""
    return moment.astimezone(ZONE).replace(hour=0, minute=0, second=0, microsecond=0)


def _last_question(session: segue.Session) -> str:
    for entry in session.read(kinds=("message",), reverse=True, limit=200):
        if entry.origin == "user":
            content = entry.json()["content"]
            return content if isinstance(content, str) else str(content[0].get("text", ""))
    return ""


def _show_note(desk: Desk, session: segue.Session) -> None:
    notes = session.read(kinds=("note",))
    desk.screen.line()
    desk.screen.text(f"The note for the model, appended once, entry {notes[-1].seq}; from now on it is history:")
    desk.screen.quote(notes[-1].json()["text"])


# 4. A publication on ground that moves


def publish(desk: Desk, session: segue.Session) -> None:
    """More returns are booked while they talk; the publication is refused until they are read."""
    screen = desk.screen
    screen.step(local(desk.db.now()), "Publishing on moving ground", "发布：依据已变则拒绝")
    done = desk.warehouse.restate(
        region="华东", month=desk.place.story.august, share=(1, 6), at=desk.db.now().replace(microsecond=0)
    )
    screen.text(
        f"While they talk, {done.rows} more returns are booked: 华东 8 月 {done.before:,.1f} → {done.after:,.1f} 万元. "
        "Neither Lin nor the model knows."
    )
    screen.line()
    with session.run() as run:
        desk.answer(run, "很好，把结论发布成报告。")
    phases = [entry.json()["phase"] for entry in session.read(kinds=("effect",))]
    screen.line()
    show_effect(screen, phases)
    desk.facts.add(late_rows=done.rows, late_after=done.after, effects=phases)


def show_effect(screen: Screen, phases: list[str]) -> None:
    """What the log holds of the publication; a real model may not have called the tool at all."""
    if not phases:
        screen.fact("no effect", "the model did not publish: no write was begun, so the log holds none.", good=False)
        return
    screen.fact(
        "effect",
        f"publish_report, {' → '.join(phases)}: recorded before it began, so a crash would leave “unknown”, "
        "never silence.",
    )


# 5. A fork


def fork(desk: Desk, session: segue.Session) -> None:
    """Another split in a fork; the parent stays what it was."""
    screen = desk.screen
    screen.step(local(desk.db.now()), "A fork tries another split", "分叉：换成渠道，原会话不变")
    before = state(session)
    branch = session.fork(title="华东 8 月：按渠道")
    with branch.run() as run:
        desk.answer(run, "换个角度，按渠道拆一下。")
    after = state(session)
    screen.line()
    screen.table(
        ("", "head", "digest of the history"),
        [
            ("parent before", str(before[0]), before[1]),
            ("parent after", str(after[0]), after[1]),
            ("fork", str(state(branch)[0]), state(branch)[1]),
        ],
    )
    screen.line()
    screen.fact("unchanged", f"the fork shares entries 1–{before[0]} without a copy.", good=before == after)
    desk.facts.add(fork=branch.id, parent_before=before, parent_after=after)


def state(session: segue.Session) -> tuple[int, str]:
    """Head and digest of a session's whole history."""
    total, head = hashlib.sha256(), 0
    for entry in session.history():
        total.update(entry.digest)
        head = entry.seq
    return head, total.hexdigest()[:16]


# 6. Two requests at once


def at_once(desk: Desk, session: segue.Session) -> None:
    """Laptop and phone ask at the same moment: one answers, the other waits for its turn."""
    screen = desk.screen
    screen.step(local(desk.db.now()), "Two requests at the same moment", "同时两个请求：后到的排队")
    head = session.refresh().head
    timeline = Timeline()
    first_holds = threading.Event()
    first = threading.Thread(
        target=_ask,
        args=(desk, session.id, timeline, "laptop", "再看看 8 月各大区的对比。"),
        kwargs={"holds": first_holds.set, "after_first": lambda: _until_somebody_waits(desk, session.id)},
    )
    second = threading.Thread(target=_ask, args=(desk, session.id, timeline, "phone", "8 月目标完成率现在是多少？"))
    first.start()
    first_holds.wait(WAIT.total_seconds())
    second.start()
    for thread in (first, second):
        thread.join()
    timeline.show(screen)
    waited = timeline.when("phone", "its turn") - timeline.when("phone", "asks")
    stretches = [[run, *_ends(entries)] for run, entries in groupby(session.read(after=head), key=lambda e: e.run)]
    screen.line()
    screen.fact(
        "in turn",
        f"the phone waited {waited:.3f} s for the laptop: entries {stretches[0][1]}–{stretches[0][2]}, "
        f"then {stretches[-1][1]}–{stretches[-1][2]}; nothing in between.",
        good=len(stretches) == 2,
    )
    desk.facts.add(at_once=timeline.events, waited_seconds=waited, stretches=stretches)


def _ends(entries: Iterable[segue.Entry]) -> tuple[int, int]:
    numbers = [entry.seq for entry in entries]
    return numbers[0], numbers[-1]


class Timeline:
    """What happened when, from several threads."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.events: list[dict[str, Any]] = []

    def add(self, who: str, what: str, **details: Any) -> None:
        self.events.append({"at": round(time.monotonic() - self._began, 3), "who": who, "what": what, **details})

    def when(self, who: str, what: str) -> float:
        """When it happened, in seconds."""
        return float(next(event["at"] for event in self.events if (event["who"], event["what"]) == (who, what)))

    def show(self, screen: Screen) -> None:
        for event in self.events:
            mark = f"+{event['at']:.3f} s  {event['who']:<7} {event['what']:<10}"
            screen.block(event.get("text", ""), mark=(mark, "cyan" if event["who"] == "phone" else "green"))


def _ask(
    desk: Desk,
    session_id: str,
    timeline: Timeline,
    who: str,
    question: str,
    *,
    holds: Callable[[], None] = lambda: None,
    after_first: Callable[[], None] = lambda: None,
) -> None:
    session = desk.me.open(session_id)
    timeline.add(who, "asks", text=question)
    with session.run(policy="enqueue", wait=WAIT) as run:
        timeline.add(who, "its turn", text=f"holds the session, fence {run.fence}", run=run.id)
        holds()
        text = desk.answer(run, question, watch=Unseen(), after_first=after_first)
    timeline.add(who, "answered", text=shorten(text, 60))


def _until_somebody_waits(desk: Desk, session_id: str) -> None:
    """A stand-in answers in milliseconds: let the second request knock before the first goes on."""
    until = time.monotonic() + WAIT.total_seconds() / 2
    while desk.me.open(session_id).info.waiting == 0 and time.monotonic() < until:
        time.sleep(0.005)
