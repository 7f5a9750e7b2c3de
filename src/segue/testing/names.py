"""Names are compared as bytes, and one owner's data are not there for another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from segue.errors import NotFound
from segue.model import Parent, ScopeKey
from segue.store import Append, Create, Erase, Filter, Fork, Hollow, Op, Release, Renew, Store, Take, Update

from .case import ALL_STATUSES, MINUTE, StoreCase, draft, drafts

TWINS = (
    "alice",
    "Alice",
    "ALICE",
    "alic\u00e9",  # é as one character
    "alice\u0301",  # é as e and a combining accent
    "alice ",
    " alice",
    "alice\u00a0",
    "alice\u200b",  # zero width space
    "\uff41lice",  # full width a
    "al\u0131ce",  # dotless i
    "al\u0130ce",  # dotted capital I
    "\u0430lice",  # Cyrillic a
    "alice\U0001f600",
    "alice\U0001f601",
    "alice\U0001f600\ufe0f",
    "alice\U0001f468\u200d\U0001f469",
    "stra\u00dfe",
    "strasse",
    "STRASSE",
    "%",
    "_",
    "*",
    "?",
    "a%",
    "alic_",
    "..",
    ".",
    "../alice",
    "a/b",
    "a\\b",
    "a:b",
    "a::b",
    "a|b",
    "a,b",
    "{alice}",
    "[alice]",
    "$alice",
    "$where",
    "a.b",
    "'; DROP TABLE entries; --",
    '"alice"',
    "`alice`",
    "\\x00",
    "%00",
    "%2F",
    "0",
    "00",
    "0.0",
    "1e3",
    "-1",
    "NULL",
    "null",
    "None",
    "true",
    "nan",
    "CON",
    "NUL.txt",
    "~",
    "-rf",
    "\u202ealice",  # right to left
    "\ufeffalice",  # byte order mark
    "\U0010ffff",
    "\ufffd",
    "\u200b",
    "\u3000",
    "名",
    "名\u3099",
    "0123456789abcdef0123456789abcdef",  # 32 hex digits, which may be packed; and their near twins
    "0123456789ABCDEF0123456789ABCDEF",
    "0123456789abcdef0123456789abcdeF",
    "01234567-89ab-cdef-0123-456789abcdef",
    "0123456789abcdef0123456789abcde",
    "x" * 255,
    "x" * 254 + "y",
    "é" * 127,
    "\U0001f600" * 63,
)
"""Names that some engine, file system or query language takes for another, or for a command."""

SPLITS = (
    ("a", "b/c"),
    ("a/b", "c"),
    ("a:b", "c"),
    ("a", "b:c"),
    ("ab", "c"),
    ("a", "bc"),
    ("a\u200b", "c"),
    ("a ", "c"),
)
"""Scopes that become one when tenant and user are joined carelessly."""


class NearTwinTests(StoreCase):
    def test_each_user_sees_only_the_own_session(self) -> None:
        self._check_each_scope_sees_only_its_own([self.me._replace(user=name) for name in TWINS])

    def test_each_tenant_sees_only_the_own_session(self) -> None:
        self.start_afresh()
        self._check_each_scope_sees_only_its_own([ScopeKey(name, "user") for name in TWINS])

    def test_tenant_and_user_are_not_joined_carelessly(self) -> None:
        self.start_afresh()
        self._check_each_scope_sees_only_its_own([ScopeKey(*split) for split in SPLITS])

    def _check_each_scope_sees_only_its_own(self, scopes: list[ScopeKey]) -> None:
        creates = [Create(scope, "s", key="k", entries=(draft(list(scope), refs=("x",)),)) for scope in scopes]
        self.a.commit(creates)
        for scope, create in zip(scopes, creates, strict=True):
            (entry,) = self.b.read(scope, "s")
            assert entry.body == create.entries[0].body
            assert self.b.get(scope, "s").scope == scope
            assert len(self.b.page(scope, Filter(), None, 10).sessions) == len(self.b.by_ref(scope, "x")) == 1

    def test_each_session_id_is_its_own(self) -> None:
        self.a.commit([Create(self.me, name, entries=(draft(name),)) for name in TWINS])
        bodies = [self.log(name)[0].json() for name in TWINS]
        assert bodies == list(TWINS)
        assert set(self.listed()) == set(TWINS)

    def test_each_erased_session_id_is_its_own(self) -> None:
        self.a.commit([Create(self.me, name, entries=(draft(name),)) for name in TWINS])
        self.a.commit([Erase(self.me, name) for name in TWINS[::2]])
        assert set(self.listed()) == set(TWINS[1::2])

    def test_each_key_is_its_own(self) -> None:
        self.a.commit([Create(self.me, f"s{n}", key=name) for n, name in enumerate(TWINS)])
        found = [self.b.find(self.me, name) for name in TWINS]
        assert [info and (info.id, info.key) for info in found] == [(f"s{n}", name) for n, name in enumerate(TWINS)]

    def test_each_entry_id_is_its_own(self) -> None:
        session = self.create()
        batch = [draft(name, id=name) for name in TWINS]
        assert self.append(session, *batch).new == len(TWINS)
        assert self.append(session, *batch).new == 0
        assert self.ids(session) == list(TWINS)

    def test_each_ref_is_its_own(self) -> None:
        session = self.create(*(draft(refs=(name,)) for name in TWINS))
        for seq, name in enumerate(TWINS, 1):
            assert self.hits(name) == self.hits(name, session=session) == [(session, seq)]

    def test_each_tag_is_its_own(self) -> None:
        self.a.commit([Create(self.me, f"s{n}", tags=(name,)) for n, name in enumerate(TWINS)])
        for number, name in enumerate(TWINS):
            assert self.listed(tag=name) == [f"s{number}"]

    def test_each_run_is_its_own(self) -> None:
        session = self.create()
        lease = self.take(session, "alice")
        for name in TWINS[1:]:
            results = self.a.commit(
                [Append(self.me, session, drafts(1), run=name, fence=lease.fence), Take(self.me, session, name, MINUTE)]
            )
            assert [type(result).__name__ for result in results] == ["LeaseLost", "Busy"]

    def test_each_place_in_the_queue_is_its_own(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        places = [self.enqueue(session, name, ticket_us=60 * MINUTE).before for name in TWINS]
        again = [self.enqueue(session, name, ticket_us=60 * MINUTE).before for name in TWINS]
        assert places == again == list(range(len(TWINS)))

    def test_each_kind_is_its_own(self) -> None:
        session = self.create(*(draft(kind=name) for name in TWINS))
        for seq, name in enumerate(TWINS, 1):
            assert [entry.seq for entry in self.log(session, kinds=(name,))] == [seq]


_FOREIGN_OPS: dict[str, Callable[[ScopeKey], Op]] = {
    "append": lambda scope: Append(scope, "s", drafts(1)),
    "append-known": lambda scope: Append(scope, "s", (draft("known", id="known"),)),
    "append-fenced": lambda scope: Append(scope, "s", drafts(1), run="run-1", fence=1),
    "fork": lambda scope: Fork(Create(scope, "f", parent=Parent("s", 1)), "s", 1),
    "update": lambda scope: Update(scope, "s", {"title": "theirs"}),
    "take": lambda scope: Take(scope, "s", "run-2", MINUTE),
    "take-over": lambda scope: Take(scope, "s", "run-2", MINUTE, "interrupt", over="run-1"),
    "enqueue": lambda scope: Take(scope, "s", "run-2", MINUTE, "enqueue"),
    "renew": lambda scope: Renew(scope, "s", "run-1", 1, MINUTE),
    "release": lambda scope: Release(scope, "s", "run-1", 1),
    "pause": lambda scope: Release(scope, "s", "run-1", 1, pause_us=MINUTE),
    "hollow": lambda scope: Hollow(scope, "s", (1,)),
    "erase": lambda scope: Erase(scope, "s"),
}

_FOREIGN_READINGS: dict[str, Callable[[Store, ScopeKey], object]] = {
    "get": lambda store, scope: store.get(scope, "s"),
    "read": lambda store, scope: store.read(scope, "s"),
    "by_ref": lambda store, scope: store.by_ref(scope, "x", session="s"),
}


class OwnerTests(StoreCase):
    """One scope holds a session "s"; others, which differ from it a little, ask for it."""

    def others(self) -> list[ScopeKey]:
        """Scopes that are not mine."""
        self.create(draft("known", id="known", refs=("x",)), id="s", key="k", tags=("t",))
        self.take("s", "run-1")
        return [
            self.me._replace(user="USER"),
            ScopeKey(self.me.tenant.upper(), self.me.user),
            ScopeKey(self.me.user, self.me.tenant),
        ]

    @pytest.mark.parametrize("name", _FOREIGN_OPS)
    def test_an_operation_of_another_owner_finds_nothing_and_changes_nothing(self, name: str) -> None:
        others = self.others()
        before = self.seen(self.me)
        for other in others:
            self.refused(_FOREIGN_OPS[name](other), NotFound)
        assert self.seen(self.me) == before

    @pytest.mark.parametrize("name", _FOREIGN_READINGS)
    def test_a_reading_of_another_owner_finds_nothing(self, name: str) -> None:
        for other in self.others():
            with pytest.raises(NotFound):
                _FOREIGN_READINGS[name](self.b, other)

    def test_what_is_foreign_and_what_is_unknown_give_the_same_error(self) -> None:
        (other, *_) = self.others()
        texts = set()
        for session in ("s", "unknown"):
            with pytest.raises(NotFound) as caught:
                self.b.get(other, session)
            texts.add(str(caught.value).replace(repr(session), "?"))
        assert len(texts) == 1

    def test_another_owners_lists_keys_and_refs_show_nothing(self) -> None:
        for other in self.others():
            assert self.b.find(other, "k") is None
            assert self.b.by_ref(other, "x") == []
            assert self.b.page(other, Filter(status=ALL_STATUSES, include_unlisted=True), None, 10).sessions == ()
            assert self.b.page(other, Filter(tag="t"), None, 10).sessions == ()

    def test_another_owner_may_use_the_same_id_and_key(self) -> None:
        (other, *_) = self.others()
        self.create(draft("theirs", id="known"), id="s", key="k", scope=other)
        assert (self.log("s")[0].json(), self.b.read(other, "s")[0].json()) == ("known", "theirs")
