"""What operations see and write: one transaction, or (for readings) one snapshot."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from segue.errors import NotFound, TooNew, Unavailable
from segue.model import Draft, ScopeKey

from ._mongodb_link import Link, Session
from ._mongodb_rows import Document, Part, Row, entry_document, place, row_of

FORMAT = 1
"""Of the documents and indexes. A higher one was written by a newer Segue."""

SEQ_MAX = (1 << 63) - 1


_counting = threading.Lock()
os.register_at_fork(before=_counting.acquire, after_in_parent=_counting.release, after_in_child=_counting.release)


class Clock:
    """
    The server's clock as a handle reads it: it counts milliseconds, and we count on within each.

    Else what was done later in the same millisecond would not be shown as later. All handles of a process count
    together, so that none is ahead of another; those of two processes agree to the millisecond.
    """

    _last = 0

    def __init__(self) -> None:
        self.shift_us = 0

    def read(self, ms: int) -> int:
        """Microseconds since 1970."""
        now = ms * 1_000
        with _counting:
            if now <= Clock._last < now + 999:
                now = Clock._last + 1
            Clock._last = now
        return now + self.shift_us


class Work:
    """
    One transaction's or snapshot's view of the collections.

    Names in its arguments have been looked at by ``_mongodb_door``: they are str.
    """

    def __init__(self, link: Link, session: Session, clock: Clock) -> None:
        self._link = link
        self._session = session
        self._clock = clock
        self._now: int | None = None

    @property
    def now(self) -> int:
        """The server's time, microseconds since 1970; the same for all that is done in one transaction."""
        if self._now is None:
            self._aggregate_mark()
        assert self._now is not None
        return self._now

    def _aggregate_mark(self) -> None:
        found = self._clocked("marks", {"_id": "format"})
        if not found:
            raise Unavailable(
                f"MongoDB at {self._link.where}: the collections of Segue are missing; open once with migrate=True"
            )
        if found[0]["format"] > FORMAT:
            raise TooNew(found[0]["format"], FORMAT, f"MongoDB at {self._link.where}")

    def _clocked(self, name: str, filter: Document, *stages: Document) -> list[Document]:
        """Documents, each with the server's time; the first reading of all sets the time for the rest."""
        collection = getattr(self._link, name)
        pipeline = [{"$match": filter}, *stages, {"$set": {"now": "$$NOW"}}]
        found: list[Document] = list(collection.aggregate(pipeline, session=self._session))
        for document in found:
            ms = int(document.pop("now"))
            if self._now is None:
                self._now = self._clock.read(ms)
        return found

    # Sessions.

    def find(self, filter: Document, *stages: Document) -> list[Row]:
        """Living sessions."""
        return [row_of(found) for found in self._clocked("sessions", filter, *stages) if "erased_us" not in found]

    def row(self, scope: ScopeKey, session: str) -> Row:
        """The session, or ``NotFound``."""
        rows = self.find({"tenant": scope.tenant, "user": scope.user, "id": session})
        if not rows:
            raise NotFound(session)
        return rows[0]

    def stored(self, scope: ScopeKey, session: str) -> Document | None:
        """The document that has the id, which may be a tombstone."""
        found = self._clocked("sessions", {"tenant": scope.tenant, "user": scope.user, "id": session})
        return found[0] if found else None

    def with_key(self, scope: ScopeKey, key: str) -> Row | None:
        """The session that has the key."""
        return next(iter(self.find({"tenant": scope.tenant, "user": scope.user, "key": key})), None)

    def insert(self, document: Document) -> None:
        """A new session's row."""
        self._link.sessions.insert_one(document, session=self._session)

    def save(self, row: Row) -> None:
        """Write what was changed of a row."""
        changes = row.changes()
        if changes:
            self.update(row.segment, changes)

    def update(self, segment: bytes, changes: Document) -> None:
        """Change a session's document; it must be there."""
        self._link.sessions.update_one({"_id": segment}, changes, session=self._session)

    def touch(self, segment: bytes) -> None:
        """
        Write a session's document without changing what it says.

        Two transactions that write one document never both commit. What is decided by a session's
        being there must write it.
        """
        self.update(segment, {"$inc": {"touched": 1}})

    def owner(self, segment: bytes) -> Document | None:
        """The document of the session that owns a segment, which may be a tombstone."""
        return self._link.sessions.find_one({"_id": segment}, session=self._session)

    def taken_by_others(self, segment: bytes, row: Row) -> int:
        """Up to which seq other living sessions take entries of a segment; 0: not at all."""
        sharers = self._link.sessions.find(
            {"parts.segment": segment}, projection={"parts": True}, session=self._session
        )
        parts = [Part(**part) for found in sharers if found["_id"] != row.segment for part in found["parts"]]
        return max((part.upto for part in parts if part.segment == segment), default=0)

    # Entries.

    def known(self, parts: Sequence[Part], ids: Iterable[str]) -> dict[str, tuple[int, bytes]]:
        """Of the ids, those that the history has, with seq and digest."""
        found = self._link.entries.find(
            {"segment": {"$in": [part.segment for part in parts]}, "id": {"$in": sorted(set(ids))}},
            projection={"segment": True, "seq": True, "id": True, "digest": True},
            session=self._session,
        )
        ends = {part.segment: part.upto for part in parts}
        return {
            each["id"]: (each["seq"], bytes(each["digest"])) for each in found if each["seq"] <= ends[each["segment"]]
        }

    def add(self, row: Row, new: Sequence[Draft], run: str | None) -> None:
        """Write entries behind the head; the row is the caller's to save."""
        head = row.info.head
        documents = [entry_document(row, draft, seq, run, self.now) for seq, draft in enumerate(new, head + 1)]
        self._link.entries.insert_many(documents, session=self._session)

    def entries(
        self, segment: bytes, span: tuple[int, int], filter: Document, *, reverse: bool, limit: int
    ) -> list[Document]:
        """Entries of a segment with low < seq <= upto, by seq."""
        low, upto = span
        if low >= upto or limit <= 0:
            return []
        where: Document = {"_id": {"$gt": place(segment, low), "$lte": place(segment, min(upto, SEQ_MAX))}, **filter}
        found = self._link.entries.find(where, session=self._session)
        return list(found.sort("_id", -1 if reverse else 1).limit(limit))

    def with_ref(self, filter: Document, order: Sequence[str], *, reverse: bool, limit: int) -> list[Document]:
        """Entries by an index of refs, in its order."""
        if limit <= 0:  # for the server that would be all
            return []
        found = self._link.entries.find(filter, session=self._session)
        return list(found.sort([(name, -1 if reverse else 1) for name in order]).limit(limit))

    def hollow(self, segment: bytes, seqs: Sequence[int]) -> int:
        """Take body and refs away; how many entries had them."""
        done = self._link.entries.update_many(
            {"_id": {"$in": [place(segment, seq) for seq in seqs]}, "body": {"$exists": True}},
            {"$unset": {"body": "", "codec": "", "refs": ""}},
            session=self._session,
        )
        return done.modified_count

    def cut(self, segment: bytes, after: int) -> int:
        """Delete the entries of a segment behind a seq; how many they were."""
        done = self._link.entries.delete_many(
            {"_id": {"$gt": place(segment, after), "$lte": place(segment, SEQ_MAX)}}, session=self._session
        )
        return done.deleted_count

    def disown(self, segment: bytes) -> int:
        """What is kept of an erased session is found through its forks only; how many entries stay."""
        done = self._link.entries.update_many(
            {"_id": {"$gt": place(segment, 0), "$lte": place(segment, SEQ_MAX)}},
            {"$unset": {"tenant": "", "user": ""}},
            session=self._session,
        )
        return done.matched_count

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Owners of living sessions, in byte order."""
        if limit <= 0:
            return []
        living: Document = {"tenant": {"$gte": after.tenant if after else ""}, "active_us": {"$gte": 0}}
        if after is not None:
            same = {"tenant": after.tenant, "user": {"$gt": after.user}}
            living["$or"] = [same, {"tenant": {"$gt": after.tenant}}]
        stages: list[dict[str, Any]] = [
            {"$match": living},
            {"$group": {"_id": {"tenant": "$tenant", "user": "$user"}}},
            {"$sort": {"_id.tenant": 1, "_id.user": 1}},
            {"$limit": limit},
        ]
        found = self._link.sessions.aggregate(stages, session=self._session)
        return [ScopeKey(each["_id"]["tenant"], each["_id"]["user"]) for each in found]
