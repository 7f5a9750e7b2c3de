"""What an error tells of the effect that it ended: whether it happened, and in which words."""

from __future__ import annotations

from .errors import LeaseLost, OutcomeUnknown, Unavailable

UNKNOWN_ON: tuple[type[BaseException], ...] = (TimeoutError, ConnectionError, OutcomeUnknown, LeaseLost, Unavailable)
"""Errors after which nobody knows whether an effect happened, unless the caller says otherwise."""

TOLD_MAX = 1_000
"""Most characters of an error that are kept with an effect."""


def leaves_unknown(error: BaseException, unknown_on: tuple[type[BaseException], ...] = UNKNOWN_ON) -> bool:
    """
    Whether an error says nothing of the outcome, as a crash does: one of these, or one that such a one caused.

    Cancellations, ``KeyboardInterrupt`` and the like always do. The cause counts since clients wrap
    (``httpx.ReadTimeout`` is no ``TimeoutError``, but comes from one).
    """
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return False
        if not isinstance(cause, Exception) or isinstance(cause, unknown_on):
            return True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


def told_of(error: BaseException) -> str:
    """An error in words that can be stored, whatever it says: names of files need not be UTF-8, ``str`` may fail."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the effect failed by the error, not by its words
        said = type(error).__name__
    return said[:TOLD_MAX].encode("utf-8", "backslashreplace").decode()
