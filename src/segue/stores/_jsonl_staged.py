"""A session together with what the commit under way adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from segue.model import Draft, ScopeKey, SessionInfo, to_us
from segue.store import Create

from ._jsonl_lines import (
    FORMAT,
    Head,
    Header,
    LeaseLine,
    LeaseOf,
    Row,
    RowLine,
    Ticket,
    body_member,
    entry_head,
    moment,
    parent_line,
    sealed,
    seed_of,
)
from ._jsonl_summary import Moment, Summary, waiting
from ._jsonl_table import Table


@dataclass(slots=True)
class Staged:
    """
    A session as it will be when the commit is done.

    Attributes:
        scope: Its owner.
        summary: Its own copy.
        lease: Its newest lease and queue.
        table: Its file, as it is; None when the commit makes it.
        ids: Seq and digest of the entries that are added.
        heads: The lines that are added, each with the member that holds its body.
        says_beside: Whether the lease file is to say the lease, too.
    """

    scope: ScopeKey
    summary: Summary
    lease: LeaseLine
    table: Table | None = None
    ids: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    heads: list[tuple[Head, bytes]] = field(default_factory=list)
    says_beside: bool = False

    @property
    def row(self) -> Row:
        """The attributes; ``Corrupt`` where they are damaged."""
        return self.summary.known_row()

    @property
    def is_dirty(self) -> bool:
        """Whether the commit adds something."""
        return bool(self.heads) or self.says_beside

    def info(self, at: Moment) -> SessionInfo:
        """The row as callers know it."""
        return self.summary.info(self.scope, at, self.lease)

    def running(self, at: Moment) -> LeaseOf | None:
        """The lease of the run that is active now, or None."""
        lease = self.lease.lease
        return lease if lease and lease.state == "running" and at.holds(lease) else None

    def held(self, run: str | None, fence: int) -> LeaseOf | None:
        """The newest lease when it is this one, also expired or paused; None when it was lost or given back."""
        lease = self.lease.lease
        return lease if lease and (lease.run, lease.fence) == (run, fence) else None

    def waiting(self, at: Moment) -> list[str]:
        """Runs in the queue, first come first."""
        return waiting(self.lease, at)

    def set_row(self, **changes: Any) -> None:
        """Change attributes; the version is one higher."""
        row = msgspec.structs.replace(self.row, version=self.row.version + 1, **changes)
        self.summary.row = row
        self.heads.append((RowLine(row), b""))

    def wake(self) -> None:
        """A completed session that goes on is active again."""
        if self.row.state == "completed":
            self.set_row(state="active")

    def add(self, drafts: Sequence[Draft], run: str | None, now: int) -> None:
        """Add entries at the end."""
        summary = self.summary
        for draft in drafts:
            summary.head += 1
            head = entry_head(draft, seq=summary.head, run=run, now=now)
            self.heads.append((head, body_member(draft.body, draft.format)))
            self.ids[draft.id] = (summary.head, draft.digest)
            if draft.usage is not None:
                summary.usage += draft.usage
            summary.active_us = now

    def grant(self, lease: LeaseOf) -> None:
        """A run gets the lease: said in the session's file, so that a fence never comes back."""
        queue = tuple(each for each in self.lease.queue if each.run != lease.run)
        self._set_lease(lease=lease, fence=lease.fence, queue=queue)
        self.heads.append((self.lease, b""))

    def set_lease(self, lease: LeaseOf | None) -> None:
        """The lease is extended, paused or given back: said in the file beside."""
        self._set_lease(lease=lease)
        self.says_beside = True

    def set_queue(self, queue: Sequence[Ticket]) -> None:
        """Who waits: said in the file beside."""
        self._set_lease(queue=tuple(queue))
        self.says_beside = True

    def _set_lease(self, **changes: Any) -> None:
        self.lease = msgspec.structs.replace(self.lease, rev=self.lease.rev + 1, part=None, **changes)

    def data(self) -> bytes:
        """The lines that are added, which say that they belong together."""
        seed, count = seed_of(*self.scope, self.summary.session), len(self.heads)
        return b"".join(
            sealed(msgspec.structs.replace(head, part=(no, count) if count > 1 else None), seed, body)
            for no, (head, body) in enumerate(self.heads, 1)
        )

    def data_beside(self) -> bytes:
        """The line that the lease file gets."""
        return sealed(msgspec.structs.replace(self.lease, part=None), seed_of(*self.scope, self.summary.session))


def begun(op: Create, *, base: int, shares: tuple[tuple[str, int], ...], now: int) -> Staged:
    """A new session, without entries of its own."""
    row = Row(version=1, state="active", **columns(_attributes(op)))
    header = Header(
        segue=FORMAT,
        rewrite=0,
        session=op.id,
        tenant=op.scope.tenant,
        user=op.scope.user,
        created=moment(now),
        base=base,
        shares=shares,
        parent=parent_line(op.parent),
        row=row,
    )
    staged = Staged(op.scope, Summary.begun(header), LeaseLine(lease=None, fence=0, rev=0))
    staged.heads.append((header, b""))
    return staged


def _attributes(op: Create) -> dict[str, Any]:
    names = ("key", "title", "tags", "metadata", "is_pinned", "is_listed", "config", "idle_us", "expires_us", "format")
    return {name: getattr(op, name) for name in names}


_PLAIN = {"is_pinned": "pinned", "is_listed": "listed"}


def columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by the names of the contract, as they stand in a row."""
    row: dict[str, Any] = {}
    for name, value in changes.items():
        if name == "tags":
            row["tags"] = tuple(sorted(set(value)))
        elif name == "metadata":
            row["metadata"] = msgspec.json.decode(msgspec.json.encode(value))  # nobody else's to change
        elif name == "expires_us":
            row["expires"] = None if value is None else moment(value)
        elif name == "config":
            row |= _config(value)
        else:
            row[_PLAIN.get(name, name)] = value
    return row


def _config(config: bytes | None) -> dict[str, Any]:
    try:
        return {"config": None if config is None else config.decode(), "config_base64": None}
    except UnicodeDecodeError:
        return {"config": None, "config_base64": config}


def same_parent(info: SessionInfo, op: Create) -> bool:
    """Whether a session is the one that this operation made."""
    return (info.key, info.parent) == (op.key, op.parent)


def due_us(info: SessionInfo) -> int | None:
    """When a session's lifetime ends, or None."""
    return None if info.due_at is None else to_us(info.due_at)
