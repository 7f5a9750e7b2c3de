"""Turns without the CLI: what they find, hold, refuse and give back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

pytest.importorskip("claude_agent_sdk", reason="the extra claude-agent-sdk is not installed")

import claude_agent_sdk as sdk

import segue
from segue.adapters.claude_agent_sdk import SegueSessionStore, mirror
from test_claude_agent_sdk import KEY, conversation, line, run


@pytest.fixture
def store(tmp_path):
    with SegueSessionStore(f"sqlite:///{tmp_path}/store.db", spool=tmp_path / "spool") as store:
        yield store


def options(**more):
    return sdk.ClaudeAgentOptions(cwd="/srv/app", **more)


def lease(store, session_id):
    return next(info.lease for info in store.scope.iterate() if info.metadata["claude"]["session"] == session_id)


def test_a_turn_holds_its_session_and_gives_it_back(store):
    async def main():
        async with store.turn(options()) as turn:
            held = lease(store, turn.session_id)
            assert turn.options.session_id == turn.session_id
        return held, lease(store, turn.session_id)

    held, after = run(main())
    assert held.state == "running"
    assert after is None


def test_a_turn_that_fails_gives_its_session_back(store):
    async def main():
        with pytest.raises(ZeroDivisionError):
            async with store.turn(options()) as turn:
                raise ZeroDivisionError
        return lease(store, turn.session_id)

    assert run(main()) is None


def test_a_session_that_a_turn_began_is_listed_once_it_has_a_line(store):
    async def main():
        async with store.turn(options()) as turn:
            before = await store.list_sessions(KEY["project_key"])
            await conversation(store, "1", key={**KEY, "session_id": turn.session_id})
        return before, len(await store.list_sessions(KEY["project_key"]))

    assert run(main()) == ([], 1)


def test_continue_goes_on_with_the_newest_conversation_and_without_one_begins(store):
    async def main():
        async with store.turn(options(continue_conversation=True)) as turn:
            begun = turn.options.resume, turn.session_id
            await conversation(store, "1", key={**KEY, "session_id": turn.session_id})
        sidechain = {**KEY, "session_id": str(uuid.uuid4())}
        await store.append(sidechain, [line("s", isSidechain=True)])
        async with store.turn(options(continue_conversation=True)) as turn:
            return begun, (turn.options.resume, turn.session_id, turn.options.continue_conversation)

    (resumed, id), again = run(main())
    assert resumed is None
    assert again == (id, id, False)


def test_a_fork_in_a_turn_leaves_the_original_free(store):
    async def main():
        await conversation(store, "1")
        async with store.turn(options(resume=KEY["session_id"], fork_session=True)) as turn:
            return turn.session_id, turn.options.session_id, lease(store, KEY["session_id"])

    id, given, original = run(main())
    assert id == given != KEY["session_id"]
    assert original is None


def test_a_rollback_is_refused_since_the_cli_cannot_take_back(store):
    with pytest.raises(segue.Invalid, match="rollback"):
        store.turn(options(), policy="rollback")


HOLDER = """
import asyncio, sys
import claude_agent_sdk as sdk
from segue.adapters.claude_agent_sdk import SegueSessionStore

async def main():
    store = SegueSessionStore(sys.argv[1], spool=False)
    async with store.turn(sdk.ClaudeAgentOptions(cwd="/srv/app", resume=sys.argv[2])):
        print("held", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_session_whose_holder_was_killed_opens_at_once(store, tmp_path):
    """claude-code#5524: no mark of a dead process is in the way."""
    run(conversation(store, "1"))
    url = f"sqlite:///{tmp_path}/store.db"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, url, KEY["session_id"]], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"

    async def main():
        with pytest.raises(segue.Busy):
            async with store.turn(options(resume=KEY["session_id"])):
                pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        async with store.turn(options(resume=KEY["session_id"])) as turn:
            return turn.session_id

    with holder:
        assert run(main()) == KEY["session_id"]


def test_a_session_keeps_its_id_over_many_turns(store):
    """claude-code#10806."""

    async def main():
        await conversation(store, "0")
        for n in range(3):
            async with store.turn(options(resume=KEY["session_id"])) as turn:
                assert turn.session_id == KEY["session_id"]
                await store.load(KEY)
                await conversation(store, str(n + 1), parent=str(n))
        return [one["uuid"] for one in await store.load(KEY)], len(list(store.scope.iterate()))

    assert run(main()) == (["0", "1", "2", "3"], 1)


def test_an_erased_text_leaves_the_list_of_a_running_process_in_time(store, monkeypatch):
    async def main():
        await conversation(store, "1")
        await store.list_session_summaries(KEY["project_key"])
        (info,) = store.scope.iterate()
        store.scope.open(info.id).hollow(1)
        monkeypatch.setattr(mirror, "FOLD_SECONDS", 0.0)
        (found,) = await store.list_session_summaries(KEY["project_key"])
        return found["data"]

    assert "text of 1" not in str(run(main()))
