"""A log in memory that counts what is read of it, random histories, and validators written apart from Segue's."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from segue import codec
from segue.errors import ViewInvalid
from segue.formats import rules
from segue.formats.anthropic import EARLIER
from segue.model import Entry, Hit
from segue.view import View, ViewSpec, build, open_calls, plan_cut

FORMATS = ("anthropic", "openai.responses", "openai.chat")


class Log:
    """What a session gives to a view. ``given`` counts the entries that were handed out."""

    def __init__(self, format: str = "anthropic") -> None:
        self.format = format
        self.entries: list[Entry] = []
        self.given = 0

    def add(self, value: Any, *, kind="message", format=None, origin=None, refs=None, run=None) -> int:
        format = format or (self.format if kind == "message" else "segue")
        body = value if isinstance(value, bytes) else codec.encode(value)
        if refs is None:
            known = rules(format)
            refs = known.refs(codec.decode(body)) if kind == "message" and known else (kind,)
        if origin is None and kind == "message" and rules(format):
            answers = rules(format).results(codec.decode(body))
            origin = "tool" if answers else {"assistant": "model"}.get(rules(format).role(codec.decode(body)), "user")
        seq = len(self.entries) + 1
        origin = origin or "system"
        self.entries.append(
            Entry(seq, f"e{seq}", kind, format, origin, body, codec.digest(body), tuple(refs), run, seq, None, None)
        )
        return seq

    def hollow(self, seq: int) -> None:
        self.entries[seq - 1] = self.entries[seq - 1]._replace(body=None, refs=())

    def note(self, text: str, carrier: str | None = None) -> int:
        message = rules(self.format).note(text, carrier)
        return self.add({"facts": {}, "text": text, "message": message, "for": self.format}, kind="note")

    def cut(self, upto: int, summary: Any = None, **more: Any) -> int:
        return self.add({"upto": upto, "summary": summary, **more}, kind="cut")

    def retract(self, *seqs: int, **more: Any) -> int:
        return self.add({"seqs": list(seqs), **more}, kind="retract")

    def read(self, *, after=0, upto=None, kinds=None, reverse=False, limit=None) -> list[Entry]:
        found = [e for e in self.entries[after:upto] if kinds is None or e.kind in kinds]
        if reverse:
            found.reverse()
        self.given += len(found[:limit])
        return found[:limit]

    def by_ref(self, ref, *, after=0, upto=None, reverse=False, limit=10_000) -> list[Hit]:
        found = [Hit("s", e) for e in self.entries[after:upto] if ref in e.refs]
        if reverse:
            found.reverse()
        self.given += len(found[:limit])
        return found[:limit]

    def view(self, upto: int | None = None, **spec: Any) -> View:
        return build(self, ViewSpec(self.format, **spec), len(self.entries) if upto is None else upto)


# Makers of messages, by format.


def user(format: str, text: str) -> Any:
    if format == "openai.responses":
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"role": "user", "content": text}


def said(format: str, text: str) -> Any:
    if format == "openai.responses":
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"role": "assistant", "content": text}


def called(format: str, *ids: str, text: str = "", thinking: str = "") -> list[Any]:
    """The entries in which the model makes these calls, in parallel."""
    if format == "anthropic":
        blocks = [{"type": "thinking", "thinking": thinking, "signature": "c2ln"}] if thinking else []
        blocks += [{"type": "text", "text": text}] if text else []
        blocks += [{"type": "tool_use", "id": i, "name": "look", "input": {"n": 1}} for i in ids]
        return [{"role": "assistant", "content": blocks}]
    if format == "openai.chat":
        calls = [{"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in ids]
        return [{"role": "assistant", "content": text or None, "tool_calls": calls}]
    items = [{"type": "reasoning", "id": f"rs_{thinking}", "summary": [], "encrypted_content": "e"}] if thinking else []
    return items + [{"type": "function_call", "call_id": i, "name": "look", "arguments": "{}"} for i in ids]


def result(format: str, call_id: str, text: str = "done") -> Any:
    if format == "anthropic":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}
    if format == "openai.chat":
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def begins_with_opening(view: View) -> bool:
    """Does a message that the view made up stand for what was left out before it?"""
    return bool(view.bodies) and not view.seqs[0] and 0 in view.synthetic and EARLIER.encode() in view.bodies[0]


def check_beginning(view: View, log: Log | None = None) -> None:
    """Where something was left out before it, a view never begins with the assistant."""
    if view.spec.format != "anthropic" or not view.messages or view.messages[0]["role"] == "user":
        return
    content = view.messages[0]["content"]
    if isinstance(content, list) and content[0]["type"] == "compaction":
        return
    first = min(view.seqs[0])
    assert all(one.first >= first for one in view.omitted), "it begins with the assistant"
    cut = None if log is None or view.cut is None else log.entries[view.cut - 1]
    assert view.cut is None or (cut is not None and cut.kind == "cut" and cut.json()["upto"] == 0)


# Strict validators, by the providers' rules alone.


def strict(format: str, messages: list[Any]) -> None:
    {"anthropic": strict_anthropic, "openai.responses": strict_responses, "openai.chat": strict_chat}[format](messages)


def _content(message: Any) -> list[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def strict_anthropic(messages: list[Any]) -> None:
    server_open: set[str] = set()
    for n, message in enumerate(messages):
        assert set(message) <= {"role", "content", "clear_at", "output_config"}, message
        blocks = _content(message)
        assert blocks, f"{n} is empty"
        for block in blocks:
            assert "cache_control" not in block
            assert block["type"] != "text" or block["text"].strip(), f"empty text in {n}"
        if message["role"] == "assistant":
            assert blocks[-1]["type"] not in ("thinking", "redacted_thinking"), f"{n} ends in thinking"
            uses = [b["id"] for b in blocks if b["type"] == "tool_use"]
            assert len(uses) == len(set(uses))
            if uses:
                assert n + 1 < len(messages), f"calls of {n} have no results"
                after = messages[n + 1]
                assert after["role"] == "user"
                given = [b["tool_use_id"] for b in _content(after) if b["type"] == "tool_result"]
                assert sorted(given) == sorted(uses), (n, given, uses)
            for b in blocks:
                if b["type"] == "server_tool_use":
                    server_open.add(b["id"])
                elif b["type"].endswith("_tool_result"):
                    assert b["tool_use_id"] in server_open, b
                    server_open.discard(b["tool_use_id"])
                elif b["type"] == "compaction" and b["content"]:
                    assert n == 0 and b is blocks[0]
        elif message["role"] == "user":
            kinds = [b["type"] == "tool_result" for b in blocks]
            assert kinds == sorted(kinds, reverse=True), f"text before results in {n}"
            if any(kinds):
                before = messages[n - 1]
                assert n and before["role"] == "assistant"
                uses = [b["id"] for b in _content(before) if b["type"] == "tool_use"]
                assert all(b["tool_use_id"] in uses for b in blocks if b["type"] == "tool_result")
            if not all(kinds):
                assert not server_open, f"{server_open} not ended before {n}"


def strict_chat(messages: list[Any]) -> None:
    waiting: list[str] = []
    for n, message in enumerate(messages):
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, f"{n} answers nothing"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"{waiting} open before {n}"
        if message["role"] == "assistant":
            assert "tool_calls" not in message or message["tool_calls"]
            assert message.get("content") or message.get("tool_calls") or message.get("refusal")
            waiting = [call["id"] for call in message.get("tool_calls", ())]
            assert len(waiting) == len(set(waiting))
        else:
            assert message["content"]
    assert not waiting, f"{waiting} open at the end"


_MADE = ("reasoning", "program", "program_output", "compaction", "mcp_approval_request", "mcp_list_tools")


def strict_responses(items: list[Any]) -> None:
    ids: set[str] = set()
    waiting: list[str] = []
    for n, item in enumerate(items):
        kind = item.get("type", "message")
        assert kind != "compaction_trigger" or n == len(items) - 1
        if item.get("id") is not None:
            assert item["id"] not in ids, f"id {item['id']} twice"
            assert item["id"] != "__fake_id__"
            ids.add(item["id"])
        if n and items[n - 1].get("type") == "reasoning":
            made = kind in _MADE or kind.endswith("_call") or (kind == "message" and item["role"] == "assistant")
            assert made, f"reasoning before {n} has lost its item"
        if kind == "reasoning":
            assert item.get("id") or item.get("encrypted_content")
        elif kind == "message":
            assert item["content"]
        elif kind.endswith("_call") and "call_id" in item and item.get("async") is not True:
            assert item["call_id"] not in waiting
            waiting.append(item["call_id"])
        elif kind.endswith("_output") and item.get("call_id"):
            if item["call_id"] in waiting:
                waiting.remove(item["call_id"])
            else:
                asked = [i for i in items[:n] if i.get("call_id") == item["call_id"] and i.get("async")]
                assert asked, f"{n} answers nothing"
    assert not waiting, f"{waiting} have no output"
    assert not items or items[-1].get("type") != "reasoning"


# Random histories.

OPS = (
    *("user", "said", "call", "calls", "result", "result", "result", "results", "mixed", "think", "thought call"),
    *("split", "note", "system note", "empty", "blank", "garbage", "raw", "foreign", "orphan", "again", "broken"),
    *("server", "server end", "marks", "whole response", "retract", "retract run", "cut", "hollow", "observe"),
    *("same id", "later", "dump"),
)


class Grower:
    """Makes one random history grow, one operation at a time: valid and invalid entries, in odd bytes."""

    def __init__(self, format: str) -> None:
        self.format = format
        self.log = Log(format)
        self.made: list[str] = []  # ids of calls
        self.number = 0

    def do(self, op: str, a: int, b: int) -> None:
        getattr(self, "_" + op.replace(" ", "_"))(a, b)

    def _next(self, prefix: str = "c") -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def _put(self, value: Any, **more: Any) -> None:
        style = len(self.log.entries) % 3
        body = codec.encode(value) if style == 0 else json.dumps(value, ensure_ascii=style == 1).encode()
        self.log.add(body, run=f"r{len(self.log.entries) // 4}", **more)

    def _user(self, a, b):
        self._put(user(self.format, f"问题 {a}"))

    def _said(self, a, b):
        self._put(said(self.format, f"réponse {a}"))

    def _call(self, a, b):
        self.made.append(self._next())
        for value in called(self.format, self.made[-1], text="x" * (a % 2)):
            self._put(value)

    def _calls(self, a, b):
        ids = [self._next() for _ in range(2 + a % 2)]
        self.made += ids
        for value in called(self.format, *ids):
            self._put(value)

    def _pick(self, a: int) -> str:
        return self.made[-1 - a % min(len(self.made), 4)] if self.made else "nobody"

    def _result(self, a, b):
        self._put(result(self.format, self._pick(a), f"ok {b}"))

    def _results(self, a, b):
        if self.format != "anthropic":
            return self._result(a, b)
        ids = dict.fromkeys((self._pick(a), self._pick(a + 1)))
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": [{"type": "text", "text": "1.50"}]} for i in ids]
        self._put({"role": "user", "content": blocks})

    def _mixed(self, a, b):
        if self.format != "anthropic":
            return self._result(a, b)
        blocks = [*result(self.format, self._pick(a))["content"], {"type": "text", "text": "and"}]
        self._put({"role": "user", "content": blocks[:: -1 if b % 2 else 1]})

    def _think(self, a, b):
        if self.format == "anthropic":
            self._put({"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "ab=="}]})
        elif self.format == "openai.responses":
            self._put({"type": "reasoning", "id": self._next("rs_"), "summary": []})

    def _thought_call(self, a, b):
        self.made.append(self._next())
        for value in called(self.format, self.made[-1], thinking=self.made[-1]):
            self._put(value)

    def _split(self, a, b):
        self._call(a, b)
        self._call(a, b)

    def _note(self, a, b):
        self.log.note(f"note {a}")

    def _system_note(self, a, b):
        self.log.note(f"note {a}", "system")

    def _empty(self, a, b):
        self._put(
            {"type": "message", "role": ("assistant", "user")[a % 2], "content": []}
            if a % 3
            else {"role": "user", "content": ""}
        )

    def _blank(self, a, b):
        if self.format == "anthropic":
            content = [{"type": "text", "text": " \n"}, {"type": "text", "text": "x"}][: 1 + a % 2]
            self._put({"role": ("user", "assistant")[b % 2], "content": content})

    def _broken(self, a, b):
        if self.format == "anthropic":
            call = {"type": "tool_use", "id": self._next(), "name": "n", "input": '{"a": '}
            answer = {"type": "tool_result", "content": "to whom?"}
            blocks = [{"type": "text", "text": "so"}, (call, answer)[a % 2]][b % 2 :]
            self._put({"role": ("assistant", "user")[a % 2], "content": blocks})

    def _garbage(self, a, b):
        self._put([None, 7, "text", [], {}, {"role": "robot", "content": "x"}, {"role": "user", "content": 5}][a % 7])

    def _raw(self, a, b):
        self.log.add(b'{"role": "user", torn', format="raw", origin="import", refs=())

    def _foreign(self, a, b):
        self.log.add({"parts": []}, format="gemini.content", origin="user", refs=())

    def _orphan(self, a, b):
        self._put(result(self.format, f"never{a}"))

    def _again(self, a, b):
        if self.log.entries:
            entry = self.log.entries[a % len(self.log.entries)]
            if entry.kind == "message" and entry.body is not None and entry.format == self.format:
                self.log.add(entry.body)

    def _server(self, a, b):
        if self.format == "anthropic":
            use = {"type": "server_tool_use", "id": self._next("srv"), "name": "web_search", "input": {}}
            blocks = [{"type": "text", "text": "let me see"}, use]
            if a % 2:
                blocks.append({"type": "web_search_tool_result", "tool_use_id": use["id"], "content": []})
            if b % 3 == 0:
                self.made.append(self._next())
                caller = {"type": "code_execution_20260120", "tool_id": use["id"]}
                blocks.append({"type": "tool_use", "id": self.made[-1], "name": "n", "input": {}, "caller": caller})
            self._put({"role": "assistant", "content": blocks})
        elif self.format == "openai.responses":
            self._put({"type": "web_search_call", "id": self._next("ws_"), "status": "completed"})

    def _server_end(self, a, b):
        if self.format == "anthropic":
            block = {
                "type": "web_search_tool_result",
                "tool_use_id": f"srv{max(1, self.number - a % 3)}",
                "content": [],
            }
            self._put({"role": "assistant", "content": [block, {"type": "text", "text": "found"}]})

    def _marks(self, a, b):
        if self.format == "anthropic":
            block = {"type": "text", "text": "第一", "cache_control": {"type": "ephemeral"}}
            self._put({"role": "user", "content": [block]})

    def _whole_response(self, a, b):
        if self.format == "anthropic":
            content = [{"type": "text", "text": "hello"}]
            self._put({"id": "msg_1", "type": "message", "role": "assistant", "content": content, "usage": {}})

    def _retract(self, a, b):
        if self.log.entries:
            self.log.retract(1 + a % len(self.log.entries))

    def _retract_run(self, a, b):
        self.log.retract(run=f"r{a % (1 + len(self.log.entries) // 4)}")

    def _cut(self, a, b):
        if self.log.entries:
            text = rules(self.format).summary("what was") if b % 2 else None
            self.log.cut(len(self.log.entries) - a % 4 % (1 + len(self.log.entries)), text)

    def _hollow(self, a, b):
        if self.log.entries:
            self.log.hollow(1 + a % len(self.log.entries))

    def _observe(self, a, b):
        self.log.add({"source": "file:x"}, kind="observation")

    def _same_id(self, a, b):
        if self.format == "openai.responses":
            self._put({**said(self.format, f"v{b}"), "id": ("msg_1", "__fake_id__")[a % 2], "status": "completed"})

    def _later(self, a, b):
        if self.format == "openai.responses":
            self.made.append(self._next())
            self._put({**called(self.format, self.made[-1])[0], "async": True})

    def _dump(self, a, b):
        if self.format == "openai.chat":
            self._put({"role": "assistant", "content": "hi", "refusal": None, "tool_calls": ([], None)[a % 2]})


def reported(view: View) -> set[int]:
    """Every seq that the view shows or says that it left out."""
    found = {seq for seqs in view.seqs for seq in seqs}
    for omission in view.omitted:
        found.update(range(omission.first, omission.last + 1))
    return found


def check_growth(format: str, ops: list[tuple[str, int, int]]) -> None:
    """Grow a history, and hold every view on the way to what a view promises."""
    grower = Grower(format)
    log = grower.log
    settled: View | None = None
    for op in ops:
        grower.do(*op)
        view = log.view(foreign="omit")
        strict(format, view.messages)
        assert [codec.decode(body) for body in view.bodies] == view.messages
        assert len(view.bodies) == len(view.seqs)
        check_complete(log, view)
        check_beginning(view, log)
        check_exact(log, view)
        if settled is not None and settled.epoch == view.epoch:
            assert view.bodies[: len(settled.bodies)] == settled.bodies, "a settled prefix changed within an epoch"
        if view.is_settled:
            settled = view
        assert open_calls(log, format, len(log.entries)) == view.open_calls
        check_settling(log, view)
        kept = log.view(foreign="omit", keep_open=frozenset(grower.made))
        assert kept.bodies == view.bodies[: len(kept.bodies)], "waiting for a person must only end the view earlier"
        check_complete(log, kept)
    check_windows(log)
    check_cuts(log)


def check_complete(log: Log, view: View) -> None:
    """Nothing is missing without being reported, and nothing retracted, erased or covered by the cut is shown."""
    start = 0
    gone: set[int] = set()
    if view.cut is not None:
        entry = log.entries[view.cut - 1]
        start = entry.json()["upto"] if entry.kind == "cut" else view.cut - 1
    for entry in log.entries:
        if entry.kind == "retract" and entry.body is not None:
            gone |= {seq for seq in entry.json()["seqs"] if seq < entry.seq}
    ours = {e.seq for e in log.entries if e.kind in ("message", "note") and e.seq > start}
    assert ours <= reported(view), f"silently missing: {ours - reported(view)}"
    shown = {seq for seqs in view.seqs for seq in seqs} - {view.cut}
    assert all(seq > start for seq in shown), "something from before the cut is shown"
    assert all(log.entries[seq - 1].body is not None for seq in shown)
    voided = {seq for seq in gone if log.entries[seq - 1].kind == "retract"}
    held = {s for e in log.entries if e.kind == "retract" and e.body and e.seq not in voided for s in e.json()["seqs"]}
    assert not {seq for seq in shown if seq in held and log.entries[seq - 1].kind != "retract"} - _again_held(log)


def _again_held(log: Log) -> set[int]:
    """Entries whose retraction is itself taken back by something more tangled than one step: not judged here."""
    retracts = [e for e in log.entries if e.kind == "retract" and e.body is not None]
    seqs = {e.seq for e in retracts}
    tangled = [e for e in retracts if seqs & set(e.json()["seqs"])]
    return {s for e in retracts for s in e.json()["seqs"]} if tangled else set()


def check_exact(log: Log, view: View) -> None:
    """What is sent has the very bytes in which it was stored: whole messages, or at least every block."""
    for index, (body, seqs) in enumerate(zip(view.bodies, view.seqs, strict=True)):
        stored = [log.entries[seq - 1].body for seq in seqs if log.entries[seq - 1].kind == "message"]
        if len(seqs) == 1 and stored and index not in view.synthetic:
            value = codec.decode(stored[0])
            if value == codec.decode(body):
                assert body == stored[0], "the bytes changed, the value did not"
        if log.format == "anthropic" and stored:
            known = [raw for one in stored for raw in _raw_blocks(one)]
            for raw in _raw_blocks(body):
                assert raw in known or b"Interrupted" in raw or b"removed" in raw or _was_cleaned(raw, known), raw


class _Content(msgspec.Struct):
    content: msgspec.Raw


def _raw_blocks(body: bytes) -> list[bytes]:
    content = bytes(msgspec.json.decode(body, type=_Content).content)
    if content[:1] != b"[":
        return [b'{"type":"text","text":' + content + b"}"]
    return [bytes(raw) for raw in msgspec.json.decode(content, type=list[msgspec.Raw])]


def _was_cleaned(raw: bytes, known: list[bytes]) -> bool:
    """Is it a block out of which a cache mark had to be taken?"""
    blocks = [codec.decode(one) for one in known]
    return any(
        {k: v for k, v in b.items() if k != "cache_control"} == codec.decode(raw)
        for b in blocks
        if "cache_control" in b
    )


def check_settling(log: Log, view: View) -> None:
    """Appending the settlements that are asked for changes nothing: the view had them already."""
    if not view.open_calls:
        return
    after = Log(log.format)
    after.entries = list(log.entries)
    for call in view.open_calls:
        after.add(rules(log.format).settlement(call), origin="system")
    settled = after.view(foreign="omit")
    assert settled.bodies == view.bodies
    assert settled.is_settled or not view.is_settled
    assert not settled.open_calls


def check_cuts(log: Log) -> None:
    """A cut where plan_cut says leaves exactly the messages that it said would stay."""
    view = log.view(foreign="omit")
    for budget in (20, 60, view.estimated_tokens // 2, view.estimated_tokens - 1):
        if budget < 1:
            continue
        cut = plan_cut(view, view.spec, budget)
        if cut is None:
            continue
        after = Log(log.format)
        after.entries = list(log.entries)
        after.cut(**{key: value for key, value in cut.body().items() if key in ("upto", "summary")})
        left = after.view(foreign="omit")
        strict(log.format, left.messages)
        check_complete(after, left)
        check_beginning(left, after)
        if log.format != "openai.responses":
            was = view.messages[cut.messages :]
            bare = _without_thinking if log.format == "anthropic" else list
            kept = _spoken(bare(left.messages[begins_with_opening(left) :]))
            should = _spoken(bare(was))
            if any(omission.reason == "incomplete" for omission in view.omitted):
                kept = kept[: len(should)]  # without its thinking, what waited for more is waiting no longer
            assert kept == should
            assert log.format != "anthropic" or b'"thinking"' not in left.json()
        else:  # a repetition of an item from before the cut is none any more, and an id may be taken out
            rest = iter(_without_ids(left.messages))
            assert all(any(one == other for other in rest) for one in _without_ids(view.messages[cut.messages :]))


def _without_thinking(messages: list[Any]) -> list[Any]:
    """What a cut leaves of a history: thinking is bound to what was cut off. Neighbours of one role are one."""
    kept: list[Any] = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = [block for block in content if block.get("type") not in ("thinking", "redacted_thinking")]
        last = kept[-1] if kept else {}
        if last.get("role") == message["role"] == "assistant":
            kept[-1] = {**last, "content": last["content"] + blocks}
        elif blocks:
            kept.append({**message, "content": blocks})
    return kept


def _spoken(messages: list[Any]) -> list[Any]:
    """Block by block: who, and what."""
    return [
        (message, block)
        for message, content in (({**m, "content": None}, m.get("content")) for m in messages)
        for block in (content if isinstance(content, list) else [content])
    ]


def _without_ids(messages: list[Any]) -> list[Any]:
    return [{k: v for k, v in m.items() if k != "id"} for m in messages]


def check_windows(log: Log) -> None:
    """Windows of every size are valid, and say what they leave out."""
    for last in range(1, 6):
        for spec in ({"last_entries": last}, {"last_turns": last}):
            view = log.view(foreign="omit", **spec)
            strict(log.format, view.messages)
            check_complete(log, view)
            check_beginning(view, log)
    for budget in (30, 100, 300):
        try:
            view = log.view(foreign="omit", budget_tokens=budget)
        except ViewInvalid as error:
            assert error.rule == "unit-exceeds-budget"
            continue
        assert view.estimated_tokens <= budget
        strict(log.format, view.messages)
        check_complete(log, view)
        check_beginning(view, log)
