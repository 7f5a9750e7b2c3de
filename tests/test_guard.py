"""Guarded tools: readings recorded and stamped, writes refused on unseen ground, races lost by name."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import threading
from datetime import timedelta

import pytest

import segue
import worlds
from segue.errors import Invalid, LeaseLost, StaleRead
from segue.guard import Contended, calling, reads, record, using, writes
from segue.ledger import Effect, Observation, Version, open_effects
from segue.probes import Http, file_version, replace_file
from segue.world import Gone, Sources, Unanswered


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise RuntimeError


UNTOLD = [ValueError("caf\udce9.txt"), ValueError("x" * 5_000_000), ValueError("\x00"), Mute()]
"""Errors whose words cannot be kept as they are."""


class Wiki:
    """Pages with a version, and a conditional write."""

    def __init__(self, **pages):
        self.pages = dict(pages)
        self.writes = []

    def look(self, source):
        name = source.removeprefix("wiki:")
        return Version("value", str(self.pages[name])) if name in self.pages else Gone()

    def put(self, name, if_match):
        held = self.pages.get(name)
        if if_match != (None if held is None else str(held)):
            raise StaleRead(name, if_match, held)
        self.pages[name] = (held or 0) + 1
        self.writes.append(name)
        return {"version": str(self.pages[name])}


@pytest.fixture
def wiki():
    return Wiki(a=1, b=1)


@pytest.fixture
def sources(wiki):
    made = Sources()
    made.register("wiki:", wiki.look)
    return made


@pytest.fixture
def session():
    with segue.open("memory:") as db:
        yield db.scope(user="lin").create()


@pytest.fixture
def run(session, sources):
    with session.run() as run, using(run, sources):
        yield run


def tools(wiki, **options):
    @reads("wiki:{name}")
    def get(name):
        return f"page {name} is {wiki.pages[name]}"

    @writes("wiki:{name}", precondition="if_match", version=lambda put: put["version"], **options)
    def put(name, if_match=None):
        return wiki.put(name, if_match)

    return get, put


def records(session, kind):
    parse = {"observation": Observation, "effect": Effect}[kind]
    return [parse.from_entry(entry) for entry in session.history(kinds=(kind,))]


def phases(session):
    return [(effect.name, effect.phase) for effect in records(session, "effect")]


# Reading


def test_a_reading_is_recorded_with_what_reads_it_again(wiki, session, run):
    get, _ = tools(wiki)
    with calling("call-7"):
        get("a")
    (seen,) = records(session, "observation")
    assert (seen.source, seen.version, seen.tool) == ("wiki:a", Version("value", "1"), "get")
    assert (seen.arguments, seen.call, seen.principal) == ({"name": "a"}, "call-7", "lin")
    assert seen.digest is not None


def test_the_result_carries_the_stamp_once(wiki, session, run):
    get, _ = tools(wiki)
    (_, line) = get("a").split("\n")
    (seen,) = records(session, "observation")
    assert line == seen.stamp() and "wiki:a · version 1]" in line


@pytest.mark.parametrize(
    ("result", "place"),
    [
        ("text", lambda r: r.split("\n")[1]),
        ("", lambda r: r),
        ([{"type": "text", "text": "x"}], lambda r: r[1]["text"]),
        ({"rows": 3}, lambda r: r["observed"]),
    ],
)
def test_results_of_any_usual_form_carry_the_stamp(run, result, place):
    assert place(reads("x:1")(lambda: result)()).startswith("[observed ")


@pytest.mark.parametrize("result", [17, None, [1, 2], [], {"observed": "mine"}, b"x"])
def test_results_of_other_forms_are_handed_on_unchanged_and_recorded(session, run, result):
    assert reads("x:1")(lambda: result)() == result
    assert len(records(session, "observation")) == 1


def test_the_version_is_taken_before_the_tool_reads(wiki, session, run):
    @reads("wiki:a")
    def slow():
        wiki.pages["a"] = 2  # somebody writes while the tool reads
        return "1 or 2, who knows"

    slow()
    assert records(session, "observation")[0].version.value == "1"


def test_the_version_may_be_taken_out_of_the_result(session, run):
    reads("db:row", version=lambda row: row["etag"])(lambda: {"etag": "e1"})()
    assert records(session, "observation")[0].version.value == "e1"


def test_a_tool_that_fails_has_read_nothing(session, run):
    with pytest.raises(ZeroDivisionError):
        reads("x:1")(lambda: 1 / 0)()
    assert records(session, "observation") == []


def test_outside_of_a_run_a_reading_tool_works_as_it_is(wiki):
    get, _ = tools(wiki)
    assert get("a") == "page a is 1"


def test_a_source_of_an_untrusted_argument_reaches_nothing_inside_python(run):
    class Secret:
        token = "hunter2"

        def __str__(self):
            return "plain"

    @reads("x:{a}")
    def tool(a):
        return "ok"

    assert "hunter2" not in tool(Secret())
    with pytest.raises(Invalid):
        tool("line\nbreak")


def test_arguments_that_are_no_json_are_left_out(session, run):
    reads("x:1")(lambda a: "ok")(object())
    assert records(session, "observation")[0].arguments is None


def test_a_method_is_recorded_without_its_self(session, run):
    class Warehouse:
        @reads("db:{table}")
        def query(self, table):
            return "rows"

    Warehouse().query("orders")
    assert records(session, "observation")[0].arguments == {"table": "orders"}


# Writing


def test_a_write_on_seen_ground_is_made_and_recorded_before_and_after(wiki, session, run):
    get, put = tools(wiki)
    get("a")
    result = put("a")
    assert result["version"] == "2" and "wiki:a · version 2]" in result["written"]
    assert phases(session) == [("put", "started"), ("put", "completed")]
    start, end = records(session, "effect")
    assert (start.before, end.before, end.version) == (
        Version("value", "1"),
        Version("value", "1"),
        Version("value", "2"),
    )
    assert start.key == end.key and start.key


def test_a_write_without_a_reading_is_refused_and_leaves_no_effect(wiki, session, run):
    _, put = tools(wiki)
    with pytest.raises(StaleRead) as refused:
        put("a")
    assert (refused.value.source, refused.value.seen) == ("wiki:a", None)
    assert wiki.writes == [] and phases(session) == []


def test_a_write_after_a_change_of_another_is_refused_until_it_is_read_again(wiki, run):
    get, put = tools(wiki)
    get("a")
    wiki.pages["a"] = 5
    with pytest.raises(StaleRead) as refused:
        put("a")
    assert (str(refused.value.seen), refused.value.current) == ("value 1", "value 5")
    get("a")
    put("a")
    assert wiki.pages["a"] == 6


def test_an_own_write_counts_as_seen(wiki, run):
    get, put = tools(wiki)
    get("a")
    for _ in range(3):
        put("a")
    assert wiki.pages["a"] == 4


def test_the_version_after_a_conditional_write_is_not_guessed(wiki, session, run):
    get, _ = tools(wiki)
    blind = writes("wiki:{name}", precondition="if_match")(lambda name, if_match=None: wiki.put(name, if_match))
    get("a")
    blind("a")
    wiki.pages["a"] = 9  # another writer, right after
    assert records(session, "effect")[-1].version is None
    with pytest.raises(StaleRead):
        blind("a")


def test_something_that_does_not_exist_yet_may_be_made_once(wiki, run):
    _, put = tools(wiki)
    put("new")
    assert wiki.pages["new"] == 1
    del wiki.pages["new"]
    with pytest.raises(StaleRead):
        put("new")  # it was there; that it is gone is news


def test_something_that_was_seen_and_is_gone_is_not_written_anew(wiki, run):
    get, _ = tools(wiki)
    get("a")
    del wiki.pages["a"]
    with pytest.raises(StaleRead) as refused:
        writes("wiki:{name}")(lambda name: wiki.put(name, None))("a")
    assert refused.value.current == "gone" and wiki.writes == []


def test_a_lost_race_is_a_typed_refusal_with_the_current_value(wiki, session, run):
    get, _ = tools(wiki)

    @writes("wiki:{name}", precondition="if_match")
    def put(name, if_match=None):
        wiki.pages[name] = 7  # between the comparison and the write
        return wiki.put(name, if_match)

    get("a")
    with pytest.raises(StaleRead) as refused:
        put("a")
    assert (refused.value.source, refused.value.current) == ("wiki:a", 7)
    assert phases(session) == [("put", "started"), ("put", "failed")]


def test_after_two_refusals_a_person_must_decide(wiki, run):
    get, put = tools(wiki)
    for expected in (StaleRead, StaleRead, Contended):
        get("a")
        wiki.pages["a"] += 1
        with pytest.raises(StaleRead) as refused, calling(expected.__name__):
            put("a")
        assert type(refused.value) is expected
    get("a")
    put("a")  # a write that succeeds forgets the refusals
    wiki.pages["a"] += 1
    with pytest.raises(StaleRead) as refused:
        put("a")
    assert type(refused.value) is StaleRead


def test_a_source_without_conditional_writes_says_that_a_window_remains(wiki, run):
    get, _ = tools(wiki)
    get("a")
    told = writes("wiki:{name}")(lambda name: "done")("a")
    assert told.startswith("done\n[written ") and "another writer may have come in between" in told


def test_without_conditional_writes_the_version_is_compared_again_right_before(wiki, session, sources, run):
    get, _ = tools(wiki)
    get("a")
    looks = []

    def look(source):
        looks.append(source)
        if len(looks) == 2:
            wiki.pages["a"] = 9
        return wiki.look(source)

    sources.register("wiki:", look)
    with pytest.raises(StaleRead):
        writes("wiki:{object}")(wiki.writes.append)("a")
    assert wiki.writes == [] and phases(session)[-1][1] == "failed"


@pytest.mark.parametrize(("conditional", "is_made"), [(True, True), (False, False)])
def test_a_probe_that_cannot_tell_stops_only_a_write_that_nobody_else_compares(
    wiki, sources, run, conditional, is_made
):
    get, put = tools(wiki)
    get("a")
    sources.register("wiki:", lambda: Unanswered("down"))
    plain = writes("wiki:{name}")(lambda name: wiki.put(name, "1"))
    with contextlib.nullcontext() if is_made else pytest.raises(StaleRead):
        (put if conditional else plain)("a")
    assert bool(wiki.writes) is is_made


def test_under_allow_it_is_written_and_said(wiki, run):
    _, put = tools(wiki, policy="allow")
    assert "written over a version that this session had not seen: value 1" in put("a")["written"]


def test_under_ask_a_person_decides(wiki, run):
    asked = []
    _, put = tools(wiki, policy="ask", ask=lambda stale: asked.append(stale.source) or stale.source == "wiki:a")
    put("a")
    with pytest.raises(StaleRead):
        put("b")
    assert asked == ["wiki:a", "wiki:b"] and wiki.writes == ["a"]


def test_under_ask_with_nobody_to_ask_it_is_refused(wiki, run):
    _, put = tools(wiki, policy="ask")
    with pytest.raises(StaleRead):
        put("a")


def test_the_policy_may_differ_by_source(wiki, run):
    _, put = tools(wiki, policy=lambda source: "allow" if source == "wiki:a" else "deny")
    put("a")
    with pytest.raises(StaleRead):
        put("b")


def test_a_reading_of_an_earlier_run_does_not_count_where_the_policy_says_so(wiki, session, sources):
    get, put = tools(wiki, in_run=True)
    with session.run() as run, using(run, sources):
        get("a")
    with session.run() as run, using(run, sources):
        with pytest.raises(StaleRead):
            put("a")
        get("a")
        put("a")


def test_a_superseded_run_does_not_write_although_the_versions_match(wiki, session, sources):
    get, put = tools(wiki)
    old = session.run()
    with using(old, sources):
        get("a")
        with session.run(policy="interrupt"):
            for looked in ([], []):  # at first only the store knows, then the run itself
                sources.register("wiki:", lambda source, looked=looked: looked.append(1) or wiki.look(source))
                with pytest.raises(LeaseLost):
                    put("a")
    assert wiki.writes == [] and looked == []
    old.release()


def test_a_guarded_write_outside_of_a_run_is_refused(wiki):
    _, put = tools(wiki)
    with pytest.raises(Invalid, match="using"):
        put("a")


@pytest.mark.parametrize("error", [TimeoutError("?"), ConnectionResetError("?"), KeyboardInterrupt()])
def test_an_error_that_does_not_tell_the_outcome_leaves_it_unknown(wiki, session, run, error):
    get, _ = tools(wiki)
    get("a")

    def raises(name):
        raise error

    with pytest.raises(type(error)):
        writes("wiki:{name}")(raises)("a")
    (unknown,) = open_effects(session.history(kinds=("effect",)))
    assert unknown.source == "wiki:a"


def test_an_error_of_the_tool_is_a_failure(wiki, session, run):
    get, _ = tools(wiki)
    get("a")
    with pytest.raises(ValueError):
        writes("wiki:{name}")(lambda name: int("x"))("a")
    assert open_effects(session.history(kinds=("effect",))) == ()
    assert records(session, "effect")[-1].result["error"].startswith("ValueError")


@pytest.mark.parametrize("version", [lambda result: 1 / 0, lambda result: float("nan"), lambda result: object()])
def test_a_write_is_completed_whatever_its_result_says_of_the_version(wiki, session, run, version):
    get, _ = tools(wiki)
    get("a")
    with pytest.raises((Invalid, ZeroDivisionError)):
        writes("wiki:{name}", version=version)(lambda name: "ok")("a")
    assert records(session, "effect")[-1].phase == "completed"


@pytest.mark.parametrize("error", UNTOLD)
def test_the_error_of_a_tool_comes_through_whatever_it_says(wiki, session, run, error):
    get, _ = tools(wiki)
    get("a")

    def raises(name):
        raise error

    with pytest.raises(type(error)) as caught:
        writes("wiki:{name}")(raises)("a")
    assert caught.value is error
    assert records(session, "effect")[-1].phase == "failed"


def test_the_error_of_a_tool_comes_through_when_it_cannot_be_recorded(wiki, session, run, monkeypatch):
    get, _ = tools(wiki)
    get("a")

    def unreachable(entry):
        raise segue.errors.Unavailable("the server is gone")

    monkeypatch.setattr(run, "append_fact", unreachable)
    with pytest.raises(ValueError) as caught:
        writes("wiki:{name}")(lambda name: int("x"))("a")
    assert "could not be recorded: Unavailable" in caught.value.__notes__[0]


def test_the_same_call_repeated_hands_out_the_same_key(wiki, session, run):
    get, put = tools(wiki)
    get("a")
    for _ in range(2):
        with calling("c1"):
            put("a")
    with calling("c2"):
        put("a")
    keys = [effect.key for effect in records(session, "effect") if effect.phase == "started"]
    assert keys[0] == keys[1] != keys[2]


def test_a_precondition_that_the_tool_does_not_take_is_refused_at_once():
    with pytest.raises(Invalid):
        writes("x", precondition="if_match")(lambda: None)


# Async


def test_async_tools_are_guarded_off_the_loop(wiki, session, sources):
    @reads("wiki:{name}")
    async def get(name):
        await asyncio.sleep(0)
        return "page"

    @writes("wiki:{name}", precondition="if_match")
    async def put(name, if_match=None):
        return wiki.put(name, if_match)

    async def main(run):
        with using(run, sources):
            with pytest.raises(StaleRead):
                await put("a")
            assert "[observed" in await get("a")
            await put("a")

    with session.run() as run:
        asyncio.run(main(run))
    assert wiki.writes == ["a"] and phases(session) == [("put", "started"), ("put", "completed")]


def test_a_cancelled_write_has_an_unknown_outcome(wiki, session, sources):
    begun = asyncio.Event()

    @writes("wiki:{name}")
    async def put(name):
        begun.set()
        await asyncio.sleep(60)

    async def main(run):
        with using(run, sources):
            reads("wiki:a")(lambda: "x")()
            writing = asyncio.create_task(put("a"))
            await begun.wait()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing

    with session.run() as run:
        asyncio.run(main(run))
    assert len(open_effects(session.history(kinds=("effect",)))) == 1


def test_an_async_run_is_used_like_a_blocking_one(wiki, sources):
    get, put = tools(wiki)

    async def main():
        async with await segue.aopen("memory:") as db:
            session = await db.scope(user="lin").create()
            async with await session.run() as run:
                with using(run, sources):
                    await asyncio.to_thread(get, "a")
                    await asyncio.to_thread(put, "a")

    asyncio.run(main())
    assert wiki.writes == ["a"]


# Files and servers with conditional writes


def test_a_file_is_replaced_only_as_it_was_seen(tmp_path):
    path = tmp_path / "a"
    first = replace_file(path, "one", None)
    assert path.read_text() == "one" and first.matches(file_version(path))
    second = replace_file(path, b"two", first)
    for wrong in (first, None, "0" * 64):
        with pytest.raises(StaleRead):
            replace_file(path, "three", wrong)
    assert path.read_bytes() == b"two" and second.matches(file_version(path))
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_replacing_a_file_keeps_its_mode_and_the_link_to_it(tmp_path):
    path, link = tmp_path / "a", tmp_path / "link"
    path.write_text("one")
    path.chmod(0o640)
    link.symlink_to(path)
    replace_file(link, "two", file_version(path))
    assert link.is_symlink() and path.read_text() == "two" and path.stat().st_mode & 0o777 == 0o640


def test_a_server_is_written_with_if_match(session):
    import httpx

    with worlds.serving() as page:
        sources = Sources()
        sources.register("wiki:report-8", Http(page.url))

        @reads("wiki:report-8")
        def get():
            return httpx.get(page.url).text

        @writes("wiki:report-8", precondition="if_match", version=lambda r: Version("etag", r["etag"]))
        def put(text, if_match=None):
            answer = httpx.put(page.url, content=text, headers={"If-Match": if_match})
            if answer.status_code == 412:
                raise StaleRead("wiki:report-8", if_match, answer.headers["ETag"])
            return {"etag": answer.headers["ETag"]}

        with session.run() as run, using(run, sources):
            get()
            put("two")
            page.etag = '"of another"'
            with pytest.raises(StaleRead):
                put("three")
            assert page.body == b"two"


def writers(base, sources, act, rounds):
    """Two forks and their parent, all at once: how many writes were made, and how many refused."""
    made, refused, errors = [], [], []
    start = threading.Barrier(3)

    def write(session, dice):
        try:
            with session.run() as run, using(run, sources):
                start.wait()
                for _ in range(rounds):
                    try:
                        act(dice)
                        made.append(1)
                    except StaleRead:
                        refused.append(1)
        except BaseException as error:
            errors.append(error)
            start.abort()

    sessions = [base, base.fork(), base.fork()]
    threads = [threading.Thread(target=write, args=(s, random.Random(i))) for i, s in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return len(made), len(refused)


def test_two_forks_and_their_parent_lose_no_update_of_a_file_in_100_rounds(session, tmp_path):
    session.append({"role": "user", "content": "count"})
    path = tmp_path / "counter"
    path.write_text("0")
    sources = Sources(roots=[tmp_path])

    @reads("file:counter")
    def get():
        return path.read_text()

    @writes("file:counter", precondition="expect", version=lambda v: v)
    def put(value, expect=None):
        return replace_file(path, str(value), expect)

    def act(dice):
        is_read = dice.random() < 0.8  # else it writes on what it knows from before
        put(1 + int(get().split("\n")[0] if is_read else path.read_text()))

    made, refused = writers(session, sources, act, 100)
    assert made + refused == 300 and made > 0
    assert int(path.read_text()) == made


def test_two_forks_and_their_parent_lose_no_update_of_a_row_in_100_rounds(session, tmp_path):
    session.append({"role": "user", "content": "count"})
    database = tmp_path / "rows.db"

    def connect():
        return contextlib.closing(sqlite3.connect(database, timeout=30, isolation_level=None))

    with connect() as db:
        db.execute("CREATE TABLE counter (value INTEGER, version INTEGER)")
        db.execute("INSERT INTO counter VALUES (0, 0)")

    def row():
        with connect() as db:
            return db.execute("SELECT value, version FROM counter").fetchone()

    sources = Sources()
    sources.register("db:counter", lambda: str(row()[1]))

    @reads("db:counter", version=lambda r: str(r["version"]))
    def get():
        value, version = row()
        return {"value": value, "version": version}

    @writes("db:counter", precondition="version", version=lambda r: r["version"])
    def put(value, version=None):
        with connect() as db:
            done = db.execute(
                "UPDATE counter SET value = ?, version = version + 1 WHERE version = ?", [value, int(version)]
            )
            if done.rowcount == 0:
                raise StaleRead("db:counter", version, row()[1])
            return {"version": str(int(version) + 1)}

    made, refused = writers(session, sources, lambda dice: put(get()["value"] + 1), 100)
    assert made + refused == 300 and made > 0
    assert row() == (made, made)


# With a resume


def test_an_own_guarded_write_raises_no_alarm_on_resume_and_anothers_does(wiki, sources):
    with segue.open("memory:") as db:
        me = db.scope(user="lin")
        session = me.create()
        get, put = tools(wiki)
        with session.run() as run, using(run, sources):
            get("a")
            get("b")
            put("a")
        db.engine.store.shift_clock(int(timedelta(hours=18) / timedelta(microseconds=1)))
        assert me.resume(session.id, sources=sources).briefing.counts == {"current": 2}
        wiki.pages["b"] = 9
        briefing = me.resume(session.id, sources=sources).briefing
        assert [f.observation.source for f in briefing.findings] == ["wiki:b"]


# What a write rests on


def report(wiki, *names, **options):
    @writes("file:{title}", rests_on=names, **options)
    def publish(title):
        wiki.writes.append(title)
        return "published"

    return publish


def test_a_write_is_refused_while_what_it_rests_on_is_not_read_or_does_not_hold(wiki, sources, run):
    get, _ = tools(wiki)
    sources.register("file:", Gone)
    publish = report(wiki, "wiki:a")
    with pytest.raises(StaleRead, match="wiki:a: this session never read it"):
        publish("r")
    get("a")
    wiki.pages["a"] = 5
    with pytest.raises(StaleRead, match="wiki:a: this session has seen version value 1, now it is value 5"):
        publish("r")
    get("a")
    assert publish("r").startswith("published")
    assert wiki.writes == ["r"]


def test_a_star_stands_for_all_that_was_read_and_every_stale_source_is_named(wiki, sources, run):
    get, _ = tools(wiki)
    sources.register("file:", Gone)
    get("a")
    get("b")
    wiki.pages |= {"a": 5, "b": 6}
    with pytest.raises(StaleRead) as refused:
        report(wiki, "wiki:*")("r")
    named = {refused.value.source, *(one.source for one in refused.value.also)}
    assert named == {"wiki:a", "wiki:b"} == {line.partition(": ")[0] for line in str(refused.value).splitlines()}
    report(wiki, "db:*")("other ground")
    assert wiki.writes == ["other ground"]


def test_what_a_write_rests_on_is_compared_again_right_before_it(wiki, session, sources, run):
    get, _ = tools(wiki)
    get("a")
    sources.register("file:", Gone)
    looks = []

    def look(source):
        looks.append(source)
        if len(looks) == 2:
            wiki.pages["a"] = 9
        return wiki.look(source)

    sources.register("wiki:", look)
    with pytest.raises(StaleRead):
        report(wiki, "wiki:a")("r")
    assert wiki.writes == [] and phases(session)[-1][1] == "failed"


def test_what_a_write_rests_on_may_have_to_be_read_in_this_very_run(wiki, session, sources):
    get, _ = tools(wiki)
    sources.register("file:", Gone)
    publish = report(wiki, "wiki:*", in_run=True)
    with session.run() as run, using(run, sources):
        get("a")
    with session.run() as run, using(run, sources):
        with pytest.raises(StaleRead):
            publish("r")
        get("a")
        publish("r")


def test_a_write_on_stale_ground_that_is_allowed_says_so(wiki, sources, run):
    get, _ = tools(wiki)
    sources.register("file:", Gone)
    get("a")
    wiki.pages["a"] = 5
    told = report(wiki, "wiki:*", policy="allow")("r")
    assert "1 of the readings it rests on no longer hold: wiki:a" in told


def test_an_own_write_is_ground_that_was_seen(wiki, sources, run):
    get, put = tools(wiki)
    sources.register("file:", Gone)
    put("new")
    report(wiki, "wiki:new")("r")
    assert wiki.writes == ["new", "r"]


def test_more_readings_than_can_be_checked_are_no_ground(wiki, sources, session, run, monkeypatch):
    from segue import ground, ledger

    get, _ = tools(wiki)
    get("a")
    get("b")
    monkeypatch.setattr(ground, "live", lambda found, records, **options: ledger.live(records, limit=1, by="source"))
    with pytest.raises(StaleRead, match="cannot be checked"):
        report(wiki, "wiki:*")("r")


def test_one_text_is_no_list_of_names():
    with pytest.raises(Invalid, match="several names"):
        writes("x", rests_on="wiki:*")(lambda: None)


def test_an_argument_left_at_its_default_is_not_part_of_how_it_is_read_again(session, run):
    @reads("x:1")
    def query(month, region=None, limit=10):
        return "rows"

    query("08")
    query("08", None, limit=10)
    query("08", "East", limit=5)
    assert [seen.arguments for seen in records(session, "observation")] == [
        {"month": "08"},
        {"month": "08"},
        {"month": "08", "region": "East", "limit": 5},
    ]


def test_a_reading_recorded_by_hand_is_of_the_call_under_way(session, run):
    with calling("c9"):
        made = record(Observation("x:1", Version("value", "1")))
    (seen,) = records(session, "observation")
    assert (seen.call, seen.principal) == ("c9", "lin") == (made.call, made.principal)


def test_outside_of_a_run_nothing_is_recorded():
    made = Observation("x:1", Version("value", "1"))
    assert record(made) is made


def test_a_reading_is_dated_by_the_store_s_clock(session, run):
    session.log.engine.store.shift_clock(timedelta(days=400) // timedelta(microseconds=1))
    stamp = reads("x:1")(lambda: "x")()
    (seen,) = records(session, "observation")
    assert timedelta() <= seen.stored_at - seen.observed_at < timedelta(minutes=1)
    assert f"{seen.observed_at:%Y-%m-%d}" in stamp
