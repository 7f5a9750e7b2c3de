"""A session as one page: everything in it, nothing fetched, no script; text of the session is only ever text."""

from __future__ import annotations

import re
from datetime import UTC
from html import escape
from typing import BinaryIO

from segue.convert import Call, Image, Text
from segue.session import Session

from .original import Left
from .reading import Outcome, Turn, turns

_CSP = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.6 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}
section{border-left:.25rem solid #8886;padding:.1rem 0 .1rem 1rem;margin:1.2rem 0}
.user{border-color:#27c}.assistant{border-color:#2a6}.tool{border-color:#a72}
h2{font-size:.85rem;margin:0;opacity:.7;font-weight:600}
pre{white-space:pre-wrap;font:inherit;margin:.4rem 0}
details pre,.call{font:13px/1.5 ui-monospace,monospace}
img{max-width:100%}
"""
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+")
_NAMES = {"user": "User", "assistant": "Assistant", "system": "System", "tool": "Tool", "note": "Note", "cut": "Cut"}


def export_html(session: Session, out: BinaryIO) -> list[Left]:
    """
    Write the session as a self-contained HTML page. It runs no script and fetches nothing, whatever the session holds.

    Args:
        session: Any session.
        out: Where to, in UTF-8.

    Returns:
        What of the log is not in it, and why.
    """
    left: list[Left] = []
    title = escape(" ".join(session.info.title.split()) or session.id)
    head = (
        '<!doctype html>\n<html><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>\n"
    )
    out.write(_bytes(head))
    out.writelines(_bytes(_section(turn, left)) for turn in turns(session, left))
    out.write(b"</body></html>\n")
    return left


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _section(turn: Turn, left: list[Left]) -> str:
    who = turn.who if turn.who in _NAMES else "system"
    when = turn.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    parts = [f'<section class="{who}" id="e{turn.seq}"><h2>{_NAMES[who]} · {when}</h2>']
    for part in turn.parts:
        if isinstance(part, Text):
            parts.append(f"<pre>{escape(part.text)}</pre>")
        elif isinstance(part, Image):
            parts.append(_image(turn.seq, part, left))
        elif isinstance(part, Call):
            parts.append(f'<pre class="call">→ {escape(part.name)} {escape(part.arguments)}</pre>')
        else:
            parts.append(_result(turn.seq, part, left))
    return "".join(parts) + "</section>\n"


def _result(seq: int, result: Outcome, left: list[Left]) -> str:
    text = "\n".join(part.text for part in result.parts if isinstance(part, Text))
    images = "".join(_image(seq, part, left) for part in result.parts if isinstance(part, Image))
    head = f"← {escape(result.name)}{': error' if result.is_error else ''}"
    first = escape(" ".join(text.split())[:100])
    return f"<details><summary>{head} {first}</summary><pre>{escape(text)}</pre>{images}</details>"


def _image(seq: int, image: Image, left: list[Left]) -> str:
    if _IMAGE.fullmatch(image.url):
        return f'<p><img alt="picture" src="{escape(image.url)}"></p>'
    left.append(Left(seq, "not-fetched", "a picture that is not in the session"))
    return f"<p>[picture: {escape(image.url[:200])}]</p>"
