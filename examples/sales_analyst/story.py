"""
Monday and the night: an analysis is asked for, and the warehouse restates what it rests on.

Each day plays in a process of its own; for Tuesday see ``tuesday.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import segue

from . import agent
from .clock import Story, move_clock
from .facts import Facts
from .model import Model
from .screen import Screen, Unseen
from .stand_in import StandIn
from .tools import Tools, orders_of
from .warehouse import REGIONS, Warehouse

TENANT, USER = "acme", "lin"
LIFETIME = timedelta(days=400)
"""After the last activity: next year's analysis of the same month can still look back at this one."""

MARK = ".segue-demo"
TARGETS = {7: (860, 690, 610, 360), 8: (900, 700, 600, 350)}
"""Month and the target of each region, in 10,000 yuan."""

TITLE = "华东 8 月销售下滑"
QUESTION = "华东 8 月销售为什么下滑？按月看一下，再和其他大区、和目标比一比。"
OTHERS = (
    ("华南 7 月复盘", "帮我复盘一下华南 7 月的销售。"),
    ("8 月目标完成率", "8 月各大区的目标完成率是多少？"),
)
"""Title and question of the sessions that are only there to be listed; the stand-in answers them."""


@dataclass(frozen=True)
class Place:
    """Where everything of the story is kept."""

    folder: Path
    store: str
    year: int

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse.duckdb"

    @property
    def facts(self) -> Path:
        return self.folder / "story.json"

    @property
    def story(self) -> Story:
        return Story(self.year)


def prepare(place: Place) -> None:
    """
    Empty the folder and put a fresh warehouse and targets into it.

    Raises:
        SystemExit: The folder holds something that this program did not make.
    """
    folder = place.folder
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise SystemExit(f"{folder} holds files that this example did not make; choose another with --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).write_text("Made by the sales analyst; each run begins by deleting this folder.\n")
    Warehouse.make(place.warehouse, year=place.year, loaded_at=place.story.loaded).close()
    rows = [f"{r},{place.year}-{m:02d},{t}" for m, of in TARGETS.items() for r, t in zip(REGIONS, of, strict=True)]
    (folder / "targets.csv").write_text("\n".join(["region,month,target", *rows, ""]), encoding="utf-8")


def monday(place: Place, model: Model, screen: Screen) -> None:
    """The analysis; on Friday there was another session, about another region."""
    with segue.open(place.store) as db, Warehouse(place.warehouse) as warehouse:
        me, tools = db.scope(tenant=TENANT, user=USER), Tools(warehouse, place.folder)
        move_clock(db, place.story.friday)
        _first_turn(place, me, tools, model=StandIn(), screen=Unseen(), title=OTHERS[0][0], question=OTHERS[0][1])
        move_clock(db, place.story.monday)
        screen.step("Mon 15:00", "Lin asks for an analysis", "周一下午：分析华东 8 月")
        session = _first_turn(place, me, tools, model=model, screen=screen, title=TITLE, question=QUESTION)
        entries = session.read()
        readings = sum(entry.kind == "observation" for entry in entries)
        screen.line()
        screen.fact(
            "kept", f"{len(entries)} entries; {readings} of them say what was read of the world, in which version."
        )
        screen.text(f"Process {os.getpid()} ends here.")
        Facts(place.facts).add(monday_pid=os.getpid(), session=session.id, readings=readings)


def _first_turn(
    place: Place, me: segue.Scope, tools: Tools, *, model: Model, screen: agent.Watcher, title: str, question: str
) -> segue.Session:
    session = me.create(title=title, format=model.format, agent=agent.config(model, place.year), idle=LIFETIME)
    with session.run() as run:
        agent.answer(run, question, model=model, tools=tools, year=place.year, watch=screen)
    session.refresh()
    return session


def night(place: Place, screen: Screen) -> None:
    """The warehouse restates August: returns are booked late."""
    screen.step("Tue 02:10", "The warehouse restates August", "夜里：仓库补记 8 月退货")
    with Warehouse(place.warehouse) as warehouse:
        before = warehouse.watermark("华东")
        done = warehouse.restate(region="华东", month=place.story.august, share=(0, 2), at=place.story.night)
        after = warehouse.watermark("华东")
    screen.text(
        f"In DuckDB, for real: {done.rows} online orders of Q7 came back. "
        f"华东 8 月 {done.before:,.1f} → {done.after:,.1f} 万元; "
        f"max(updated_at) of {orders_of('华东')} moved from {before:%m-%d %H:%M} to {after:%m-%d %H:%M} UTC. "
        "Other regions and targets.csv stay as they were. Nobody tells the session."
    )
    Facts(place.facts).add(restated_rows=done.rows, before=done.before, after=done.after)


def early(place: Place) -> None:
    """On Tuesday morning, before the story goes on, Lin's phone asks about something else."""
    with segue.open(place.store) as db, Warehouse(place.warehouse) as warehouse:
        me, tools = db.scope(tenant=TENANT, user=USER), Tools(warehouse, place.folder)
        move_clock(db, place.story.tuesday_early)
        _first_turn(place, me, tools, model=StandIn(), screen=Unseen(), title=OTHERS[1][0], question=OTHERS[1][1])


def in_a_process(place: Place, day: str) -> None:
    """
    Play a day in a process of its own, which finds nothing but what is stored.

    Raises:
        SystemExit: It failed; it has said why.
    """
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "examples.sales_analyst", day]
    command += ["--store", place.store, "--folder", str(place.folder), "--year", str(place.year)]
    sys.stdout.flush()
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
    if ended.returncode:
        raise SystemExit(ended.returncode)
