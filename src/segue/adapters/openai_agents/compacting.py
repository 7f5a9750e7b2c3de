"""The session that the Runner asks to compact: the SDK's policy, Segue's way of keeping what was there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from agents.memory import OpenAIResponsesCompactionSession

import segue

from .compaction import replace_all
from .progress import settled
from .session import SegueSession


class SegueCompactingSession(SegueSession):
    """
    A SegueSession whose history is compacted by OpenAI's ``responses.compact`` as it grows.

    When and what is compacted is decided by the SDK's own OpenAIResponsesCompactionSession. What is
    replaced stays in the log: ``await (await session.stored()).read()`` has every item ever stored.

    Args:
        session_id, scope, options: As for SegueSession.
        client: The OpenAI client; None: the SDK's default.
        model: An OpenAI model's name.
        compaction_mode: previous_response_id, input or auto; see the SDK.
        should_trigger_compaction: The decision; None: the SDK's own (10 items that are no user's).
    """

    def __init__(
        self,
        session_id: str,
        scope: segue.Scope | segue.AsyncScope,
        *,
        client: Any = None,
        model: str = "gpt-4.1",
        compaction_mode: Any = "auto",
        should_trigger_compaction: Callable[[dict[str, Any]], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(session_id, scope, **options)
        self._how: dict[str, Any] = {
            "client": client,
            "model": model,
            "compaction_mode": compaction_mode,
            "should_trigger_compaction": should_trigger_compaction,
        }
        self._compaction = OpenAIResponsesCompactionSession(session_id, _Below(self), **self._how)

    def _beside(self, session_id: str) -> Self:
        settings = self.session_settings
        return type(self)(session_id, self.scope, session_settings=settings, erase=self.erases, **self._how)

    async def run_compaction(self, args: Mapping[str, Any] | None = None, *, wrapper: Any = None) -> None:
        """
        Compact if it is time, or with ``{"force": True}`` in any case.

        The Runner calls it after each answer. Nothing is replaced when the history changed meanwhile.
        """
        self._check_open()
        how: Any = None if args is None else dict(args)
        await self._compaction.run_compaction(how, wrapper=wrapper)

    async def _defer_compaction(self, response_id: str, *, store: bool | None = None) -> None:
        await self._compaction._defer_compaction(response_id, store)  # noqa: SLF001

    def _get_deferred_compaction_response_id(self) -> str | None:
        return self._compaction._get_deferred_compaction_response_id()  # noqa: SLF001


class _Below:
    """The same session as the SDK's compaction sees it: replaced as a whole or not at all, and never cached."""

    session_settings: Any = None
    _ignore_ids_for_matching = False

    def __init__(self, session: SegueSession) -> None:
        self.session_id = session.session_id
        self._session = session

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return await self._session.get_items(limit)

    async def add_items(self, items: list[Any]) -> None:
        await self._session.add_items(items)

    async def pop_item(self) -> Any | None:
        return await self._session.pop_item()

    async def clear_session(self) -> None:
        await self._session.clear_session()

    async def _read_compaction_items(self, limit: int | None = None) -> tuple[list[Any], bool]:
        """What may be sent to be compacted; being asked each time, the SDK keeps no copy that could be stale."""
        items = await self._session.get_items(limit)
        return items, limit is not None and len(items) < limit

    async def _get_compaction_snapshot(self, limit: int, **options: Any) -> Any | None:
        return await self._session._get_compaction_snapshot(limit, **options)  # noqa: SLF001

    async def _atomic_replace_items(self, items: list[Any]) -> bool:
        return await settled(replace_all(self._session, items))
