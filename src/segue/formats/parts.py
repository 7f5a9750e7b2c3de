"""What the rules of a format say about one message, and what a view is made of: plain values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from segue.model import NAME_MAX_BYTES

INTERRUPTED = (
    "[Interrupted: no result of this call was recorded, so it is unknown whether it took effect. "
    "Check that before you rely on it or repeat it.]"
)
"""The result that stands for one that never came."""

WITHDRAWN = "[The result of this call was removed from the record and can no longer be shown.]"
"""The result that stands for one that was erased or retracted."""

Owner = Literal["client", "server", "later"]
"""Who answers a call: the agent, before the model goes on; the provider; the agent, whenever it can."""


class Call(NamedTuple):
    """
    A call that the model made.

    Attributes:
        id: The provider's id. Not unique in all sources: it pairs with the nearest result that fits.
        name: The tool, where the format names one.
        kind: The format's own word for it (``tool_use``, ``shell_call``), which decides the shape of a result.
        owner: Who answers it. Only ``client`` calls must be answered before the model goes on.
        parent: Id of the provider's own call that made this one, or None.
        family: The toolset it belongs to, where the format wants it back with the result.
    """

    id: str
    name: str = ""
    kind: str = ""
    owner: Owner = "client"
    parent: str | None = None
    family: str | None = None


class Shape(NamedTuple):
    """
    What one message is, as far as its place among the others depends on it.

    Attributes:
        side: ``model`` speaks; ``answer`` gives results of calls; ``other``: people, notes, instructions.
        calls: Calls it makes that are not answered inside it, in order.
        results: Ids of calls that it answers, in order.
        server_results: Ids of the provider's own calls, made before, that it brings the result of.
        needs_next: It ends in reasoning that may only be sent together with what follows it.
        is_question: A person speaks: a turn starts here.
        is_clean: It may be sent exactly as it is stored.
        is_empty: Nothing in it may be sent.
        has_rest: It is an answer that holds more than results.
        compacts: It stands for everything before it.
        is_broken: A part of it (a call without an id, say) cannot be sent; the rest can.
        is_plain: It may be sent exactly as it is stored, and neither needs nor answers anything.
    """

    side: Literal["model", "answer", "other"]
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    server_results: tuple[str, ...] = ()
    needs_next: bool = False
    is_question: bool = False
    is_clean: bool = True
    is_empty: bool = False
    has_rest: bool = False
    compacts: bool = False
    is_broken: bool = False
    is_plain: bool = False

    @property
    def answers(self) -> tuple[str, ...]:
        """Ids of all calls that it brings the result of."""
        return self.results + self.server_results

    @property
    def refs(self) -> tuple[str, ...]:
        """Refs for the log: ``call:<id>`` for calls and results, ``compaction`` for what stands for all before."""
        if self.is_plain:
            return ()
        refs = [call_ref(call.id) for call in self.calls] + [call_ref(call_id) for call_id in self.answers]
        return tuple(dict.fromkeys([*refs, "compaction"] if self.compacts else refs))


class Omission(NamedTuple):
    """
    Something of the log that is not in a view: entries first..last (or a part of them), why, and what.

    Reasons: ``window``, ``budget``, ``retracted``, ``hollow``, ``raw``, ``foreign``, ``not-a-message``,
    ``empty``, ``orphan-result``, ``duplicate-result``, ``late-result``, ``duplicate-call``,
    ``unfinished-call``, ``reasoning-without-item``, ``incomplete``, ``waiting``, ``request-only``,
    ``duplicate-item``.
    """

    first: int
    last: int
    reason: str
    detail: str = ""


@dataclass(slots=True, eq=False)
class Item:
    """
    One entry on its way into a view.

    Attributes:
        seq: The entry's number.
        body: The message's exact bytes.
        value: The same, decoded.
        shape: What it is.
        is_note: Segue wrote it.
        accepted: Of an answer: the ids whose results go into the view.
        dropped_calls: Positions in ``shape.calls`` that must not be sent.
        dropped_ids: Ids of the provider's own results that must not be sent.
        loses_id: The item's id must not be sent (its reasoning is gone, or the id is taken).
    """

    seq: int
    body: bytes
    value: Any
    shape: Shape
    is_note: bool = False
    accepted: tuple[str, ...] = ()
    dropped_calls: frozenset[int] = frozenset()
    dropped_ids: frozenset[str] = frozenset()
    loses_id: bool = False


LOSES_ID = "loses-id"
"""What an intake says of an item that may be sent, but without its id."""


class Intake:
    """Looks at each item of one view, in order, before it is laid out. This one lets everything pass."""

    def admit(self, value: Any, shape: Shape) -> str | None:  # noqa: ARG002
        """None: let it pass. LOSES_ID: send it without its id. Else the reason why it cannot be sent at all."""
        return None

    def note(self) -> None:
        """A note stands here."""

    def gap(self, *, was_reasoning: bool) -> None:
        """An item was erased or retracted here."""


class Message(NamedTuple):
    """One message of a view: its exact bytes, its value, the entries it came from (none: made in the view)."""

    body: bytes
    value: Any
    seqs: tuple[int, ...]
    is_synthetic: bool = False


class Round:
    """What the model said in one go, the answers to its calls, and the calls that got none (with the text instead)."""

    __slots__ = ("answers", "missing", "model", "open")

    def __init__(self) -> None:
        self.model: list[Item] = []
        self.answers: list[Item] = []
        self.missing: list[tuple[Call, str]] = []
        self.open: dict[str, Call] = {}


@dataclass(slots=True, eq=False)
class Unit:
    """
    Messages that only make sense together: a call with its results, reasoning with what follows it.

    Attributes:
        messages: In the order in which they are sent.
        first, last: Lowest and highest seq in it.
        reach: Highest seq that belongs to it, results that come much later included.
        entries: How many entries it was made of.
        speaks: The model speaks in it.
        settles: When the model speaks after it, nothing from before it is open: it holds results, or others speak.
        is_question: A person speaks.
        is_note: Segue speaks.
    """

    messages: list[Message]
    first: int
    last: int
    reach: int
    entries: int
    speaks: bool = False
    settles: bool = True
    is_question: bool = False
    is_note: bool = False


def call_ref(call_id: str) -> str:
    """The ref of a call and of its results; ids that cannot be part of a ref are hashed."""
    ref = f"call:{call_id}"
    if call_id and len(ref.encode("utf-8", "replace")) <= NAME_MAX_BYTES and call_id.isprintable():
        return ref
    return f"call:#{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
