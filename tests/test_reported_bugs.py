"""
Bugs that users of other projects reported in public, tried on every store.

Each test names the report that it comes from; the inputs are our own. The kinds: concurrent writers, odd text,
huge entries, order and clocks, ids and names, migrations, event loops, transactions, torn files.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import segue
import stores
import upgrading

FULL = stores.FULL

pytestmark = [pytest.mark.timeout(900)]


def reported(*references: str):
    """Where a test comes from: ``owner/repository#number``."""

    def mark(test):
        test.reported = references
        return test

    return mark


@pytest.fixture(scope="module", params=["memory", *stores.SHARED])
def url(request, tmp_path_factory):
    with stores.url_of(request.param, tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture(scope="module")
def db(url):
    with segue.open(url) as db:
        yield db


@pytest.fixture
def me(db, request):
    return db.scope("acme", request.node.name[:200])


@pytest.fixture
def session(me):
    return me.create()


@pytest.fixture
def others(db, url):
    """Another handle on the same data (for the store in memory: the same)."""
    if url == "memory:":
        yield db
    else:
        with segue.open(url) as other:
            yield other


def user(text):
    return {"role": "user", "content": text}


def texts(session):
    return [entry.json()["content"] for entry in session.read(kinds=["message"])]


def together(*acts):
    """Do all at the same moment; what failed."""
    barrier, failures = threading.Barrier(len(acts)), []

    def go(act):
        barrier.wait()
        try:
            act()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=go, args=(act,)) for act in acts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return failures


# Duplicate or lost writes under concurrency


@reported("agno-agi/agno#7479", "agno-agi/agno#9450")
def test_runs_of_many_writers_at_once_are_all_there_each_once_and_in_one_piece(me, others, session):
    def work(name):
        mine = others.scope(*me.key).open(session.id)
        with mine.run(policy="enqueue", wait=None) as run:
            for number in range(3):
                run.append(user(f"{name} {number}"))

    assert together(*[lambda n=n: work(f"w{n}") for n in range(16 if FULL else 6)]) == []
    found = texts(session)
    for at in range(0, len(found), 3):
        name = found[at].split()[0]
        assert found[at : at + 3] == [f"{name} {number}" for number in range(3)]
    assert set(Counter(found).values()) == {1}
    assert len(found) == 3 * (16 if FULL else 6)


@reported("google/adk-python#4751")
def test_a_second_server_cannot_put_a_question_between_a_call_and_its_result(me, others, session):
    with session.run() as run:
        run.append(user("?"), {"role": "assistant", "content": [tool_use("t1")]})
        with pytest.raises(segue.Busy):
            others.scope(*me.key).open(session.id).append(user("and me?"))
        run.append(tool_result("t1", "done"))
    others.scope(*me.key).open(session.id).append(user("and me?"))
    assert [entry.json()["role"] for entry in session.read()] == ["user", "assistant", "user", "user"]


def tool_use(id):
    return {"type": "tool_use", "id": id, "name": "f", "input": {}}


def tool_result(id, content):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": content}]}


@reported("openai/openai-agents-python#2722", "openai/openai-agents-python#4987", "openai/openai-agents-python#2854")
@pytest.mark.parametrize("store", stores.SHARED)
def test_first_appends_of_eight_writers_to_a_fresh_store_all_land(store, tmp_path):
    for number in range(20 if FULL else 3):
        (tmp_path / str(number)).mkdir()
        with stores.url_of(store, tmp_path / str(number)) as url:

            def work(name, url=url):
                with segue.open(url) as db:
                    db.scope().open_key("chat").append(user(name))

            assert together(*[lambda n=n: work(f"w{n}") for n in range(8)]) == []  # noqa: B023
            with segue.open(url) as db:
                assert sorted(texts(db.scope().open_key("chat"))) == [f"w{n}" for n in range(8)]


@reported("google/adk-python#5244")
def test_two_threads_that_set_different_fields_lose_none(me, others, session):
    count = 200 if FULL else 40

    def work(name, db):
        mine = others.scope(*me.key).open(session.id)
        for number in range(count):
            mine.set_metadata({f"{name}{number}": number})

    assert together(lambda: work("a", others), lambda: work("b", others)) == []
    assert session.refresh().metadata == {f"{name}{number}": number for name in "ab" for number in range(count)}


@reported("anthropics/claude-code#87525", "anthropics/claude-code#37737", "siteboon/claudecodeui#1148")
def test_a_session_that_is_open_elsewhere_is_refused_and_after_a_takeover_the_first_stops(me, others, session):
    first = session.run(ttl=timedelta(seconds=30))
    first.append(user("first"))
    other = others.scope(*me.key).open(session.id)
    with pytest.raises(segue.Busy):
        other.run()
    with other.run(policy="interrupt") as second:
        second.append(user("second"))
        with pytest.raises(segue.LeaseLost):
            first.append(user("late"))
    assert texts(session) == ["first", "second"]
    assert list(me.iterate(parent=session.id)) == []


@reported("deepseek-ai/DeepSeek-V3#1624", "open-webui/open-webui#23179")
def test_a_stale_tab_conflicts_or_branches_and_newer_turns_stay(session):
    session.append(*[user(str(n)) for n in range(1, 4)])
    seen = session.refresh().head
    session.append(*[user(str(n)) for n in range(4, 11)])
    with pytest.raises(segue.HeadMoved) as caught:
        session.append(user("stale"), expect=seen)
    assert (caught.value.expected, caught.value.actual) == (3, 10)
    branch = session.fork(seen)
    branch.append(user("stale"))
    assert texts(branch) == ["1", "2", "3", "stale"]
    assert texts(session) == [str(n) for n in range(1, 11)]


@reported("agno-agi/agno#7986")
def test_an_append_as_another_user_is_loud_and_writes_nothing(db, session):
    session.append(user("mine"))
    with pytest.raises(segue.NotFound):
        db.scope("acme", "somebody else").open(session.id)
    assert texts(session) == ["mine"]


@reported("google/adk-go#1229")
def test_a_sub_agent_in_a_session_of_its_own_disturbs_no_turn_of_its_parent(me, session):
    with session.run() as run:
        run.append(user("parent 1"))
        child = me.create(listed=False)
        with child.run() as own:
            own.append(user("child 1"), user("child 2"))
        run.append(user("parent 2"))
    assert (texts(session), texts(child)) == (["parent 1", "parent 2"], ["child 1", "child 2"])
    assert [entry.seq for entry in child.read()] == [1, 2]


# Unicode, NUL, surrogates, NaN, bytes

SURROGATES = ["ok \ud83d", "\ude00 ok", "\ude00\ud83d", "a\ud83db"]


@reported("anthropics/claude-code#56064", "anthropics/claude-code#70618", "anthropics/claude-code#45982")
@pytest.mark.parametrize("text", SURROGATES)
def test_half_an_emoji_is_refused_by_name_or_kept_as_bytes(session, text):
    with pytest.raises(segue.Invalid):
        session.append(tool_result("t1", text))
    assert session.refresh().head == 0
    torn = json.dumps({"role": "user", "content": text}).encode()
    session.append(torn, kind="claude.line", format="raw")
    assert session.read()[0].body == torn


@reported("langchain-ai/langgraph#1878", "aegra/aegra#370", "nano-step/nano-brain#181")
def test_a_nul_character_comes_back_wherever_it_stands(me, session):
    session.append(user("a\x00b"), tool_result("t1", "x\x00y"))
    session.rename("title \x00 here")
    session.set_metadata({"key\x00": "value\x00"})
    again = me.open(session.id)
    assert again.read()[0].json() == user("a\x00b")
    assert again.read()[1].json() == tool_result("t1", "x\x00y")
    assert (again.info.title, again.info.metadata) == ("title \x00 here", {"key\x00": "value\x00"})


@reported("pydantic/pydantic-ai#8367", "pydantic/pydantic-ai#1081", "pydantic/pydantic-ai#1492")
def test_bytes_inside_a_message_are_refused_with_their_place(session):
    with pytest.raises(segue.Invalid) as caught:
        session.append(user("fine"), tool_result("t1", b"\xff\xfe"))
    assert "content" in f"{caught.value} {caught.value.where}"
    assert session.refresh().head == 0


@reported("pydantic/pydantic-ai#3038")
@pytest.mark.parametrize("message", [{"content": "no role"}, {"unknown": "shape"}, {"role": "user"}, {}, 7, None])
def test_a_message_of_unknown_shape_is_never_silently_without_effect(session, message):
    try:
        session.append(message)
    except segue.Invalid:
        return
    view = session.view()
    omitted = [(each.first, each.last, each.reason) for each in view.omitted]
    assert message in view.messages or omitted == [(1, 1, "not-a-message")]


@reported("langchain-ai/langgraph#8705")
def test_a_value_that_is_no_json_is_refused_with_its_path_and_nothing_is_written(session):
    class Scalar:
        """As numpy's: not a number of Python's."""

        def __float__(self):
            return 1.5

    before = session.refresh().version
    with pytest.raises(segue.Invalid) as caught:
        session.set_metadata({"n": 7, "score": Scalar()})
    assert "score" in f"{caught.value} {caught.value.where}"
    assert "metadata" in f"{caught.value} {caught.value.where}"
    assert (session.refresh().version, session.info.metadata) == (before, {})


WRITE = """
import sys, segue
with segue.open(sys.argv[1]) as db:
    session = db.scope("acme", "terminal").open_key("s", title="标题 😀")
    session.append({"role": "user", "content": "继续昨天那个脚本 😀"})
    print([info.id for info in db.scope("acme", "terminal").iterate()])
    print(db.now().isoformat(), session.read()[-1].created_at.isoformat())
"""


def in_process(tmp_path, url, **env):
    script = tmp_path / "write.py"
    script.write_text(WRITE, "utf-8")
    command = [sys.executable, "-X", "utf8=0", str(script), url]
    return subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, text=True).stdout


@reported("NousResearch/hermes-agent#117802")
def test_a_terminal_that_knows_only_ascii_spoils_nothing_that_is_stored(url, db, tmp_path):
    if url == "memory:":
        pytest.skip("a store in memory is one process's")
    in_process(tmp_path, url, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONCOERCECLOCALE="0")
    session = db.scope("acme", "terminal").get_key("s")
    assert session.info.title == "标题 😀"
    assert session.read()[0].json() == user("继续昨天那个脚本 😀")


@reported("NousResearch/hermes-agent#13090", "openai/openai-agents-python#3746")
def test_chinese_is_stored_as_itself_and_not_as_escapes(session):
    session.append(user("继续昨天那个脚本"))
    assert "昨天".encode() in session.read()[0].body


# Huge entries


@reported("earendil-works/pi#9613", "esengine/DeepSeek-Reasonix#10226")
@pytest.mark.slow
def test_a_session_full_of_images_is_opened_listed_and_tailed_in_bounded_memory(url, me, session):
    image = "iVBORw0KGgo" * 130_000
    for number in range(200 if FULL else 12):
        session.append(tool_result(f"t{number}", image))
    tracemalloc.start()
    try:
        again = me.open(session.id)
        me.list()
        assert again.read(last=2)[-1].seq == again.info.head
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(image)


@reported("openai/codex#28866")
def test_an_entry_over_the_limit_is_refused_with_the_limit(session):
    with pytest.raises(segue.Invalid, match=r"4,194,304|4 MiB"):
        session.append(user("x" * 5_000_000))
    assert session.refresh().head == 0


@reported("anthropics/claude-code#23373")
@pytest.mark.slow
def test_a_resume_costs_what_its_session_holds_and_not_what_its_sub_agents_do(me, session, monkeypatch):
    session.append(*[user(str(n)) if n % 2 == 0 else {"role": "assistant", "content": str(n)} for n in range(14)])
    for _ in range(400 if FULL else 20):
        me.create(listed=False).append(*[user(str(n)) for n in range(80 if FULL else 10)])
    assert [info.id for info in me.iterate()] == [session.id]
    seen = count_reads(session, monkeypatch)
    me.resume(session.id)
    assert sum(seen) <= 3 * 14


def count_reads(session, monkeypatch):
    store, seen = session.log.engine.store, []
    read = store.read

    def counted(*args, **options):
        entries = read(*args, **options)
        seen.append(len(entries))
        return entries

    monkeypatch.setattr(store, "read", counted)
    return seen


@reported("openclaw/openclaw#82402", "earendil-works/pi#5044")
def test_listing_reads_no_entries(me, session, monkeypatch):
    session.append(*[user("x" * 500)] * 900)
    seen = count_reads(session, monkeypatch)
    assert [info.head for info in me.iterate()] == [900]
    assert seen == []


# Order, equal times, clocks and zones


@reported("openai/openai-agents-python#1900", "mastra-ai/mastra#16597")
def test_a_thousand_entries_of_one_moment_keep_their_order(session):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    session.append(*[{"n": n} for n in range(1_000)], kind="app.fact", format="json", occurred_at=moment)
    for _ in range(50 if FULL else 5):
        assert [entry.json()["n"] for entry in session.read()] == list(range(1_000))


@reported("google/adk-python#6272", "google/adk-python#6431")
def test_lists_come_by_last_activity(db, me):
    made = []
    for _ in range(3):
        db.engine.store.shift_clock(1_000_000)
        made.append(me.create())
    db.engine.store.shift_clock(1_000_000)
    made[0].append(user("touched"))
    assert [info.id for info in me.iterate()] == [made[0].id, made[2].id, made[1].id]
    assert me.latest().id == made[0].id


@reported("inclusionAI/Avernet#857")
def test_pages_of_sessions_of_one_second_give_each_once(me):
    made = {me.create().id for _ in range(50)}
    found, cursor = [], None
    while True:
        page = me.list(limit=7, cursor=cursor)
        found += [info.id for info in page.sessions]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == sorted(made)


@reported("google/adk-python#3717")
def test_fast_appends_through_one_handle_are_no_conflict(session):
    for number in range(20):
        assert session.append(user(str(number)), expect=number).head == number + 1


@reported("google/adk-python#1180", "google/adk-python#1848", "google/adk-python#5354", "google/adk-python#4366")
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Shanghai", "Asia/Kathmandu"])
def test_times_are_the_same_instants_in_every_time_zone(url, db, zone, tmp_path):
    if url == "memory:":
        pytest.skip("a store in memory is one process's")
    lines = in_process(tmp_path, url, TZ=zone).splitlines()
    now, created = map(datetime.fromisoformat, lines[-1].split())
    assert now.utcoffset() == created.utcoffset() == timedelta(0)
    stored = db.scope("acme", "terminal").get_key("s").read()[-1]
    assert stored.created_at == created
    assert stored.created_at.tzinfo is not None


@reported("mastra-ai/mastra#16597")
def test_entries_of_one_moment_in_two_sessions_come_in_one_order_through_every_handle(me, others):
    made = [me.create() for _ in range(2)]
    for session in (*made, *made[::-1]):
        session.append({"x": 1}, kind="app.fact", format="json", refs=("source:x",))
    orders = [
        [(hit.session, hit.entry.seq) for hit in scope.by_ref("source:x")]
        for scope in (me, others.scope(*me.key))
        for _ in range(5)
    ]
    assert orders == [orders[0]] * 10
    assert len(orders[0]) == 4


# Ids and names

NAMES = ["项目/新聞", "项目/暫存", "my-proj", "my_proj", "my.proj", "my proj", "MY-PROJ", "项目新聞", "é", "e\u0301"]


@reported("anthropics/claude-code#70674", "anthropics/claude-code#40946", "anthropics/claude-code#7009")
def test_names_that_look_alike_are_different_owners(db):
    for name in NAMES:
        db.scope("projects", name).create(id="s", title=name)
    db.scope("projects", NAMES[0]).erase("s")
    kept = {name: [info.title for info in db.scope("projects", name).iterate()] for name in NAMES}
    assert kept == {name: [name] if name != NAMES[0] else [] for name in NAMES}
    assert {scope.user for scope in db.scopes() if scope.tenant == "projects"} >= set(NAMES[1:])


IDS = [
    "../../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "a\x00b", "a\rb", "a\nb", "CON", "aux.txt", "x" * 300,
    "😀", "é", "e\u0301", "dot.", "space ", " space", "a" * 255, "%2e%2e", "'; DROP TABLE sessions; --", "\u202eabc",
    "Case", "case", "-rf", "~", "$HOME", "*", "?", "a:b", "",
]  # fmt: skip


@reported("ultraworkers/claw-code#3243", "NousResearch/hermes-agent#54852", "octos-org/octos#1119")
def test_any_id_is_refused_or_kept_exactly_and_apart_from_all_others(me):
    kept = []
    for id in IDS:
        try:
            me.create(id=id, title=f"title of {id!r}")
            kept.append(id)
        except segue.Invalid:
            with pytest.raises(segue.NotFound):
                me.open(id)
    assert len(kept) > 20
    assert {info.id: info.title for info in me.iterate()} == {id: f"title of {id!r}" for id in kept}
    for id in kept:
        me.open(id).append(user(id))
    assert [texts(me.open(id)) for id in kept] == [[id] for id in kept]


# Migrations

PICKLE = b"cbuiltins\nexec\n(S'import sys; sys.unpickled = True'\ntR."


@reported("google/adk-python#3272", "google/adk-python#3681", "google/adk-python#456", "anomalyco/opencode#13560")
def test_data_of_the_first_version_is_kept_to_be_opened():
    """test_upgrade opens it, and kills migrations in the middle."""
    assert (upgrading.KEPT / "1" / "segue.db").exists()


@reported("google/adk-python#6791")
def test_a_pickle_is_bytes_and_is_never_loaded(me, session):
    session.append(PICKLE, kind="app.raw", format="raw")
    session.append({"__reduce__": ["os.system", ["true"]], "py/object": "os.system"}, kind="app.fact", format="json")
    fork = me.open(session.id).fork()
    me.resume(session.id)
    session.log.engine.store.check(deep=True)
    assert fork.read()[0].body == PICKLE
    assert not hasattr(sys, "unpickled")


@reported("danny-avila/LibreChat#15881")
def test_a_long_line_of_forks_reads_as_one_history(session):
    session.append(user("0"))
    for number in range(1, 60):
        session = session.fork()
        session.append(user(str(number)))
    assert texts(session) == [str(number) for number in range(60)]
    assert [entry.seq for entry in session.read(last=3)] == [58, 59, 60]


# Event loops and connections


@reported("langchain-ai/langgraph#6693", "natefleming/dao-ai#182", "xorbitsai/xagent#2202")
def test_a_handle_works_on_another_event_loop_than_the_one_it_was_opened_on(url):
    handle = []

    async def first():
        handle.append(await segue.aopen(url))
        session = await handle[0].scope("acme", "loops").open_key("s")
        await session.append(user("first loop"))

    async def second(text):
        session = await handle[0].scope("acme", "loops").open_key("s")
        await session.append(user(text))
        return [entry.json()["content"] async for entry in session.history()]

    asyncio.run(first())
    assert asyncio.run(second("second loop"))[-1] == "second loop"
    thread = threading.Thread(target=lambda: asyncio.run(second("a thread's loop")))
    thread.start()
    thread.join(60)
    assert asyncio.run(second("last"))[-2:] == ["a thread's loop", "last"]
    asyncio.run(handle[0].close())


@reported("langchain-ai/langgraph#7269")
@pytest.mark.slow
def test_many_sessions_at_once_share_commits_and_do_not_wait_for_each_other(me, monkeypatch):
    count, each = (64, 50) if FULL else (32, 5)
    sessions = [me.create() for _ in range(count)]
    store, commits = sessions[0].log.engine.store, []
    commit = store.commit
    monkeypatch.setattr(store, "commit", lambda ops: commits.append(len(ops)) or commit(ops))

    def work(session):
        for number in range(each):
            session.append(user(str(number)))

    assert together(*[lambda s=s: work(s) for s in sessions]) == []
    assert [texts(session) for session in sessions] == [[str(n) for n in range(each)]] * count
    assert sum(commits) == count * each
    if store.name != "memory":  # there, a commit ends before the next caller comes
        assert len(commits) < count * each


# Transactions and threads


@reported("openai/openai-agents-python#4163")
def test_a_batch_with_a_value_that_is_none_leaves_nothing_and_blocks_nobody(me, others, session):
    with pytest.raises(segue.Invalid):
        session.append(user("ok"), user(object()))
    others.scope(*me.key).open(session.id).append(user("at once"))
    assert texts(session) == ["at once"]


@reported("openai/openai-agents-python#1953", "openai/openai-agents-python#2843")
@pytest.mark.slow
def test_sixteen_threads_on_one_store_lose_nothing(session):
    each = 200 if FULL else 20

    def work(name):
        for number in range(each):
            session.append(user(f"{name} {number}"), ids=[f"{name}-{number}"])

    assert together(*[lambda n=n: work(f"t{n}") for n in range(16)]) == []
    found = session.read()
    assert [entry.seq for entry in found] == list(range(1, 16 * each + 1))
    assert len({entry.id for entry in found}) == 16 * each


# Torn and damaged files. A folder of lines is what the reports are about; what stands for them elsewhere is in
# test_torture_damage and in the stores' own tests.


@pytest.fixture
def folder(tmp_path):
    """A session of nine messages in a folder of lines: its URL, and its file."""
    url = f"jsonl:{tmp_path}/folder"
    with segue.open(url) as db:
        session = db.scope("acme", "lin").create(id="s")
        for n in range(9):
            session.append(user(f"é {n}"))
    (file,) = tmp_path.rglob("s.jsonl")
    return url, file


def opened(url, *, append=None):
    """What is shown, what is damaged (by seq), and all that the check says; after an append, if one is given."""
    with segue.open(url) as db:
        session = db.scope("acme", "lin").open("s")
        if append is not None:
            session.append(user(append))
        shown, damaged = {}, []
        for seq in range(1, session.refresh().head + 1):
            try:
                shown |= {entry.seq: entry.json()["content"] for entry in session.read(after=seq - 1, upto=seq)}
            except segue.Corrupt as error:
                damaged.append(error.seq)
        listed = [info.id for info in db.scope("acme", "lin").iterate()]
        assert listed == ["s"]
        return shown, damaged, [report for report in db.check(deep=True) if report.level != "ok"]


@reported("Tracer-Cloud/opensre#6356", "PrimeIntellect-ai/prime-agent#1785", "modelscope/ms-agent#1000")
def test_an_entry_behind_a_torn_character_is_not_glued_to_it(folder):
    url, file = folder
    with file.open("ab") as opened_file:
        opened_file.write('{"a":"é'.encode()[:-1])
    shown, damaged, findings = opened(url, append="behind")
    assert shown[10] == "behind"
    assert (len(shown), damaged) == (10, [])
    assert any("torn" in report.text for report in findings)


@reported("QwenLM/qwen-code#3656")
def test_two_records_on_one_line_are_both_read(folder):
    url, file = folder
    lines = file.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].rstrip(b"\n")
    file.write_bytes(b"".join(lines))
    shown, damaged, _ = opened(url)
    assert shown == {seq: f"é {seq - 1}" for seq in range(1, 10)}
    assert damaged == []


@reported("anthropics/claude-code#50347")
def test_a_malformed_line_in_the_middle_costs_itself_and_is_told(folder):
    url, file = folder
    lines = file.read_bytes().splitlines(keepends=True)
    lines.insert(5, b'{"summary": "half of a\n')
    file.write_bytes(b"".join(lines))
    shown, damaged, findings = opened(url)
    assert shown == {seq: f"é {seq - 1}" for seq in range(1, 10)}
    assert damaged == []
    assert findings


@reported("anthropics/claude-code#76059")
def test_blocks_of_nul_cost_what_they_cover_and_the_session_stays_listed(folder):
    url, file = folder
    lines = file.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].rstrip(b"\n") + bytes(9_000) + b"\n"
    lines[8] = bytes(len(lines[8]) - 1) + b"\n"
    file.write_bytes(b"".join(lines) + bytes(143_000))
    shown, damaged, findings = opened(url)
    assert len(shown) >= 7
    assert set(shown) | set(damaged) == set(range(1, 10))
    assert all(text == f"é {seq - 1}" for seq, text in shown.items())
    assert findings
