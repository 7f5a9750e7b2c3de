"""The hooks: what changed is told once, readings are recorded, an edit on stale ground is refused."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("claude_agent_sdk", reason="the extra claude-agent-sdk is not installed")

import claude_agent_sdk as sdk

import segue
from claude_stores import Flaky
from segue.adapters.claude_agent_sdk import Hooks, SegueSessionStore, segue_options
from segue.world import live
from test_claude_agent_sdk import KEY, conversation, line, run

HOUR_US = 3_600 * 1_000_000


class Agent:
    """A process of the CLI, as the hooks see it."""

    def __init__(self, store, cwd, **options):
        self.store, self.cwd = store, cwd
        self.matchers = Hooks(store, **options).matchers()
        self.calls = 0

    async def hook(self, event, **given):
        common = {
            "session_id": KEY["session_id"],
            "transcript_path": f"/home/.claude/projects/{KEY['project_key']}/{KEY['session_id']}.jsonl",
            "cwd": str(self.cwd),
            "hook_event_name": event,
        }
        (matcher,) = self.matchers[event]
        return await matcher.hooks[0]({**common, **given}, given.get("tool_use_id"), {"signal": None})

    async def tool(self, name, path, act=lambda: None):
        """A tool call; the reason of its denial, or None."""
        self.calls += 1
        given = {
            "tool_name": name,
            "tool_input": {"file_path": str(path)},
            "tool_use_id": f"toolu_{id(self)}_{self.calls}",
        }
        answer = await self.hook("PreToolUse", **given)
        if answer:
            assert answer["hookSpecificOutput"]["permissionDecision"] == "deny"
            return answer["hookSpecificOutput"]["permissionDecisionReason"]
        act()
        assert await self.hook("PostToolUse", **given, tool_response={}) == {}
        return None

    async def prompt(self):
        answer = await self.hook("UserPromptSubmit", prompt="go on")
        return answer.get("hookSpecificOutput", {}).get("additionalContext")


@pytest.fixture
def db(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/store.db") as db:
        yield db


@pytest.fixture
def agent(db, tmp_path):
    return Agent(SegueSessionStore(db.scope()), tmp_path)


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "report.md"
    made.write_text("sales: 1")
    return made


def facts(store, *kinds):
    (info,) = store.scope.iterate()
    return store.scope.open(info.id).read(kinds=kinds)


def test_an_edit_of_what_was_read_goes_through_and_both_are_on_record(agent, file):
    async def main():
        await agent.tool("Read", file)
        return await agent.tool("Edit", file, lambda: file.write_text("sales: 2"))

    assert run(main()) is None
    effects = [entry.json() for entry in facts(agent.store, "effect")]
    assert [effect["phase"] for effect in effects] == ["started", "completed"]
    assert effects[0]["before"]["version"] != effects[1]["version"]
    assert len(facts(agent.store, "observation")) == 2


def test_an_edit_of_a_file_that_changed_since_is_denied_until_it_is_read_again(agent, file):
    async def main():
        await agent.tool("Read", file)
        before = file.stat()
        file.write_text("sales: 7")  # same size; and the same time:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        denied = await agent.tool("Edit", file)
        await agent.tool("Read", file)
        return denied, await agent.tool("Edit", file)

    denied, allowed = run(main())
    assert "changed by somebody else" in denied
    assert "report.md" in denied
    assert allowed is None


def test_a_file_that_the_session_never_read_is_not_overwritten_but_a_new_one_may_be_made(agent, file, tmp_path):
    async def main():
        return await agent.tool("Write", file), await agent.tool("Write", tmp_path / "new.md")

    denied, allowed = run(main())
    assert "has not seen" in denied
    assert allowed is None


def test_a_file_that_is_changed_while_it_is_read_counts_as_unread(agent, file):
    async def main():
        await agent.tool("Read", file, lambda: file.write_text("sales: 9"))
        return await agent.tool("Edit", file)

    assert "has not seen" in run(main())


def test_a_hundred_edits_of_an_unchanged_file_raise_no_alarm(agent, file):
    async def main():
        await agent.tool("Read", file)
        return [await agent.tool("Edit", file, lambda n=n: file.write_text(f"sales: {n}")) for n in range(100)]

    assert set(run(main())) == {None}


def test_a_file_is_the_same_by_whatever_name(agent, file, tmp_path):
    (tmp_path / "link.md").symlink_to(file)

    async def main():
        await agent.tool("Read", "report.md")
        return await agent.tool("Edit", tmp_path / "link.md")

    assert run(main()) is None


def test_the_next_process_knows_what_the_session_has_seen(agent, file, tmp_path):
    async def main():
        await agent.tool("Read", file)
        same = await Agent(agent.store, tmp_path).tool("Edit", file, lambda: file.write_text("sales: 3"))
        again = await Agent(agent.store, tmp_path).tool("Edit", file)
        file.write_text("somebody else's")
        return same, again, await Agent(agent.store, tmp_path).tool("Edit", file)

    same, again, changed = run(main())
    assert (same, again) == (None, None)
    assert "changed by somebody else" in changed


def test_a_tool_that_failed_leaves_a_failed_effect(agent, file):
    async def main():
        await agent.tool("Read", file)
        given = {"tool_name": "Edit", "tool_input": {"file_path": str(file)}, "tool_use_id": "toolu_x"}
        await agent.hook("PreToolUse", **given)
        await agent.hook("PostToolUseFailure", **given, error="no such string")

    run(main())
    assert [entry.json()["phase"] for entry in facts(agent.store, "effect")] == ["started", "failed"]


def test_without_the_guard_nothing_is_denied_and_all_is_recorded(db, file, tmp_path):
    agent = Agent(SegueSessionStore(db.scope()), tmp_path, guard=False)
    assert run(agent.tool("Edit", file)) is None
    assert len(facts(agent.store, "effect")) == 2


def test_the_gap_and_what_changed_are_told_once_beside_the_first_question(agent, db, file, tmp_path):
    async def main():
        await conversation(agent.store, "1")
        await agent.tool("Read", file)
        file.write_text("sales: 5")
        db.engine.store.shift_clock(18 * HOUR_US)
        back = Agent(SegueSessionStore(db.scope()), tmp_path)
        await back.store.load(KEY)
        first, second = await back.prompt(), await back.prompt()
        await back.store.load(KEY)
        return first, second, await Agent(back.store, tmp_path).prompt()

    first, second, at_once = run(main())
    assert "18 h" in first
    assert "report.md" in first
    assert second is None
    assert at_once is None  # a process that starts a moment later has no news
    (note,) = facts(agent.store, "note")
    assert note.json()["text"] == first


def test_a_session_that_begins_is_told_nothing(agent):
    assert run(agent.prompt()) is None


def test_other_tools_are_recorded_by_a_function_of_the_users(db, tmp_path):
    def observe(given):
        if given["tool_name"] == "mcp__warehouse__query":
            return segue.Observation("warehouse:sales", segue.Version.of(given["tool_response"]["watermark"]))
        return None

    agent = Agent(SegueSessionStore(db.scope()), tmp_path, observe=observe)
    given = {"tool_name": "mcp__warehouse__query", "tool_input": {}, "tool_use_id": "t"}
    run(agent.hook("PostToolUse", **given, tool_response={"watermark": 8}))
    (seen,) = live(facts(agent.store, "observation")).observations
    assert (seen.source, seen.version) == ("warehouse:sales", segue.Version.of(8))


def test_the_guard_works_while_the_store_is_away(tmp_path, file):
    flaky = Flaky(tmp_path / "store.db")
    with segue.open(flaky) as db:
        store = SegueSessionStore(db.scope(), spool=tmp_path / "spool")
        agent = Agent(store, tmp_path)

        async def main():
            await store.append(KEY, [line("1")])
            await agent.tool("Read", file)
            flaky.is_down = True
            allowed = await agent.tool("Edit", file)
            file.write_text("somebody else's")
            denied = await agent.tool("Edit", file)
            flaky.is_down = False
            await store.drain()
            return allowed, denied

        allowed, denied = run(main())
        assert allowed is None
        assert "changed by somebody else" in denied
        assert [entry.json()["phase"] for entry in facts(store, "effect")] == ["started", "completed"]
        store.close()


def test_the_options_keep_what_the_user_set_and_add_the_rest(agent):
    async def mine(*_):
        return {}

    own = sdk.ClaudeAgentOptions(hooks={"PreToolUse": [sdk.HookMatcher("Bash", [mine])]}, max_turns=3)
    made = segue_options(agent.store, own)
    assert (made.max_turns, made.session_store, made.session_store_flush) == (3, agent.store, "eager")
    assert made.hooks["PreToolUse"][0].hooks == [mine]
    assert made.hooks["PreToolUse"][1].on_failure == "block"
    assert len(own.hooks["PreToolUse"]) == 1
    assert segue_options(agent.store, hooks=False).hooks is None
