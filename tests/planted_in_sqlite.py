"""Bugs in the store that most people use: a function plants each, by patching."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from planting import Any, planter
from segue.store import Append, Appended, Take
from segue.stores import (
    _sqlite_append,
    _sqlite_erase,
    _sqlite_file,
    _sqlite_page,
    _sqlite_rows,
    _sqlite_work,
    sqlite,
)
from segue.stores.sqlite import SQLiteStore
from segue.testing.append import AppendTests, StateTests
from segue.testing.erasure import EraseTests, HollowTests, NothingLeftTests, SharedEraseTests
from segue.testing.forks import ForkTests
from segue.testing.handles import CheckTests
from segue.testing.ids import IdTests, InheritedIdTests
from segue.testing.lease import ExpiryTests, InterruptTests
from segue.testing.listing import PageTests
from segue.testing.names import NearTwinTests
from segue.testing.queue import QueueTests

SQLITE_BUGS: dict[str, tuple[type, Callable[[pytest.MonkeyPatch], None]]] = {}


planted = planter(SQLITE_BUGS)


def change_setting(patch, good: str, bad: str) -> None:
    assert good in _sqlite_file._SETTINGS
    patch.setattr(_sqlite_file, "_SETTINGS", _sqlite_file._SETTINGS.replace(good, bad))


@planted(CheckTests)
def commits_are_acknowledged_before_they_are_durable(patch):
    change_setting(patch, "synchronous = FULL", "synchronous = OFF")


@planted(AppendTests)
def a_commit_is_acknowledged_and_rolled_back(patch):
    def finish(self, work):
        work.con.execute("ROLLBACK")
        work.end(committed=True)

    patch.setattr(SQLiteStore, "_finish", finish)


@planted(ExpiryTests)
def sqlite_compares_no_fence(patch):
    refusal = _sqlite_append._refusal
    patch.setattr(
        _sqlite_append, "_refusal", lambda work, row, op, new: refusal(work, row, replace(op, fence=None), new)
    )


@planted(StateTests)
def sqlite_lets_messages_in_beside_a_run(patch):
    patch.setattr(_sqlite_rows.Moment, "is_running", lambda self, *lease: False)


@planted(IdTests)
def sqlite_compares_no_digests(patch):
    known = _sqlite_append._known
    patch.setattr(
        _sqlite_append,
        "_known",
        lambda work, row, entries: ((id, (seq, Any())) for id, (seq, _) in known(work, row, entries)),
    )


@planted(InheritedIdTests)
def sqlite_forgets_inherited_ids(patch):
    parts = _sqlite_work.Work.parts
    patch.setattr(_sqlite_work.Work, "parts", lambda self, row: parts(self, row)[:1])


@planted(ForkTests)
def sqlite_forks_see_what_their_parents_add_later(patch):
    open_ended = _sqlite_work.ANCESTORS.replace("up.base FROM", "s.head FROM")
    assert open_ended != _sqlite_work.ANCESTORS
    patch.setattr(_sqlite_work, "ANCESTORS", open_ended)


@planted(EraseTests)
def sqlite_leaves_no_tombstone(patch):
    def erase(work, op):
        found = _sqlite_erase.erase(work, op)
        work.con.execute("UPDATE sessions SET id = id || '!' WHERE state = 3")
        return found

    patch.setitem(sqlite._DO, sqlite.Erase, erase)


@planted(SharedEraseTests)
def sqlite_takes_what_forks_share(patch):
    def erase(work, op):
        found = _sqlite_erase.erase(work, op)
        work.con.execute("DELETE FROM entries WHERE session_no IN (SELECT no FROM sessions WHERE state = 3)")
        return found

    patch.setitem(sqlite._DO, sqlite.Erase, erase)


@planted(SharedEraseTests)
def sqlite_leaves_the_entries_of_an_erased_session(patch):
    patch.setattr(_sqlite_erase, "_shrink", lambda work, no: 0)


@planted(HollowTests)
def sqlite_hollows_and_leaves_the_refs(patch):
    def hollow(work, op):
        kept = work.con.execute("SELECT session_no, ref, seq, scope_no, created_us FROM refs").fetchall()
        count = _sqlite_erase.hollow(work, op)
        work.con.executemany("INSERT OR IGNORE INTO refs VALUES (?, ?, ?, ?, ?)", kept)
        return count

    patch.setitem(sqlite._DO, sqlite.Hollow, hollow)


@planted(NothingLeftTests)
def sqlite_does_not_overwrite_what_it_deletes(patch):
    change_setting(patch, "secure_delete = ON", "secure_delete = OFF")


@planted(QueueTests)
def sqlite_serves_who_came_last(patch):
    waiting = _sqlite_work.Work.waiting
    patch.setattr(_sqlite_work.Work, "waiting", lambda self, row: waiting(self, row)[::-1])


@planted(AppendTests)
def sqlite_stores_half_a_batch(patch):
    append = sqlite._DO[Append]

    def one_by_one(work, op):
        if not op.entries:
            return append(work, op)
        done = [append(work, replace(op, entries=(entry,))) for entry in op.entries]
        return Appended(done[-1].head, tuple(each.seqs[0] for each in done), sum(each.new for each in done))

    patch.setitem(sqlite._DO, Append, one_by_one)


@planted(NearTwinTests)
def sqlite_ignores_case(patch):
    blind = _sqlite_rows.ROW_OF.replace("id = ?", "id = ? COLLATE NOCASE")
    assert blind != _sqlite_rows.ROW_OF
    patch.setattr(_sqlite_work, "ROW_OF", blind)


@planted(InterruptTests)
def sqlite_interrupts_anybody(patch):
    take = sqlite._DO[Take]

    def anybody(work, op):
        row = work.row(op.scope, op.session)
        return take(work, replace(op, over=row.lease_run) if op.policy in ("interrupt", "rollback") else op)

    patch.setitem(sqlite._DO, Take, anybody)


@planted(PageTests)
def sqlite_lists_by_id(patch):
    patch.setattr(_sqlite_page, "_ACTIVE_US", _sqlite_page._ID)
