"""The shapes of ``--json``: stored things as plain JSON values. Times are ISO 8601 in UTC, durations seconds."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from segue.model import Entry, SessionInfo


def stamp(moment: datetime | None) -> str | None:
    """A time as ``2026-11-30T09:05:00.000000Z``: always with six digits, so that it sorts as text."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


SESSION_FIELDS = {
    "id": "full id",
    "key": "the caller's own key, or null",
    "tenant": "owner",
    "user": "owner",
    "title": "empty when not set",
    "status": "running, idle, paused, completed or archived",
    "format": "whose JSON its messages are",
    "entries": "how many entries: its head",
    "inherited": "how many of them it shares with its parent",
    "version": "counts changes of attributes",
    "tags": "sorted",
    "metadata": "the caller's own fields",
    "pinned": "never swept",
    "listed": "false for sub-agents' sessions",
    "created_at": "store's clock",
    "active_at": "last append",
    "due_at": "when its lifetime ends, or null",
    "archived_at": "or null",
    "usage": "tokens of its own entries: input, output, cache_read, cache_write, cache_write_long, reasoning",
    "parent": "session, seq, link; or null",
    "lease": "run, fence, state, expires_at; or null",
    "waiting": "runs in its queue",
}


def session(info: SessionInfo) -> dict[str, Any]:
    """A session's row."""
    parent, lease = info.parent, info.lease
    return {
        "id": info.id,
        "key": info.key,
        "tenant": info.scope.tenant,
        "user": info.scope.user,
        "title": info.title,
        "status": info.status,
        "format": info.format,
        "entries": info.head,
        "inherited": info.base,
        "version": info.version,
        "tags": list(info.tags),
        "metadata": dict(info.metadata),
        "pinned": info.is_pinned,
        "listed": info.is_listed,
        "created_at": stamp(info.created_at),
        "active_at": stamp(info.active_at),
        "due_at": stamp(info.due_at),
        "archived_at": stamp(info.archived_at),
        "usage": info.usage._asdict(),
        "parent": parent and {"session": parent.session, "seq": parent.seq, "link": parent.link},
        "lease": lease
        and {"run": lease.run, "fence": lease.fence, "state": lease.state, "expires_at": stamp(lease.expires_at)},
        "waiting": info.waiting,
    }


ENTRY_FIELDS = {
    "seq": "number, from 1 without gaps",
    "id": "unique in the session",
    "kind": "message, note, cut, observation, effect, derived, config, retract, or an adapter's word",
    "format": "whose JSON the body is",
    "origin": "user, model, tool, system or import",
    "run": "the run that appended it, or null",
    "created_at": "store's clock",
    "occurred_at": "claimed time, or null",
    "refs": "keys under which it is found",
    "usage": "tokens of the model call, or null",
    "digest": "SHA-256 of the body, hex",
    "hollow": "true when its content was erased",
    "body": "the body's JSON value (key order kept); null when hollow or raw. --raw gives its exact bytes",
    "body_base64": "the bytes of a body of format raw, else null",
}


def entry(one: Entry) -> dict[str, Any]:
    """An entry with its body."""
    is_raw = one.format == "raw" and one.body is not None
    return {
        "seq": one.seq,
        "id": one.id,
        "kind": one.kind,
        "format": one.format,
        "origin": one.origin,
        "run": one.run,
        "created_at": stamp(one.created_at),
        "occurred_at": stamp(one.occurred_at),
        "refs": list(one.refs),
        "usage": None if one.usage is None else one.usage._asdict(),
        "digest": one.digest.hex(),
        "hollow": one.is_hollow,
        "body": None if is_raw else one.json(),
        "body_base64": base64.b64encode(one.body).decode() if is_raw and one.body is not None else None,
    }
