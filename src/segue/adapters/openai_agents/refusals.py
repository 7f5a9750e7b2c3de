"""What the model is told when a guarded tool refuses."""

from __future__ import annotations

from typing import Any

from agents import default_tool_error_function

from segue.errors import LeaseLost, StaleRead


def tell_refusal(context: Any, error: Exception) -> str:
    """
    A ``failure_error_function`` for tools under ``@segue.guard.writes``.

        @function_tool(failure_error_function=tell_refusal)
        @writes("wiki:{page}")
        def publish(page: str, text: str) -> str: ...

    A write on stale ground is told to the model with what to do (read again, then write); the SDK's own
    function would only say that an error occurred. A turn that was overtaken ends. Other errors are
    told as the SDK tells them.

    Raises:
        LeaseLost: Another turn holds the session; nothing may be written.
    """
    if isinstance(error, LeaseLost):
        raise error
    if isinstance(error, StaleRead):
        return str(error)
    return default_tool_error_function(context, error)
