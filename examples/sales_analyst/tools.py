"""
The analyst's tools, over the real warehouse and real files.

Every reading is recorded as an observation: which source, in which version, read how. Publishing is a
change of the world: it is refused when a reading it rests on no longer holds.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import segue
from segue import StaleRead, world
from segue.probes import Sql
from segue.world import Sources, Version

from .model import Call, Result
from .warehouse import GROUPS, REGIONS, WATERMARK, Warehouse

ORDERS = "warehouse:sales.orders"
TARGETS = "file:targets.csv"

_SEPARATORS = re.compile(r"[^\w-]+")
_MONTH = {"type": "string", "description": "Such as 2026-08.", "pattern": r"^\d{4}-(0[1-9]|1[0-2])$"}
_REGION = {"type": "string", "enum": list(REGIONS)}

DEFINITIONS: list[dict[str, Any]] = [
    {
        "name": "query_sales",
        "description": "Net sales (after returns, in 10,000 yuan) from the warehouse. by=month gives the months up to "
        "the given one; any other split compares the given month with the one before. Without region: all regions.",
        "parameters": {
            "type": "object",
            "properties": {"by": {"type": "string", "enum": list(GROUPS)}, "month": _MONTH, "region": _REGION},
            "required": ["by", "month"],
            "additionalProperties": False,
        },
    },
    {
        "name": "read_targets",
        "description": "Sales targets (in 10,000 yuan) of a month, from the planning department's file.",
        "parameters": {
            "type": "object",
            "properties": {"month": _MONTH, "region": _REGION},
            "required": ["month"],
            "additionalProperties": False,
        },
    },
    {
        "name": "publish_report",
        "description": "Publish a report on a region for everybody to read. Refused when something that this "
        "conversation has read changed since: read it again, then publish.",
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "region": _REGION, "body": {"type": "string"}},
            "required": ["title", "region", "body"],
            "additionalProperties": False,
        },
    },
]


def orders_of(region: str | None) -> str:
    """The source that a query of a region reads; each region is versioned by itself."""
    return f"{ORDERS}?region={region}" if region else ORDERS


def sources_of(warehouse: Warehouse, folder: Path) -> Sources:
    """How each source is looked at: a watermark for the orders, a hash for files in the folder."""
    sources = Sources(roots=[folder])
    for region in (None, *REGIONS):
        sources.register(orders_of(region), Sql(warehouse.cursor, WATERMARK, parameters=[region]))
    return sources


class Refusal(Exception):
    """A tool does not do what the model asked for; the text is for the model."""


class Tools:
    """The tools of one run."""

    def __init__(self, warehouse: Warehouse, folder: Path) -> None:
        self.sources = sources_of(warehouse, folder)
        self._warehouse = warehouse
        self._folder = folder
        self._tools: dict[str, Callable[..., str]] = {
            "query_sales": self._query_sales,
            "read_targets": self._read_targets,
            "publish_report": self._publish_report,
        }

    def do(self, session: segue.Session, run: segue.Run, call: Call) -> Result:
        """Do what the model asked for. What it asked for wrongly, and a stale publication, it is told as an error."""
        tool = self._tools.get(call.name)
        if tool is None:
            return Result(call, f"no such tool: {call.name}; there are {', '.join(self._tools)}", is_error=True)
        wrong = _wrong(call)
        if wrong:
            return Result(call, f"wrong arguments: {wrong}", is_error=True)
        try:
            return Result(call, tool(session, run, call, **call.arguments))
        except Refusal as error:
            return Result(call, str(error), is_error=True)

    def _query_sales(
        self, session: segue.Session, run: segue.Run, call: Call, *, by: str, month: str, region: str | None = None
    ) -> str:
        source = orders_of(region)
        version = self._look(session, source)  # before the query: a change in between shows as a change
        rows = self._warehouse.sales(by=by, month=date.fromisoformat(f"{month}-01"), region=region)
        value = {"month": month, "region": region or "全国", "by": by, "unit": "万元", "rows": rows}
        return _observed(run, call, source, version, value)

    def _read_targets(
        self, session: segue.Session, run: segue.Run, call: Call, *, month: str, region: str | None = None
    ) -> str:
        version = self._look(session, TARGETS)
        with (self._folder / "targets.csv").open(encoding="utf-8", newline="") as file:
            rows = [
                {"region": row["region"], "target": float(row["target"])}
                for row in csv.DictReader(file)
                if row["month"] == month and region in (None, row["region"])
            ]
        return _observed(run, call, TARGETS, version, {"month": month, "unit": "万元", "rows": rows})

    def _publish_report(
        self, session: segue.Session, run: segue.Run, call: Call, *, title: str, region: str, body: str
    ) -> str:
        self._check_ground(session, region)
        name = f"reports/{_SEPARATORS.sub('-', title)[:80]}.md"
        text = f"# {title}\n\n{body}\n".encode()
        with run.effect("publish_report", source=f"file:{name}", call=call.id) as effect:
            _replace(self._folder / name, text)
            receipt = {"file": name, "bytes": len(text)}
            effect.done(receipt, version=segue.probes.file_version(self._folder / name))
        return json.dumps(receipt, ensure_ascii=False)

    def _check_ground(self, session: segue.Session, region: str) -> None:
        """
        Refuse unless everything that this session has read still is what it was read as.

        A report rests on the conversation, so on all of its readings; those of its region must be among them.
        """
        entries = session.read(kinds=("observation", "effect"), reverse=True)
        readings = world.live(entries, by="source").observations
        found = world.check(readings, self.sources, principal=session.info.scope.user)
        stale = [StaleRead(f.observation.source, f.observation.version, f.now) for f in found if f.outcome != "current"]
        if orders_of(region) not in {reading.source for reading in readings}:
            stale.append(StaleRead(orders_of(region), None, self._look(session, orders_of(region))))
        if stale:
            raise Refusal("\n".join(str(one) for one in stale)) from stale[0]

    def _look(self, session: segue.Session, source: str) -> Version:
        answer = world.look(source, self.sources, principal=session.info.scope.user)
        if not isinstance(answer, Version):
            raise Refusal(f"{source} cannot be read now: {answer}")
        return answer


def _wrong(call: Call) -> str:
    """What is wrong with the arguments, by the tool's definition; empty when nothing is."""
    schema = next(tool["parameters"] for tool in DEFINITIONS if tool["name"] == call.name)
    given, known = set(call.arguments), schema["properties"]
    if given - set(known) or set(schema["required"]) - given:
        return f"it takes {', '.join(known)}; required are {', '.join(schema['required'])}"
    for name, value in call.arguments.items():
        rule = known[name]
        if not isinstance(value, str) or not re.fullmatch(rule.get("pattern", "[\\s\\S]*"), value):
            return f"{name} is text: {rule.get('description', 'any')}"
        if value not in rule.get("enum", [value]):
            return f"{name} is one of {', '.join(rule['enum'])}"
    return ""


def _observed(run: segue.Run, call: Call, source: str, version: Version, value: dict[str, Any]) -> str:
    """The result for the model: the data, and one line that says when and in which version they were read."""
    reading = run.observe(source, version, value=value, tool=call.name, arguments=call.arguments, call=call.id)
    return f"{json.dumps(value, ensure_ascii=False)}\n{reading.stamp('zh')}"


def _replace(path: Path, text: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_bytes(text)
    beside.replace(path)
