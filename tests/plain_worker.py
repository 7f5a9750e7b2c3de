"""
A program that talks to a stand-in for a provider: ``plain_worker.py STORE SERVER FORMAT SESSION COMMAND …``.

``turns FIRST LAST``: one run, these turns, plain and streamed in turn. Every view must be a prefix of the next.
``kill SEED TIMES SECONDS``: a turn of ten steps in a child process that is killed after a random time, until it is
done; then the next. All children are forked from here, so that the client need not be imported and made each time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import segue
from segue.adapters.tools import Tool, repeatable
from segue.compaction import Compaction, Material

STEPS = 10


def summarise(material: Material) -> str:
    return f"Goals: go on. So far {len(material.messages)} messages."


def tools_of(log: Path) -> list[Tool]:
    def step(name: str, n: int) -> str:
        with log.open("a") as file:
            file.write(f"{name} {n}\n")
        return f"step {n} of {name}"

    return [
        Tool(
            step,
            "step",
            schema={"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}},
        )
    ]


def client_of(server: str, format: str):
    """A client that has no connection yet: the children of a fork may each use their copy."""
    if format == "anthropic":
        import anthropic

        return anthropic.Anthropic(api_key="none", base_url=server, max_retries=0)
    import openai

    return openai.OpenAI(api_key="none", base_url=f"{server}/v1", max_retries=0)


class Talk:
    """One process's look at the session."""

    def __init__(self, store: str, client, format: str, session: str) -> None:
        self.db = segue.open(store)
        self.session = self.db.scope("acme", "lin").open_key(session, format=format)
        self.format = format
        self.client = client

    def chat(self, run, tools, **options):
        if self.format == "anthropic":
            thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
            return run.anthropic(
                self.client, model="m", tools=tools, system="You work.", extra_body=thinking, **options
            )
        return run.openai(self.client, model="m", tools=tools, instructions="You work.", **options)


def turns(talk: Talk, first: int, last: int, folder: Path) -> None:
    mark = folder / f"{talk.session.id}.prefix"
    how = Compaction(summarise, tokens=9_000)
    with talk.session.run() as run:
        chat = talk.chat(run, tools_of(folder / "steps"), compaction=how)
        for n in range(first, last):
            question = f"do {n % 4} by {1 + n % 2} #t{n} " + "数据 data " * 8
            if n % 2:
                for _ in chat.stream(question):
                    pass
            else:
                chat.send(question)
            assert chat.reply.text.startswith("Done: do"), chat.reply
            check_prefix(run.view(), mark)


def check_prefix(view, mark: Path) -> None:
    assert view.is_settled
    if mark.exists():
        epoch, _, before = mark.read_bytes().partition(b"\n")
        if epoch.decode() == view.epoch:
            assert view.json().startswith(before[:-1]), "a view is no prefix of the next"
    mark.write_bytes(view.epoch.encode() + b"\n" + view.json())


def kill(store: str, client, format: str, *, seed: int, times: int, longest: float, folder: Path) -> None:
    """Kill a ten-step turn ``times`` times; print what was found."""
    rng = random.Random(seed)
    killed = turn = 0
    digests: dict[str, list] = {}
    while killed < times:
        name = f"s{seed}-{turn // 4}"  # a new session every four turns
        child = os.fork()
        if child == 0:
            os._exit(attempt(store, client, format, name, turn, folder))
        if rng.random() < 0.9:
            time.sleep(rng.random() * longest)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.waitstatus_to_exitcode(status) == 0:
            turn += 1
        else:
            raise SystemExit("a resumed turn failed")
        unchanged(store, name, digests, format)
    while True:  # the last turn comes to its end
        child = os.fork()
        if child == 0:
            os._exit(attempt(store, client, format, name, turn, folder))
        if os.waitpid(child, 0)[1] == 0:
            break
        raise SystemExit("a resumed turn failed")
    lines = (folder / "steps").read_text().splitlines()
    assert len(lines) == len(set(lines)), "a tool ran twice"
    print(json.dumps({"killed": killed, "turns": turn + 1, "steps": len(lines)}))


def attempt(store: str, client, format: str, name: str, turn: int, folder: Path) -> int:
    try:
        talk = Talk(store, client, format, name)
        tools = tools_of(folder / "steps")
        how = Compaction(summarise, tokens=1_500)
        with talk.session.run(policy="enqueue", keep_open=repeatable(talk.session, tools)) as run:
            chat = talk.chat(run, [*tools], compaction=how)
            helper(talk, turn)
            question = f"do {STEPS} by {1 + turn % 2} #k{turn}"
            if turn % 2:
                for _ in chat.stream(question, id=f"q{turn}"):
                    pass
            else:
                chat.send(question, id=f"q{turn}")
            assert chat.reply.text.startswith("Done: do"), chat.reply
        talk.session.messages()
    except BaseException as error:  # noqa: BLE001 - a child of a fork has no other way to tell
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def helper(talk: Talk, turn: int) -> None:
    """A sub-agent of the turn: made once, taken up where it was left."""
    child = talk.session.child(f"turn-{turn}")
    with child.run(policy="enqueue") as run:
        assert talk.chat(run, []).send("look it up", id="q").text.startswith("Done")


def unchanged(store: str, name: str, digests: dict[str, list], format: str) -> None:
    """No stored byte ever changes: what was read once is a prefix of what is read later."""
    child = os.fork()  # reading opens the store, and a store does not survive a fork
    if child:
        assert os.waitpid(child, 0)[1] == 0, "stored entries changed"
        return
    code = 1
    try:
        file = Path(os.environ["SEGUE_DIGESTS"]) / name
        with segue.open(store) as db:
            session = db.scope("acme", "lin").get_key(name)
            entries = [] if session is None else session.read()
            now = [f"{e.seq} {e.id} {e.digest.hex()}" for e in entries]
            assert all(e.body is not None for e in entries)
            before = file.read_text().splitlines() if file.exists() else []
            if now[: len(before)] == before:
                file.write_text("\n".join(now))
                code = 0
    finally:
        os._exit(code)


def main() -> None:
    store, server, format, session, command, *rest = sys.argv[1:]
    folder = Path(os.environ["SEGUE_DIGESTS"])
    client = client_of(server, format)
    if command == "turns":
        first, last, each = map(int, rest)
        for n in range(first, last, each):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    turns(Talk(store, client, format, session), n, min(last, n + each), folder)
                    code = 0
                except BaseException as error:  # noqa: BLE001
                    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
            if os.waitpid(child, 0)[1]:
                raise SystemExit(f"the turns from {n} on failed")
    else:
        seed, times, longest = int(rest[0]), int(rest[1]), float(rest[2])
        kill(store, client, format, seed=seed, times=times, longest=longest, folder=folder)


if __name__ == "__main__":
    main()
