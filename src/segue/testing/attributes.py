"""Sessions' rows: making them, finding them by key, changing them by compare-and-set."""

from __future__ import annotations

import pytest

from segue.errors import Busy, Exists, IdConflict, NotFound, VersionMoved
from segue.model import Parent, SessionInfo, Usage, from_us
from segue.store import UPDATABLE, Create, Update

from .case import DAY, HOUR, MINUTE, StoreCase, draft, drafts, ids_of

_METADATA = {"z": [1, 2.5, None, True, {"deep": "値"}], "a": "", "": "empty key", "$set": {"a.b": 1}, "é": "e\u0301"}


class CreateTests(StoreCase):
    def test_a_session_comes_back_with_all_that_it_was_created_with(self) -> None:
        made = Create(
            self.me,
            "s",
            key="my key",
            format="openai.responses",
            title="Größe 大小 \U0001f600",
            tags=("a", "b"),
            metadata=_METADATA,
            is_pinned=True,
            is_listed=False,
            config=b'{"model": "m",  "v": 1e2}',
            idle_us=HOUR,
            expires_us=self.a.now_us() + DAY,
            parent=Parent("p", 7, "child"),
        )
        info = self.do(made)
        assert info == self.info("s")
        assert isinstance(info, SessionInfo)
        assert (info.scope, info.id, info.key, info.format, info.title) == (self.me, "s", *_text_of(made))
        assert (info.tags, info.metadata, info.config, info.parent) == (("a", "b"), _METADATA, made.config, made.parent)
        assert list(info.metadata) == list(_METADATA)
        assert (info.is_pinned, info.is_listed, info.idle_us) == (True, False, HOUR)
        assert info.expires_at == from_us(made.expires_us or 0)

    def test_a_new_session_is_empty_idle_and_active(self) -> None:
        info = self.info(self.create())
        assert (info.head, info.base, info.fence, info.usage) == (0, 0, 0, Usage())
        assert (info.state, info.status, info.lease, info.waiting) == ("active", "idle", None, 0)
        assert (info.key, info.title, info.tags, info.metadata, info.config) == (None, "", (), {}, None)
        assert (info.parent, info.archived_at, info.idle_us, info.expires_at) == (None, None, None, None)

    def test_a_new_session_was_created_and_active_now_by_the_stores_clock(self) -> None:
        self.shift(HOUR)
        before = self.a.now_us()
        info = self.info(self.create())
        assert from_us(before) <= info.created_at == info.active_at <= from_us(self.b.now_us())

    def test_a_session_is_created_with_its_first_entries(self) -> None:
        batch = drafts(3, usage=Usage(input=2))
        session = self.create(*batch)
        assert self.ids(session) == ids_of(batch)
        assert (self.info(session).head, self.info(session).usage) == (3, Usage(input=6))

    def test_entries_of_a_create_have_no_run(self) -> None:
        assert self.log(self.create(draft()))[0].run is None

    def test_a_taken_id_is_refused(self) -> None:
        self.create(id="s", key="k")
        assert self.refused(Create(self.me, "s"), Exists).session == "s"
        self.refused(Create(self.me, "s", key="other"), Exists)
        self.refused(Create(self.me, "s", key="k", parent=Parent("p", 1, "child")), Exists)

    def test_a_taken_key_is_refused_with_the_session_that_has_it(self) -> None:
        session = self.create(key="k")
        assert self.refused(Create(self.me, "other", key="k", entries=drafts(1)), Exists).session == session

    def test_the_same_create_again_gives_the_session_as_it_is_now(self) -> None:
        create = Create(self.me, "s", key="k", title="first", parent=Parent("p", 1, "child"))
        self.do(create)
        now = self.update("s", title="second")
        assert self.do(create) == now

    def test_a_create_whose_entries_contradict_each_other_makes_nothing(self) -> None:
        contradiction = (draft("this", id="same"), draft("that", id="same"))
        self.refused(Create(self.me, "s", key="k", tags=("t",), entries=contradiction), IdConflict)
        self.assert_gone("s")
        self.create(id="s", key="k")

    def test_two_sessions_without_a_key_do_not_collide(self) -> None:
        assert self.create() != self.create()

    def test_ids_and_keys_are_per_scope(self) -> None:
        other = self.me._replace(user="somebody else")
        self.create(draft("mine"), id="s", key="k")
        self.create(draft("theirs"), id="s", key="k", scope=other)
        assert (self.b.read(self.me, "s")[0].body, self.b.read(other, "s")[0].body) == (b'"mine"', b'"theirs"')
        self.erase("s")
        assert self.b.get(other, "s").head == 1

    def test_a_session_is_found_by_its_key(self) -> None:
        session = self.create(key="my key")
        assert self.b.find(self.me, "my key") == self.info(session)

    def test_a_key_that_nobody_has_finds_nothing(self) -> None:
        self.create(key="my key")
        for key in ("my", "my key ", "My key", "%", "my%", "my_key"):
            assert self.b.find(self.me, key) is None

    def test_an_unknown_session_is_not_there(self) -> None:
        self.assert_gone("unknown")

    def test_metadata_changed_by_the_caller_later_does_not_change_what_was_stored(self) -> None:
        metadata = {"list": [1]}
        session = self.create(metadata=metadata)
        metadata["list"].append(2)
        self.a.get(self.me, session).metadata["list"].append(3)
        assert self.a.get(self.me, session).metadata == self.info(session).metadata == {"list": [1]}


class UpdateTests(StoreCase):
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("key", "new key"),
            ("title", "x" * 500),
            ("title", ""),
            ("tags", ("a", "z", "ä")),
            ("tags", ()),
            ("metadata", _METADATA),
            ("metadata", {}),
            ("is_pinned", True),
            ("is_listed", False),
            ("state", "completed"),
            ("config", b'{"b": 1, "a": 2}'),
            ("idle_us", DAY),
        ],
    )
    def test_a_changed_attribute_comes_back_and_the_others_stay(self, name: str, value: object) -> None:
        session = self.create(
            *drafts(2), key="k", title="t", tags=("t",), metadata={"m": 1}, config=b"{}", idle_us=HOUR
        )
        before = self.info(session)
        after = self.update(session, None, **{name: value})
        assert after == self.info(session)
        assert getattr(after, name) == value
        assert _without(after, name, "version") == _without(before, name, "version")

    def test_an_update_makes_the_version_one_higher(self) -> None:
        session = self.create()
        before = self.info(session).version
        assert [self.update(session, title=title).version for title in ("a", "b", "b")] == [
            before + 1,
            before + 2,
            before + 3,
        ]

    def test_several_attributes_change_at_once(self) -> None:
        session = self.create()
        info = self.update(session, title="new", tags=("x",), is_pinned=True)
        assert (info.title, info.tags, info.is_pinned, info.version) == ("new", ("x",), True, 2)

    def test_an_absolute_lifetime_may_be_set_and_taken_away(self) -> None:
        session = self.create()
        end = self.a.now_us() + DAY
        assert self.update(session, expires_us=end).expires_at == from_us(end)
        assert self.update(session, expires_us=None).expires_at is None

    @pytest.mark.parametrize("name", ["key", "config", "idle_us"])
    def test_an_attribute_may_be_taken_away(self, name: str) -> None:
        session = self.create(key="k", config=b"{}", idle_us=HOUR)
        assert getattr(self.update(session, **{name: None}), name) is None

    def test_an_update_that_expects_the_version_is_done(self) -> None:
        session = self.create()
        assert self.update(session, self.info(session).version, title="new").title == "new"

    def test_an_update_that_expects_another_version_is_refused_with_both(self) -> None:
        session = self.create()
        seen = self.info(session).version
        self.update(session, title="theirs")
        refusal = self.refused(Update(self.me, session, {"title": "ours"}, seen), VersionMoved)
        assert (refusal.expected, refusal.actual) == (seen, seen + 1)

    def test_an_append_never_breaks_a_rename(self) -> None:
        session = self.create()
        seen = self.info(session).version
        self.append(session, draft())
        lease = self.take(session, "run-1")
        self.append(session, draft(), run="run-1", fence=lease.fence)
        assert self.update(session, seen, title="new").title == "new"

    def test_an_unknown_session_is_not_changed(self) -> None:
        self.refused(Update(self.me, "unknown", {"title": "x"}), NotFound)

    def test_an_update_is_no_activity(self) -> None:
        session = self.create()
        before = self.info(session).active_at
        self.shift(HOUR)
        assert self.update(session, title="new").active_at == before

    def test_a_key_taken_by_another_session_is_refused_and_names_it(self) -> None:
        first, second = self.create(key="k"), self.create()
        assert self.refused(Update(self.me, second, {"key": "k", "title": "x"}), Exists).session == first

    def test_its_own_key_is_not_taken(self) -> None:
        session = self.create(key="k")
        assert self.update(session, key="k", title="new").key == "k"

    def test_a_key_given_up_is_free_and_finds_nothing(self) -> None:
        first, second = self.create(key="k"), self.create()
        self.update(first, key="other")
        assert self.b.find(self.me, "k") is None
        self.update(second, key="k")
        found = self.b.find(self.me, "k")
        assert found is not None
        assert found.id == second

    def test_an_update_of_a_sweep_is_done_while_the_session_is_due(self) -> None:
        session = self.create(idle_us=HOUR)
        self.shift(2 * HOUR)
        info = self.do(Update(self.me, session, {"state": "archived"}, if_due_us=self.a.now_us()))
        assert isinstance(info, SessionInfo)
        assert info.state == "archived"

    def test_an_update_of_a_sweep_is_done_though_somebody_has_archived_the_session(self) -> None:
        session = self.create(idle_us=HOUR)
        self.update(session, state="archived")
        self.shift(2 * HOUR)
        info = self.do(Update(self.me, session, {"title": "swept"}, if_due_us=self.a.now_us()))
        assert isinstance(info, SessionInfo)
        assert (info.state, info.title) == ("archived", "swept")

    def test_an_update_of_a_sweep_is_refused_when_the_session_was_used_meanwhile(self) -> None:
        session = self.create(idle_us=HOUR)
        self.shift(2 * HOUR)
        sweep = Update(self.me, session, {"state": "archived"}, if_due_us=self.a.now_us())
        self.append(session, draft())
        self.refused(sweep, VersionMoved)

    def test_an_update_of_a_sweep_is_refused_when_the_session_is_pinned_or_has_no_end(self) -> None:
        pinned, endless = self.create(idle_us=HOUR, is_pinned=True), self.create()
        self.shift(2 * HOUR)
        for session in (pinned, endless):
            self.refused(Update(self.me, session, {"state": "archived"}, if_due_us=self.a.now_us()), VersionMoved)

    def test_all_updatable_attributes_are_known_to_the_suite(self) -> None:
        known = {
            "key",
            "title",
            "tags",
            "metadata",
            "is_pinned",
            "is_listed",
            "state",
            "config",
            "idle_us",
            "expires_us",
        }
        assert known == UPDATABLE


class ArchiveTests(StoreCase):
    def test_an_archived_session_says_since_when_by_the_stores_clock(self) -> None:
        session = self.create()
        self.shift(HOUR)
        before = self.a.now_us()
        info = self.update(session, state="archived")
        assert info.archived_at is not None
        assert from_us(before) <= info.archived_at <= from_us(self.b.now_us())
        assert info.status == "archived"

    def test_a_restored_session_was_never_archived(self) -> None:
        session = self.create()
        self.archive(session)
        assert self.update(session, state="active").archived_at is None

    def test_archiving_twice_keeps_the_first_time(self) -> None:
        session = self.create()
        first = self.update(session, state="archived").archived_at
        self.shift(HOUR)
        assert self.update(session, state="archived").archived_at == first

    def test_an_archived_session_may_be_renamed(self) -> None:
        session = self.create()
        self.archive(session)
        assert self.update(session, title="new").title == "new"

    def test_a_running_session_is_not_archived(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        assert self.refused(Update(self.me, session, {"state": "archived"}), Busy).run == "run-1"

    def test_a_running_session_may_be_renamed_or_completed(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        info = self.update(session, title="new", state="completed")
        assert (info.title, info.status, info.lease) == ("new", "completed", lease)

    def test_a_session_whose_run_has_expired_is_archived(self) -> None:
        session = self.create()
        self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        assert self.update(session, state="archived").state == "archived"

    def test_the_version_is_compared_before_the_run(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.refused(Update(self.me, session, {"state": "archived"}, 77), VersionMoved)

    def test_a_state_that_changes_by_itself_counts_as_a_version(self) -> None:
        session = self.create()
        seen = self.update(session, state="completed").version
        self.append(session, draft())
        assert self.info(session).version == seen + 1


def _text_of(made: Create) -> tuple[str | None, str, str]:
    return made.key, made.format, made.title


def _without(info: SessionInfo, *names: str) -> dict[str, object]:
    return {name: getattr(info, name) for name in info.__struct_fields__ if name not in names}
