"""The adapter with the real CLI: outages, kills, two machines, forks, changed files. No turn is lost or overtaken."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("claude_agent_sdk", reason="the extra claude-agent-sdk is not installed")

import claude_agent_sdk as sdk

import segue
from claude_lab import CLI, Lab, clean_environment, script
from claude_stores import Flaky
from segue.adapters.claude_agent_sdk import SegueSessionStore, segue_options

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLI.exists(), reason="claude-agent-sdk has no bundled CLI on this platform"),
]
EDITS = 100 if os.environ.get("SEGUE_TORTURE") else 20


@pytest.fixture
def lab(tmp_path, monkeypatch):
    clean_environment(monkeypatch.setenv, monkeypatch.delenv)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lab = Lab(tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def opened(tmp_path):
    """Store objects on one database, each with a spool of its own, as machines have."""
    made = []

    def open_(machine="a", **options):
        spool = options.pop("spool", tmp_path / machine / "spool")
        made.append(SegueSessionStore(f"sqlite:///{tmp_path}/store.db", spool=spool, **options))
        return made[-1]

    yield open_
    for store in made:
        store.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 150))


def test_a_session_resumes_on_another_machine_in_another_directory(lab, opened):
    async def main():
        a, b = opened("a", project="analyst"), opened("b", project="analyst")
        one = await lab.ask("word-ONE", lab.options("a", "here", session_store=a))
        return one, await lab.ask("list", lab.options("b", "there", session_store=b, resume=one.session_id))

    one, two = run(main())
    assert "word-ONE" in two.text
    assert two.session_id == one.session_id
    assert two.errors == []


def test_the_request_after_a_resume_begins_with_the_same_bytes(lab, opened):
    def bare(value):  # the cache marker moves to the newest message
        if isinstance(value, dict):
            return {k: bare(v) for k, v in value.items() if k != "cache_control"}
        return [bare(v) for v in value] if isinstance(value, list) else value

    async def main():
        bash = ["Bash", {"timeout": 5000, "description": "zz", "command": "echo word-B"}]
        one = await lab.ask(script([bash]), lab.options("a", session_store=opened("a")))
        two = await lab.ask("list", lab.options("b", session_store=opened("b"), resume=one.session_id))
        return bare(one.requests[-1]), bare(two.requests[0])

    before, after = run(main())
    assert json.dumps(after["tools"]) == json.dumps(before["tools"])
    assert json.dumps(after["system"]) == json.dumps(before["system"])
    n = len(before["messages"])
    assert json.dumps(after["messages"][:n]) == json.dumps(before["messages"])


def test_an_outage_in_a_resumed_turn_loses_nothing(lab, opened, tmp_path):
    async def main():
        one = await lab.ask("word-ONE", lab.options("a", session_store=opened("a")))
        flaky = Flaky(tmp_path / "store.db")
        down = SegueSessionStore(segue.open(flaky).scope(), spool=tmp_path / "b" / "spool")
        options = segue_options(down, lab.options("b", resume=one.session_id), hooks=False)
        flaky.down_after_reads = True
        two = await lab.ask("word-TWO", options)
        waiting = len(list((tmp_path / "b" / "spool").iterdir()))
        again = await lab.ask("list", lab.options("b", session_store=opened("b"), resume=one.session_id))
        flaky.down_after_reads = False
        down.close()
        return two, waiting, again

    two, waiting, again = run(main())
    assert two.errors == []
    assert waiting > 0
    assert "word-ONE word-TWO" in again.text


KILLED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from claude_lab import Lab, script
from claude_stores import Flaky
import segue
from segue.adapters.claude_agent_sdk import SegueSessionStore, segue_options

root, url, session, is_down = Path(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5] == "down"
flaky = Flaky(root / "store.db")
flaky.down_after_reads = is_down
store = SegueSessionStore(segue.open(flaky).scope(), spool=root / "b" / "spool")
lab = Lab(root, url)
options = segue_options(store, lab.options("b", resume=session), hooks=False)
told = script([["Bash", {"command": "touch RUNNING; sleep 15 # word-TWO"}]])
asyncio.run(lab.ask(told, options))
"""


@pytest.mark.parametrize("state", ["up", "down"])
def test_a_kill_in_an_eager_resumed_turn_loses_nothing_even_during_an_outage(lab, opened, tmp_path, state):
    async def main():
        one = await lab.ask("word-ONE", lab.options("a", session_store=opened("a")))
        code = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path), lab.url, one.session_id, state]
        process = subprocess.Popen(code, start_new_session=True)  # noqa: ASYNC220
        for _ in range(600):
            if (tmp_path / "work" / "RUNNING").exists() or process.poll() is not None:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # the CLI's frames reach the SDK about every 100 ms
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return await lab.ask("list", lab.options("b", session_store=opened("b"), resume=one.session_id))

    again = run(main())
    assert "word-ONE" in again.text
    assert "word-TWO" in again.text
    assert again.errors == []
    # claude-code#1894: the call that was cut off has a result, right after it
    messages = [m for m in again.requests[0]["messages"] if isinstance(m["content"], list)]
    called = [{b["id"] for b in m["content"] if b["type"] == "tool_use"} for m in messages]
    answered = [{b["tool_use_id"] for b in m["content"] if b["type"] == "tool_result"} for m in messages]
    assert any(called)
    assert [ids for ids in called if ids] == [ids for ids in answered if ids]


@pytest.mark.parametrize("stores", ["two machines", "one process"])
def test_of_two_writers_of_one_session_the_late_one_becomes_a_reported_fork(lab, opened, stores):
    async def main():
        forks = []
        a, b = opened("a"), opened("b", on_fork=forks.append)
        c = opened("c", on_fork=forks.append) if stores == "two machines" else b
        one = await lab.ask("word-ONE", lab.options("a", session_store=a))
        await asyncio.gather(
            lab.ask(script(seconds=1, say="word-LEFT"), lab.options("b", session_store=b, resume=one.session_id)),
            lab.ask(script(seconds=2, say="word-RIGHT"), lab.options("c", session_store=c, resume=one.session_id)),
        )
        (fork,) = forks
        heard = [
            (await lab.ask("list", lab.options("d", session_store=opened("d"), resume=id))).text
            for id in (fork.session_id, fork.fork_id)
        ]
        listed = [
            found["session_id"]
            for found in await a.list_sessions(sdk.project_key_for_directory(str(lab.root / "work")))
        ]
        return one, fork, heard, listed

    one, fork, heard, listed = run(main())
    assert fork.session_id == one.session_id
    assert sorted(listed) == sorted([fork.session_id, fork.fork_id])
    assert all("word-ONE" in text for text in heard)
    assert {("word-LEFT" in text, "word-RIGHT" in text) for text in heard} == {(True, False), (False, True)}


def test_one_session_id_begun_on_two_machines_is_two_conversations(lab, opened):
    async def main():
        forks, id = [], str(uuid.uuid4())
        await lab.ask("word-ONE", lab.options("a", session_store=opened("a"), session_id=id))
        await lab.ask("word-TWO", lab.options("b", session_store=opened("b", on_fork=forks.append), session_id=id))
        (fork,) = forks
        return [
            (await lab.ask("list", lab.options("c", session_store=opened("c"), resume=one))).text
            for one in (id, fork.fork_id)
        ]

    first, second = run(main())
    assert ("word-ONE" in first, "word-TWO" in first) == (True, False)
    assert ("word-ONE" in second, "word-TWO" in second) == (False, True)


def test_a_second_machine_is_refused_before_its_cli_starts_or_waits_its_turn(lab, opened):
    async def main():
        a, b = opened("a"), opened("b")
        one = await lab.ask("word-ONE", lab.options("a", session_store=a))
        resumed = {"resume": one.session_id}
        async with a.turn(lab.options("a", **resumed)) as turn:
            with pytest.raises(segue.Busy):
                async with b.turn(lab.options("b", **resumed)):
                    raise AssertionError("it was let in")
            waiting = asyncio.create_task(_ask(lab, b.turn(lab.options("b", **resumed), policy="enqueue"), "list"))
            await lab.ask("word-TWO", turn.options)
            assert not waiting.done()
        return await waiting

    waited = run(main())
    assert "word-ONE word-TWO" in waited.text
    assert waited.errors == []


async def _ask(lab, turn, prompt):
    async with turn:
        return await lab.ask(prompt, turn.options)


def test_a_turn_that_is_interrupted_goes_on_in_a_fork(lab, opened):
    async def main():
        forks = []
        a, b = opened("a", on_fork=forks.append), opened("b")
        one = await lab.ask("word-ONE", lab.options("a", session_store=a))
        resumed = {"resume": one.session_id}
        async with a.turn(lab.options("a", **resumed)) as old:
            slow = asyncio.create_task(lab.ask(script(seconds=4, say="word-OLD"), old.options))
            await asyncio.sleep(2)
            async with b.turn(lab.options("b", **resumed), policy="interrupt") as new:
                await lab.ask("word-NEW", new.options)
            await slow
        (fork,) = forks
        store = opened("c")
        return [
            (await lab.ask("list", lab.options("c", session_store=store, resume=id))).text
            for id in (one.session_id, fork.fork_id)
        ]

    kept, forked = run(main())
    assert "word-NEW" in kept
    assert "word-OLD" in forked
    assert "word-NEW" not in forked


def test_a_fork_by_segue_resumes_with_its_subagents_and_leaves_the_original_alone(lab, opened):
    agents = {"reader": sdk.AgentDefinition(description="reads", prompt="You read.", tools=["Read"])}
    call = ["Agent", {"description": "d", "prompt": "word-SUB", "subagent_type": "reader"}]

    async def main():
        store = opened("a")
        tools = ["Agent", "Task", "Read"]
        one = await lab.ask(script([call]), lab.options("a", session_store=store, agents=agents, allowed_tools=tools))
        project = sdk.project_key_for_directory(str(lab.root / "work"))
        (info,) = store.scope.iterate()
        fork = store.scope.open(info.id).fork()
        fork_id = str(uuid.UUID(hex=fork.id))
        listed = {found["session_id"] for found in await store.list_sessions(project)}
        two = await lab.ask("word-TWO", lab.options("b", session_store=opened("b"), resume=fork_id, agents=agents))
        keys = [{"project_key": project, "session_id": id} for id in (one.session_id, fork_id)]
        subs = [await store.list_subkeys(key) for key in keys]
        return one, fork_id, listed, two, [await store.load(key) for key in keys], subs

    one, fork_id, listed, two, (original, forked), subs = run(main())
    assert listed == {one.session_id, fork_id}
    assert two.session_id == fork_id
    assert subs[0] == subs[1] != []
    assert "word-TWO" not in json.dumps(original)
    assert {line["sessionId"] for line in forked if "sessionId" in line} == {fork_id}
    assert {line["sessionId"] for line in original if "sessionId" in line} == {one.session_id}


def test_an_edit_of_a_file_that_changed_behind_the_agents_back_is_denied_with_the_reason(lab, opened):
    file = lab.root / "work" / "report.md"
    edit = ["Edit", {"file_path": str(file), "old_string": "sales", "new_string": "revenue"}]
    tools = ["Read", "Edit", "Write"]

    async def main():
        store = opened("a")
        options = lab.options("a", allowed_tools=tools, permission_mode="acceptEdits")
        file.write_text("August sales\n")
        one = await lab.ask(script([["Read", {"file_path": str(file)}]]), segue_options(store, options))
        file.write_text("September sales\n")
        options = lab.options("b", allowed_tools=tools, permission_mode="acceptEdits", resume=one.session_id)
        two = await lab.ask(script([edit]), segue_options(opened("b"), options))
        kept = file.read_text()
        read = ["Read", {"file_path": str(file)}]
        three = await lab.ask(script([read], [edit]), segue_options(opened("c"), options))
        return two, kept, three

    two, kept, three = run(main())
    assert kept == "September sales\n"
    assert "changed by somebody else" in json.dumps(two.requests[-1]["messages"][-1])
    assert "report.md" in json.dumps(two.requests[0]["messages"][-1])  # the briefing told it before the question
    assert file.read_text() == "September revenue\n"
    assert three.errors == []


def test_edits_of_unchanged_files_are_never_denied(lab, opened):
    file = lab.root / "work" / "count.txt"
    steps = [[["Read", {"file_path": str(file)}]]]
    steps += [
        [["Edit", {"file_path": str(file), "old_string": f"n={n}.", "new_string": f"n={n + 1}."}]] for n in range(EDITS)
    ]

    async def main():
        options = lab.options("a", allowed_tools=["Read", "Edit"], permission_mode="acceptEdits")
        file.write_text("n=0.\n")
        return await lab.ask(script(*steps), segue_options(opened("a"), options), seconds=140)

    reply = run(main())
    assert reply.errors == []
    assert file.read_text() == f"n={EDITS}.\n"


def test_the_example_goes_on_with_what_it_was_told(lab, tmp_path):
    def example(*arguments, machine):
        environment = {**os.environ, **lab.options(machine).env, "SEGUE_STORE": f"sqlite:///{tmp_path}/store.db"}
        program = Path(__file__).parents[1] / "examples" / "claude_agent.py"
        made = [sys.executable, str(program), *arguments]
        return subprocess.run(made, env=environment, cwd=lab.root / "work", capture_output=True, text=True, check=True)

    assert example("word-ONE", machine="a").stdout == "heard: word-ONE\n"
    assert "word-ONE word-TWO" in example("--resume", "word-TWO", machine="b").stdout
