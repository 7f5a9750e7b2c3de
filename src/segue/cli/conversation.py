"""A session's log as a conversation that a person can read: one block an entry, long results cut with a count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from segue.edits import Retracts
from segue.errors import Invalid
from segue.model import Entry, from_us

from . import bodies
from .screen import Screen, Span
from .text import clock, cut, lines, one_line, pad, plural, width, wrap

RESULT_LINES, RESULT_CHARACTERS = 6, 480
"""How much of a tool's result is shown without ``--full``."""

CALL_CELLS = 240
"""How much of a call's arguments is shown without ``--full``, in cells."""

LABEL = 11
"""Cells of the column that says who speaks."""

_SPOKEN = {"message", "note", "cut"}


class Conversation:
    """
    Prints entries.

    Args:
        screen: Where to.
        now: The store's time, for the times of entries.
        retracted: What the log takes back, see ``Retracts``.
        full: Show everything: whole results and arguments, thinking, bodies of opaque kinds.
        head: The session's last seq, which fixes the width of the numbers.
        calls: Finds the entries that may hold a call, by its id.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        now: datetime,
        retracted: Retracts,
        full: bool,
        head: int,
        calls: Callable[[str], Iterable[Entry]] = lambda _: (),
    ) -> None:
        self._screen = screen
        self._now = now
        self._retracted = retracted
        self._full = full
        self._digits = max(3, len(str(head)))
        self._calls = calls
        self._tools: dict[str, str] = {}  # the name of a call's tool, for its result
        self._clock = ""
        self._before = ""

    def show(self, entry: Entry) -> None:
        """Print one entry."""
        if entry.kind in _SPOKEN or self._before in _SPOKEN:
            self._screen.line()
        self._before = entry.kind
        self._head(entry, *self._body(entry))

    def damage(self, seq: int, message: str) -> None:
        """Print in an entry's place that it is damaged."""
        self._screen.line()
        self._screen.line(pad(str(seq), self._digits, right=True), "  ", ("damaged", "bad"), "  ", (message, "bad"))
        self._before = "message"

    def _body(self, entry: Entry) -> tuple[str, str, list[Sequence[Span]]]:
        """Label, a remark beside it, and the lines below it."""
        label = entry.origin if entry.kind == "message" else entry.kind
        if entry.body is None:
            return label, "content erased", []
        if entry.format == "raw":
            return label, f"{bodies.size(len(entry.body))} of raw bytes; --raw shows them", []
        tell = _TELL.get(entry.kind)
        value = entry.json()
        if entry.kind == "message":
            return label if label != "import" else bodies.role(value), "", list(self._parts(value))
        said = bodies.langchain(value) if entry.kind == "langgraph.value" else None
        if said is not None:
            return said[0], "", list(self._parts(said[1]))
        if tell is not None and isinstance(value, dict):
            remark, below = tell(value)
            return entry.kind, remark, [[line] for line in lines(below)] if below else []
        return entry.kind, bodies.compact(value), []

    def _head(self, entry: Entry, label: str, remark: str, below: list[Sequence[Span]]) -> None:
        screen, indent = self._screen, self._digits + 2
        shown = clock(entry.occurred_at or from_us(entry.created_us), self._now)
        time, self._clock = ("" if shown == self._clock else shown), shown
        is_said = entry.kind in ("message", "note")
        gone = "  retracted" if is_said and self._retracted.by(entry) else ""
        label = one_line(label) or "message"
        taken = indent + max(LABEL, width(label)) + 2 + width(time) + (2 if time else 0) + width(gone)
        remark = one_line(remark)
        if screen.width is not None and not self._full:
            remark = cut(remark, max(20, screen.width - taken))
        style = label if label in ("user", "model", "tool", "system") else "dim"
        screen.line(
            (pad(str(entry.seq), self._digits, right=True), "dim"),
            "  ",
            (pad(label, LABEL), style),
            "  ",
            (time, "dim"),
            "  " if time and remark else "",
            remark,
            (gone, "warn"),
        )
        for spans in below:
            self._below(indent, spans)

    def _below(self, indent: int, spans: Sequence[Span]) -> None:
        """One line of a body, wrapped: a sign, a name, the words; rows after the first stand below the name."""
        *mark, last = [(span, "") if isinstance(span, str) else span for span in spans]
        sign, name = (mark + [("", "")] * 2)[:2]
        cells = None if self._screen.width is None else max(20, self._screen.width - indent - width(sign[0]))
        for n, row in enumerate(wrap(name[0] + last[0], cells)):
            named = len(name[0]) if n == 0 and row.startswith(name[0]) else 0
            lead = sign if n == 0 else " " * width(sign[0])
            self._screen.line(" " * indent, lead, (row[:named], name[1]), (row[named:], last[1]))

    def _parts(self, value: Any) -> Iterator[Sequence[Span]]:
        for part in bodies.parts(value):
            match part:
                case bodies.Text():
                    yield from ([line] for line in lines(part.text.strip("\n")))
                case bodies.Call():
                    self._tools[part.id] = part.name
                    called = one_line(bodies.call_text(part))
                    yield [("→ ", "tool"), called if self._full else cut(called, CALL_CELLS)]
                case bodies.Result():
                    yield from self._result(part)
                case bodies.Hidden():
                    yield from self._hidden(part)
                case bodies.Other():
                    yield [
                        (f"[{one_line(part.label) if self._full else cut(one_line(part.label), CALL_CELLS)}]", "dim")
                    ]

    def _result(self, part: bodies.Result) -> Iterator[Sequence[Span]]:
        name = one_line(self._tool(part.call))
        mark = [("← ", "bad" if part.is_error else "tool"), (f"{name}{' failed' if part.is_error else ''}: ", "dim")]
        shown, left = self._shortened(part.text.strip("\n"))
        for n, line in enumerate(lines(shown) if shown else ["(empty)"]):
            yield [*mark, line] if n == 0 else ["  ", line]
        if left:
            yield ["  ", (f"… {plural(left, 'more character')}", "dim")]

    def _tool(self, call: str) -> str:
        """The name of a call's tool, or the call's id where none is found. The call may lie before what is shown."""
        if call not in self._tools:
            values = [entry.json() for entry in self._calls(call) if entry.body is not None and entry.format != "raw"]
            found = [part for value in values for part in bodies.parts(value) if isinstance(part, bodies.Call)]
            self._tools[call] = next((part.name for part in found if part.id == call), call)
        return self._tools[call]

    def _hidden(self, part: bodies.Hidden) -> Iterator[Sequence[Span]]:
        if not (self._full and part.text):
            yield [(f"[{part.label}{', ' + plural(len(part.text), 'character') if part.text else ''}]", "dim")]
            return
        yield [(f"[{part.label}]", "dim")]
        yield from ([(line, "dim")] for line in lines(part.text))

    def _shortened(self, text: str) -> tuple[str, int]:
        if self._full:
            return text, 0
        kept = "\n".join(text[:RESULT_CHARACTERS].split("\n")[:RESULT_LINES])
        left = len(text) - len(kept)
        return (text, 0) if left <= 40 and kept.count("\n") == text.count("\n") else (kept, left)


# Segue's own kinds: a remark beside the label, and text below it.


def _note(body: dict[str, Any]) -> tuple[str, str]:
    return "", _str(body.get("text"))


def _cut(body: dict[str, Any]) -> tuple[str, str]:
    summary = "\n".join(part.text for part in bodies.parts(body.get("summary") or {}) if isinstance(part, bodies.Text))
    why = f" ({body['reason']})" if isinstance(body.get("reason"), str) and body["reason"] else ""
    origin = body.get("from")
    if isinstance(origin, dict):
        return f"goes on from session {origin['session']}, entry {origin['seq']}", summary
    return (
        f"entries 1 to {body.get('upto')} {'are summarised' if summary else 'are left out'} for the model{why}",
        summary,
    )


def _observation(body: dict[str, Any]) -> tuple[str, str]:
    version = "" if body.get("version") is None else f" = {_str(body.get('kind'))} {body['version']}"
    return f"read {body.get('source')}{version}", ""


def _effect(body: dict[str, Any]) -> tuple[str, str]:
    target = "" if body.get("source") is None else f" on {body['source']}"
    result = "" if body.get("result") is None else f": {bodies.compact(body['result'])}"
    return f"{body.get('name')}{target} {body.get('phase')}{result}", ""


def _config(body: dict[str, Any]) -> tuple[str, str]:
    config = body.get("config") if isinstance(body.get("config"), dict) else {}
    assert isinstance(config, dict)
    agent = " ".join(str(config[key]) for key in ("name", "version", "model") if config.get(key))
    return f"{body.get('action', 'set')} {agent}", "\n".join(_str(change) for change in body.get("changes") or ())


def _retract(body: dict[str, Any]) -> tuple[str, str]:
    told = []
    if body.get("seqs"):
        told.append(f"{'entry' if len(body['seqs']) == 1 else 'entries'} {', '.join(str(seq) for seq in body['seqs'])}")
    if body.get("run"):
        told.append(f"messages of run {body['run']}")
    if body.get("after") is not None:
        told.append(f"messages after {body['after']}")
    return f"taken back: {'; '.join(told)}{' (' + str(body['reason']) + ')' if body.get('reason') else ''}", ""


def _mask(body: dict[str, Any]) -> tuple[str, str]:
    results = body["results"]
    places = ", ".join(f"{one['call']} in entry {one['seq']}" for one in results)
    return f"shown to the model as superseded: {places}", "\n".join(_str(one["text"]) for one in results)


def _anew(body: dict[str, Any]) -> tuple[str, str]:
    if "session" in body:
        return f"session {body['session']} goes on from here", ""
    return f"goes on from session {body['from']['session']}", _str(body.get("text"))


def _status(body: dict[str, Any]) -> tuple[str, str]:
    return _str(body.get("action")), ""


def _checkpoint(body: dict[str, Any]) -> tuple[str, str]:
    metadata = body["metadata"]
    where = f" in {body['ns']}" if body.get("ns") else ""
    return f"{metadata.get('source', '')}, step {metadata.get('step')}{where}", ""


def _write(body: dict[str, Any]) -> tuple[str, str]:
    return ", ".join(str(channel) for _, channel, _ in body["writes"]), ""


def _str(value: Any) -> str:
    return value if isinstance(value, str) else bodies.compact(value)


def _sound(tell: Any) -> Any:
    """Falls back to compact JSON for a body that is not as Segue writes it: reading never fails."""

    def told(body: dict[str, Any]) -> tuple[str, str]:
        try:
            return tell(body)  # type: ignore[no-any-return]
        except (TypeError, ValueError, KeyError, AttributeError, Invalid):
            return bodies.compact(body), ""

    return told


_TELL = {
    name: _sound(tell)
    for name, tell in {
        "note": _note,
        "cut": _cut,
        "observation": _observation,
        "effect": _effect,
        "config": _config,
        "retract": _retract,
        "mask": _mask,
        "segue.anew": _anew,
        "segue.status": _status,
        "langgraph.checkpoint": _checkpoint,
        "langgraph.write": _write,
    }.items()
}
