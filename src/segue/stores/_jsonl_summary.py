"""A session but for its entries, as its file says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from segue.errors import Corrupt
from segue.model import Lease, ScopeKey, SessionInfo, State, Usage, from_us

from ._jsonl_lines import Header, LeaseLine, LeaseOf, Row, lease_of, micros, parent_of

_NO_LEASE = LeaseLine(lease=None, fence=0, rev=0)


class Moment(NamedTuple):
    """When something is judged: wall clock, boot, and ticks since it."""

    now: int
    boot: str
    tick: int

    def holds(self, lease: LeaseOf) -> bool:
        """Whether a lease has not ended. Of another boot a running one has: its holder is gone."""
        if lease.state == "paused":
            return micros(lease.expires) > self.now
        return lease.boot == self.boot and lease.until > self.tick


@dataclass(slots=True)
class Summary:
    """A session but for its entries: what a list, a fork and an erase need to know of it."""

    session: str
    base: int = 0
    head: int = 0
    rewrite: int = 0
    is_erased: bool = False
    shares: tuple[tuple[str, int], ...] = ()
    created_us: int = 0
    active_us: int = 0
    usage: Usage = Usage()  # noqa: RUF009 - immutable
    header: Header | None = None
    row: Row | None = None
    lease: LeaseLine = _NO_LEASE
    is_row_unsure: bool = False  # a damaged line may have held it
    is_lease_unsure: bool = False

    @classmethod
    def begun(cls, header: Header) -> Summary:
        """What the first line of a file tells."""
        created = 0 if header.created is None else micros(header.created)
        return cls(
            session=header.session,
            base=header.base,
            head=header.base,
            rewrite=header.rewrite,
            is_erased=header.erased is not None,
            shares=header.shares,
            created_us=created,
            active_us=created,
            header=header,
            row=header.row,
        )

    def parts(self, own: str) -> tuple[tuple[str, int], ...]:
        """Which sessions own the history, each with the last seq taken from it; ``own`` last."""
        return (*self.shares, (own, self.head))

    def known_row(self) -> Row:
        """The attributes. ``Corrupt`` where a damaged line may have changed them."""
        if self.header is None or self.row is None or self.is_row_unsure or self.is_lease_unsure:
            raise self._unsure()
        return self.row

    def known_header(self) -> Header:
        """The first line. ``Corrupt`` where it is damaged."""
        if self.header is None:
            raise self._unsure()
        return self.header

    def _unsure(self) -> Corrupt:
        return Corrupt(
            f"session {self.session!r}: a line with its attributes or its lease is damaged or cut off; "
            "the rest stays readable. "
            "Restore the file from a backup, or remove that line (segue verify names it) to go back to the one before",
            session=self.session,
        )

    def info(self, scope: ScopeKey, moment: Moment, lease: LeaseLine) -> SessionInfo:
        """The session's row as callers know it; ``lease`` is the newest there is."""
        row = self.row or Row(version=0, state="active", format="")
        header = self.header
        return SessionInfo(
            scope=scope,
            id=self.session,
            key=row.key,
            format=row.format,
            title=row.title,
            state=_state(row.state),
            head=self.head,
            base=self.base,
            fence=lease.fence,
            version=row.version,
            tags=row.tags,
            metadata=msgspec.json.decode(msgspec.json.encode(row.metadata)) if row.metadata else {},
            is_pinned=row.pinned,
            is_listed=row.listed,
            config=row.config_base64 if row.config is None else row.config.encode(),
            idle_us=row.idle_us,
            expires_at=None if row.expires is None else from_us(micros(row.expires)),
            created_at=from_us(self.created_us),
            active_at=from_us(self.active_us),
            archived_at=None if row.archived is None else from_us(micros(row.archived)),
            usage=self.usage,
            parent=parent_of(header.parent if header else None),
            lease=_shown(lease, moment),
            waiting=len(waiting(lease, moment)),
        )


def _state(name: str) -> State:
    return "archived" if name == "archived" else "completed" if name == "completed" else "active"


def _shown(lease: LeaseLine, moment: Moment) -> Lease | None:
    return lease_of(lease.lease) if lease.lease and moment.holds(lease.lease) else None


def waiting(lease: LeaseLine, moment: Moment) -> list[str]:
    """Runs whose place in the queue has not lapsed, first come first."""
    return [each.run for each in lease.queue if each.boot == moment.boot and each.until > moment.tick]
