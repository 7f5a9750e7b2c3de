"""
Whose JSON a body holds, and what Segue must know of it: one module per provider's format.

``rules(format)`` gives the rules of a format. They answer for one message (role, calls, results,
refs), make messages (a settlement, a note, a summary), lay a stretch of the log out as the provider
wants it, and check what would be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .anthropic import Anthropic
from .openai_chat import OpenAIChat
from .openai_responses import OpenAIResponses
from .parts import (
    INTERRUPTED,
    LOSES_ID,
    WITHDRAWN,
    Call,
    Intake,
    Item,
    Message,
    Omission,
    Round,
    Shape,
    Unit,
    call_ref,
)

__all__ = [
    "INTERRUPTED",
    "LOSES_ID",
    "WITHDRAWN",
    "Call",
    "FormatRules",
    "Intake",
    "Item",
    "Message",
    "Omission",
    "Round",
    "Shape",
    "Unit",
    "call_ref",
    "known_formats",
    "rules",
]


class FormatRules(Protocol):
    """
    What Segue knows of one format. All values are decoded JSON; none of the questions raises for any JSON value.

    Attributes:
        name: The format's name in entries and views.
        marks: Refs of messages that stand for everything before them (the newest is looked up, not searched).
        binds: The provider refuses thinking whose prefix is not the one that it was made with.
    """

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]: ...

    @property
    def binds(self) -> bool: ...

    def shape(self, value: Any) -> Shape | None:
        """What a message is, or None when the value is no message of this format."""

    def role(self, value: Any) -> str:
        """The role that the message has for the provider; empty when it is no message."""

    def calls(self, value: Any) -> tuple[Call, ...]:
        """Calls in it that somebody must still answer."""

    def results(self, value: Any) -> tuple[str, ...]:
        """Ids of the calls that it answers."""

    def refs(self, value: Any) -> tuple[str, ...]:
        """Refs for the log, given at append: ``call:<id>`` for calls and results, and the format's marks."""

    def is_question(self, value: Any) -> bool:
        """True when a person starts a turn with it."""

    def is_reasoning(self, value: Any) -> bool:
        """True when it ends in reasoning, so that it may only be sent together with what follows."""

    def unbound(self, body: bytes, value: Any) -> tuple[bytes, Any] | None:
        """The message without what is bound to the prefix it was made with; None when there is nothing of that."""

    def settlement(self, call: Call, text: str = INTERRUPTED) -> dict[str, Any]:
        """A result for a call that has none, marked as an error where the format can; append it with origin system."""

    def note(self, text: str, carrier: str | None = None) -> dict[str, Any]:
        """A message in which Segue speaks; ``carrier`` is system, developer or user-text, None the format's default."""

    def summary(self, text: str) -> dict[str, Any]:
        """A message that stands for the history."""

    def opening(self, first: Any) -> dict[str, Any] | None:
        """What must stand before the first message when others were left out before it; None: nothing."""

    def intake(self, was_reasoning: Callable[[], bool]) -> Intake:
        """
        What looks at each item of one view before it is laid out.

        Args:
            was_reasoning: Tells whether reasoning stands right before the first item, outside the view.
        """

    def render(self, rounds: list[Round], omitted: list[Omission]) -> list[Message]:
        """The messages of one exchange, in order."""

    def render_other(self, item: Item) -> Message | None:
        """The message of a person, a note or an instruction; None when nothing of it may be sent."""

    def check(self, messages: list[Any], *, may_be_open: frozenset[str] = frozenset()) -> None:
        """Refuse messages that the provider would refuse (``ViewInvalid``)."""


_RULES: dict[str, FormatRules] = {one.name: one for one in (Anthropic(), OpenAIResponses(), OpenAIChat())}


def rules(format: str) -> FormatRules | None:
    """The rules of a format; None when Segue has none: such entries are kept, but never sent to a model."""
    return _RULES.get(format)


def known_formats() -> tuple[str, ...]:
    """Names of all formats with rules, sorted."""
    return tuple(sorted(_RULES))
