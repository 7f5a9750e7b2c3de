"""Messages of a format, as a provider's client takes them: a JSON array, or one a line."""

from __future__ import annotations

from typing import BinaryIO

from segue.session import Session
from segue.view import ViewSpec

from .original import Left


def export_messages(session: Session, out: BinaryIO, *, format: str = "anthropic", lines: bool = False) -> list[Left]:
    """
    Write the session's view: what a model would be sent, by all rules of the provider that Segue knows.

    Args:
        session: Any session.
        out: Where to.
        format: anthropic, openai.chat or openai.responses; messages of others are converted.
        lines: One message a line instead of one array.

    Returns:
        What of the log is not in it, and why.

    Raises:
        ViewInvalid: The history cannot be told so that the provider takes it.
    """
    view = session.view(ViewSpec(format, foreign="convert"))
    if lines:
        out.writelines(body + b"\n" for body in view.bodies)
    else:
        out.write(b"[" + b",\n".join(view.bodies) + b"]\n")
    return [Left(one.first, one.reason, one.detail) for one in view.omitted]
