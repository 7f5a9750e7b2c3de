"""
From a stretch of the log to units: who answers whom, what must stand together, what cannot be sent.

The one invariant, from which the stability of prefixes follows: **what the model has seen stands**.
When the model speaks, everything before it is closed for good: calls without a result get one that
says so, and a result that comes later is left out and reported. Until then an exchange is open:
results are put behind their calls, and texts that arrive in between wait until all have come. So a
view that was handed out when no call was open is never changed by what is appended afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .parts import INTERRUPTED, WITHDRAWN, Call, Item, Message, Omission, Round, Shape, Unit


class Renderer(Protocol):
    """What the layout needs of a format: how items of one exchange become messages."""

    def render(self, rounds: list[Round], omitted: list[Omission]) -> list[Message]:
        """The messages of an exchange, in order."""

    def render_other(self, item: Item) -> Message | None:
        """The message of a person, a note or an instruction; None when nothing of it may be sent."""


class _Exchange:
    """Calls and answers that are not complete yet."""

    __slots__ = (
        "entries",
        "has_answers",
        "has_gap",
        "has_rest",
        "last",
        "reach",
        "round",
        "rounds",
        "server",
        "waiting",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.round = Round()
        self.rounds = [self.round]
        self.server: dict[str, tuple[Item, int]] = {}  # open calls of the provider's own
        self.waiting: list[Item] = []  # came while a call was open; they follow the results
        self.withdrawn: frozenset[str] = frozenset()
        self.entries = 0
        self.last = 0
        self.reach = 0  # highest seq of an answer that came meanwhile, to a call that could wait
        self.has_answers = False
        self.has_rest = False  # one of the answers was more than results
        self.has_gap = False  # something erased came in between: perhaps a result

    def add(self, item: Item, to: list[Item]) -> None:
        to.append(item)
        self.entries += item.seq != self.last  # one entry of another format may be told in several items
        self.last = item.seq

    @property
    def needs_next(self) -> bool:
        model = self.round.model
        return bool(model) and model[-1].shape.needs_next and not self.round.answers

    @property
    def is_passed(self) -> bool:
        """Others have spoken since: the provider cannot go on where it was."""
        return self.has_rest or bool(self.waiting)

    @property
    def is_complete(self) -> bool:
        if self.round.open:
            return False
        return not (self.needs_next or (self.server and not self.is_passed))

    def items(self) -> list[Item]:
        return [item for part in self.rounds for item in (*part.model, *part.answers)]


@dataclass(slots=True, eq=False)
class Layout:
    """
    Units of a stretch of the log.

    Attributes:
        units: In the order in which they are sent.
        omitted: What is not in them, and why.
        open_calls: Calls at the end that have no result yet; in the units they are settled.
        kept_open: Calls at the end that wait for a person; they and what follows are left out.
        is_settled: No call was open at the end, so what is appended later changes nothing here.
        open_from: First seq of what was open at the end.
        compacted: Seq of the entry that stands for all before it, where one came up.
    """

    rules: Renderer
    keep_open: frozenset[str] = frozenset()
    units: list[Unit] = field(default_factory=list)
    omitted: list[Omission] = field(default_factory=list)
    open_calls: tuple[Call, ...] = ()
    kept_open: tuple[Call, ...] = ()
    is_settled: bool = True
    compacted: int | None = None
    open_from: int | None = None
    _exchange: _Exchange | None = None
    _later: dict[str, Unit | None] = field(default_factory=dict)  # calls that may be answered whenever
    _answered: set[str] = field(default_factory=set)
    _given_up: set[str] = field(default_factory=set)

    def _restart(self) -> None:
        self.units.clear()
        self.omitted.clear()
        self._exchange = None
        self._later.clear()
        self._answered.clear()
        self._given_up.clear()

    def gap(self, results: Iterable[str], *, is_unknown: bool) -> None:
        """Something was erased or retracted here; ``results`` are the calls whose results went with it."""
        exchange = self._exchange
        if exchange is None:
            return
        exchange.withdrawn |= frozenset(results)
        exchange.has_gap = exchange.has_gap or is_unknown
        while exchange.needs_next:  # what the reasoning led to is what is gone
            self._omit(exchange.round.model.pop(), "reasoning-without-item", "what it led to was removed")
            exchange.entries -= 1
        if not exchange.items():
            self._exchange = None
        elif exchange.is_complete:
            self._close(exchange)

    def add(
        self, seq: int, body: bytes, value: Any, shape: Shape, *, is_note: bool = False, loses_id: bool = False
    ) -> None:
        """Lay out the next entry: its seq, the message's exact bytes, its value, and what it is."""
        if shape.is_plain and self._exchange is None and not loses_id:
            speaks = shape.side == "model"
            message = Message(body, value, (seq,))
            self.units.append(Unit([message], seq, seq, seq, 1, speaks, not speaks, shape.is_question, is_note))
            return
        item = Item(seq, body, value, shape, is_note, loses_id=loses_id)
        if shape.is_broken:
            self._omit(item, "not-a-message", "a call without an id or input, or a result that names no call")
        if shape.is_empty:
            self._omit(item, "empty", "no content that may be sent")
        elif shape.side == "model":
            self._speak(item)
        elif shape.side == "answer":
            self._answer(item)
        else:
            self._other(item)

    def _speak(self, item: Item) -> None:
        if item.shape.compacts:
            self._restart()
            self.compacted = item.seq
        exchange = self._exchange
        if exchange is not None and not self._joins(exchange):
            self._close(exchange)
            exchange = None
        if exchange is None:
            exchange = self._exchange = _Exchange()
        exchange.add(item, exchange.round.model)
        if item.shape.server_results:
            self._take_server_results(exchange, item)
        if item.shape.calls:
            self._take_calls(exchange, item)
        if exchange.is_complete:
            self._close(exchange)

    def _joins(self, exchange: _Exchange) -> bool:
        """Does the model go on within the exchange? In the same breath, or after the provider's own tool."""
        current = exchange.round
        if exchange.is_passed:
            return False
        is_answered = bool(current.answers or exchange.has_gap or not exchange.withdrawn.isdisjoint(current.open))
        if not is_answered and (current.open or exchange.needs_next):
            return True
        if not exchange.server:
            return False
        self._give_up(exchange)
        exchange.round = Round()
        exchange.rounds.append(exchange.round)
        return True

    def _take_server_results(self, exchange: _Exchange, item: Item) -> None:
        for call_id in item.shape.server_results:
            if exchange.server.pop(call_id, None) is None:
                item.dropped_ids |= {call_id}
                self._omit(item, "orphan-result", f"result of {call_id!r}, which was never called")

    def _take_calls(self, exchange: _Exchange, item: Item) -> None:
        current = exchange.round
        taken: set[str] = set()
        if len(current.model) > 1:
            taken.update(call.id for other in current.model if other is not item for call in other.shape.calls)
        for index, call in enumerate(item.shape.calls):
            if call.id in taken or call.id in exchange.server or call.id in self._later:
                item.dropped_calls |= {index}
                self._omit(item, "duplicate-call", f"call {call.id!r} is there already")
                continue
            taken.add(call.id)
            if call.owner == "client":
                current.open[call.id] = call
            elif call.owner == "server":
                exchange.server[call.id] = (item, index)
            else:
                self._later[call.id] = None

    def _answer(self, item: Item) -> None:
        exchange = self._exchange
        is_open = exchange.round.open if exchange is not None else {}
        belongs = False
        for call_id in item.shape.results:
            if is_open.pop(call_id, None) is not None:
                belongs = True
            elif call_id in self._later:
                self._reach(call_id, item.seq)
            else:
                self._refuse_result(item, call_id)
                continue
            item.accepted += (call_id,)
            self._answered.add(call_id)
        if exchange is not None and belongs:
            exchange.add(item, exchange.round.answers)
            exchange.has_answers = True
            exchange.has_rest = exchange.has_rest or item.shape.has_rest
            if exchange.is_complete:
                self._close(exchange)
        elif item.accepted or item.shape.has_rest:
            self._other(item)

    def _reach(self, call_id: str, seq: int) -> None:
        """A call that could wait has its answer: what asked reaches up to here, and no cut may part them."""
        unit = self._later.pop(call_id)
        if unit is not None:
            unit.reach = max(unit.reach, seq)
        elif self._exchange is not None:
            self._exchange.reach = seq

    def _refuse_result(self, item: Item, call_id: str) -> None:
        if call_id in self._answered:
            self._omit(item, "duplicate-result", f"call {call_id!r} has a result already")
        elif call_id in self._given_up:
            self._omit(item, "late-result", f"the model went on before call {call_id!r} had a result")
        else:
            self._omit(item, "orphan-result", f"result of {call_id!r}, whose call is not here")

    def _other(self, item: Item) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.round.open:
            exchange.waiting.append(item)
            return
        if exchange is not None:
            self._close(exchange)
        self._emit(item)

    def _emit(self, item: Item) -> None:
        message = self.rules.render_other(item)
        if message is None:
            self._omit(item, "empty", "nothing of it may be sent")
            return
        seq = item.seq
        unit = Unit([message], seq, seq, seq, 1, is_question=item.shape.is_question, is_note=item.is_note)
        self.units.append(unit)

    def _close(self, exchange: _Exchange) -> None:
        """The exchange is over: settle what is open, render it, then let through what waited for it."""
        self._exchange = None
        if exchange.round.open:
            self._give_up(exchange)
        if exchange.server:
            self._drop_unfinished(exchange)
        self._build(exchange)
        for item in exchange.waiting:
            self._emit(item)

    def _build(self, exchange: _Exchange) -> None:
        messages = self.rules.render(exchange.rounds, self.omitted)
        if not messages:
            return
        first, last = exchange.rounds[0].model[0].seq, exchange.last
        reach = max(last, exchange.reach)
        unit = Unit(messages, first, last, reach, exchange.entries, speaks=True, settles=exchange.has_answers)
        self.units.append(unit)
        if self._later:
            for item in exchange.items():
                for call in item.shape.calls:
                    if call.owner == "later" and call.id in self._later:
                        self._later[call.id] = unit

    def _give_up(self, exchange: _Exchange) -> None:
        current = exchange.round
        missing = [(call, self._text(exchange, call)) for call in current.open.values()]
        missing.sort(key=lambda pair: pair[1] == WITHDRAWN)  # last, as settlements that are appended come before
        current.missing += missing
        self._given_up.update(current.open)
        current.open.clear()

    @staticmethod
    def _text(exchange: _Exchange, call: Call) -> str:
        return WITHDRAWN if exchange.has_gap or call.id in exchange.withdrawn else INTERRUPTED

    def _drop_unfinished(self, exchange: _Exchange) -> None:
        """The provider's own calls that never ended go, with the calls they made: nobody can settle those."""
        lost = set(exchange.server)
        for item, index in exchange.server.values():
            item.dropped_calls |= {index}
            self._omit(item, "unfinished-call", f"the provider's own call {item.shape.calls[index].id!r} never ended")
        for part in exchange.rounds:
            gone = {call.id for item in part.model for call in item.shape.calls if call.parent in lost}
            for item in part.model:
                item.dropped_calls |= {i for i, call in enumerate(item.shape.calls) if call.id in gone}
            part.missing = [pair for pair in part.missing if pair[0].id not in gone]
            for item in part.answers:
                refused = [call_id for call_id in item.accepted if call_id in gone]
                item.accepted = tuple(call_id for call_id in item.accepted if call_id not in gone)
                for call_id in refused:
                    self._omit(item, "unfinished-call", f"result of {call_id!r}, whose caller never ended")

    def end(self) -> None:
        """That was all: settle what is open, or hold it back."""
        exchange = self._exchange
        if exchange is None:
            return
        self.open_from = exchange.rounds[0].model[0].seq
        current = exchange.round
        kept = tuple(call for call in current.open.values() if call.id in self.keep_open)
        if kept:
            self.kept_open = kept
            self.is_settled = False
            self._hold_back(exchange, "waiting", "a call waits for a person: " + ", ".join(call.id for call in kept))
            return
        if exchange.needs_next and not current.open:
            self._hold_back(exchange, "incomplete", "it ends in reasoning, and nothing follows yet")
            return
        lost = set(exchange.server) if exchange.is_passed else set()
        self.open_calls = tuple(
            call
            for call in current.open.values()
            if call.parent not in lost and self._text(exchange, call) == INTERRUPTED
        )
        self.is_settled = not (current.open or (exchange.server and not exchange.is_passed))
        if exchange.server and not exchange.is_passed:
            self._give_up(exchange)  # the provider goes on from here: its own open call stays
            self._build(exchange)
            return
        self._close(exchange)

    def _hold_back(self, exchange: _Exchange, reason: str, detail: str) -> None:
        for item in (*exchange.items(), *exchange.waiting):
            self._omit(item, reason, detail)

    def _omit(self, item: Item, reason: str, detail: str) -> None:
        self.omitted.append(Omission(item.seq, item.seq, reason, detail))


def turn_starts(units: Sequence[Unit]) -> set[int]:
    """Where a person's turn starts: at the first of neighbouring questions and notes, if a question is among them."""
    starts: set[int] = set()
    begin: int | None = None
    for index, unit in enumerate(units):
        if not (unit.is_question or unit.is_note):
            begin = None
            continue
        if begin is None:
            begin = index
        if unit.is_question:
            starts.add(begin)
    return starts


def possible_starts(units: Sequence[Unit]) -> set[int]:
    """Where no seq before is higher than one after: texts that waited for results stand behind later entries."""
    lowest: list[int] = []
    low = 1 << 62
    for unit in reversed(units):
        low = min(low, unit.first)
        lowest.append(low)
    lowest.reverse()
    starts: set[int] = set()
    reach = 0
    for index, unit in enumerate(units):
        if reach < lowest[index]:
            starts.add(index)
        reach = max(reach, unit.reach)
    return starts
