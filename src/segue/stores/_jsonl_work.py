"""
One commit: operations are judged in order, against what is stored and what the commit adds to it.

A refused operation adds nothing. What the others add is written at the end, one write a file. Hollowing
and erasing write files anew, so what came before them is written first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, assert_never

import msgspec

from segue.errors import (
    Archived,
    Busy,
    Exists,
    HeadMoved,
    IdConflict,
    Invalid,
    LeaseLost,
    NotDone,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    VersionMoved,
)
from segue.model import Draft, Lease, Parent, ScopeKey, SessionInfo
from segue.store import (
    Append,
    Appended,
    Create,
    Erase,
    Fork,
    Hollow,
    Op,
    Queued,
    Release,
    Renew,
    Result,
    Take,
    Update,
)

from ._jsonl_disk import Folder, Place, mapped
from ._jsonl_erase import Eraser
from ._jsonl_lines import LeaseOf, Ticket, lease_of, moment
from ._jsonl_names import lease_file, session_file
from ._jsonl_read import damaged, known_at
from ._jsonl_shelf import Shelf
from ._jsonl_staged import Staged, begun, columns, due_us, same_parent
from ._jsonl_summary import Moment
from ._jsonl_table import Table
from ._jsonl_write import Write, Writer

FILES_MAX = 100
"""Most sessions that are written to at a time."""

LEASE_MAX_BYTES = 16 << 10
"""How long a lease file grows before it is written anew."""


class Sifted(NamedTuple):
    """The entries of a batch, told apart: the new ones, and the seq of each."""

    new: tuple[Draft, ...]
    seqs: tuple[int, ...]

    @property
    def has_message(self) -> bool:
        return any(draft.kind == "message" for draft in self.new)


class Work:
    """
    The operations of one commit. Made and used with the folder's lock held.

    Args:
        folder: Where the sessions are.
        shelf: What this handle knows of them.
        writer: What writes to them.
        at: When the operations are judged.
    """

    def __init__(self, folder: Folder, shelf: Shelf, writer: Writer, at: Moment) -> None:
        self._folder = folder
        self._shelf = shelf
        self._writer = writer
        self._at = at
        self._eraser = Eraser(shelf, writer, at)
        self._staged: dict[tuple[ScopeKey, str], Staged] = {}
        self._keys: dict[ScopeKey, dict[str, str]] = {}
        self._places: dict[ScopeKey, Place] = {}
        self._results: list[Result | NotDone] = []
        self._written = 0  # how many of the results are on the disk

    def do(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """The results of the operations, all of them durable."""
        try:
            for op in ops:
                try:
                    self._results.append(self._do(op))
                except NotDone as refusal:
                    self._results.append(refusal)
                if len(self._staged) >= FILES_MAX:
                    self._flush()
            self._flush()
        finally:
            self._close_places()
        refused = [result for result in self._results if isinstance(result, Unavailable)]
        if refused and len(refused) == len(self._results):
            raise refused[0]
        return self._results

    def _do(self, op: Op) -> Result:
        match op:
            case Append():
                return self._append(op)
            case Take():
                return self._take(op)
            case Renew():
                return self._renew(op)
            case Release():
                self._release(op)
                return None
            case Create():
                return self._create(op)
            case Fork():
                return self._fork(op)
            case Update():
                return self._update(op)
            case Hollow():
                self._flush()
                self._session(op.scope, op.session)
                return self._eraser.hollow(self._place(op.scope, op.session), op)
            case Erase():
                self._flush()
                return self._erase(op)
            case _:
                assert_never(op)

    # Sessions and their attributes.

    def _create(self, op: Create, base: int = 0, shares: tuple[tuple[str, int], ...] = ()) -> SessionInfo:
        again = self._again(op)
        if again is not None:
            return again
        self._check_key(op.scope, op.key)
        staged = begun(op, base=base, shares=shares, now=self._at.now)
        self._add(staged, self._sift(staged, op.entries), None)
        self._staged[op.scope, op.id] = staged
        self._move_key(op.scope, op.id, None, op.key)
        return staged.info(self._at)

    def _again(self, op: Create) -> SessionInfo | None:
        """The session that this very operation made before; None when the id is free."""
        try:
            info = self._session(op.scope, op.id).info(self._at)
        except NotFound:
            if self._is_free(op):
                return None
            raise Exists(f"the id {op.id!r} was used and erased; choose another") from None
        if not same_parent(info, op):
            raise Exists(f"the id {op.id!r} is taken; choose another", session=op.id)
        return info

    def _is_free(self, op: Create) -> bool:
        """Whether no file stands for the id; one that was torn in the making is set aside."""
        try:
            place = self._place(op.scope, op.id)
        except NotFound:
            return True
        with self._shelf.lock:
            table = self._shelf.table(place, op.scope, op.id)
        if table is None:
            return True
        if table.is_there:
            return False
        self._writer.set_aside(place, table, self._at.now)
        return True

    def _fork(self, op: Fork) -> SessionInfo:
        create = op.create
        if create.parent is None:
            create = msgspec.structs.replace(create, parent=Parent(op.source, op.at))
        again = self._again(create)
        if again is not None:
            return again
        source = self._session(create.scope, op.source)
        if source.heads:
            self._flush()  # a fork must not be on the disk before what it shares
            source = self._session(create.scope, op.source)
        summary = source.summary
        if not 0 <= op.at <= summary.head:
            raise Invalid(f"cannot fork at {op.at}: the session ends at {summary.head}", where="at")
        return self._create(create, op.at, _clipped(summary.parts(op.source), op.at))

    def _update(self, op: Update) -> SessionInfo:
        staged = self._session(op.scope, op.session)
        info = staged.info(self._at)
        staged.row  # noqa: B018 - Corrupt where it is damaged
        if op.expect is not None and op.expect != info.version:
            raise VersionMoved(op.expect, info.version)
        due = due_us(info)
        if op.if_due_us is not None and (info.is_pinned or due is None or due > op.if_due_us):
            raise VersionMoved(op.expect or info.version, info.version)
        archives = op.changes.get("state") == "archived" and info.state != "archived"
        active = staged.running(self._at)
        if archives and active:
            raise Busy(active.run, message=f"run {active.run!r} is active; end it, then archive")
        key = op.changes.get("key", info.key)
        if key != info.key:
            self._check_key(op.scope, key)
            self._move_key(op.scope, op.session, info.key, key)
        changes = columns(op.changes)
        if op.changes.get("state", info.state) != info.state:
            changes["archived"] = moment(self._at.now) if archives else None
        staged.set_row(**changes)
        return staged.info(self._at)

    def _erase(self, op: Erase) -> Result:
        place = self._place(op.scope, op.session)
        erased = self._eraser.erase(place, op)
        self._keys.pop(op.scope, None)
        return erased

    # Entries.

    def _append(self, op: Append) -> Appended:
        staged = self._session(op.scope, op.session)
        batch = self._sift(staged, op.entries)
        if batch.new:
            self._check_may_append(staged, op, batch)
        return self._add(staged, batch, op.run)

    def _check_may_append(self, staged: Staged, op: Append, batch: Sifted) -> None:
        if staged.row.state == "archived":
            raise Archived(op.session)
        if op.fence is not None:
            lease = staged.held(op.run, op.fence)
            if lease is None or lease.state != "running":
                raise LeaseLost(op.run or "", op.fence, staged.lease.fence)
        elif batch.has_message and (active := staged.running(self._at)):
            raise Busy(active.run, waiting=len(staged.waiting(self._at)))
        if op.expect is not None and op.expect != staged.summary.head:
            raise HeadMoved(op.expect, staged.summary.head)

    def _add(self, staged: Staged, batch: Sifted, run: str | None) -> Appended:
        if batch.has_message:
            staged.wake()
        staged.add(batch.new, run, self._at.now)
        return Appended(staged.summary.head, batch.seqs, len(batch.new))

    def _sift(self, staged: Staged, entries: Sequence[Draft]) -> Sifted:
        new: list[Draft] = []
        seqs: list[int] = []
        mine: dict[str, tuple[int, bytes]] = {}
        for draft in entries:
            known = mine.get(draft.id) or self._known(staged, draft.id)
            if known is None:
                new.append(draft)
                known = mine[draft.id] = (staged.summary.head + len(new), draft.digest)
            elif known[1] != draft.digest:
                raise IdConflict(draft.id, known[0])
            seqs.append(known[0])
        if new:
            self._check_ids_are_known(staged)
        return Sifted(tuple(new), tuple(seqs))

    def _check_ids_are_known(self, staged: Staged) -> None:
        """``Corrupt`` where a damaged line hides the id of an entry: the new one may be a retry of that."""
        session = staged.summary.session
        for owner, upto in staged.summary.parts(session):
            table = self._table(staged, owner)
            hidden = [seq for seq in table.spans().damaged if seq <= upto] if table else []
            if hidden or (table is None and owner != session):
                raise damaged(session, min(hidden, default=upto), f"the file of session {owner!r}")

    def _known(self, staged: Staged, entry_id: str) -> tuple[int, bytes] | None:
        """Seq and digest of the entry with this id in the session's history, or None."""
        added = staged.ids.get(entry_id)
        if added:
            return added
        session = staged.summary.session
        for owner, upto in staged.summary.parts(session):
            table = self._table(staged, owner)
            seq = table.spans().seq_of(entry_id) if table else 0
            if table and 0 < seq <= upto:
                known, digest = known_at(self._place(staged.scope, session), table, seq)
                if known == entry_id:
                    return seq, digest
        return None

    def _table(self, staged: Staged, owner: str) -> Table | None:
        if owner == staged.summary.session:
            return staged.table
        with self._shelf.lock:
            return self._shelf.table(self._place(staged.scope, owner), staged.scope, owner)

    # The lease and its queue.

    def _take(self, op: Take) -> Lease | Queued:
        staged, at = self._session(op.scope, op.session), self._at
        if staged.row.state == "archived":
            raise Archived(op.session)
        batch = self._sift(staged, op.entries)
        lease = staged.lease.lease
        if lease and lease.state == "running" and lease.run == op.run:
            return self._grant(staged, op, batch, lease.fence)  # the same run, asking again
        holder = staged.running(at)
        if holder and op.dead is not None and holder.holder == op.dead:
            holder = None
        waiting = staged.waiting(at)
        before = waiting.index(op.run) if op.run in waiting else len(waiting)
        if op.policy in ("interrupt", "rollback"):
            is_free = holder is None or holder.run == op.over
        else:
            is_free = holder is None and before == 0
        if is_free:
            return self._grant(staged, op, batch, staged.lease.fence + 1)
        if op.policy == "enqueue":
            self._enqueue(staged, op, waiting)
            return Queued(before, holder.run if holder else "")
        if holder is None:
            raise Busy("", waiting=before, message=f"{before} runs wait for this session; use policy='enqueue'")
        raise Busy(holder.run, waiting=before)

    def _grant(self, staged: Staged, op: Take, batch: Sifted, fence: int) -> Lease:
        at = self._at
        expires = moment(at.now + op.ttl_us)
        lease = LeaseOf(op.run, fence, "running", expires, boot=at.boot, until=at.tick + op.ttl_us, holder=op.holder)
        if fence > staged.lease.fence or batch.new:
            staged.grant(lease)
        else:
            staged.set_lease(lease)
        staged.wake()
        self._add(staged, batch, op.run)
        return lease_of(lease)

    def _enqueue(self, staged: Staged, op: Take, waiting: Sequence[str]) -> None:
        at = self._at
        mine = Ticket(op.run, moment(at.now + op.ticket_us), boot=at.boot, until=at.tick + op.ticket_us)
        queue = {each.run: each for each in staged.lease.queue if each.run in waiting}
        queue[op.run] = mine  # one that is there keeps its place
        staged.set_queue(tuple(queue.values()))

    def _renew(self, op: Renew) -> Lease:
        staged, at = self._session(op.scope, op.session), self._at
        lease = staged.held(op.run, op.fence)
        if lease is None or lease.state != "running":
            raise LeaseLost(op.run, op.fence, staged.lease.fence)
        expires = moment(at.now + op.ttl_us)
        lease = LeaseOf(
            lease.run, lease.fence, "running", expires, boot=at.boot, until=at.tick + op.ttl_us, holder=lease.holder
        )
        staged.set_lease(lease)
        return lease_of(lease)

    def _release(self, op: Release) -> None:
        staged, at = self._session(op.scope, op.session), self._at
        if op.fence is None:
            queue = [each for each in staged.lease.queue if each.run != op.run]
            if len(queue) < len(staged.lease.queue):
                staged.set_queue(queue)
            return
        lease = staged.held(op.run, op.fence)
        if lease is None:
            if op.pause_us is not None:
                raise LeaseLost(op.run, op.fence, staged.lease.fence)
        elif op.pause_us is None:
            staged.set_lease(None)
        else:
            staged.set_lease(
                LeaseOf(lease.run, lease.fence, "paused", moment(at.now + op.pause_us), holder=lease.holder)
            )

    # Finding things.

    def _session(self, scope: ScopeKey, session: str) -> Staged:
        """The session as the commit leaves it; ``NotFound``."""
        staged = self._staged.get((scope, session))
        if staged is not None:
            return staged
        place = self._place(scope, session)
        with self._shelf.lock:
            table = self._shelf.living(place, scope, session)
            if self._writer.mend(place, table, self._at.now):
                table = self._shelf.living(place, scope, session)
            lease = self._shelf.lease(place, scope, table)
        staged = Staged(scope, replace(table.summary), lease, table)
        staged.row  # noqa: B018 - Corrupt where it is damaged: nothing is decided without it
        self._staged[scope, session] = staged
        return staged

    def _place(self, scope: ScopeKey, session: str) -> Place:
        place = self._places.get(scope)
        if place is None:
            if len(self._places) >= FILES_MAX:
                self._close_places()
            try:
                with mapped(self._folder.path):
                    place = self._places[scope] = self._folder.scope(scope)
            except FileNotFoundError:
                raise NotFound(session) from None
        return place

    def _close_places(self) -> None:
        for place in self._places.values():
            place.close()
        self._places.clear()

    def _check_key(self, scope: ScopeKey, key: str | None) -> None:
        if key is not None and (taken := self._key_map(scope).get(key)):
            raise Exists(f"the key {key!r} belongs to session {taken!r}; open that", session=taken)

    def _move_key(self, scope: ScopeKey, session: str, old: str | None, new: str | None) -> None:
        keys = self._keys.get(scope)
        if keys is None:
            return
        if old is not None:
            keys.pop(old, None)
        if new is not None:
            keys[new] = session

    def _key_map(self, scope: ScopeKey) -> dict[str, str]:
        keys = self._keys.get(scope)
        if keys is None:
            keys = self._keys[scope] = self._stored_keys(scope)
            for (owner, session), staged in self._staged.items():
                if owner == scope and staged.heads:
                    keys = self._keys[scope] = {key: other for key, other in keys.items() if other != session}
                    if staged.summary.row and staged.summary.row.key is not None:
                        keys[staged.summary.row.key] = session
        return keys

    def _stored_keys(self, scope: ScopeKey) -> dict[str, str]:
        try:
            place = self._place(scope, "")
        except NotFound:
            return {}
        with self._shelf.lock:
            rows = ((table.summary.session, table.summary.row) for table, _lease in self._shelf.all(place, scope))
            return {row.key: session for session, row in rows if row and row.key is not None}

    # Writing it down.

    def _flush(self) -> None:
        """Write what was staged. When the disk refuses, the operations that it belonged to are refused."""
        staged = list(self._staged.values())
        self._staged.clear()
        try:
            self._write(staged)
        except Unavailable as error:
            self._keys.clear()
            for no in range(self._written, len(self._results)):
                if not isinstance(self._results[no], NotDone):
                    self._results[no] = error
        self._written = len(self._results)

    def _write(self, staged: Sequence[Staged]) -> None:
        rests_on = [(each.scope, each.table) for each in staged if each.table is not None and not each.heads]
        self._writer.prove(rests_on)
        writes = [_write_of(each) for each in staged if each.heads]
        self._writer.append(writes)
        try:
            self._say_beside([each for each in staged if each.says_beside])
        except Unavailable as error:
            if not writes:
                raise
            raise OutcomeUnknown(f"{error}; what came before it is stored: call again with the same ids") from error

    def _say_beside(self, staged: Sequence[Staged]) -> None:
        """Leases go to the files beside, after the entries that they rest on."""
        writes: list[Write] = []
        for each in staged:
            session = each.summary.session
            file = lease_file(session_file(session))
            with self._folder.scope(each.scope) as place:
                found = place.stat(file)
                if found is not None:
                    with self._shelf.lock:
                        is_whole = self._shelf.side(place, each.scope, session, found).is_whole
                    if found.st_size > LEASE_MAX_BYTES or not is_whole:
                        self._writer.replace(place, file, [each.data_beside()])
                        continue
            writes.append(Write(each.scope, file, each.data_beside(), found.st_size if found else None))
        self._writer.append(writes)


def _write_of(staged: Staged) -> Write:
    session = staged.summary.session
    end = staged.table.end if staged.table else None
    return Write(staged.scope, session_file(session), staged.data(), end, session)


def _clipped(parts: Sequence[tuple[str, int]], at: int) -> tuple[tuple[str, int], ...]:
    """The parts of a history up to a seq, for a fork there."""
    clipped: list[tuple[str, int]] = []
    before = 0
    for owner, upto in parts:
        if before < at and upto > before:
            clipped.append((owner, min(upto, at)))
        before = max(before, upto)
    return tuple(clipped)
