"""Sessions and runs through the public names, on the stores that need no server."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import segue
import stores
from segue.stores.memory import MemoryStore


@pytest.fixture(params=["memory", *stores.SHARED])
def db(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url, segue.open(url) as db:
        yield db


@pytest.fixture
def me(db):
    return db.scope("acme", "lin")


@pytest.fixture
def session(me):
    return me.create(title="August")


def user(text):
    return {"role": "user", "content": text}


def later(db, **passed):
    db.engine.store.shift_clock(timedelta(**passed) // timedelta(microseconds=1))


# Doors


@pytest.mark.parametrize("use", ["open", "erase", "resume"])
def test_a_foreign_id_and_an_unknown_id_are_one_and_the_same_error(db, session, use):
    other = db.scope("acme", "wang")
    messages = set()
    for id in (session.id, "0" * 32):
        with pytest.raises(segue.NotFound) as caught:
            getattr(other, use)(id)
        messages.add(str(caught.value).replace(id, "ID"))
    assert len(messages) == 1


def test_an_erased_session_is_no_such_session(me, session):
    session.append(user("secret"))
    session.erase()
    for call in (session.refresh, session.read, session.run, lambda: session.append(user("x")), session.archive):
        with pytest.raises(segue.NotFound):
            call()


@pytest.mark.parametrize("id", ["", "x" * 256, "a\x00b", "a\nb", "\ud800"])
def test_what_cannot_be_an_id_is_no_such_session(me, id):
    with pytest.raises(segue.NotFound):
        me.open(id)


@pytest.mark.parametrize("id", [None, 7, b"x", {"$ne": ""}, ["x"]])
def test_an_id_that_is_no_str_is_refused(me, id):
    with pytest.raises(segue.Invalid):
        me.open(id)


# Attributes


def test_a_session_opened_by_the_callers_key_is_made_once(me):
    one = me.open_key("ticket-7", title="Seven")
    assert me.open_key("ticket-7").id == one.id
    assert me.get_key("ticket-8") is None


def test_many_threads_that_open_one_key_get_one_session(db):
    found = []
    barrier = threading.Barrier(8)

    def go():
        barrier.wait()
        found.append(db.scope("acme", "lin").open_key("same").id)

    threads = [threading.Thread(target=go) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(found) == 8
    assert len(set(found)) == 1


def test_tags_and_fields_set_by_two_handles_are_both_kept(me, session):
    other = me.open(session.id)
    session.tag("sales")
    other.tag("august")
    session.set_metadata({"a": 1})
    other.set_metadata({"b": [2]})
    session.set_metadata({"a": None})
    info = me.open(session.id).info
    assert info.tags == ("august", "sales")
    assert info.metadata == {"b": [2]}


def test_an_attribute_changed_meanwhile_is_told(me, session):
    seen = session.info.version
    me.open(session.id).rename("other")
    with pytest.raises(segue.VersionMoved):
        session.update(title="mine", expect=seen)


def test_appends_never_disturb_a_rename(me, session):
    seen = session.info.version
    session.append(user("x"))
    assert session.update(title="new", expect=seen).title == "new"


@pytest.mark.parametrize(
    "change",
    [
        {"title": "x" * 501},
        {"title": "\ud800"},
        {"tags": "one"},
        {"tags": [str(n) for n in range(65)]},
        {"metadata": {"x": "y" * 20_000}},
        {"metadata": {"x": float("nan")}},
        {"idle": timedelta(0)},
        {"idle": timedelta.max},
        {"expires_at": datetime(2027, 1, 1)},
        {"colour": "red"},
        {"pinned": 1},
    ],
)
def test_an_attribute_over_its_limit_is_refused_by_name(session, change):
    with pytest.raises(segue.Invalid):
        session.update(**change)


# Lives


def test_a_completed_session_reopens_by_a_message(session):
    session.end()
    assert session.refresh().status == "completed"
    session.append(user("more"))
    assert session.refresh().status == "idle"


def test_an_archived_session_names_restore(me, session):
    session.append(user("x"))
    session.archive()
    assert me.list().sessions == ()
    for call in (session.run, lambda: session.append(user("y")), lambda: me.resume(session.id), session.reopen):
        with pytest.raises(segue.Archived, match="restore"):
            call()
    assert session.restore().status == "idle"
    session.append(user("y"))


def test_a_session_past_its_idle_life_must_be_restored_and_then_lives_again(db, me):
    session = me.create(idle=timedelta(days=7))
    later(db, days=8)
    with pytest.raises(segue.Archived):
        me.resume(session.id)
    session.restore()
    me.resume(session.id)


def test_a_sweep_archives_then_erases_and_spares_the_pinned_and_the_running(db, me):
    old, pinned, busy, fresh = (me.create(title=t, idle=timedelta(days=7)) for t in ("old", "pin", "busy", "fresh"))
    pinned.pin()
    later(db, days=8)
    with pytest.raises(segue.Archived):
        fresh.run()
    fresh.append(user("used again"))
    assert {id for _, id in db.sweep(dry=True).archived} == {busy.id, old.id}
    with me.open(busy.restore().id).run():
        report = db.sweep()
    assert [id for _, id in report.archived] == [old.id]
    later(db, days=31)
    report = db.sweep()
    assert old.id in [id for _, id in report.erased]
    assert pinned.id not in [id for _, id in report.erased]
    with pytest.raises(segue.NotFound):
        me.open(old.id)


def test_a_sweep_leaves_a_session_that_was_used_since_it_was_listed(db, me):
    session = me.create(idle=timedelta(days=7))
    later(db, days=8)
    store, page = db.engine.store, db.engine.store.page

    def page_then_use(scope, filter, cursor, limit):
        found = page(scope, filter, cursor, limit)
        if filter.due_us is not None:
            session.append(user("just now"))
        return found

    store.page = page_then_use
    try:
        assert db.sweep().archived == ()
    finally:
        del store.page
    assert session.refresh().status == "idle"


def test_an_expiry_by_date_is_kept_and_restore_lifts_it(db, me):
    session = me.create(expires_at=db.now() + timedelta(days=1))
    later(db, days=2)
    with pytest.raises(segue.Archived):
        session.run()
    assert session.restore().expires_at is None


# Forks


def test_a_fork_shares_and_goes_its_own_way_and_the_parent_never_changes(session):
    session.append(user("1"), user("2"), user("3"))
    before = session.read()
    fork = session.fork(2, title="other way")
    fork.append(user("other 3"))
    assert [e.json()["content"] for e in fork.read()] == ["1", "2", "other 3"]
    assert session.read() == before
    assert fork.info.parent == segue.Parent(session.id, 2, "fork")


def test_a_fork_beyond_the_head_is_refused(session):
    with pytest.raises(segue.Invalid):
        session.fork(1)


# Runs


def test_one_run_at_a_time_and_the_loser_is_told_by_whom(session):
    with session.run() as run:
        with pytest.raises(segue.Busy) as caught:
            session.run()
        assert caught.value.run == run.id
        with pytest.raises(segue.Busy):
            session.append(user("a runless message"))
        session.append({"ok": 1}, kind="app.fact", format="json")
        assert session.refresh().status == "running"
    assert session.refresh().status == "idle"


def test_a_queued_run_waits_and_gives_up_its_place_in_time(session):
    with session.run():
        with pytest.raises(segue.QueueTimeout):
            session.run(policy="enqueue", wait=timedelta(seconds=0.05))
        assert session.refresh().waiting == 0


def test_queued_runs_come_in_their_order(session):
    order = []
    first = session.run()
    threads = []
    for n in range(4):
        thread = threading.Thread(target=lambda n=n: _enter(session, order, n))
        thread.start()
        threads.append(thread)
        while session.refresh().waiting <= n:
            pass
    first.release()
    [thread.join() for thread in threads]
    assert order == [0, 1, 2, 3]


def _enter(session, order, n):
    with session.run(policy="enqueue") as run:
        run.append(user(str(n)))
        order.append(n)


def test_an_interrupted_run_is_fenced_off_and_its_finished_work_stays(session):
    old = session.run()
    old.append(user("kept"))
    with session.run(policy="interrupt") as new:
        with pytest.raises(segue.LeaseLost):
            old.append(user("late"))
        with pytest.raises(segue.LeaseLost):
            old.check()
        assert old.is_lost
        assert new.messages() == [user("kept")]
    old.release()


def test_a_rolled_back_run_leaves_its_effects_but_not_its_messages(session):
    session.append(user("before"))
    old = session.run()
    old.append(user("taken back"))
    with old.effect("publish", source="wiki:report") as effect:
        effect.done({"receipt": 7})
    with session.run(policy="rollback") as new:
        assert new.messages() == [user("before")]
    assert [e.json()["phase"] for e in session.read(kinds=["effect"])] == ["started", "completed"]
    old.release()


def test_a_paused_session_holds_nothing_and_lapses(db, session):
    run = session.run()
    run.append(user("publish?"))
    run.pause(timedelta(hours=1))
    assert session.refresh().status == "paused"
    with pytest.raises(segue.LeaseLost):
        run.append(user("x"))
    later(db, hours=2)
    assert session.refresh().status == "idle"
    run = session.run()
    run.pause(timedelta(hours=1))
    with session.run():
        assert session.refresh().status == "running"


def test_a_crash_inside_a_call_is_settled_once_before_the_new_question(db, session):
    run = session.run()
    run.append(user("go"))
    run.append({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]})
    db.engine.keeper.close()  # the process is gone: nobody renews, nobody releases
    later(db, minutes=5)
    for _ in range(2):
        with session.run() as run:
            run.append(user("again"))
            messages = run.messages()
    results = [m for m in messages if isinstance(m["content"], list) and m["content"][0]["type"] == "tool_result"]
    assert len(results) == 1
    assert results[0]["content"][0]["is_error"] is True


def test_an_effect_whose_process_died_is_unknown_in_the_briefing(db, me, session):
    run = session.run()
    run.effect("publish", source="wiki:report").__enter__()
    db.engine.keeper.close()
    later(db, hours=1)
    briefing = me.resume(session.id).briefing
    assert [effect.name for effect in briefing.unknown] == ["publish"]


def test_an_effect_that_ends_after_the_run_was_overtaken_is_still_recorded(session):
    run = session.run()
    with run.effect("publish") as effect:
        session.run(policy="interrupt").release()
        effect.done({"receipt": 1})
    assert [e.json()["phase"] for e in session.read(kinds=["effect"])] == ["started", "completed"]
    run.release()


def test_a_session_erased_under_a_run_ends_it_quietly(session):
    with session.run() as run:
        session.erase()
        with pytest.raises(segue.NotFound):
            run.append(user("late"))
    with pytest.raises(segue.NotFound):
        session.refresh()


def test_a_run_that_could_not_renew_in_time_stops_itself(session):
    run = session.run(ttl=timedelta(seconds=0.2))
    run._kept.renewed -= 1
    with pytest.raises(segue.LeaseLost):
        run.check()
    run.release()


# Resume


def test_a_resume_plans_and_writes_nothing(db, me, session):
    session.append(user("x"))
    later(db, hours=18)
    head = session.refresh()
    back = me.resume(session.id)
    assert back.briefing.gap >= timedelta(hours=18)
    assert session.refresh() == head


def test_the_note_is_told_once_and_stays_in_the_prefix(db, me, session):
    with session.run() as run:
        run.append(user("x"), {"role": "assistant", "content": "y"})
        run.observe("shop:stock", 5)
    later(db, hours=18)
    with me.resume(session.id, language="zh").run() as run:
        run.append(user("接着"))
        first = run.view().bodies
    with me.resume(session.id).run() as run:
        run.append({"role": "assistant", "content": "z"}, user("more"))
        second = run.view().bodies
    assert second[: len(first)] == first
    assert len(session.read(kinds=["note"])) == 1
    assert "18 小时" in session.read(kinds=["note"])[0].json()["text"]


def test_a_changed_reading_is_told_and_an_unchanged_one_is_a_number(db, me, session):
    stock, price = [5], [9]
    sources = segue.Sources()
    sources.register("shop:stock", lambda: stock[0])
    sources.register("shop:price", lambda: price[0])
    with session.run() as run:
        run.append(user("x"))
        run.observe("shop:stock", 5, tool="get_stock", arguments={"sku": "A"})
        run.observe("shop:price", 9)
    stock[0] = 4
    later(db, hours=1)
    briefing = me.resume(session.id, sources=sources).briefing
    assert briefing.counts == {"changed": 1, "current": 1}
    assert "shop:stock" in briefing.text()
    assert "get_stock" in briefing.text()
    assert "shop:price" not in briefing.text()


def test_a_plan_is_made_again_when_the_head_moved(db, me, session):
    session.append(user("x"))
    later(db, hours=1)
    back = me.resume(session.id)
    session.append(user("y"))
    with back.run():
        assert back.info.head == 2
    assert back.briefing.gap < timedelta(minutes=1)


def test_another_configuration_asks_pins_or_adopts(me):
    old = segue.AgentConfig(name="analyst", version="1", model="m1", tools=["look"])
    new = segue.AgentConfig(name="analyst", version="2", model="m2", tools=[])
    session = me.create(agent=old)
    with pytest.raises(segue.ConfigDrift, match="m2"):
        session.run(agent=new)
    assert session.refresh().status == "idle"
    with session.run(agent=new, config="pin"):
        pass
    assert me.resume(session.id, agent=old).briefing.changes == ()
    with session.run(agent=new, config="adopt"):
        pass
    assert me.resume(session.id, agent=new).briefing.changes == ()
    assert session.read(kinds=["config"])[0].json()["action"] == "adopted"


# Values


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "\ud800"},
        {"role": "user", "content": float("nan")},
        {"role": "user", "content": float("inf")},
        {"role": "user", "content": (1, 2)},
        {"role": "user", "content": b"x"},
        {"role": "user", 7: "x"},
        {"role": "user", "content": datetime(2026, 1, 1, tzinfo=UTC)},
        b'{"role":"user","role":"model"}',
        b'{"role":"user","content":1e400}',
        b'{"role":"user","content":NaN}',
        b'{"role":"user","content":"\\ud800"}',
        b'{"role":"user","content":' + b"1" * 1001 + b"}",
        b"[" * 129 + b"]" * 129,
        b"\xff",
        b"",
        b'"' + b"x" * (4 * 1024 * 1024) + b'"',
    ],
)
def test_what_would_not_come_back_is_refused_before_anything_is_written(session, value):
    with pytest.raises(segue.Invalid):
        session.append(user("fine"), value)
    assert session.refresh().head == 0


@pytest.mark.parametrize("value", ["hello", [user("1"), user("2")], 7, None, b'["x"]'])
def test_what_is_no_message_is_not_taken_for_one(session, value):
    with pytest.raises(segue.Invalid, match="object"):
        session.append(value)


def test_bytes_come_back_as_they_came(session):
    bodies = [b'{ "b":1e2, "a":-0.0 }', b'{"x":"\\u0041\\/","n":123456789012345678901234567890}', '{"é":"😀"}'.encode()]
    session.append(*bodies, kind="app.blob", format="json")
    assert [entry.body for entry in session.read()] == bodies


def test_a_retry_with_the_same_ids_is_stored_once(session):
    first = session.append(user("a"), user("b"), ids=["1", "2"])
    assert session.append(user("a"), user("b"), ids=["1", "2"]) == first._replace(new=0)
    with pytest.raises(segue.IdConflict):
        session.append(user("c"), ids=["1"])


def test_the_expected_head_is_compared(session):
    session.append(user("a"), expect=0)
    with pytest.raises(segue.HeadMoved) as caught:
        session.append(user("b"), expect=0)
    assert caught.value.actual == 1


def test_a_hollowed_entry_keeps_its_place_and_loses_its_content(session):
    session.append(user("a"), user("secret"), user("c"))
    assert session.hollow(2) == 1
    entry = session.read()[1]
    assert entry.is_hollow
    assert entry.body is None
    assert entry.seq == 2


def test_a_retraction_cannot_be_hollowed_for_it_would_show_again_what_it_hides(session):
    session.append(user("hidden"))
    session.append({"seqs": [1]}, kind="retract", format="segue", refs=["retract"])
    with pytest.raises(segue.Invalid, match="retract"):
        session.hollow(2)
    assert session.messages() == []


def test_a_cut_can_be_hollowed_once_a_newer_one_stands_for_more(session):
    session.append(user("hidden"))
    session.append({"upto": 1, "summary": user("about the hidden")}, kind="cut", format="segue", refs=["cut"])
    with pytest.raises(segue.Invalid, match="cut"):
        session.hollow(2)
    session.append({"upto": 2, "summary": None}, kind="cut", format="segue", refs=["cut"])
    assert session.hollow(1, 2) == 2
    assert session.messages() == []


def test_usage_is_summed_in_the_row(session):
    usage = segue.Usage(input=10, output=3, cache_read=4, reasoning=1)
    session.append({"role": "assistant", "content": "x"}, usage=usage)
    session.append({"role": "assistant", "content": "y"}, usage=usage)
    assert session.refresh().usage == segue.Usage(20, 6, 8, 0, 0, 2)


@pytest.mark.parametrize("bad", [{"last": -1}, {"limit": "x"}, {"after": 1.5}])
def test_a_range_that_is_none_is_refused(session, bad):
    with pytest.raises(segue.Invalid):
        session.read(**bad)


def test_a_closed_database_says_so(db, me):
    db.close()
    with pytest.raises(segue.Closed):
        me.create()
    db.close()


def test_a_deep_check_says_how_many_sessions_it_read_so_that_an_empty_store_is_not_taken_for_a_sound_one(db):
    def told() -> list[str]:
        return [report.text for report in db.check(deep=True) if "sessions were read" in report.text]

    assert told() == ["0 sessions were read, entry by entry"]
    for n in range(3):
        db.scope("acme", f"user-{n % 2}").create().append({"role": "user", "content": "?"})
    assert told() == ["3 sessions were read, entry by entry"]


@pytest.mark.parametrize(
    "url",
    [
        *("", "nonsense", "sqlite://x", "sqlite:///", "ftp://x", "jsonl:"),
        *("sqlite:///a.db?timeout=5", "sqlite:///a.db#x", "jsonl:folder?read_only=1", "jsonl:folder#x", "memory:x?a=1"),
        *(
            "sqlite:///a.db ",
            "sqlite:///a.db\n",
            "sqlite:/// a.db",
            "sqlite:///a.db/",
            "sqlite:////",
            "sqlite:///a\0.db",
        ),
    ],
)
def test_a_url_that_names_no_store_is_refused_and_makes_nothing(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(segue.Invalid):
        segue.open(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", [None, Path("a.db"), b"sqlite:///a.db", 5])
def test_what_is_no_text_is_refused_and_told_what_a_url_is(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(segue.Invalid, match=r"'sqlite:///(a|segue)\.db', not") as refused:
        segue.open(url)
    assert ("a.db" in str(refused.value)) == isinstance(url, Path)
    assert list(tmp_path.iterdir()) == []


def test_options_beside_a_store_object_are_refused():
    with pytest.raises(segue.Invalid, match="no options; give busy_timeout to its class"):
        segue.open(MemoryStore(), busy_timeout=timedelta(seconds=1))


def test_options_in_a_url_of_a_file_are_told_to_be_keyword_arguments():
    with pytest.raises(segue.Invalid, match="options are keyword arguments"):
        segue.open("sqlite:///a.db?timeout=5")


def test_a_call_that_the_new_run_will_answer_itself_is_not_settled(session):
    call = {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {}}
    with session.run() as run:
        run.append(user("pay"), {"role": "assistant", "content": [call]})
    with session.run(keep_open=["toolu_1"]) as run:
        assert session.refresh().head == 2
        run.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "paid"}]})
    assert "interrupted" not in str(session.messages())


# The time gap of a resume.


def forked(db, me, session):
    return session.fork()


def forked_without_its_end(db, me, session):
    session.append(user("thanks"))
    return session.fork(1)


def restored(db, me, session):
    session.archive()
    later(db, days=1)
    session.restore()
    return session


def renamed(db, me, session):
    session.rename("another title")
    session.append({"n": 1}, kind="app.fact", format="json")
    return session


@pytest.mark.parametrize("way", [forked, forked_without_its_end, restored, renamed])
def test_what_is_done_to_a_session_makes_its_conversation_no_younger(db, me, session, way):
    session.append(user("why did sales fall?"))
    later(db, days=83)
    same = way(db, me, session)
    assert me.resume(same).briefing.gap >= timedelta(days=83)


def test_an_imported_conversation_is_as_old_as_it_says(me, session):
    session.append(user("why?"), occurred_at=datetime.now(UTC) - timedelta(days=83))
    assert me.resume(session).briefing.gap >= timedelta(days=83)


def test_a_claimed_time_to_come_makes_nobody_younger(db, me, session):
    session.append(user("why?"), occurred_at=datetime.now(UTC) + timedelta(days=83))
    later(db, days=2)
    briefing = me.resume(session).briefing
    assert timedelta(days=2) <= briefing.gap < timedelta(days=3)
    assert not briefing.is_clock_odd


def test_the_gap_of_a_fork_is_told_once(db, me, session):
    session.append(user("why?"))
    later(db, days=83)
    fork = session.fork()
    for _ in range(2):
        with me.resume(fork).run():
            pass
    assert [entry.kind for entry in fork.read()].count("note") == 1
