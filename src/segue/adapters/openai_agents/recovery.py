"""After a crash: tool calls that were recorded before they started, and whose items were never stored."""

from __future__ import annotations

from typing import Any

import segue
from segue.formats import rules

from . import history

SCAN_MAX = 1_000
"""Most records of calls that are looked at."""

INTERRUPTED = "[Segue] The run was interrupted inside this tool call: it may or may not have been done. Check first."


def recovered(stored: segue.Session) -> list[segue.Draft]:
    """
    The items of tool calls that were made and never stored, because the process ended in between.

    Each call with what came of it, or with the words that nobody knows.
    """
    records = unstored(stored)
    ends = {body["effect"]: body.get("result") for body in records if body.get("phase") != "started"}
    calls: list[Any] = []
    outputs: list[Any] = []
    for body in records:
        call = body.get("call")
        if body.get("phase") != "started" or not isinstance(call, str):
            continue
        if not open_call(stored, call):
            arguments = body.get("arguments") or "{}"
            calls.append({"type": "function_call", "call_id": call, "name": body["name"], "arguments": arguments})
        result = ends.get(body["effect"])
        output = result.get("output") if isinstance(result, dict) else None
        outputs.append({"type": "function_call_output", "call_id": call, "output": output or INTERRUPTED})
    return [history.message(item) for item in (*calls, *outputs)]


def open_call(stored: segue.Session, call: str) -> int:
    """Seq of the item of a call that has no output yet; 0 when there is none."""
    shapes = rules(history.FORMAT)
    if shapes is None:
        return 0
    refs = shapes.refs({"type": "function_call", "call_id": call, "name": "", "arguments": ""})
    found = stored.by_ref(refs[0], reverse=True, limit=1) if refs else []
    if not found or found[0].entry.kind != "message":
        return 0
    return found[0].entry.seq if any(one.id == call for one in shapes.calls(found[0].entry.json())) else 0


def unstored(stored: segue.Session) -> list[dict[str, Any]]:
    """The records of calls that began after the newest item: the process ended before their items were stored."""
    records = stored.by_ref("effect", after=history.last_message(stored), limit=SCAN_MAX)
    bodies = [hit.entry.json() for hit in records if not hit.entry.is_hollow]
    return [body for body in bodies if isinstance(body, dict) and isinstance(body.get("effect"), str)]


def calls_of(records: list[dict[str, Any]]) -> frozenset[str]:
    """The ids of the calls in these records."""
    return frozenset(body["call"] for body in records if isinstance(body.get("call"), str))
