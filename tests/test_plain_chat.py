"""The official clients, with Segue as their history, against strict stand-ins for the providers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import anthropic
import openai
import pytest

import fakes
import segue
import stores
from segue.adapters import tools as adapter_tools
from segue.adapters.chat import Unfinished
from segue.streaming import StreamBroken

FORMATS = ["anthropic", "openai.chat", "openai.responses"]


@pytest.fixture
def server():
    with fakes.serve() as server:
        server.clients = []
        yield server
        for client in server.clients:
            client.close()
        assert server.refused == []


@pytest.fixture(params=["sqlite", "memory"])
def me(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url, segue.open(url) as db:
        yield db.scope("acme", "lin")


def step(name: str, n: int) -> str:
    """Make a step."""
    return f"step {n} of {name} made"


def plain_http(library, is_async):
    """The client's own transport, without the certificates that it would read each time."""
    return (library.DefaultAsyncHttpxClient if is_async else library.DefaultHttpxClient)(verify=False)


def client_of(server, format, *, is_async=False):
    if format == "anthropic":
        kind = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
        client = kind(api_key="none", base_url=server.url, max_retries=0, http_client=plain_http(anthropic, is_async))
    else:
        kind = openai.AsyncOpenAI if is_async else openai.OpenAI
        url = f"{server.url}/v1"
        client = kind(api_key="none", base_url=url, max_retries=0, http_client=plain_http(openai, is_async))
    if not is_async:
        server.clients.append(client)
    return client


def chat_of(run, server, format, tools=(step,), client=None, **options):
    client = client or client_of(server, format)
    if format == "anthropic":
        options.setdefault("system", "You are an analyst.")
        options.setdefault("extra_body", {"thinking": {"type": "enabled", "budget_tokens": 1024}})
        return run.anthropic(client, model="claude-x", tools=tools, **options)
    return run.openai(client, model="gpt-x", tools=tools, instructions="You are an analyst.", **options)


def ask(chat, question, *, is_streamed=False, **options):
    if not is_streamed:
        return chat.send(question, **options)
    text = "".join(delta.text for delta in chat.stream(question, **options) if delta.kind == "text")
    assert chat.reply.text in text
    return chat.reply


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_question_its_calls_and_the_answer_are_in_the_log(me, server, format, is_streamed):
    session = me.create(format=format)
    with session.run() as run:
        reply = ask(chat_of(run, server, format), "do 3 by 2 #t", is_streamed=is_streamed)
        again = ask(chat_of(run, server, format), "and now?", is_streamed=is_streamed)
    assert reply.text == "Done: do 3 by 2 #t 完成"
    assert again.text.startswith("Done: and now?")
    entries = session.read(kinds=("message",))
    assert [e.origin for e in entries if e.origin in ("user", "tool")] == ["user", "tool", "tool", "tool", "user"]
    assert session.refresh().usage == reply.usage + again.usage


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_the_async_client_works_the_same(tmp_path, server, format, is_streamed):
    async def main():
        async with await segue.aopen(f"sqlite:///{tmp_path}/a.db") as db:
            session = await db.scope().create(format=format)

            async def slow(name: str, n: int) -> str:
                await asyncio.sleep(0)
                return f"{n}"

            async with client_of(server, format, is_async=True) as client, session.run() as run:
                chat = chat_of(run, server, format, tools=[adapter_tools.Tool(slow, "step")], client=client)
                if is_streamed:
                    text = "".join([d.text async for d in chat.stream("do 2 #a") if d.kind == "text"])
                    assert chat.reply.text in text
                else:
                    await chat.send("do 2 #a")
                return chat.reply.text

    assert asyncio.run(main()) == "Done: do 2 #a 完成"


@pytest.mark.parametrize("format", FORMATS)
def test_a_retry_with_the_same_id_stores_nothing_twice_and_asks_nobody(me, server, format):
    session = me.create(format=format)
    with session.run() as run:
        first = chat_of(run, server, format).send("do 1 #t", id="q1")
    head, asked = session.refresh().head, len(server.requests)
    with session.run() as run:
        second = chat_of(run, server, format).send("do 1 #t", id="q1")
    assert (second, session.refresh().head, len(server.requests)) == (first, head, asked)


@pytest.mark.parametrize("status", [400, 429, 529])
@pytest.mark.parametrize("format", FORMATS)
def test_a_refusal_leaves_the_question_and_a_retry_takes_it_up(me, server, format, status):
    session = me.create(format=format)
    server.faults = [status]
    with session.run() as run:
        chat = chat_of(run, server, format)
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)):
            chat.send("do 1 #t", id="q1")
        assert [e.origin for e in session.read(kinds=("message",))] == ["user"]
        assert chat.send("do 1 #t", id="q1").text.startswith("Done")
    assert [e.id for e in session.read(kinds=("message",))].count("q1") == 1


@pytest.mark.parametrize("cut", [1, 3, 5, 7])
@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_that_breaks_is_kept_aside_and_asked_again(me, server, format, cut):
    session = me.create(format=format)
    with session.run() as run:
        chat = chat_of(run, server, format)
        server.faults = [("cut", cut)]
        with pytest.raises(StreamBroken):
            ask(chat, "what is it about?", is_streamed=True, id="q1")
        kept = session.read(kinds=("segue.partial",))
        assert all(e.json()["partial"] for e in kept)
        assert [e.origin for e in session.read(kinds=("message",))] == ["user"]
        assert ask(chat, "what is it about?", is_streamed=True, id="q1").text.startswith("Done")
        assert not any(e.seq in seqs for e in kept for seqs in session.view().seqs)


def test_events_that_come_twice_change_nothing_where_they_have_numbers(me, server):
    session = me.create(format="openai.responses")
    server.faults = [("repeat",)]
    with session.run() as run:
        assert ask(chat_of(run, server, "openai.responses"), "hi", is_streamed=True).text == "Done: hi 完成"


@pytest.mark.parametrize("format", FORMATS)
def test_who_stops_watching_in_the_middle_leaves_a_history_that_can_go_on(me, server, format):
    session = me.create(format=format)
    with session.run() as run:
        chat = chat_of(run, server, format)
        pieces = chat.stream("do 1 #t", id="q1")
        next(pieces)
        pieces.close()
        assert chat.send("do 1 #t", id="q1").text.startswith("Done")


@pytest.mark.parametrize("format", FORMATS)
def test_errors_unknown_tools_and_bad_arguments_are_told_to_the_model(me, server, format):
    def failing(name: str) -> str:
        """It takes no n, so the call fails."""
        return name

    session = me.create(format=format)
    with session.run() as run:
        chat_of(run, server, format, tools=[]).send("do 1 #t")
        chat_of(run, server, format, tools=[adapter_tools.Tool(failing, "step")]).send("do 1 #u")
    told = [str(e.json()) for e in session.read(kinds=("message",)) if e.origin == "tool"]
    assert "no tool 'step'" in told[0]
    assert "TypeError" in told[1]


def test_a_call_of_an_idempotent_tool_is_made_again_after_a_crash(me, server):
    made = []

    def step(name: str, n: int) -> str:
        made.append(n)
        return "ok"

    again = adapter_tools.tool(step, is_idempotent=True)
    session = me.create()
    call = {"type": "tool_use", "id": "t1", "name": "step", "input": {"name": "x", "n": 1}}
    session.append({"role": "user", "content": "do 1 #x"}, {"role": "assistant", "content": [call]}, ids=["q", "a"])
    with session.run(keep_open=adapter_tools.repeatable(session, [again])) as run:
        chat_of(run, server, "anthropic", tools=[again]).go_on()
    assert made == [1]


def test_rounds_without_end_stop_at_the_limit_and_go_on(me, server):
    session = me.create()
    with session.run() as run:
        chat = chat_of(run, server, "anthropic", rounds_max=2)
        with pytest.raises(Unfinished):
            chat.send("do 3 #t")
        assert chat.go_on().text.startswith("Done")


def test_cache_marks_find_what_the_request_before_wrote(me, server):
    session = me.create()
    for n in range(12):
        with session.run() as run:
            chat_of(run, server, "anthropic").send(f"do {n % 4} #t{n}")
    usages = [e.usage for e in session.read(kinds=("message",)) if e.usage]
    assert all(one.cache_read > 0 for one in usages[1:])
    late = usages[10:]
    assert sum(one.cache_read for one in late) > 0.8 * sum(one.input for one in late)
    assert not any(b"cache_control" in e.body for e in session.read())


def test_a_changed_prompt_drops_thinking_that_was_bound_to_the_old_one(me, server):
    session = me.create()
    for system in ("You are an analyst.", "You are another.", "You are another."):
        with session.run() as run:
            chat_of(run, server, "anthropic", system=system).send("do 2 #t")
    assert len(session.read(kinds=("segue.prefix",))) == 2


def test_forks_keep_the_routing_of_the_providers_cache(me, server):
    session = me.create(format="openai.chat")
    for open_ in (lambda: session, session.fork):
        with open_().run() as run:
            chat_of(run, server, "openai.chat").send("hi")
    keys = {body["prompt_cache_key"] for _, body in server.requests}
    assert len(keys) == 1


# The provider's own copies


@pytest.mark.parametrize("state", ["previous_response_id", "conversation"])
def test_only_what_is_new_is_sent_while_the_provider_holds_the_rest(me, server, state):
    session = me.create(format="openai.responses")
    for n in range(3):
        with session.run() as run:
            chat_of(run, server, "openai.responses", state=state).send(f"do 1 #t{n}")
    sent = [len(body["input"]) for path, body in server.requests if path == "/v1/responses"]
    assert sent == [1] * 6


@pytest.mark.parametrize("state", ["previous_response_id", "conversation"])
def test_when_the_providers_copy_is_gone_our_own_is_sent(me, server, state):
    session = me.create(format="openai.responses")
    with session.run() as run:
        chat_of(run, server, "openai.responses", state=state).send("do 1 #t")
    server.responses.clear()
    server.conversations.clear()
    with session.run() as run:
        reply = chat_of(run, server, "openai.responses", state=state).send("and now?")
    assert reply.text.startswith("Done: and now?")
    assert len(server.requests[-1][1]["input"]) > 3


def test_after_thirty_days_our_own_copy_is_sent_without_asking(tmp_path, server):
    with segue.open("memory:") as db:
        session = db.scope().create(format="openai.responses")
        with session.run() as run:
            chat_of(run, server, "openai.responses", state="previous_response_id").send("hi")
        db.engine.store.shift_clock(timedelta(days=31) // timedelta(microseconds=1))
        with session.run() as run:
            chat_of(run, server, "openai.responses", state="previous_response_id").send("again")
    assert "previous_response_id" not in server.requests[-1][1]
    assert len(server.requests[-1][1]["input"]) == 4
