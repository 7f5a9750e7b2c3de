"""What ``check`` looks at: the server's settings (doctor), and every session and entry (verify)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymongo.errors import OperationFailure

from segue.errors import Corrupt
from segue.model import ScopeKey, Usage
from segue.store import Report

from ._mongodb_link import Link
from ._mongodb_rows import SEGMENT_BYTES, Document, Row, entry_of, place, row_of
from ._mongodb_schema import INDEXES, stored_format
from ._mongodb_work import FORMAT, SEQ_MAX

LISTED_MAX = 20
"""Most missing or needless entries of one session that are named one by one."""

_UNAUTHORIZED = 13


def settings(link: Link) -> list[Report]:
    """What the server promises, by its settings."""
    said = link.hello()
    version = link.client.admin.command("buildInfo")["version"]
    where = f"replica set {said['setName']}" if "setName" in said else "a sharded cluster"
    text = f"MongoDB {version} at {link.where}, {where}, format {stored_format(link)} of {FORMAT}"
    return [
        Report("ok", text),
        Report("ok", "writes are acknowledged by the majority, from its journals; readings show what the majority has"),
        _members(said),
        _config(link),
        _engine(link),
        *_indexes(link),
    ]


def _members(said: Document) -> Report:
    hosts, arbiters = len(said.get("hosts", ())), len(said.get("arbiters", ()))
    if arbiters:
        return Report("warn", f"{arbiters} arbiters: with a data member down no majority can acknowledge; replace them")
    return Report("ok", f"{hosts} data members" + (": what its disk loses is lost" if hosts == 1 else ""))


def _config(link: Link) -> Report:
    found = _privileged(link, "replSetGetConfig")
    if found is None:
        return Report("ok", "writeConcernMajorityJournalDefault was not seen (the user has no right to ask)")
    is_on = found["config"].get("writeConcernMajorityJournalDefault", True)
    if is_on:
        return Report("ok", "writeConcernMajorityJournalDefault = true")
    return Report("warn", "writeConcernMajorityJournalDefault = false: a majority may not be on disk; set it to true")


def _engine(link: Link) -> Report:
    found = _privileged(link, "serverStatus")
    if found is None:
        return Report("ok", "the storage engine was not seen (the user has no right to ask)")
    engine = found.get("storageEngine", {})
    name = engine.get("name")
    if name is not None and not engine.get("persistent", True):
        return Report("warn", f"the storage engine {name} keeps nothing on disk; use wiredTiger")
    return Report("ok", f"storage engine {name}")


def _privileged(link: Link, command: str) -> Document | None:
    try:
        return link.client.admin.command(command)
    except OperationFailure as error:
        if error.code != _UNAUTHORIZED:
            raise
        return None


def _indexes(link: Link) -> Iterator[Report]:
    for name, wanted in INDEXES.items():
        collection = getattr(link, name)
        found = {index["name"]: index for index in collection.list_indexes()}
        for index in wanted:
            there = found.get(index["name"])
            if there is None or bool(there.get("unique")) != index.get("unique", False):
                yield Report(
                    "warn", f"the index {index['name']!r} of {collection.name} is missing; open with migrate=True"
                )
        for index in found.values():
            if "expireAfterSeconds" in index:
                yield Report(
                    "warn",
                    f"the index {index['name']!r} of {collection.name} deletes documents after a time (TTL), which "
                    "tears sessions; drop it, and give sessions lifetimes",
                )


# Damage.


def damage(link: Link) -> Iterator[Report]:
    """Every session and every entry, as far as it is not what it should be."""
    after, count = b"", 0
    while found := link.sessions.find_one({"_id": {"$gt": after}}, sort=[("_id", 1)], projection={"_id": True}):
        after = found["_id"]
        yield from _session(link, after)
        count += 1
    yield from _strays(link)
    yield Report("ok", f"{count} sessions were read, entry by entry")


def _session(link: Link, segment: bytes) -> Iterator[Report]:
    """One session, as it is at one moment, since the store is in use meanwhile."""
    with link.snapshot() as session:
        found = link.sessions.find_one({"_id": segment}, session=session)
        if found is None:
            return
        sharers = list(link.sessions.find({"parts.segment": segment}, projection={"parts": True}, session=session))
        uptos = [part["upto"] for each in sharers for part in each["parts"] if part["segment"] == segment]
        span = {"_id": {"$gt": place(segment, 0), "$lte": place(segment, SEQ_MAX)}}
        entries = link.entries.find(span, session=session).sort("_id", 1)
        yield from _Found(found, max(uptos, default=0)).reports(list_of(entries))
        if "erased_us" not in found:
            yield from _parts(link, session, found)


def list_of(cursor: Any) -> Iterator[Document]:
    """Documents one by one, so that a long log is never in memory as a whole."""
    yield from cursor


class _Found:
    """A session's document, and up to where forks take its entries."""

    def __init__(self, found: Document, shared: int) -> None:
        self._found = found
        self._shared = shared
        self._name = str(found.get("id"))
        self._scope = ScopeKey(str(found.get("tenant")), str(found.get("user")))

    def reports(self, entries: Iterator[Document]) -> Iterator[Report]:
        """What is wrong with it and its entries."""
        row: Row | None = None
        if "erased_us" not in self._found:
            try:
                row = row_of(self._found)
            except Corrupt as error:
                yield self._report(str(error))
                return
        base = row.info.base if row else int(self._found.get("base", 0))
        last = row.info.head if row else max(self._shared, base)
        usage, beyond = Usage(), 0
        expected = base + 1
        for document in entries:
            seq = document.get("seq", 0)
            for missing in range(expected, min(seq, expected + LISTED_MAX)):
                yield self._report("the entry is missing", missing)
            expected = max(expected, seq + 1)
            beyond = max(beyond, seq if seq > last else 0)
            try:
                usage += entry_of(document, self._name).usage or Usage()
            except Corrupt as error:
                yield self._report(str(error), seq)
            if document.get("_id") != place(self._found["_id"], seq):
                yield self._report("its _id is not that of its seq", seq)
        for missing in range(expected, min(last + 1, expected + LISTED_MAX)):
            yield self._report("the entry is missing", missing)
        if beyond:
            yield self._report("beyond the head" if row else "an erased session keeps what nobody shares", beyond)
        if row and usage != row.info.usage:
            yield self._report(f"the token totals are {row.info.usage}, the entries have {usage}")

    def _report(self, what: str, seq: int | None = None) -> Report:
        at = "" if seq is None else f", entry {seq}"
        return Report("damage", f"session {self._name!r}{at}: {what}", self._scope, self._name, seq)


def _parts(link: Link, session: Any, found: Document) -> Iterator[Report]:
    """A fork's history must reach from 1 to its base, and all of it must be there."""
    name, scope = str(found.get("id")), ScopeKey(str(found.get("tenant")), str(found.get("user")))
    end = 0
    for part in found.get("parts", ()):
        low, upto, segment = part["low"], part["upto"], part["segment"]
        span = {"_id": {"$gt": place(segment, low), "$lte": place(segment, upto)}}
        there = sum(1 for _ in link.entries.find(span, projection={"_id": True}, session=session))
        if low != end or there != upto - low:
            text = f"of what it shares, entries {end + 1} to {upto}, {there} from {low + 1} on are there"
            yield Report("damage", f"session {name!r}: {text}", scope, name)
        end = upto
    if end != found.get("base"):
        yield Report(
            "damage", f"session {name!r}: its shared history ends at {end}, not at {found.get('base')}", scope, name
        )


def _strays(link: Link) -> Iterator[Report]:
    """Entries whose session is not there at all."""
    after = b"\x00" * (SEGMENT_BYTES + 8)
    while found := link.entries.find_one({"_id": {"$gt": after}}, sort=[("_id", 1)], projection={"segment": True}):
        segment = found["_id"][:SEGMENT_BYTES]
        if link.sessions.find_one({"_id": segment}, projection={"_id": True}) is None:
            yield Report("damage", f"segment {segment.hex()} has entries and no session")
        after = place(segment, SEQ_MAX)
