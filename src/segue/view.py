"""
From the log to the messages for the model.

A view is a function of the log up to a seq and of a ViewSpec, and of nothing else. It starts at the
last cut, which is looked up by ref: what lies before is never read. It leaves out what was retracted
or erased, keeps every call with its result and all reasoning with what follows it, settles calls
that were left open, and is checked against the provider's rules before it is handed out.

Prefixes: within one epoch, a view made when no call was open is a byte-exact prefix of every later
one (see ``formats.layout`` for why). A cut, a retraction, an erasure, and a window that moves open a
new epoch. A budget does not slide: when it is exceeded, ``plan_cut`` says where to cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn, get_args

from . import codec
from .edits import PINNED, Cut, Reader, Retracts, hits, pinned, read_cut, read_note
from .errors import Invalid, ViewInvalid
from .formats import LOSES_ID, Call, FormatRules, Intake, Message, Omission, Unit, known_formats, rules
from .formats.layout import Layout, possible_starts, turn_starts
from .model import Entry, Hit, check_strings, check_type
from .store import READ_MAX
from .tokens import estimate_tokens

Counter = Callable[[bytes], int]
"""Tokens of one message, from its bytes."""

_KINDS = ("message", "note")
_NEVER = 1 << 62  # a break that does not end

PREFIX_KIND = "segue.prefix"
"""Kind of the entry that says what stands before the messages: model, instructions, tools."""

PREFIX = "prefix"
"""Its ref. What the model thought before the last of them is bound to another prefix."""

_PAGE = 200  # first step backwards for a window; each further step is twice as long
_Foreign = Literal["refuse", "omit", "convert"]


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """
    What a view is to be, beside the log.

    Attributes:
        format: Whose messages.
        last_turns: At most this many turns, the newest; a turn starts with a person's message.
        last_entries: At most this many messages and notes of the log, the newest, by whole units.
        budget_tokens: At most about this many tokens, by whole units from the newest back.
        keep_open: Ids of calls that wait for a person: the view ends before them, and what comes after
            is held back. Once the model has spoken again such a call is settled like any other.
        foreign: What to do with messages of another format: ``refuse``, ``omit`` (and report), or ``convert``
            (what has no counterpart is left out and reported).
    """

    format: str
    last_turns: int | None = None
    last_entries: int | None = None
    budget_tokens: int | None = None
    keep_open: frozenset[str] = field(default_factory=frozenset)
    foreign: _Foreign = "refuse"

    def __post_init__(self) -> None:
        _rules(self.format)
        for name in ("last_turns", "last_entries", "budget_tokens"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise Invalid(f"{name} must be a whole number from 1, or None; it is {number!r}", where=name)
        if self.foreign not in get_args(_Foreign):
            raise Invalid(f"foreign must be 'refuse', 'omit' or 'convert', it is {self.foreign!r}", where="foreign")
        object.__setattr__(self, "keep_open", frozenset(check_strings(self.keep_open, "keep_open")))

    def value(self) -> dict[str, Any]:
        """The spec as JSON, for an entry."""
        return {
            "format": self.format,
            "last_turns": self.last_turns,
            "last_entries": self.last_entries,
            "budget_tokens": self.budget_tokens,
            "keep_open": sorted(self.keep_open),
            "foreign": self.foreign,
        }

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> ViewSpec:
        """
        The spec that ``value`` gave.

        Raises:
            Invalid: It is not one, or of a newer Segue.
        """
        unknown = value.keys() - cls.__dataclass_fields__.keys()
        if unknown or "format" not in value:
            raise Invalid(f"not a view spec of this version of Segue: {sorted(unknown) or 'no format'}", where="spec")
        return cls(**{**value, "keep_open": frozenset(value.get("keep_open", ()))})


class UnitInfo(NamedTuple):
    """
    Messages of a view that stand or fall together.

    Attributes:
        start, end: Their places: ``view.messages[start:end]``.
        first, last: Lowest and highest seq in them.
        tokens: Their estimated size.
        starts_turn: A person's turn starts here (with the notes right before it).
        may_start: A view may start here: nothing before it belongs to something after it.
    """

    start: int
    end: int
    first: int
    last: int
    tokens: int
    starts_turn: bool
    may_start: bool


@dataclass(frozen=True)
class View:
    """
    The messages for the model.

    Attributes:
        spec: What was asked for.
        messages: Decoded, key order kept.
        bodies: The exact JSON of each message: the entry's own bytes where nothing had to be changed.
        seqs: For each message the entries it came from; empty for one that was made in the view.
        epoch: While it stays the same, a settled view is a byte-exact prefix of every later one.
        cut: Seq of the cut (or of the provider's compaction) that it starts at, or None.
        head: Everything up to this seq was considered.
        omitted: What was left out, and why.
        open_calls: Calls at the end without a result: settled in the view, to be settled in the log.
        kept_open: Calls of ``keep_open`` at the end; the view ends before them.
        synthetic: Places of messages that hold a result made in the view.
        is_settled: No call was open at the end: the view is a prefix of every later one in the epoch.
    """

    spec: ViewSpec
    messages: list[Any]
    bodies: tuple[bytes, ...]
    seqs: tuple[tuple[int, ...], ...]
    epoch: str
    cut: int | None
    head: int
    omitted: tuple[Omission, ...]
    open_calls: tuple[Call, ...]
    kept_open: tuple[Call, ...]
    synthetic: tuple[int, ...]
    is_settled: bool
    _units: tuple[Unit, ...] = field(repr=False, compare=False)
    _pinned: frozenset[int] = field(repr=False, compare=False)
    _count: Counter = field(repr=False, compare=False)

    @cached_property
    def units(self) -> tuple[UnitInfo, ...]:
        """The messages by what belongs together, without the summary of a cut."""
        summary = len(self.messages) - sum(len(unit.messages) for unit in self._units)
        return _infos(self._units, summary, self._count)

    @cached_property
    def estimated_tokens(self) -> int:
        """Size of all messages."""
        summary = self.units[0].start if self.units else len(self.bodies)
        return sum(self._count(body) for body in self.bodies[:summary]) + sum(unit.tokens for unit in self.units)

    def json(self) -> bytes:
        """All messages as one JSON array: what a cache of the provider sees as the prefix."""
        return b"[" + b",".join(self.bodies) + b"]"


def build(reader: Reader, spec: ViewSpec, upto: int | None = None, *, count: Counter = estimate_tokens) -> View:
    """
    The messages for the model, from the log up to a seq.

    Args:
        reader: The session's log.
        spec: What the view is to be.
        upto: The last seq to consider; give the head that you have seen, so that all reads agree.
            None: the last that is there now.
        count: Tokens of one message; an estimate unless you give another.

    Returns:
        A view that the provider accepts, by all rules that Segue knows.

    Raises:
        ViewInvalid: ``foreign-format`` (a message of another format), ``unit-exceeds-budget``,
            ``bad-cut``, ``bad-retract`` or ``bad-note`` (an entry that is not what its kind says).

    Guarantees: G10 views.
    """
    return _Builder(reader, spec, upto, count).build()


def plan_cut(view: View, spec: ViewSpec, budget: int | None = None, *, room: float = 0.5) -> Cut | None:
    """
    Where to cut when a view exceeds its budget, so that the next views have room to grow.

    Args:
        view: Built without the budget, so that all that is to be summarised is in it.
        spec: Its ``budget_tokens`` is the limit, unless ``budget`` is given.
        budget: Most tokens, estimated.
        room: Share of the budget that is to be free after the cut, from 0 to below 1.

    Returns:
        A boundary between units, before a person's turn where one fits; None when the view is within
        the budget, or when it is a single unit. What is pinned stays; the room is a share of what it leaves.

    Raises:
        Invalid: The room is out of range.
        ViewInvalid: ``pinned-exceeds-budget``: what is pinned fills the budget, or more than half of it so
            that the newest unit has no place beside it. No cut would help, now or at the next request.
    """
    if not 0 <= room < 1:
        raise Invalid(f"room must be from 0 to below 1, it is {room!r}", where="room")
    budget = spec.budget_tokens if budget is None else budget
    if budget is None or view.estimated_tokens <= budget:
        return None
    pins, count = view._pinned, view._count  # noqa: SLF001
    pinned = sum(count(body) for body, seqs in zip(view.bodies, view.seqs, strict=True) if pins.intersection(seqs))
    target = (budget - pinned) * (1 - room)
    kept = 0
    fits: list[tuple[UnitInfo, int]] = []  # where the rest would be within the target, the newest first
    for unit in reversed(view.units[1:]):
        kept += 0 if unit.first in pins else unit.tokens
        if kept > target and fits:
            break
        if unit.may_start:
            fits.append((unit, kept))
    least = pinned + (fits[0][1] if fits else 0)
    if pinned * 2 > budget and (not fits or least > budget):
        raise ViewInvalid(
            f"what is pinned has about {pinned:,} tokens, {least:,} with the newest messages; the budget is "
            f"{budget:,}, and no cut helps: raise the budget, or retract some of what is pinned",
            rule="pinned-exceeds-budget",
        )
    if not fits:
        return None
    turns = [pair for pair in fits if pair[0].starts_turn and pair[1] * 2 >= fits[-1][1]]
    unit, after = (turns or fits)[-1]
    return Cut(unit.first - 1, unit.start, view.estimated_tokens, pinned + after)


def open_calls(reader: Reader, format: str, upto: int | None = None) -> tuple[Call, ...]:
    """
    Calls at the end of the log that nobody has answered and nothing has passed by, oldest first.

    Reads only as much of the tail as it takes to know. A settlement appended now closes them.
    """
    return _Builder(reader, ViewSpec(format, foreign="omit"), upto, estimate_tokens).open_calls()


def begin(reader: Reader, format: str, upto: int | None = None) -> Begin:
    """
    Where a view of the log begins, without building it.

    Raises:
        ViewInvalid: ``bad-cut`` or ``bad-retract``.
    """
    base = _Builder(reader, ViewSpec(format, foreign="omit"), upto, estimate_tokens).base()
    return Begin(base.upto, base.cut)


class Begin(NamedTuple):
    """Entries up to ``upto`` are not read; ``cut`` is the seq of what stands for them, or None."""

    upto: int
    cut: int | None


class _Base(NamedTuple):
    """Where a view starts: nothing up to ``upto`` is read; ``summary`` stands for it."""

    upto: int = 0
    cut: int | None = None
    summary: tuple[Message, ...] = ()


class _Laid(NamedTuple):
    """One stretch of the log, laid out, and what of it is not the layout's business."""

    layout: Layout
    omitted: list[Omission]
    marks: tuple[str, ...]  # what was taken back or erased, for the epoch
    pinned: tuple[int, ...]  # what a cut would leave in front


class _Builder:
    """One view in the making."""

    def __init__(self, reader: Reader, spec: ViewSpec, upto: int | None, count: Counter) -> None:
        self.reader = reader
        self.spec = spec
        self.upto = _head(reader) if upto is None else upto
        self.count = count
        self.rules = _rules(spec.format)
        self.retracts = Retracts(self._hits("retract", READ_MAX))
        self.reserved = 0  # tokens of what is pinned, which a window shows beside its own
        self.breaks: list[tuple[int, int]] = []  # (after, before): what the model made between them had another prefix

    def build(self) -> View:
        base = self.base()
        self._find_breaks(base)
        spec = self.spec
        first, reason = 0, ""
        if spec.last_turns or spec.last_entries or spec.budget_tokens:
            self.reserved = sum(self.count(message.body) for message in self._pinned(base.upto, self.upto))
            entries, first, reason = self._window(base)
        else:
            entries = self._all(base.upto)
        if first - 1 > base.upto:
            self.breaks.append((0, _NEVER))
        laid = self._lay_out(entries, after=max(base.upto, first - 1))
        while first:  # what was left out as a repetition of something earlier may be in now
            again, reason_again = self._choose(base, laid, is_all=True) or (0, "")
            if not again:
                break
            first, reason = again, reason_again
            entries = [entry for entry in entries if entry.seq >= first]
            laid = self._lay_out(entries, after=first - 1)
        is_cut_off = first - 1 > base.upto
        if is_cut_off:
            base = base._replace(summary=(*base.summary, *self._pinned(base.upto, first - 1)))
        more = [Omission(base.upto + 1, first - 1, reason, "before the window starts")] if is_cut_off else []
        return self._view(base, laid, first if is_cut_off else 0, more)

    def open_calls(self) -> tuple[Call, ...]:
        base = self.base()
        newest: list[Entry] = []
        step, upto = _PAGE, self.upto
        is_said = False
        while True:
            page = self.reader.read(after=base.upto, upto=upto, kinds=_KINDS, reverse=True, limit=min(step, READ_MAX))
            newest.extend(page)
            is_all = len(page) < min(step, READ_MAX)
            if is_said := is_said or any(map(_may_call, page)):
                layout = self._lay_out(newest[::-1]).layout
                if is_all or _is_certain(layout):
                    return layout.open_calls
            if is_all:
                return ()
            upto, step = page[-1].seq - 1, step * 2

    # What was taken back, and where it starts.

    def base(self) -> _Base:
        """The last cut that holds: an entry, or a message of the provider that stands for all before it."""
        base = self._last_cut()
        for mark in self.rules.marks:
            for hit in self._hits(mark):
                entry = hit.entry
                if entry.kind == "message" and entry.format == self.spec.format and not self.retracts.by(entry):
                    if entry.seq > base.upto:
                        base = _Base(entry.seq - 1, entry.seq)
                    break
        return base

    def _hits(self, ref: str, page: int = 1) -> Iterator[Hit]:
        return hits(self.reader, ref, self.upto, page)

    def _last_cut(self) -> _Base:
        for hit in self._hits("cut"):
            entry = hit.entry
            if entry.kind != "cut" or entry.body is None:
                continue
            by = self.retracts.by(entry)
            if not by:
                cut = read_cut(entry, entry.body, self.rules, converts=self.spec.foreign == "convert")
                return _Base(cut.upto, entry.seq, (*cut.summary, *self._pinned(0, cut.upto)))
            self.breaks.append((entry.seq, by))
        return _Base()

    def _pinned(self, after: int, upto: int) -> tuple[Message, ...]:
        """What was pinned when it was appended, and would be left out: it stays, in front."""
        return pinned(self._hits(PINNED, READ_MAX), self.rules, self.retracts, after=after, upto=upto)

    def _find_breaks(self, base: _Base) -> None:
        """Where the prefix changed under what was already said: at a cut, and when the request's own part changed."""
        if not self.rules.binds:
            return
        if base.summary or (base.cut is not None and base.cut > base.upto + 1):
            self.breaks.append((base.upto, base.cut or 0))
        self.breaks += [pair for pair in self.retracts.undone.items() if pair[0] > (base.cut or 0)]
        for hit in self._hits(PREFIX):
            if hit.entry.kind == PREFIX_KIND:
                self.breaks.append((0, hit.entry.seq))
                break

    # What is read.

    def _all(self, after: int) -> list[Entry]:
        entries: list[Entry] = []
        while True:
            page = self.reader.read(after=after, upto=self.upto, kinds=_KINDS, limit=READ_MAX)
            entries.extend(page)
            if len(page) < READ_MAX:
                return entries
            after = page[-1].seq

    def _window(self, base: _Base) -> tuple[list[Entry], int, str]:
        """The newest entries, read backwards no further than needed; where the window starts (0: at the base), why."""
        newest: list[Entry] = []  # descending
        step, upto = _PAGE, self.upto
        while True:
            page = self.reader.read(after=base.upto, upto=upto, kinds=_KINDS, reverse=True, limit=min(step, READ_MAX))
            newest.extend(page)
            is_all = len(page) < min(step, READ_MAX)
            entries = newest[::-1]
            chosen = self._choose(base, self._lay_out(entries), is_all=is_all)
            if chosen is not None:
                first, reason = chosen
                return [entry for entry in entries if entry.seq >= first], first, reason
            upto, step = page[-1].seq - 1, step * 2

    def _choose(self, base: _Base, laid: _Laid, *, is_all: bool) -> tuple[int, str] | None:
        """First seq of the window and what limits it (0: no limit reached); None when more must be read."""
        units = laid.layout.units
        infos = _infos(units, 0, self.count)
        certain = 0 if is_all else next((i + 1 for i, unit in enumerate(units) if unit.settles), len(units))
        spec = self.spec
        tokens = sum(self.count(message.body) for message in base.summary) + self.reserved
        gone = min((one.first for one in (*laid.omitted, *laid.layout.omitted)), default=_NEVER)
        gone = 0 if base.upto or not is_all else gone
        entries = turns = 0
        start: UnitInfo | None = None
        for index in range(len(units) - 1, -1, -1):
            unit, info = units[index], infos[index]
            tokens += info.tokens
            is_shared = index + 1 < len(units) and unit.last == units[index + 1].first  # one entry, told in several
            entries += unit.entries - is_shared
            reason = ""
            if spec.budget_tokens is not None and tokens > spec.budget_tokens:
                reason = "budget"
            elif spec.last_entries is not None and entries > spec.last_entries:
                reason = "window"
            if reason == "budget" and start is None:
                self._too_large(info.first, units[-1].last, base, tokens)
            if index < certain:
                break  # it may hang together with what was not read yet
            if reason and start is not None:
                return start.first, reason
            if info.may_start and self._has_room(unit, base, tokens, is_first=not index and gone >= unit.first):
                start = info
            turns += info.starts_turn
            if spec.last_turns is not None and turns >= spec.last_turns and start is info and index:
                return info.first, "window"
        if is_all and units and start is not infos[0]:  # all fits, but not with what must stand in front of it
            if start is None:
                self._too_large(units[0].first, units[-1].last, base, tokens)
            return start.first, "budget"
        return (0, "") if is_all else None

    def _has_room(self, unit: Unit, base: _Base, tokens: int, *, is_first: bool) -> bool:
        """True when what must stand before the unit, if the view starts there, fits too."""
        budget = self.spec.budget_tokens
        if budget is None or base.summary or is_first:
            return True
        opening = self._opening(unit.messages[0].value)
        return tokens + sum(self.count(message.body) for message in opening) <= budget

    def _opening(self, value: Any) -> tuple[Message, ...]:
        """What stands for all that was left out, where the provider wants something in front of this message."""
        opening = self.rules.opening(value)
        return () if opening is None else (Message(codec.encode(opening), opening, (), is_synthetic=True),)

    def _too_large(self, first: int, last: int, base: _Base, tokens: int) -> NoReturn:
        with_summary = " with the summary" if base.summary else ""
        raise ViewInvalid(
            f"the newest messages (entries {first} to {last}) have about {tokens:,} tokens{with_summary}, "
            f"the budget is {self.spec.budget_tokens:,}, and they cannot be parted: raise the budget, "
            "or retract them and append something shorter",
            rule="unit-exceeds-budget",
            where=f"entries {first}..{last}",
        )

    # How it is laid out.

    def _lay_out(self, entries: Sequence[Entry], *, after: int = 0) -> _Laid:
        layout = Layout(self.rules, self.spec.keep_open)
        intake = self.rules.intake(lambda: after > 0 and self._was_reasoning(after))
        omitted: list[Omission] = []
        marks: list[str] = []
        has_retracts = bool(self.retracts)
        name, shape_of, decode, add = self.spec.format, self.rules.shape, codec.decode, layout.add
        admit = None if type(intake) is Intake else intake.admit
        breaks = [*self.breaks, *self.retracts.unmasked] if self.rules.binds else []
        has_masks = bool(self.retracts.masks)
        for entry in entries:
            body = entry.body
            by = self.retracts.by(entry) if has_retracts else 0
            if body is None or by:
                self._leave_out(entry, layout, intake, omitted, marks)
                if self.rules.binds:
                    breaks.append((entry.seq, by or _NEVER))
                continue
            if entry.kind == "note":
                intake.note()
                exact, value, of_note = read_note(entry, body, self.rules)
                add(entry.seq, exact, value, of_note, is_note=True)
                continue
            if entry.format != name:
                self._add_foreign(entry, layout, intake, omitted, marks)
                continue
            value = decode(body)
            masked = self.retracts.masked(entry, value) if has_masks else None
            if masked is not None:
                body, value, by = masked
                marks.append(f"masked {entry.seq} by {by}")
                breaks.append((entry.seq, by))
            if breaks and any(low < entry.seq < high for low, high in breaks):
                free = self.rules.unbound(body, value)
                if free is not None:
                    body, value = free
                    omitted.append(_omission(entry, "thinking", "what it was bound to has changed"))
            shape = shape_of(value)
            if shape is None:
                omitted.append(_omission(entry, "not-a-message", f"no {name} message"))
                continue
            verdict = None if admit is None else admit(value, shape)
            if verdict is None:
                add(entry.seq, body, value, shape)
            elif verdict == LOSES_ID:
                add(entry.seq, body, value, shape, loses_id=True)
            else:
                omitted.append(_omission(entry, verdict))
                layout.gap(shape.results, is_unknown=False)
        layout.end()
        pins = {
            entry.seq for entry in entries if PINNED in entry.refs and (entry.kind == "note" or entry.format == name)
        }
        pinned = tuple(unit.first for unit in layout.units if unit.first in pins and not unit.speaks) if pins else ()
        return _Laid(layout, omitted, tuple(marks), pinned)

    def _was_reasoning(self, upto: int) -> bool:
        """True when the last message before the view is reasoning, or erased, so that nobody knows."""
        before = self.reader.read(upto=upto, kinds=_KINDS, reverse=True, limit=1)
        if not before or before[0].kind != "message":
            return False
        entry = before[0]
        if entry.body is None:
            return entry.origin not in {"user", "tool", "system"}
        return entry.format == self.spec.format and self.rules.is_reasoning(codec.decode(entry.body))

    def _leave_out(
        self, entry: Entry, layout: Layout, intake: Intake, omitted: list[Omission], marks: list[str]
    ) -> None:
        """A hole in the log: what was next to it must still stand."""
        if entry.body is None:
            marks.append(f"hollow {entry.seq}")
            omitted.append(_omission(entry, "hollow", "its content was erased"))
            intake.gap(was_reasoning=entry.origin not in {"user", "tool", "system"})
            layout.gap((), is_unknown=entry.kind == "message" and entry.origin != "model")
            return
        by = self.retracts.by(entry)
        marks.append(f"retracted {entry.seq} by {by}")
        omitted.append(_omission(entry, "retracted", f"by entry {by}"))
        is_ours = entry.format == self.spec.format or self.spec.foreign == "convert"
        own = rules(entry.format) if entry.kind == "message" and is_ours else None
        shape = None if own is None else own.shape(codec.decode(entry.body))
        if shape is not None:
            intake.gap(was_reasoning=shape.needs_next)
            layout.gap(shape.results, is_unknown=False)

    def _add_foreign(
        self, entry: Entry, layout: Layout, intake: Intake, omitted: list[Omission], marks: list[str]
    ) -> None:
        """A message of another format: told in this one where that is asked for, else left out or refused."""
        if self.spec.foreign != "convert" or entry.format == "raw" or entry.body is None:
            omitted.append(self._foreign(entry))
            return
        from .convert import convert, refuse_unknown

        refuse_unknown(entry.format, f"entry {entry.seq}")
        value = codec.decode(entry.body)
        masked = self.retracts.masked(entry, value)
        if masked is not None:
            value = masked.value
            marks.append(f"masked {entry.seq} by {masked.by}")
        done = convert(value, entry.format, self.spec.format)
        if done.left or not done.messages:
            omitted.append(_omission(entry, "no-counterpart", ", ".join(dict.fromkeys(done.left)) or "nothing in it"))
        for message in done.messages:
            shape = self.rules.shape(message)
            verdict = "not-a-message" if shape is None else intake.admit(message, shape)
            if shape is not None and verdict in {None, LOSES_ID}:
                layout.add(entry.seq, codec.encode(message), message, shape, loses_id=verdict == LOSES_ID)
            else:
                omitted.append(_omission(entry, verdict or ""))

    def _foreign(self, entry: Entry) -> Omission:
        if entry.format == "raw":
            return _omission(entry, "raw", "bytes that are not JSON")
        if self.spec.foreign == "omit":
            return _omission(entry, "foreign", f"a message of the format {entry.format}")
        raise ViewInvalid(
            f"entry {entry.seq} is a message of the format {entry.format!r}, the view is for {self.spec.format!r}; "
            "ask for its own format, have it told in this one (foreign='convert'), or leave it out (foreign='omit')",
            rule="foreign-format",
            where=f"entry {entry.seq}",
        )

    # The result.

    def _view(self, base: _Base, laid: _Laid, first: int, more: list[Omission]) -> View:
        layout = laid.layout
        cut, summary = base.cut, base.summary
        if layout.compacted is not None:
            cut, summary = layout.compacted, ()
        omitted = tuple(sorted([*more, *laid.omitted, *layout.omitted]))
        messages = [*summary, *(message for unit in layout.units for message in unit.messages)]
        if messages and (base.upto or (omitted and omitted[0].first < min(messages[0].seqs, default=0))):
            messages = [*self._opening(messages[0].value), *messages]
        values = [message.value for message in messages]
        self.rules.check(values)
        return View(
            spec=self.spec,
            messages=values,
            bodies=tuple(message.body for message in messages),
            seqs=tuple(message.seqs for message in messages),
            epoch=self._epoch(cut, first, (*(f"pinned {seq}" for seq in _shown(summary, cut)), *laid.marks)),
            cut=cut,
            head=self.upto,
            omitted=omitted,
            open_calls=layout.open_calls,
            kept_open=layout.kept_open,
            synthetic=tuple(index for index, message in enumerate(messages) if message.is_synthetic),
            is_settled=layout.is_settled,
            _units=tuple(layout.units),
            _pinned=frozenset([*_shown(summary, cut), *laid.pinned]),
            _count=self.count,
        )

    def _epoch(self, cut: int | None, first: int, marks: tuple[str, ...]) -> str:
        what = [self.spec.format, self.spec.foreign, cut, first, *marks]
        return hashlib.sha256(codec.encode(what)).hexdigest()[:32]


def _shown(summary: tuple[Message, ...], cut: int | None) -> Iterator[int]:
    """What is pinned before a cut. The epoch names what is there, as what is erased has no ref any more."""
    return (seq for message in summary for seq in message.seqs if seq != cut)


def _infos(units: Sequence[Unit], offset: int, count: Counter) -> tuple[UnitInfo, ...]:
    turns = turn_starts(units)
    starts = possible_starts(units)
    infos = []
    for index, unit in enumerate(units):
        end = offset + len(unit.messages)
        tokens = sum([count(message.body) for message in unit.messages])
        infos.append(UnitInfo(offset, end, unit.first, unit.last, tokens, index in turns, index in starts))
        offset = end
    return tuple(infos)


def _head(reader: Reader) -> int:
    """The last seq now, so that all that is read afterwards agrees on where the log ends."""
    last = reader.read(reverse=True, limit=1)
    return last[0].seq if last else 0


def _may_call(entry: Entry) -> bool:
    """Whether the model may speak in it, or make a call: calls have refs from their append."""
    return entry.origin == "model" or any(ref.startswith("call:") for ref in entry.refs)


def _is_certain(layout: Layout) -> bool:
    """Is what is open at the end known, whatever lies before? The model has spoken since all before was settled."""
    settled: int | None = None
    for unit in layout.units:
        if settled is not None and unit.speaks and unit.first > settled:
            return True
        if settled is None and unit.settles:
            settled = unit.last
    return settled is not None and layout.open_from is not None and layout.open_from > settled


def _rules(format: str) -> FormatRules:
    found = rules(check_type(format, str, "format"))
    if found is None:
        raise Invalid(f"no view of the format {format!r}; it can be {', '.join(known_formats())}", where="format")
    return found


def _omission(entry: Entry, reason: str, detail: str = "") -> Omission:
    return Omission(entry.seq, entry.seq, reason, detail)
