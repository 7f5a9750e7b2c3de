# ruff: noqa: F401, F811 - pytest finds fixtures by their names
"""Copies between stores: nothing is lost, changed or shared otherwise, however often they are killed."""

from __future__ import annotations

import contextlib
import itertools
import threading
from datetime import timedelta

import pytest

import copies
import segue
import stores
from cli_runs import alone, cli, damage, on_a_terminal
from copies import EVERY
from segue.copying import copy
from segue.model import ScopeKey
from segue.store import Append, Create, Erase
from segue.stores.memory import MemoryStore
from segue.transfer import DIFFERENCES, _draft

ME = ScopeKey("acme", "lin")
SESSIONS = 2_400 if stores.FULL else 72  # of which some are erased again
KILLS = 25 if stores.FULL else 3
SHARED = [getattr(one, "values", (one,))[0] for one in stores.SHARED]

pytestmark = pytest.mark.timeout(3_000)


@pytest.fixture(params=stores.SHARED)
def pair(request, tmp_path):
    """A store in SQLite, and an empty one of each kind: two open databases."""
    with stores.url_of(request.param, tmp_path) as url:
        with segue.open(f"sqlite:///{tmp_path}/source.db") as source, segue.open(url) as target:
            yield source, target


@pytest.fixture
def two(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/source.db") as source, segue.open("memory:") as target:
        yield source, target


def say(session, *words):
    return session.append(*({"role": "user", "content": word} for word in words), refs=(EVERY,))


def outcome(report, id="s"):
    return next(one for one in report.sessions if one.session == id)


def assert_whole(db):
    assert [report for report in db.check(deep=True) if report.level == "damage"] == []


def assert_same(source, target):
    ours, theirs = copies.everything(source), copies.everything(target)
    assert sorted(ours) == sorted(theirs)
    for key, shown in ours.items():
        assert theirs[key] == shown, key
    then, now = copies.times(source), copies.times(target)
    assert then.keys() == now.keys()
    assert max((abs(now[key] - then[key]) for key in then), default=0) < copies.HOUR_US


# Round all stores


@pytest.mark.parametrize("names", [stores.EMBEDDED, pytest.param(SHARED, marks=pytest.mark.server)], ids=["few", "all"])
def test_mixed_sessions_go_round_all_stores_killed_at_random_and_nothing_changes(names, tmp_path, record_property):
    with contextlib.ExitStack() as opened, segue.open("memory:") as first:
        copies.fill(first, SESSIONS)
        made = sum(len(copies.listed(first, scope)) for scope in first.scopes())
        source, killed, left_out = None, 0, []
        for leg, name in enumerate([*names, "sqlite"]):
            (tmp_path / str(leg)).mkdir()
            try:
                target = opened.enter_context(stores.url_of(name, tmp_path / str(leg)))
            except pytest.skip.Exception as reason:
                left_out.append(f"{name}: {reason}")
                continue
            if source is not None:
                killed += copies.killed_copies(source, target, kills=KILLS, seed=leg)
            report = copy(source or first, target)
            assert report.is_whole
            again = copy(source or first, target)
            assert (again.entries, set(again.outcomes)) == (0, {"unchanged"})
            with segue.open(target) as db:
                assert_whole(db)
                assert_same(first, db)
            source = target
    for fact, value in {"sessions": made, "killed": killed, "lost": 0, "left out": left_out}.items():
        record_property(fact, value)
    assert killed > 0


class Stopped(Exception):
    """A copy was ended by what it told."""


def stop_at(entries):
    def progress(done):
        if done.entries >= entries:
            raise Stopped

    return progress


def test_the_test_notices_a_copy_that_takes_what_is_there_for_whole(two):
    source, target = two
    copies.facts(source.scope(*ME).create(id="s"), 900)
    with pytest.raises(Stopped):
        copy(source, target, progress=stop_at(50))
    with copies.careless():
        assert copy(source, target).entries == 0
    with pytest.raises(AssertionError):
        assert_same(source, target)
    assert copy(source, target).entries == 850
    assert_same(source, target)


# Again


def test_a_session_that_goes_on_in_the_source_goes_on_in_the_target(pair):
    source, target = pair
    session = source.scope(*ME).create(id="s", title="first")
    say(session, "one", "two")
    assert outcome(copy(source, target)).outcome == "copied"
    say(session, "three")
    session.rename("second")
    session.hollow(1)
    report = outcome(copy(source, target))
    assert (report.outcome, report.entries, report.hollowed) == ("continued", 1, 1)
    assert_same(source, target)
    assert (copy(source, target).entries, copy(source, target).outcomes) == (0, {"unchanged": 1})


def test_what_was_changed_in_the_target_is_told_and_never_overwritten(pair):
    source, target = pair
    here, there = source.scope(*ME), target.scope(*ME)
    for id in ("ahead", "both", "renamed", "put away", "same"):
        say(here.create(id=id), "one")
    copy(source, target)
    say(there.open("ahead"), "its own")
    say(there.open("both"), "its own")
    say(here.open("both"), "another")
    there.open("renamed").rename("its own")
    here.open("renamed").rename("another")
    there.open("put away").archive()
    say(here.open("put away"), "another")
    before = copies.everything(target)
    found = {one.session: one for one in copy(source, target).sessions}
    kinds = {id: one.difference and (one.difference.kind, one.difference.seq) for id, one in found.items()}
    assert kinds == {
        "ahead": ("ahead", 2),
        "both": ("entries", 2),
        "renamed": ("attributes", None),
        "put away": ("attributes", None),
        "same": None,
    }
    assert found["both"].difference.text == DIFFERENCES["entries"]
    assert copies.everything(target) == before


def test_attributes_are_the_sources_where_that_is_wanted(two):
    source, target = two
    for id in ("a", "b"):
        say(source.scope(*ME).create(id=id), "one")
    copy(source, target)
    target.scope(*ME).open("a").rename("its own")
    target.scope(*ME).open("b").archive()
    say(source.scope(*ME).open("b"), "two")
    source.scope(*ME).open("b").tag("x")
    assert copy(source, target, attributes="source").is_whole
    assert_same(source, target)


def test_forks_of_a_session_that_differs_are_made_as_far_as_it_is_the_same(two):
    source, target = two
    parent = source.scope(*ME).create(id="s")
    say(parent, "one", "two")
    copy(source, target)
    say(target.scope(*ME).open("s"), "its own")
    say(parent, "three")
    parent.fork(2, id="early")
    parent.fork(3, id="late")
    found = {one.session: one for one in copy(source, target).sessions}
    assert (found["s"].difference.kind, found["early"].outcome) == ("entries", "copied")
    assert (found["late"].difference.kind, found["late"].is_whole) == ("parent", False)


def test_ids_and_keys_that_others_have_are_told(two):
    source, target = two
    here, there = source.scope(*ME), target.scope(*ME)
    here.create(id="a", key="k")
    there.create(id="z", key="k")
    here.create(id="b", format="openai.chat")
    there.create(id="b")
    here.create(id="c")
    there.create(id="c").erase()
    found = {one.session: one.difference.kind for one in copy(source, target).sessions}
    assert found == {"a": "key", "b": "identity", "c": "erased"}
    assert set(found.values()) <= set(DIFFERENCES)


# Content that was erased


def test_a_copy_that_ended_before_it_hollowed_is_mended_by_the_next(pair):
    source, target = pair
    session = source.scope(*ME).create(id="s")
    say(session, "one", "two", "three")
    session.hollow(2)
    entries = session.read()
    store = target.engine.store
    store.commit([Create(ME, "s")])
    store.commit([Append(ME, "s", tuple(map(_draft, entries[:2])))])  # and killed
    assert copy(source, target).is_whole
    assert_whole(target)
    assert_same(source, target)


def test_content_that_was_erased_in_the_target_stays_erased(pair):
    source, target = pair
    say(source.scope(*ME).create(id="s"), "one", "two")
    copy(source, target)
    target.scope(*ME).open("s").hollow(1)
    report = outcome(copy(source, target))
    assert (report.outcome, report.left) == ("unchanged", ("hollow",))
    assert target.scope(*ME).open("s").read()[0].is_hollow


# Forks and erased parents


def erased(db, id):
    return db.engine.do(Erase(ME, id))


def generations(db):
    """Great-grandchildren, whose middle generations are erased, and one that shares with nobody who lives."""
    me = db.scope(*ME)
    root = me.create(id="root")
    say(root, "a")
    oldest = root.fork(1, id="oldest")
    db.engine.store.shift_clock(-20_000)  # clocks are set, and copies keep times to some milliseconds
    say(oldest, *"bcde")
    middle = oldest.fork(4, id="middle")
    say(middle, *"fgh")
    for number, at in enumerate((6, 5, 2)):
        say(middle.fork(at, id=f"young {number}"), "own")
    lone = me.create(id="lone")
    say(lone, *"xyz")
    lone.hollow(1)
    lone.fork(2, id="heir")
    for id in ("middle", "lone"):
        erased(db, id)


def test_what_forks_share_with_an_erased_parent_is_shared_again(pair):
    source, target = pair
    generations(source)
    report = copy(source, target)
    assert {one.session: one.entries for one in report.sessions if one.outcome == "tombstone"} == {
        "middle": 2,
        "lone": 2,
    }
    assert_same(source, target)
    assert copy(source, target).outcomes == {"unchanged": 6}
    for id in ("middle", "lone"):
        with pytest.raises(segue.Exists):
            target.scope(*ME).create(id=id)
    # Who owns what shows in what goes with whom.
    for id in ("oldest", "young 0", "heir", "root", "young 1", "young 2"):
        assert erased(source, id) == erased(target, id), id


def test_a_copy_that_ended_before_it_erased_the_parent_is_finished_by_the_next(pair):
    source, target = pair
    generations(source)

    def each(copied):
        if copied.session == "heir":
            raise Stopped

    with pytest.raises(Stopped):
        copy(source, target, each=each)
    assert target.scope(*ME).open("lone").info.is_listed is False
    assert copy(source, target).is_whole
    assert_same(source, target)


def test_a_session_that_was_erased_in_the_source_after_a_copy_is_left_and_told_where_a_fork_knows_of_it(two):
    source, target = two
    parent = source.scope(*ME).create(id="s")
    say(parent, "one", "two")
    copy(source, target)
    parent.fork(1, id="fork")
    erased(source, "s")
    found = {one.session: one for one in copy(source, target).sessions}
    assert (found["fork"].outcome, found["s"].difference.kind) == ("copied", "erased-in-source")
    assert target.scope(*ME).open("s").info.head == 2


# While the source is in use


def test_a_session_under_a_run_is_copied_up_to_its_last_batch_or_refused(pair):
    source, target = pair
    session = source.scope(*ME).create(id="s")
    with session.run(id="r") as run:
        run.append({"role": "user", "content": "one"}, refs=(EVERY,))
        forks = [session.fork(1, id=id) for id in ("f1", "f2")]
        found = copy(source, target, running="refuse")
        assert found.outcomes == {"refused": 1, "differs": len(forks)}
        assert (outcome(found).entries, outcome(found, "f1").difference.kind) == (0, "parent")
        found = outcome(copy(source, target))
        assert (found.outcome, found.entries, found.running, "lease" in found.left) == ("copied", 1, "r", True)
        run.append({"role": "assistant", "content": "two"}, refs=(EVERY,))
    assert outcome(copy(source, target)).entries == 1
    assert_same(source, target)


def test_a_run_that_waits_for_a_person_waits_in_the_target_until_it_goes_on(pair):
    source, target = pair
    session = source.scope(*ME).create(id="s")
    say(session, "one")
    session.run(id="r").pause(timedelta(days=1))
    assert copy(source, target).is_whole
    assert target.scope(*ME).open("s").info.status == "paused"
    with session.run(id="q") as run:
        run.append({"role": "assistant", "content": "two"}, refs=(EVERY,))
    copy(source, target)
    assert_same(source, target)


def test_a_run_in_the_target_is_not_disturbed(pair):
    source, target = pair
    session = source.scope(*ME).create(id="s")
    say(session, "one")
    copy(source, target)
    say(session, "two")
    with target.scope(*ME).open("s").run():
        assert outcome(copy(source, target)).outcome == "refused"
    assert outcome(copy(source, target)).entries == 1


def test_what_is_forked_and_appended_meanwhile_is_copied_too(two):
    source, target = two
    parent = source.scope(*ME).create(id="s")
    say(parent, "one")
    say(source.scope(*ME).create(id="t"), "one")

    def each(copied):
        if (copied.session, copied.outcome) == ("s", "copied"):
            say(parent, "two")
            parent.fork(2, id="fork")

    assert copy(source, target, each=each).is_whole
    assert_same(source, target)


class Forgetful(MemoryStore):
    """Does every second commit without saying so."""

    answers = itertools.cycle((False, True))

    def commit(self, ops):
        done = super().commit(ops)
        if next(self.answers):
            return done
        raise segue.OutcomeUnknown("the connection was cut")


def test_commits_of_unknown_outcome_are_asked_for_again_and_done_once():
    with segue.open("memory:") as source, segue.open(Forgetful()) as target:
        copies.fill(source, 60)
        generations(source)
        assert copy(source, target).is_whole
        assert_same(source, target)


def test_two_copies_at_once_do_no_harm(tmp_path):
    urls = "memory:two-copies", f"sqlite:///{tmp_path}/b.db"
    with segue.open(urls[0]) as source:
        copies.fill(source, 40)
        both = [threading.Thread(target=copy, args=urls) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert copy(*urls).is_whole
        with segue.open(urls[1]) as target:
            assert_whole(target)
            assert_same(source, target)


# Damage, and bad input


def test_damage_ends_only_its_session(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/source.db") as source, segue.open("memory:") as target:
        say(source.scope(*ME).create(id="s"), "one", "two")
        say(source.scope(*ME).create(id="t"), "one")
        damage(f"{tmp_path}/source.db", 2)
        found = {one.session: one for one in copy(source, target).sessions}
        assert (found["s"].outcome, found["t"].outcome) == ("damaged", "copied")
        assert "in the source: " in found["s"].reason
        assert "entry 2" in found["s"].reason
        assert_whole(target)


def test_one_owner_is_copied_alone_and_the_clock_is_what_it_was(two):
    source, target = two
    say(source.scope(*ME).create(id="s"), "one")
    say(source.scope("acme", "wu").create(id="s"), "one")
    assert copy(source, target, scope=ME).sessions == (
        outcome(copy(source, target, scope=ME))._replace(outcome="copied", entries=1),
    )
    assert list(target.scopes()) == [ME]
    assert target.engine.store._shift_us == 0


def test_a_store_is_not_copied_into_itself(tmp_path):
    with pytest.raises(segue.Invalid):
        copy(f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/a.db")
    for bad in ({"running": "stop"}, {"attributes": None}, {"target": 5}, {"source": "nothing:"}):
        with pytest.raises(segue.Invalid):
            copy(**{"source": "memory:", "target": "memory:x", **bad})
    with pytest.raises(segue.Unavailable):
        copy(f"sqlite:///{tmp_path}/none.db", "memory:")
    assert list(tmp_path.iterdir()) == []


# The command


def test_the_command_copies_once_and_says_so(cli, tmp_path):
    with segue.open("sqlite:///a.db") as db:
        generations(db)
        say(db.scope("acme", "wu").create(id="s"), "one")
    ran = cli("copy", "--from", "a.db", "--to", "jsonl:folder", "--tenant", "acme", "--user", "wu")
    assert (ran.code, "1 copied; 1 entry copied" in ran.out) == (0, True)
    ran = cli("copy", "--from", "a.db", "--to", "jsonl:folder", "--json")
    assert (ran.code, sum(line["entries"] for line in ran.lines)) == (0, 12)
    assert {line["outcome"] for line in ran.lines} == {"copied", "unchanged", "tombstone"}
    ran = cli("copy", "--from", "a.db", "--to", "jsonl:folder")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "7 unchanged; 0 entries copied")


def test_the_command_tells_of_what_differs_by_its_exit_code(cli):
    for name in ("a.db", "b.db"):
        with segue.open(f"sqlite:///{name}") as db:
            say(db.scope(*ME).create(id="s"), name)
    ran = cli("copy", "--from", "a.db", "--to", "b.db")
    assert (ran.code, DIFFERENCES["entries"] in ran.out) == (1, True)
    (line,) = cli("copy", "--store", "a.db", "--to", "b.db", "--json").lines
    assert (line["outcome"], line["difference"]["kind"], line["difference"]["seq"]) == ("differs", "entries", 1)
    assert cli("copy", "--from", "none.db", "--to", "b.db").code == 5
    assert cli("copy", "--from", "a.db", "--to", "a.db").code == 2


def test_the_command_copies_a_tenant_a_user_or_all_and_refuses_owners_without_sessions(cli, tmp_path, monkeypatch):
    owners = [ScopeKey("acme", "lin"), ScopeKey("acme", "wu"), ScopeKey("beta", "kim")]
    with segue.open("sqlite:///a.db") as db:
        for owner in owners:
            say(db.scope(*owner).create(id="s"), "one")
    for words, told in (
        (["--tenant", "acmee"], "no sessions of any user of acmee"),
        (["--tenant", "acme", "--user", "lni"], "no sessions of acme/lni"),
        (["--user", "lin"], "--tenant"),
    ):
        ran = cli("copy", "--from", "a.db", "--to", "b.db", *words)
        assert (ran.code, told in ran.err, ran.out) == (2, True, ""), words
        assert ("acme/wu" in ran.err) is (words[0] == "--tenant")
    segue.open("sqlite:///empty.db").close()
    ran = cli("copy", "--from", "empty.db", "--to", "b.db", "--tenant", "acme")
    assert (ran.code, "nobody has any there" in ran.err) == (2, True)
    assert not (tmp_path / "b.db").exists()

    def owners_of(name, *words):
        assert cli("copy", "--from", "a.db", "--to", name, *words).code == 0
        with segue.open(f"sqlite:///{name}") as db:
            return list(db.scopes())

    assert owners_of("b.db", "--tenant", "acme") == owners[:2]
    assert owners_of("c.db", "--tenant", "acme", "--user", "wu") == [owners[1]]
    monkeypatch.setenv("SEGUE_TENANT", "acme")
    monkeypatch.setenv("SEGUE_USER", "lin")
    assert owners_of("d.db") == owners
    monkeypatch.setenv("COLUMNS", "500")
    options = [line for line in cli("copy", "--help").out.splitlines() if line.lstrip().startswith(("--tenant", "--u"))]
    assert (len(options), any("SEGUE_" in line for line in options)) == (2, False)


def test_the_command_refuses_a_target_that_would_not_stay_or_is_the_source_by_another_name(cli, tmp_path):
    with segue.open("sqlite:///a.db") as db:
        say(db.scope(*ME).create(id="s"), "one")
    segue.open("jsonl:folder").close()
    (tmp_path / "link.db").symlink_to("a.db")
    (tmp_path / "other").symlink_to("folder")
    assert copy("sqlite:///a.db", "memory:").is_whole  # it may be open elsewhere in the program
    ran = cli("copy", "--from", "a.db", "--to", "memory:")
    assert (ran.code, "would be gone" in ran.err, "copied" in ran.out) == (2, True, False)
    for source, target in (
        ("sqlite:///a.db", "sqlite:///./a.db"),
        ("sqlite:///a.db", f"sqlite:///{tmp_path}/a.db"),
        ("sqlite:///link.db", "sqlite:///a.db"),
        ("jsonl:folder", "jsonl:./folder/"),
        ("jsonl:folder", "jsonl:other"),
    ):
        ran = cli("copy", "--from", source, "--to", target)
        assert (ran.code, "are the same store" in ran.err) == (2, True), target
        with pytest.raises(segue.Invalid):
            copy(source, target)


def test_the_command_draws_a_bar_on_a_terminal(alone):
    with segue.open("sqlite:///a.db") as db:
        copies.facts(db.scope(*ME).create(id="s"), 900)
    received, code = on_a_terminal("copy", "--from", "a.db", "--to", "b.db", columns=100)
    assert code == 0
    for part in ("░", "6 %", "100 %", "0 of 1 session, 50 entries", "1 of 1 session, 900 entries"):
        assert part in received
