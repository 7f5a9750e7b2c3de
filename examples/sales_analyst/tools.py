"""
The analyst's tools, over the real warehouse and real files.

``reads`` records every reading: which source, in which version, read how. ``writes`` guards the
publication: it is refused when a reading that it rests on no longer holds.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import Any

import segue
from segue.probes import Sql, replace_file
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


class Tools:
    """The tools, for any run that is in use."""

    def __init__(self, warehouse: Warehouse, folder: Path) -> None:
        self.sources = sources_of(warehouse, folder)
        self._warehouse = warehouse
        self._folder = folder
        self._tools: dict[str, Callable[..., str]] = {
            "query_sales": self._query_sales,
            "read_targets": self._read_targets,
            "publish_report": self._publish_report,
        }

    def using(self, run: segue.Run) -> AbstractContextManager[None]:
        """Inside, what the tools read is recorded in this run, and what they write is guarded by it."""
        return segue.using(run, self.sources, language="zh")

    def do(self, call: Call) -> Result:
        """Do what the model asked for. What it asked for wrongly, and a stale publication, it is told as an error."""
        tool = self._tools.get(call.name)
        if tool is None:
            return Result(call, f"no such tool: {call.name}; there are {', '.join(self._tools)}", is_error=True)
        wrong = _wrong(call)
        if wrong:
            return Result(call, f"wrong arguments: {wrong}", is_error=True)
        try:
            with segue.calling(call.id):
                return Result(call, tool(**call.arguments))
        except (segue.StaleRead, OSError) as error:
            return Result(call, str(error), is_error=True)

    @segue.reads(lambda self, by, month, region: orders_of(region), name="query_sales")  # noqa: ARG005
    def _query_sales(self, by: str, month: str, region: str | None = None) -> str:
        rows = self._warehouse.sales(by=by, month=date.fromisoformat(f"{month}-01"), region=region)
        return _json({"month": month, "region": region or "全国", "by": by, "unit": "万元", "rows": rows})

    @segue.reads(TARGETS, name="read_targets")
    def _read_targets(self, month: str, region: str | None = None) -> str:
        with (self._folder / "targets.csv").open(encoding="utf-8", newline="") as file:
            rows = [
                {"region": row["region"], "target": float(row["target"])}
                for row in csv.DictReader(file)
                if row["month"] == month and region in (None, row["region"])
            ]
        return _json({"month": month, "unit": "万元", "rows": rows})

    # A report rests on the conversation, so on all that was read in it; its region's orders must be among that.
    @segue.writes(
        lambda self, title, **_: f"file:{_name(title)}",  # noqa: ARG005
        rests_on=lambda self, region, **_: ("*", orders_of(region)),  # noqa: ARG005
        precondition="expect",
        version=lambda receipt: Version("sha256", json.loads(receipt)["sha256"]),
        name="publish_report",
    )
    def _publish_report(self, title: str, region: str, body: str, expect: str | None = None) -> str:  # noqa: ARG002
        path, text = self._folder / _name(title), f"# {title}\n\n{body}\n".encode()
        path.parent.mkdir(exist_ok=True)
        written = replace_file(path, text, expect)
        return _json({"file": _name(title), "bytes": len(text), "sha256": written.value})


def _name(title: str) -> str:
    return f"reports/{_SEPARATORS.sub('-', title)[:80]}.md"


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


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
