"""
The SDK's hooks: what changed is told at the start, readings are recorded, stale edits are refused.

A file's version is the hash of its content. An edit goes through only when the version that holds is
the one that this session has seen last, by reading the file or by writing it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import segue
from segue import Effect, Observation, ResumeOptions, Sources, Version
from segue.errors import Invalid
from segue.ledger import SCAN_MAX
from segue.model import Draft, new_id
from segue.probes import file_version
from segue.resume import plan
from segue.world import live

from .lines import Batch
from .place import FORMAT, Place

if TYPE_CHECKING:
    from claude_agent_sdk import HookMatcher

    from segue.briefing import Briefing

    from .store import SegueSessionStore

READS = {"Read": "file_path"}
WRITES = {"Edit": "file_path", "MultiEdit": "file_path", "Write": "file_path", "NotebookEdit": "notebook_path"}
"""The CLI's tools that read and write files, and the argument that names the file."""

CALLS_MAX = 1_024
SESSIONS_MAX = 256
Hook = Callable[[Any, "str | None", Any], Awaitable[dict[str, Any]]]


class Hooks:
    """
    The hooks of one agent process; ``matchers`` is what ``ClaudeAgentOptions(hooks=…)`` takes.

    Args:
        store: Where the sessions are.
        guard: Refuse an edit of a file that changed since this session saw it, or that it never read.
        resume: How the briefing at the start is made (sources, language, time zone); None: files
            are looked at in the working directory.
        observe: Called with the SDK's hook input after every tool call; gives what the call has read
            of the world (an ``Observation``, several, or None), to be recorded.
    """

    def __init__(
        self,
        store: SegueSessionStore,
        *,
        guard: bool = True,
        resume: ResumeOptions | None = None,
        observe: Callable[[Mapping[str, Any]], Observation | Iterable[Observation] | None] | None = None,
    ) -> None:
        self._store = store
        self._guard = guard
        self._resume = resume
        self._observe = observe
        self._seen: OrderedDict[Place, dict[str, Version | None]] = OrderedDict()
        self._calls: OrderedDict[str, tuple[str, Version | None, Effect | None]] = OrderedDict()
        self._told: set[Place] = set()
        self._lock = threading.Lock()

    def matchers(self) -> dict[str, list[HookMatcher]]:
        """The hooks by event, for ``ClaudeAgentOptions(hooks=…)``."""
        from claude_agent_sdk import HookMatcher

        def hook(function: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
            async def called(given: Any, _tool_use_id: str | None, _context: Any) -> dict[str, Any]:
                return await self._store.hop(function, given)

            return called

        files = "|".join([*READS, *WRITES])
        after = None if self._observe is not None else files
        return {
            "UserPromptSubmit": [HookMatcher(hooks=[hook(self._before_prompt)])],
            # What cannot be checked is not written: a guard that fails open guards nothing.
            "PreToolUse": [HookMatcher(files, [hook(self._before_tool)], on_failure="block" if self._guard else None)],
            "PostToolUse": [HookMatcher(after, [hook(self._after_tool)])],
            "PostToolUseFailure": [HookMatcher("|".join(WRITES), [hook(self._after_failure)])],
        }

    # At the start

    def _before_prompt(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What happened since, once, beside the first question."""
        place = self._place(given)
        with self._lock:
            if place in self._told:
                return {}
            self._told.add(place)
        found = self._briefing(place, given)
        if found is None or found.is_quiet:
            return {}
        options = self._resume or ResumeOptions()
        text = found.text(options.language)
        body = {"facts": found.facts(), "language": options.language, "text": text, "for": FORMAT, "message": None}
        self._record(place, segue.draft(body, kind="note", format="segue", origin="system", refs=("note",)))
        return {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": text}}

    def _briefing(self, place: Place, given: Mapping[str, Any]) -> Briefing | None:
        writer = self._store.mirror.writers.of(place)
        session = self._store.mirror.session(place)
        if writer.info is None or session is None:
            return None  # it begins here
        if writer.briefing is not None:
            return writer.briefing
        options = self._resume or ResumeOptions(sources=Sources(roots=(given["cwd"],)), config="pin")
        return plan(session.log, writer.info, options).briefing

    # Around a tool

    def _before_tool(self, given: Mapping[str, Any]) -> dict[str, Any]:
        path, call = _path(given), given["tool_use_id"]
        if path is None:
            return {}
        now, source = _version(path), f"file:{path}"
        effect = None
        if given["tool_name"] in WRITES:
            place = self._place(given)
            why = self._why_not(place, path, now) if self._guard else ""
            if why:
                return _denied(why)
            effect = Effect(new_id(), given["tool_name"], source=source, key=call[:200], before=now)
            self._record(place, _entry(effect))
        self._calls[call] = (source, now, effect)
        if len(self._calls) > CALLS_MAX:
            self._calls.popitem(last=False)
        return {}

    def _why_not(self, place: Place, path: str, now: Version | None) -> str:
        """Why a file must not be written now, for the model; empty: it may."""
        if now is None:
            return "" if not os.path.lexists(path) else f"{path} cannot be read, so nothing tells whether it changed."
        seen = self._known(place).get(f"file:{path}")
        if seen is None:
            return (
                f"{path} exists, and this session has not seen what is in it now. "
                "Read the file, then decide again what to write."
            )
        if seen.matches(now) is not True:
            return (
                f"{path} was changed by somebody else since this session last saw it "
                f"(content {seen.value[:12]}, now {now.value[:12]}). Nothing was written. "
                "Read the file again, then decide again what to write."
            )
        return ""

    def _after_tool(self, given: Mapping[str, Any]) -> dict[str, Any]:
        place, path, name = self._place(given), _path(given), given["tool_name"]
        drafts: list[Draft] = []
        if path is not None:
            source, before, effect = self._calls.pop(given["tool_use_id"], (f"file:{path}", None, None))
            now = _version(path)
            # Changed while it was read: nobody knows which of the two the model saw.
            seen = now if name in WRITES or (before is not None and now is not None and before.matches(now)) else None
            if effect is not None:
                drafts.append(_entry(effect.then("completed", version=now)))
            arguments = {key: value for key, value in given["tool_input"].items() if key in _ARGUMENTS}
            drafts.append(
                _entry(Observation(source, seen, tool="Read", arguments=arguments, call=given["tool_use_id"][:200]))
            )
            self._known(place)[source] = seen
        drafts += [_entry(one) for one in self._observed(given)]
        if drafts:
            self._record(place, *drafts)
        return {}

    def _after_failure(self, given: Mapping[str, Any]) -> dict[str, Any]:
        _source, _before, effect = self._calls.pop(given["tool_use_id"], ("", None, None))
        if effect is not None:
            failed = effect.then("failed", result={"error": str(given.get("error", ""))[:1_000]})
            self._record(self._place(given), _entry(failed))
        return {}

    def _observed(self, given: Mapping[str, Any]) -> list[Observation]:
        found = self._observe(given) if self._observe is not None else None
        if found is None:
            return []
        return [found] if isinstance(found, Observation) else list(found)

    # What this session has seen

    def _known(self, place: Place) -> dict[str, Version | None]:
        """Source to the version last seen; from the log when the session is met first."""
        with self._lock:
            if place not in self._seen:
                self._seen[place] = self._remembered(place)
                if len(self._seen) > SESSIONS_MAX:
                    self._seen.popitem(last=False)
            return self._seen[place]

    def _remembered(self, place: Place) -> dict[str, Version | None]:
        session = self._store.mirror.session(place)
        if session is None:
            return {}
        entries = session.read(kinds=("observation", "effect"), reverse=True, limit=SCAN_MAX)
        found = live(entries, by="source", limit=SCAN_MAX).observations
        return {one.source: one.version for one in found}

    def _record(self, place: Place, *drafts: Draft) -> None:
        self._store.keep(place, Batch(tuple(drafts)))

    def _place(self, given: Mapping[str, Any]) -> Place:
        # The project is the folder that the transcript lies in: the working directory may have changed.
        project = Path(given["transcript_path"]).parent.name
        return self._store.place({"project_key": project, "session_id": given["session_id"]})


_ARGUMENTS = ("file_path", "notebook_path", "offset", "limit")


def _path(given: Mapping[str, Any]) -> str | None:
    """The file that a tool call is about, links resolved; None for a tool of another sort."""
    argument = (READS | WRITES).get(given["tool_name"])
    name = None if argument is None else given["tool_input"].get(argument)
    if not isinstance(name, str) or not name:
        return None
    return os.path.realpath(Path(given["cwd"]) / name)


def _version(path: str) -> Version | None:
    """The content's version, or None when there is none to be had."""
    try:
        return file_version(path)
    except (OSError, Invalid):
        return None


def _entry(fact: Observation | Effect) -> Draft:
    kind = "effect" if isinstance(fact, Effect) else "observation"
    return segue.draft(fact.body(), kind=kind, format="segue", origin="tool", refs=fact.refs)


def _denied(why: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": why,
        }
    }
