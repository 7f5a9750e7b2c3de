"""Which addresses may be looked at, when the address comes from the name of a source."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from segue.errors import Invalid


class Reach:
    """
    Addresses that begin with one of a few: same scheme, host and port, path below.

    Names of sources may come from untrusted text, so nothing is reached that was not named here.
    """

    def __init__(self, allow: Iterable[str]) -> None:
        self._allowed = tuple(urlsplit(address) for address in allow)
        for address in self._allowed:
            if not address.scheme:
                raise Invalid("an allowed address needs a scheme, such as https://api.example.com/", where="allow")

    def covers(self, address: str) -> bool:
        """True when the address lies below an allowed one."""
        try:
            asked = urlsplit(address)
            return any(_is_below(asked, allowed) for allowed in self._allowed)
        except ValueError:
            return False


def _is_below(asked: SplitResult, allowed: SplitResult) -> bool:
    if "::" in asked.geturl() or "\\" in asked.geturl() or "@" in asked.netloc:
        return False
    if any(part.replace("%2e", ".").replace("%2E", ".") in {".", ".."} for part in asked.path.split("/")):
        return False
    same = (asked.scheme, asked.hostname, asked.port) == (allowed.scheme, allowed.hostname, allowed.port)
    below = allowed.path if allowed.path.endswith("/") else f"{allowed.path}/"
    return same and (asked.path == allowed.path or f"{asked.path}".startswith(below) or allowed.path in {"", "/"})
