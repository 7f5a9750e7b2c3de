"""What the store cannot take is kept on the local disk, in its order, and sent when the store is back."""

from __future__ import annotations

import asyncio
import stat
import threading
from datetime import timedelta

import pytest

pytest.importorskip("claude_agent_sdk", reason="the extra claude-agent-sdk is not installed")

import segue
from claude_stores import Flaky
from segue.adapters.claude_agent_sdk import SegueSessionStore, store
from test_claude_agent_sdk import KEY, SUB, conversation, line, run


class Machine:
    """A store object whose way to the database can be cut."""

    def __init__(self, tmp_path, name="a", **options):
        self.flaky = Flaky(tmp_path / "store.db")
        self.spool = tmp_path / name
        self.db = segue.open(self.flaky)
        self.store = SegueSessionStore(self.db.scope(), spool=self.spool, **options)

    @property
    def waiting(self):
        return sorted(path.name for path in self.spool.iterdir())

    def close(self):
        self.store.close()
        self.db.close()


@pytest.fixture
def machines(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "RETRY_SECONDS", (3_600.0, 3_600.0))  # tests say when it is tried again
    made = []

    def start(name="a", **options):
        made.append(Machine(tmp_path, name, **options))
        return made[-1]

    yield start
    for machine in made:
        machine.flaky.is_down = machine.flaky.down_after_reads = False
        machine.close()


def uuids(lines):
    return [one["uuid"] for one in lines or []]


def test_an_append_during_an_outage_is_done_and_is_there_when_the_store_is_back(machines):
    a = machines()

    async def main():
        await conversation(a.store, "1")
        a.flaky.is_down = True
        await conversation(a.store, "2", "3", parent="1")
        assert len(a.waiting) == 2
        a.flaky.is_down = False
        return await a.store.load(KEY)

    assert uuids(run(main())) == ["1", "2", "3"]
    assert a.waiting == []


def test_what_waits_is_sent_by_the_next_process(machines):
    a = machines()

    async def main():
        await conversation(a.store, "1")
        a.flaky.is_down = True
        await conversation(a.store, "2", parent="1")
        await a.store.append(SUB, [line("s", isSidechain=True), {"type": "mode", "text": "half \ud83d"}])
        again = machines()  # the same spool; the first process is gone
        return await again.store.load(KEY), await again.store.load(SUB)

    main_, sub = run(main())
    assert uuids(main_) == ["1", "2"]
    assert sub == [line("s", isSidechain=True), {"type": "mode", "text": "half \ud83d"}]


def test_only_its_owner_can_read_what_waits(machines):
    a = machines()

    async def main():
        a.flaky.is_down = True
        await conversation(a.store, "1")

    run(main())
    assert stat.S_IMODE(a.spool.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in a.spool.iterdir()] == [0o600]


def test_nothing_overtakes_what_waits(machines):
    a = machines()

    async def main():
        a.flaky.down_after_reads = True
        await conversation(a.store, "1", "2")
        a.flaky.down_after_reads = False
        await conversation(a.store, "3", parent="2")
        return await a.store.load(KEY)

    assert uuids(run(main())) == ["1", "2", "3"]


def test_lines_without_a_uuid_are_sent_once_though_the_first_attempt_had_arrived(machines):
    a = machines()
    commit = a.flaky.commit

    def lost_answer(ops):
        done = commit(ops)
        if any(type(op).__name__ == "Append" for op in ops):
            raise segue.OutcomeUnknown("the connection broke at the commit")
        return done

    async def main():
        a.flaky.commit = lost_answer
        await a.store.append(KEY, [{"type": "mode"}, {"type": "mode"}])
        assert len(a.waiting) == 1
        a.flaky.commit = commit
        return await a.store.load(KEY)

    assert run(main()) == [{"type": "mode"}, {"type": "mode"}]


def test_a_store_that_hangs_holds_nobody_up(machines):
    a = machines(patience=timedelta(seconds=0.2))
    hangs, commit = threading.Event(), a.flaky.commit

    def hang(ops):
        hangs.wait(30)
        return commit(ops)

    async def main():
        await conversation(a.store, "1")
        a.flaky.commit = hang
        await asyncio.wait_for(conversation(a.store, "2", "3", parent="1"), 5)
        assert len(a.waiting) == 2
        a.flaky.commit = commit
        hangs.set()
        return await a.store.load(KEY)

    assert uuids(run(main())) == ["1", "2", "3"]


def test_a_writer_that_was_overtaken_while_its_lines_waited_becomes_one_fork_however_often_they_are_sent(machines):
    forks = []
    a, b = machines("a"), machines("b")

    async def main():
        await conversation(a.store, "1")
        await a.store.load(KEY)
        a.flaky.is_down = True
        await conversation(a.store, "x", "y", parent="1")
        await b.store.load(KEY)
        await conversation(b.store, "2", parent="1")
        kept = {path: path.read_bytes() for path in a.spool.iterdir()}
        for _ in range(2):  # the second time is a process that was killed before it removed the records
            for path, data in kept.items():
                path.write_bytes(data)
            again = machines("a", on_fork=forks.append)
            assert await again.store.drain() == 0
        listed = await b.store.list_sessions(KEY["project_key"])
        return [uuids(await b.store.load({**KEY, "session_id": one["session_id"]})) for one in listed]

    assert sorted(run(main())) == [["1", "2"], ["1", "x", "y"]]
    assert len({fork.fork_id for fork in forks}) == 1


def test_records_of_one_writer_are_its_own_though_a_kill_came_between_them(machines):
    a = machines()

    async def main():
        await conversation(a.store, "1")
        a.flaky.is_down = True
        await conversation(a.store, "2", "3", parent="1")
        second = sorted(a.spool.iterdir())[1]
        kept = second.read_bytes()
        second.unlink()
        await machines().store.drain()  # the first record was sent, then the process was killed
        second.write_bytes(kept)
        again = machines()
        return await again.store.load(KEY), len(await again.store.list_sessions(KEY["project_key"]))

    loaded, sessions = run(main())
    assert uuids(loaded) == ["1", "2", "3"]
    assert sessions == 1


def test_a_damaged_record_is_put_aside_and_holds_up_no_other(machines, caplog):
    a = machines()

    async def main():
        a.flaky.is_down = True
        await conversation(a.store, "1", "2")
        first = min(a.spool.iterdir())
        first.write_bytes(first.read_bytes().replace(b"place", b"plaza"))
        a.flaky.is_down = False
        await a.store.drain()
        return await a.store.load(KEY)

    assert uuids(run(main())) == ["2"]
    assert [name.rpartition(".")[2] for name in a.waiting] == ["aside"]
    assert "put aside" in caplog.text


def test_lines_for_a_session_that_was_deleted_meanwhile_do_not_bring_it_back(machines):
    a, b = machines("a"), machines("b")

    async def main():
        await conversation(a.store, "1")
        await a.store.load(KEY)
        a.flaky.is_down = True
        await conversation(a.store, "2", parent="1")
        await b.store.delete(KEY)
        a.flaky.is_down = False
        await a.store.drain()
        return await b.store.load(KEY)

    assert run(main()) is None
    assert a.waiting == []


def test_when_the_spool_fails_too_the_sdk_is_told(machines, monkeypatch):
    a = machines()

    def full(*_):
        raise OSError("no space left on device")

    async def main():
        a.flaky.is_down = True
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(segue.Unavailable, match="neither the store nor the spool"):
            await conversation(a.store, "1")

    run(main())
    assert a.waiting == []


def test_the_spool_of_one_store_and_user_is_not_that_of_another(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    absolute = store._own_spool(f"sqlite:///{tmp_path}/a.db", "t", "u")
    assert store._own_spool("sqlite:///a.db", "t", "u") == absolute
    others = [("sqlite:///b.db", "t", "u"), ("sqlite:///a.db", "t2", "u"), ("sqlite:///a.db", "t", "u2")]
    assert absolute not in {store._own_spool(*one) for one in others}
    assert store._own_spool("memory:", "t", "u") is None
