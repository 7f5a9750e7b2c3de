"""Listing a scope's sessions: order, pages and conditions."""

from __future__ import annotations

from typing import Any

import pytest

from segue.errors import Invalid
from segue.model import Parent, ScopeKey
from segue.store import Create, Filter, Release

from .case import ALL_STATUSES, DAY, HOUR, MINUTE, SECOND, StoreCase, draft, drafts


class PageCase(StoreCase):
    def aged(self, count: int, **fields: object) -> list[str]:
        """Ids of some sessions that were made a minute after each other, newest first."""
        made = []
        for _ in range(count):
            self.shift(MINUTE)
            made.append(self.create(**fields))  # type: ignore[arg-type]
        return made[::-1]

    def pages(self, limit: int, **conditions: object) -> list[list[str]]:
        """The ids of each page."""
        found, cursor = [], None
        for _ in range(100):
            page = self.b.page(self.me, Filter(**conditions), cursor, limit)  # type: ignore[arg-type]
            found.append([info.id for info in page.sessions])
            cursor = page.cursor
            if cursor is None:
                return found
        raise AssertionError("the pages do not end")


class PageTests(PageCase):
    def test_an_empty_scope_lists_nothing(self) -> None:
        assert self.pages(10) == [[]]

    def test_sessions_come_by_last_activity_newest_first(self) -> None:
        third, second, first = self.aged(3)
        assert self.listed() == [third, second, first]
        self.shift(MINUTE)
        self.append(second, draft())
        assert self.listed() == [second, third, first]

    def test_sessions_of_the_same_time_come_by_id_descending(self) -> None:
        self.a.commit([Create(self.me, id) for id in ("s-2", "s-3", "s-1")])
        shown = self.b.page(self.me, Filter(), None, 10).sessions
        assert list(shown) == sorted(shown, key=lambda info: (info.active_at, info.id), reverse=True)

    def test_a_page_shows_the_same_rows_as_get(self) -> None:
        session = self.create(*drafts(2), title="t", tags=("x",), metadata={"a": 1})
        self.take(session, "run-1")
        assert self.b.page(self.me, Filter(), None, 10).sessions == (self.info(session),)

    def test_pages_give_each_session_once(self) -> None:
        made = self.aged(7)
        assert self.pages(3) == [made[:3], made[3:6], made[6:]]

    def test_the_last_page_has_no_cursor_also_when_it_is_full(self) -> None:
        made = self.aged(4)
        assert self.pages(2) == [made[:2], made[2:]]
        assert self.pages(4) == [made]

    def test_a_cursor_holds_on_another_handle_and_after_reopening(self) -> None:
        made = self.aged(4)
        page = self.a.page(self.me, Filter(), None, 2)
        self.reopen()
        rest = self.b.page(self.me, Filter(), page.cursor, 2)
        assert [info.id for info in (*page.sessions, *rest.sessions)] == made

    def test_pages_of_sessions_with_the_same_time_give_each_once(self) -> None:
        ids = [f"s-{n}" for n in range(9)]
        self.a.commit([Create(self.me, id) for id in ids])
        found = [id for page in self.pages(2) for id in page]
        assert sorted(found) == ids

    def test_a_session_that_becomes_active_while_paging_moves_no_other(self) -> None:
        made = self.aged(6)
        first = self.b.page(self.me, Filter(), None, 2)
        self.append(made[4], draft())
        self.create()
        self.erase(made[3])
        rest = self.b.page(self.me, Filter(), first.cursor, 10)
        assert [info.id for info in (*first.sessions, *rest.sessions)] == [made[n] for n in (0, 1, 2, 5)]

    def test_a_page_goes_on_where_its_last_session_was_also_when_that_is_gone(self) -> None:
        made = self.aged(4)
        first = self.b.page(self.me, Filter(), None, 2)
        self.erase(made[1])
        rest = self.b.page(self.me, Filter(), first.cursor, 10)
        assert [info.id for info in rest.sessions] == made[2:]

    @pytest.mark.parametrize(
        "cursor", ["", "x", "e30=", "W10=", "'; DROP TABLE sessions; --", "9" * 40, "\u00e9", "null"]
    )
    def test_a_foreign_cursor_is_refused(self, cursor: str) -> None:
        self.aged(2)
        with pytest.raises(Invalid):
            self.b.page(self.me, Filter(), cursor, 10)

    def test_a_cursor_of_another_scope_shows_nothing_of_it(self) -> None:
        self.aged(4)
        cursor = self.b.page(self.me, Filter(), None, 2).cursor
        other = self.me._replace(user="somebody else")
        theirs = self.create(scope=other)
        try:
            page = self.b.page(other, Filter(), cursor, 10)
        except Invalid:
            return
        assert {info.id for info in page.sessions} <= {theirs}

    def test_a_list_shows_its_own_scope_alone(self) -> None:
        mine = self.create()
        for other in (self.me._replace(user="u2"), ScopeKey(self.me.tenant + "2", self.me.user)):
            self.create(scope=other)
        assert self.listed() == [mine]


class FilterTests(PageCase):
    def one_of_each_status(self) -> dict[str, str]:
        """A session in each status, by status."""
        made = {status: self.create() for status in ALL_STATUSES}
        self.take(made["running"], "run-1", ttl_us=HOUR)
        lease = self.take(made["paused"], "run-2")
        self.do(Release(self.me, made["paused"], "run-2", lease.fence, pause_us=2 * HOUR))
        self.update(made["completed"], state="completed")
        self.archive(made["archived"])
        return made

    def test_each_status_is_listed_by_itself(self) -> None:
        made = self.one_of_each_status()
        for status in ALL_STATUSES:
            assert self.listed(status=(status,)) == [made[status]]

    def test_several_statuses_are_listed_together(self) -> None:
        made = self.one_of_each_status()
        assert set(self.listed(status=("idle", "archived"))) == {made["idle"], made["archived"]}

    def test_archived_sessions_are_listed_only_when_asked_for(self) -> None:
        made = self.one_of_each_status()
        assert set(self.listed()) == set(made.values()) - {made["archived"]}

    def test_a_status_is_as_of_now(self) -> None:
        made = self.one_of_each_status()
        self.shift(HOUR + MINUTE)
        assert self.listed(status=("running",)) == []
        assert set(self.listed(status=("idle",))) == {made["idle"], made["running"]}
        self.shift(2 * HOUR)
        assert self.listed(status=("paused",)) == []

    def test_a_status_is_listed_in_pages(self) -> None:
        made = self.aged(6)
        for session in made[::2]:
            self.update(session, state="completed")
        assert self.pages(2, status=("completed",)) == [[made[0], made[2]], [made[4]]]

    def test_unlisted_sessions_are_listed_only_when_asked_for(self) -> None:
        listed, unlisted = self.create(), self.create(is_listed=False)
        assert self.listed() == [listed]
        assert set(self.listed(include_unlisted=True)) == {listed, unlisted}

    def test_a_tag_is_matched_whole(self) -> None:
        one, two = self.create(tags=("red", "big")), self.create(tags=("redder",))
        self.create(tags=("Red",))
        assert (self.listed(tag="red"), self.listed(tag="redder"), self.listed(tag="big")) == ([one], [two], [one])
        assert self.listed(tag="re") == self.listed(tag="%") == self.listed(tag="red%") == []

    def test_a_tag_taken_away_is_not_matched(self) -> None:
        session = self.create(tags=("red", "big"))
        self.update(session, tags=("big",))
        assert (self.listed(tag="red"), self.listed(tag="big")) == ([], [session])

    def test_children_of_any_link_are_listed_by_their_parent(self) -> None:
        parent, other = self.create(draft()), self.create(draft())
        children = {self.create(parent=Parent(parent, 1, link)) for link in ("child", "anew")} | {self.fork(parent, 1)}
        self.fork(other, 1)
        assert set(self.listed(parent=parent)) == children

    def test_a_key_prefix_is_matched_as_bytes(self) -> None:
        keys = ["chat/1", "chat/2", "Chat/1", "chat", "ch%t/1", "ch_t/1", "*"]
        made = {key: self.create(key=key) for key in keys}
        self.create()
        assert set(self.listed(key_prefix="chat/")) == {made["chat/1"], made["chat/2"]}
        assert self.listed(key_prefix="ch%") == [made["ch%t/1"]]
        assert self.listed(key_prefix="ch_") == [made["ch_t/1"]]
        assert self.listed(key_prefix="*") == [made["*"]]
        assert self.listed(key_prefix="chat/3") == []

    def test_a_key_prefix_may_end_in_the_highest_character(self) -> None:
        key = "a\U0010ffff"
        session = self.create(key=key + "x")
        self.create(key="b")
        assert self.listed(key_prefix=key) == [session]

    def test_activity_is_bounded_on_both_sides(self) -> None:
        third, second, first = self.aged(3)
        middle = self.info(second).active_at.timestamp() * 1_000_000
        after, before = int(middle) + 10 * SECOND, int(middle) - 10 * SECOND
        assert self.listed(since_us=after) == [third]
        assert self.listed(until_us=before) == [first]
        assert self.listed(since_us=before, until_us=after) == [second]

    def test_pinned_sessions_are_listed_alone_or_left_out(self) -> None:
        loose, pinned = self.create(), self.create(is_pinned=True)
        assert (self.listed(pinned=True), self.listed(pinned=False)) == ([pinned], [loose])
        assert set(self.listed()) == {loose, pinned}

    def test_all_conditions_must_hold(self) -> None:
        session = self.create(key="k/1", tags=("red",), is_pinned=True)
        self.create(key="k/2", tags=("red",))
        self.create(key="x/1", tags=("red",), is_pinned=True)
        assert self.listed(key_prefix="k/", tag="red", pinned=True, status=("idle",)) == [session]


class LifetimeTests(PageCase):
    def due(self, at_us: int, **conditions: Any) -> list[str]:
        """Ids of sessions whose lifetime ended then."""
        return self.listed(due_us=at_us, **conditions)

    def test_sessions_are_due_by_idleness_or_by_date_whichever_is_sooner(self) -> None:
        now = self.a.now_us()
        idle = self.create(idle_us=HOUR)
        dated = self.create(expires_us=now + 2 * HOUR)
        both = self.create(idle_us=DAY, expires_us=now + 3 * HOUR)
        other = self.create(idle_us=4 * HOUR, expires_us=now + DAY)
        self.create()
        assert self.due(now + MINUTE) == []
        assert self.due(now + DAY + HOUR) == [idle, dated, both, other]
        assert self.due(now + 2 * HOUR + MINUTE) == [idle, dated]

    def test_activity_postpones_idleness(self) -> None:
        session = self.create(idle_us=HOUR)
        self.shift(50 * MINUTE)
        self.append(session, draft())
        assert self.due(self.a.now_us() + 50 * MINUTE) == []
        assert self.due(self.a.now_us() + 70 * MINUTE) == [session]

    def test_a_changed_lifetime_counts(self) -> None:
        session = self.create(idle_us=HOUR)
        self.update(session, idle_us=DAY)
        assert self.due(self.a.now_us() + 2 * HOUR) == []
        self.update(session, idle_us=None)
        assert self.due(self.a.now_us() + 2 * DAY) == []

    def test_pinned_archived_and_running_sessions_are_not_due(self) -> None:
        kept = self.create(idle_us=HOUR)
        self.create(idle_us=HOUR, is_pinned=True)
        self.archive(self.create(idle_us=HOUR))
        running = self.create(idle_us=HOUR)
        self.take(running, "run-1", ttl_us=DAY)
        self.shift(2 * HOUR)
        assert self.due(self.a.now_us()) == [kept]
        self.shift(DAY)
        assert self.due(self.a.now_us()) == [kept, running]

    def test_paused_and_completed_sessions_are_due(self) -> None:
        paused, completed = self.create(idle_us=HOUR), self.create(idle_us=2 * HOUR)
        lease = self.take(paused, "run-1")
        self.do(Release(self.me, paused, "run-1", lease.fence, pause_us=DAY))
        self.update(completed, state="completed")
        self.shift(3 * HOUR)
        assert self.due(self.a.now_us()) == [paused, completed]

    def test_a_completed_session_whose_run_goes_on_is_not_due(self) -> None:
        session = self.create(idle_us=HOUR)
        self.take(session, "run-1", ttl_us=DAY)
        self.update(session, state="completed")
        self.shift(2 * HOUR)
        assert self.due(self.a.now_us()) == []
        self.shift(DAY)
        assert self.due(self.a.now_us()) == [session]

    def test_due_sessions_come_in_pages(self) -> None:
        made = [self.create(idle_us=hours * HOUR) for hours in (3, 1, 2, 5, 4)]
        order = [made[n] for n in (1, 2, 0, 4, 3)]
        at = self.a.now_us() + DAY
        assert self.pages(2, due_us=at) == [order[:2], order[2:4], order[4:]]

    def test_unlisted_sessions_are_due_when_asked_for(self) -> None:
        session = self.create(idle_us=HOUR, is_listed=False)
        at = self.a.now_us() + DAY
        assert (self.due(at), self.due(at, include_unlisted=True)) == ([], [session])

    def test_long_archived_sessions_come_oldest_first(self) -> None:
        made = self.aged(3)
        for session in (made[1], made[0], made[2]):
            self.shift(HOUR)
            self.archive(session)
        self.shift(HOUR)
        self.create()
        assert self.listed(archived_us=self.a.now_us()) == [made[1], made[0], made[2]]
        assert self.listed(archived_us=self.a.now_us() - 90 * MINUTE) == [made[1], made[0]]
        assert self.pages(2, archived_us=self.a.now_us()) == [[made[1], made[0]], [made[2]]]

    def test_a_pinned_session_is_not_among_the_long_archived(self) -> None:
        self.archive(self.create(is_pinned=True))
        kept = self.create()
        self.archive(kept)
        self.shift(HOUR)
        assert self.listed(archived_us=self.a.now_us()) == [kept]

    def test_a_restored_session_is_not_among_the_long_archived(self) -> None:
        session = self.create()
        self.archive(session)
        self.update(session, state="active")
        self.shift(HOUR)
        assert self.listed(archived_us=self.a.now_us()) == []


class ScopeListTests(StoreCase):
    def test_scopes_with_sessions_come_in_byte_order(self) -> None:
        self.start_afresh()
        made = [
            ScopeKey(tenant, user)
            for tenant in ("b", "a", "B", "a\u00e9", "a\U0001f600", "a\uffee")
            for user in ("y", "x")
        ]
        for scope in made:
            self.create(scope=scope)
            self.create(scope=scope)
        assert self.b.scopes(None, 100) == sorted(made, key=lambda scope: (scope.tenant.encode(), scope.user.encode()))

    def test_scopes_come_in_pages(self) -> None:
        self.start_afresh()
        made = [ScopeKey(tenant, user) for tenant in ("a", "b") for user in ("x", "y", "z")]
        for scope in made:
            self.create(scope=scope)
        assert self.b.scopes(None, 2) == made[:2]
        assert self.b.scopes(made[1], 2) == made[2:4]
        assert self.b.scopes(ScopeKey("a", "zz"), 10) == made[3:]
        assert self.b.scopes(made[-1], 10) == []

    def test_a_scope_whose_sessions_are_all_erased_has_none(self) -> None:
        self.start_afresh()
        session = self.create(*drafts(2))
        assert self.b.scopes(None, 10) == [self.me]
        self.erase(session)
        assert self.b.scopes(None, 10) == []

    def test_archived_and_unlisted_sessions_are_sessions_of_a_scope(self) -> None:
        self.start_afresh()
        self.archive(self.create(is_listed=False))
        assert self.b.scopes(None, 10) == [self.me]
