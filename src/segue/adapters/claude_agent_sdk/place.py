"""Which Segue session a transcript of the Claude Agent SDK is: names in, names out."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from segue.errors import Invalid
from segue.model import NAME_MAX_BYTES, SessionInfo

FORMAT = "claude.line"
"""Format of the sessions, and of the lines that are kept as JSON."""

_FACTS = "claude"


class Place(NamedTuple):
    """
    Project, session and subpath (empty: the main transcript), as the SDK names them.

    Attributes:
        project: The SDK's project key, or the one that the store was given.
        session: The SDK's session id.
        subpath: Of a subagent's transcript (``subagents/agent-…``).
    """

    project: str
    session: str
    subpath: str = ""

    @classmethod
    def of(cls, key: Mapping[str, Any], project: str | None = None) -> Place:
        """
        The place that a ``SessionKey`` names.

        Args:
            key: The SDK's key.
            project: Stands for the key's project, when given.

        Raises:
            Invalid: A part is missing or no str, or the subpath is empty.
        """
        subpath = key.get("subpath")
        found = cls(key["project_key"] if project is None else project, key["session_id"], subpath or "")
        if subpath == "" or not all(isinstance(part, str) for part in found):
            raise Invalid(f"{dict(key)!r} is no key: names are str, and a subpath is not empty", where="key")
        return found

    @classmethod
    def from_info(cls, info: SessionInfo) -> Place | None:
        """
        The place that a Segue session is; None when it is none of the SDK's.

        A fork that Segue made has inherited its parent's facts but not its key: it is a main
        transcript whose session id is the fork's own id.
        """
        facts = info.metadata.get(_FACTS)
        if info.format != FORMAT or not isinstance(facts, Mapping):
            return None
        found = cls(*(str(facts.get(name, "")) for name in cls._fields))
        if info.key == found.key:
            return found
        own = uuid_of(info.id)
        return None if own is None or info.key is not None else cls(found.project, own)

    @property
    def main(self) -> Place:
        """The main transcript of the same session."""
        return Place(self.project, self.session)

    @property
    def key(self) -> str:
        """Its key within the scope: readable where it fits, and never that of another place."""
        parts = self if self.subpath else self[:2]
        return _short("claude", "/".join(quote(part, safe=".", errors="surrogatepass") for part in parts))

    @property
    def project_tag(self) -> str:
        """Tag of every main transcript of the project; forks inherit it, so that they are listed with it."""
        return _short("claude-project", quote(self.project, safe=".", errors="surrogatepass"))

    @property
    def session_tag(self) -> str:
        """Tag of every subagent's transcript of the session."""
        return _short("claude-of", self.main.key)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the session, from which ``from_info`` gives back the place."""
        return {_FACTS: dict(zip(self._fields, self, strict=True))}

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the session: a subagent's transcript is found by its session, a main one by its project."""
        return (self.session_tag,) if self.subpath else (self.project_tag,)


def _short(kind: str, name: str) -> str:
    whole = f"{kind}:{name}"
    if len(whole) <= NAME_MAX_BYTES:
        return whole
    return f"{kind}#{hashlib.sha256(name.encode()).hexdigest()}"  # a # is never in a readable one


def uuid_of(id: str) -> str | None:
    """A Segue id as the UUID that the CLI demands of a session id; None when it has not 32 hex digits."""
    try:
        return str(uuid.UUID(hex=id)) if len(id) == 32 else None
    except ValueError:
        return None


def id_of(session: str) -> str | None:
    """The Segue id whose ``uuid_of`` is this session id, or None."""
    try:
        found = uuid.UUID(session)
    except ValueError:
        return None
    return found.hex if str(found) == session else None
