"""What Segue's own entries say about a view: cuts, retractions, masks and notes, read from their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from . import codec
from .errors import ViewInvalid
from .formats import FormatRules, Message, Shape
from .formats.masking import masked
from .model import Entry, Hit
from .store import READ_MAX

PINNED = "pinned"
"""Ref of messages that stay in every view: ``append(message, refs=("pinned",))``."""

UNDO = "undo"
"""Reason of the retraction of a cut: what the model thought under the cut had another prefix."""


class Reader(Protocol):
    """What a view needs of a session: its log by seq, and by ref."""

    def read(
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: tuple[str, ...] | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Sequence[Entry]:
        """Entries with after < seq <= upto, ascending or (reverse) descending, at most ``limit``."""

    def by_ref(
        self, ref: str, *, upto: int | None = None, reverse: bool = False, limit: int = READ_MAX
    ) -> Sequence[Hit]:
        """Entries that carry the ref with seq <= upto, by seq, ascending or (reverse) descending."""


def hits(reader: Reader, ref: str, upto: int | None = None, page: int = READ_MAX) -> Iterator[Hit]:
    """Newest first, a page at a time: nearly always the first cut is the one that holds."""
    while True:
        found = reader.by_ref(ref, upto=upto, reverse=True, limit=page)
        yield from found
        if len(found) < page:
            return
        upto = found[-1].entry.seq - 1


class Cut(NamedTuple):
    """
    Where to cut: a summary is to stand for everything up to a seq.

    Attributes:
        upto: The last seq that the summary stands for.
        messages: How many messages of the view that is: ``view.messages[:messages]`` are to be summarised.
        tokens_before: Estimated size of the view.
        tokens_after: Estimated size of what stays, without the summary.
    """

    upto: int
    messages: int
    tokens_before: int
    tokens_after: int

    def body(self, summary: Any = None, *, reason: str = "budget", observations: Sequence[str] = ()) -> dict[str, Any]:
        """
        The body of the cut's entry (kind ``cut``, format ``segue``, ref ``cut``).

        Args:
            summary: A message in the session's format, a list of them, or None: the history is only dropped.
            reason: Why it was cut, for people.
            observations: Ids of the entries that the summary rests on.
        """
        return {
            "upto": self.upto,
            "summary": summary,
            "reason": reason,
            "observations": list(observations),
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
        }


class CutRead(NamedTuple):
    """A cut entry: everything up to ``upto`` is stood for by the summary (no messages: simply dropped)."""

    upto: int
    summary: tuple[Message, ...]


class _CutBody(msgspec.Struct):
    upto: int
    summary: msgspec.Raw = msgspec.Raw(b"null")


class _NoteBody(msgspec.Struct):
    message: msgspec.Raw
    for_: str = msgspec.field(name="for")
    text: str = ""


class _RetractBody(msgspec.Struct):
    seqs: list[int] = []
    run: str | None = None
    reason: Any = None
    since: int = 0  # of the run: only what it appended from this seq on; its id may have been used before
    after: int | None = None


class _MaskedResult(msgspec.Struct):
    seq: int
    call: str
    text: str


class _MaskBody(msgspec.Struct):
    results: list[_MaskedResult]


class Masked(NamedTuple):
    """A message whose results are shown as superseded: its JSON, its value, and the mask entry that says so."""

    body: bytes
    value: Any
    by: int


class Retracts:
    """
    All that is taken back: entries by seq, by run, or all messages after a seq; always of before the retraction.

    With a run its settlements are not: they answer the calls of runs before it, and a call that nobody
    answered is not one whose result was removed.
    """

    def __init__(self, newest_first: Iterable[Hit]) -> None:
        self._seqs: dict[int, int] = {}  # what, and by which entry: the first that took it back
        self._runs: dict[str, list[tuple[int, int]]] = {}  # (since, by)
        self._after: list[tuple[int, int]] = []
        self.masks: dict[int, dict[str, str]] = {}  # by the seq of the message: texts by call
        self._masked_by: dict[int, int] = {}
        self.unmasked: list[tuple[int, int]] = []  # (first message, by): was masked for a while
        self.undone: dict[int, int] = {}  # cuts, and by which entry: they may be erased since, and have no ref
        for hit in newest_first:
            entry = hit.entry
            by = self._seqs.get(entry.seq, 0)  # one that a later one names does not count
            if entry.kind == "retract" and entry.body is not None and not by:
                self._add(entry, entry.body)
            elif entry.kind == "mask" and entry.body is not None:
                self._mask(entry, entry.body, by)

    def _add(self, entry: Entry, body: bytes) -> None:
        try:
            what = msgspec.json.decode(body, type=_RetractBody)
        except msgspec.MsgspecError as error:
            raise bad_entry(entry, error) from None
        for seq in what.seqs:
            if seq < entry.seq:
                self._seqs[seq] = entry.seq
                if what.reason == UNDO:
                    self.undone[seq] = entry.seq
        if what.run is not None:
            self._runs.setdefault(what.run, []).append((what.since, entry.seq))
        if what.after is not None:
            self._after.append((what.after, entry.seq))

    def _mask(self, entry: Entry, body: bytes, by: int) -> None:
        try:
            results = msgspec.json.decode(body, type=_MaskBody).results
        except msgspec.MsgspecError as error:
            if by:
                return
            raise bad_entry(entry, error) from None
        results = [one for one in results if one.seq < entry.seq]
        if by and results:
            self.unmasked.append((min(one.seq for one in results), by))
            return
        for one in results:
            self.masks.setdefault(one.seq, {}).setdefault(one.call, one.text)  # the newest mask counts
            self._masked_by[one.seq] = max(entry.seq, self._masked_by.get(one.seq, 0))

    def masked(self, entry: Entry, value: Any) -> Masked | None:
        """The message as its masks have it; None when it has none, or they do not fit."""
        texts = self.masks.get(entry.seq)
        shown = None if texts is None else masked(entry.format, value, texts)
        return None if shown is None else Masked(codec.encode(shown), shown, self._masked_by[entry.seq])

    def __bool__(self) -> bool:
        return bool(self._seqs or self._runs or self._after)

    def by(self, entry: Entry) -> int:
        """Seq of the retraction that takes the entry back; 0 when none does."""
        found = self._seqs.get(entry.seq, 0)
        if not found and entry.run in self._runs and not _is_settlement(entry):
            found = min((by for since, by in self._runs[entry.run] if since <= entry.seq < by), default=0)
        if not found and self._after:
            found = min((seq for after, seq in self._after if after < entry.seq < seq), default=0)
        return found


def _is_settlement(entry: Entry) -> bool:
    """Whether Segue answers in it for a call that was left open; the results of tools have another origin."""
    return entry.kind == "message" and entry.origin == "system" and any(ref.startswith("call:") for ref in entry.refs)


def holding_cut(reader: Reader, upto: int | None = None) -> int:
    """Seq of the newest cut that was not taken back, without which a view would show what it hides; 0: none."""
    retracts = Retracts(hits(reader, "retract", upto))
    newest = (hit.entry for hit in hits(reader, "cut", upto, page=1) if hit.entry.kind == "cut")
    return next((entry.seq for entry in newest if entry.body is not None and not retracts.by(entry)), 0)


def read_cut(entry: Entry, body: bytes, rules: FormatRules, *, converts: bool = False) -> CutRead:
    """
    What a cut entry says; a summary in another format is told in this one where that is asked for.

    Raises:
        ViewInvalid: ``bad-cut``: it covers itself or more, or its summary is no message of the format.
    """
    try:
        cut = msgspec.json.decode(body, type=_CutBody)
    except msgspec.MsgspecError as error:
        raise bad_entry(entry, error) from None
    if not 0 <= cut.upto < entry.seq:
        raise bad_entry(entry, f"upto is {cut.upto}, it must be from 0 to {entry.seq - 1}")
    exact = bytes(cut.summary)
    value = codec.decode(exact)
    if value is None:
        return CutRead(cut.upto, ())
    if type(value) is list:
        parts = [bytes(part) for part in msgspec.json.decode(exact, type=list[msgspec.Raw])]
    else:
        parts, value = [exact], [value]
    if converts:
        value = _told(value, rules)
        parts = [codec.encode(one) for one in value]
    if any(rules.shape(one) is None for one in value):
        raise bad_entry(entry, f"its summary is no {rules.name} message")
    return CutRead(cut.upto, tuple(Message(part, one, (entry.seq,)) for part, one in zip(parts, value, strict=True)))


def _told(summary: list[Any], rules: FormatRules) -> list[Any]:
    """Messages of a summary as this format has them: its own as they are, others by what they are."""
    from .convert import convert_all

    values: list[Any] = []
    for one in summary:
        parts = one.get("content") if type(one) is dict else None
        kinds = {part.get("type") for part in parts if type(part) is dict} if type(parts) is list else set()
        is_item = bool(kinds & {"input_text", "output_text", "input_image"}) or (type(one) is dict and "type" in one)
        source = "openai.responses" if is_item else "anthropic" if type(parts) is list else "openai.chat"
        values += [one] if source == rules.name else convert_all([one], source, rules.name).messages
    return values


def read_note(entry: Entry, body: bytes, rules: FormatRules) -> tuple[bytes, Any, Shape]:
    """
    The message of a note: its exact bytes, its value, what it is. One that was made for another format is told in this.

    Raises:
        ViewInvalid: ``bad-note``: it holds no message.
    """
    try:
        note = msgspec.json.decode(body, type=_NoteBody)
    except msgspec.MsgspecError as error:
        raise bad_entry(entry, error) from None
    if note.for_ == rules.name:
        exact = bytes(note.message)
        value = codec.decode(exact)
    else:
        value = rules.note(note.text)
        exact = codec.encode(value)
    shape = rules.shape(value)
    if shape is None:
        raise bad_entry(entry, f"its message is no {rules.name} message")
    return exact, value, shape


def pinned(
    newest_first: Iterable[Hit], rules: FormatRules, retracts: Retracts, *, after: int, upto: int
) -> tuple[Message, ...]:
    """
    Messages with the ref ``pinned`` in a stretch of the log: they stay when the rest is cut off.

    Only what stands alone can be pinned: questions, instructions and notes, not calls or their results.
    """
    found: list[Message] = []
    for hit in newest_first:
        entry = hit.entry
        if not after < entry.seq <= upto or entry.body is None or retracts.by(entry):
            continue
        if entry.kind == "note":
            exact, value, shape = read_note(entry, entry.body, rules)
        elif entry.kind == "message" and entry.format == rules.name:
            exact, value = entry.body, codec.decode(entry.body)
            known = rules.shape(value)
            if known is None:
                continue
            shape = known
        else:
            continue
        if shape.side == "other" and shape.is_plain:
            found.append(Message(exact, value, (entry.seq,)))
    return tuple(reversed(found))


def bad_entry(entry: Entry, why: object) -> ViewInvalid:
    """An entry of Segue's own kinds that is not what its kind says."""
    return ViewInvalid(
        f"entry {entry.seq} is no {entry.kind} that Segue can read ({why}); "
        "take it back with a retract entry that names it",
        rule=f"bad-{entry.kind}",
        where=f"entry {entry.seq}",
    )
