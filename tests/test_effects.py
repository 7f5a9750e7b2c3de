"""Effects around a block: what was told to be done stays done, and the caller's own error comes through."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pytest

import segue
from segue.anew import extract_of
from segue.errors import Invalid, Unavailable
from segue.ledger import Effect, Version, open_effects
from segue.world import Sources
from test_guard import UNTOLD


@pytest.fixture
def me():
    with segue.open("memory:") as db:
        yield db.scope(user="lin")


@pytest.fixture
def session(me):
    return me.create()


def effects(session):
    return [Effect.from_entry(entry) for entry in session.history(kinds=("effect",))]


class Odd:
    def __eq__(self, other):
        raise RuntimeError

    __hash__ = None


RESULTS = [
    {"amount": Decimal("9.90"), "at": datetime(2026, 8, 28)},
    float("nan"),
    ("a", "tuple"),
    {1: "a key that is no str"},
    b"bytes",
    "caf\udce9",
    object(),
    {"odd": Odd()},
    "x" * 5_000_000,
]
VERSIONS = [float("nan"), object(), {1, 2}, {"at": datetime(2026, 8, 28)}, Odd()]


@pytest.mark.parametrize("result", RESULTS, ids=lambda r: type(r).__name__)
def test_a_receipt_that_cannot_be_stored_is_refused_at_once_and_the_effect_is_done(session, result):
    with pytest.raises(Invalid, match="do not repeat it"), session.run() as run:
        with run.effect("pay", source="bank:1") as effect:
            effect.done(result, version="v2")
            pytest.fail("refused only later")
    end = effects(session)[-1]
    assert (end.phase, end.result, end.version) == ("completed", None, Version("value", "v2"))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda v: type(v).__name__)
def test_a_version_that_is_none_is_refused_at_once_and_the_effect_is_done(session, version):
    with session.run() as run, run.effect("publish", source="wiki:1") as effect:
        with pytest.raises(Invalid, match="completed, without that"):
            effect.done({"url": "u"}, version=version)
    end = effects(session)[-1]
    assert (end.phase, end.result, end.version) == ("completed", {"url": "u"}, None)


def test_both_can_be_refused_and_the_message_names_both(session):
    with session.run() as run, run.effect("pay") as effect:
        with pytest.raises(Invalid, match=r"version.*result"):
            effect.done(Decimal(1), version=object())
    assert [e.phase for e in effects(session)] == ["started", "completed"]


def test_what_was_refused_can_be_told_again(session):
    with session.run() as run, run.effect("pay") as effect:
        with pytest.raises(Invalid):
            effect.done({"amount": Decimal("9.90")})
        effect.done({"amount": "9.90"})
    assert effects(session)[-1].result == {"amount": "9.90"}


def test_a_receipt_is_kept_as_it_was_told(session):
    receipt = {"url": "u"}
    with session.run() as run, run.effect("pay") as effect:
        effect.done(receipt)
        receipt["at"] = datetime(2026, 8, 28)
    assert effects(session)[-1].result == {"url": "u"}


def test_what_was_done_is_not_of_unknown_outcome_on_resume(me, session):
    with pytest.raises(Invalid), session.run() as run, run.effect("pay", source="bank:1") as effect:
        effect.done(object(), version=object())
    assert me.resume(session, sources=Sources()).briefing.unknown == ()


@pytest.mark.parametrize("error", UNTOLD)
def test_the_callers_error_comes_through_whatever_it_says(session, error):
    with pytest.raises(type(error)) as caught, session.run() as run, run.effect("pay"):
        raise error
    assert caught.value is error
    end = effects(session)[-1]
    assert end.phase == "failed" and end.result["error"].startswith(type(error).__name__)


@pytest.mark.parametrize("is_done", [True, False])
def test_the_callers_error_comes_through_when_the_end_cannot_be_recorded(session, monkeypatch, is_done):
    def unreachable(entry):
        raise Unavailable("the server is gone")

    with pytest.raises(ZeroDivisionError) as caught, session.run() as run, run.effect("pay") as effect:
        if is_done:
            effect.done({"receipt": 7})
        monkeypatch.setattr(run, "append_fact", unreachable)
        1 / 0
    assert "could not be recorded: Unavailable: the server is gone" in caught.value.__notes__[0]


def test_an_end_that_cannot_be_recorded_is_an_error_where_nothing_else_is(session, monkeypatch):
    def unreachable(entry):
        raise Unavailable("the server is gone")

    with pytest.raises(Unavailable), session.run() as run, run.effect("pay"):
        monkeypatch.setattr(run, "append_fact", unreachable)


def unknown(session):
    records = list(session.history(kinds=("effect",)))
    return [e.name for e in open_effects(records, log=session.log, shared=session.refresh().base)]


@pytest.fixture
def begun(session):
    """A session with a shared effect under way: its run, and the effect."""
    with session.run() as run:
        yield run, run.effect("pay", source="bank:1").__enter__()


@pytest.mark.parametrize("error", [None, ValueError("refused")])
def test_a_fork_knows_the_end_that_its_parent_recorded_later(session, begun, error):
    child = session.fork()
    grandchild = child.fork()
    assert unknown(child) == unknown(grandchild) == ["pay"]
    begun[1].__exit__(type(error), error, None)
    assert unknown(child) == unknown(grandchild) == unknown(session) == []


def test_a_fork_does_not_know_what_its_parent_does_not(session, begun):
    child = session.fork()
    begun[1].__exit__(TimeoutError, TimeoutError(), None)
    assert unknown(child) == ["pay"]


def test_only_what_is_shared_and_open_is_looked_up(session, monkeypatch):
    looked = []
    by_ref = session.log.engine.store.by_ref
    monkeypatch.setattr(session.log.engine.store, "by_ref", lambda *a, **k: looked.append(a[1]) or by_ref(*a, **k))
    with session.run() as run:
        for n in range(50):
            with run.effect(f"done {n}"):
                pass
        with pytest.raises(TimeoutError), run.effect("lost"):
            raise TimeoutError
    child = session.fork()
    with pytest.raises(TimeoutError), child.run() as run, run.effect("own"):
        raise TimeoutError
    looked.clear()
    assert unknown(child) == ["lost", "own"]
    assert len(looked) == 1 and looked[0].startswith("effect:")


def test_a_resumed_fork_is_not_told_of_an_unknown_outcome_that_its_parent_knows(me, session, begun):
    child = session.fork()
    assert [e.name for e in me.resume(child).briefing.unknown] == ["pay"]
    begun[1].done({"receipt": 7})
    begun[1].__exit__(None, None, None)
    assert me.resume(child).briefing.unknown == ()
    assert [(e.phase, e.result) for e in extract_of(child.log, child.refresh()).effects] == [
        ("completed", {"receipt": 7})
    ]
