"""What a provider's client answered, as messages for the log: the message as it came, and its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import Invalid
from .model import Usage


def unwrap(value: Any) -> list[tuple[Any, Usage | None]]:
    """
    The messages in an answer of an official client, with the usage on the last of them.

    Args:
        value: An Anthropic ``Message``, an OpenAI ``ChatCompletion`` or ``Response`` (objects with
            ``to_dict()``). Anything else is one message as it is.

    Raises:
        Invalid: An object of a client that is not an answer.
    """
    to_dict = getattr(value, "to_dict", None)
    if not callable(to_dict):
        return [(value, None)]
    answer = to_dict()
    usage = usage_of(answer.get("usage"))
    if answer.get("type") == "message" and "content" in answer:
        return [({"role": answer["role"], "content": answer["content"]}, usage)]
    if answer.get("object") == "chat.completion":
        return [(answer["choices"][0]["message"], usage)]
    if answer.get("object") == "response":
        items: Sequence[Any] = answer["output"]
        return [(item, usage if n == len(items) else None) for n, item in enumerate(items, 1)]
    raise Invalid(f"{type(value).__name__} is no answer of a model; append the message itself", where="items")


def usage_of(counts: Any) -> Usage | None:
    """
    Token counts of an answer in one shape, from Anthropic's, OpenAI's (chat, responses) or LiteLLM's names.

    ``input`` counts everything that went in, cached or not; Anthropic's own ``input_tokens`` leaves the cached out.
    """
    if not isinstance(counts, Mapping):
        return None
    if "prompt_tokens" in counts or "input_tokens_details" in counts:
        return _openai(counts)
    if "input_tokens" in counts:
        return _anthropic(counts)
    return None


def _anthropic(counts: Mapping[str, Any]) -> Usage:
    read, written = _n(counts, "cache_read_input_tokens"), _n(counts, "cache_creation_input_tokens")
    kept = counts.get("cache_creation")
    return Usage(
        input=_n(counts, "input_tokens") + read + written,
        output=_n(counts, "output_tokens"),
        cache_read=read,
        cache_write=written,
        cache_write_long=_n(kept, "ephemeral_1h_input_tokens"),
        reasoning=_n(counts.get("output_tokens_details"), "reasoning_tokens", "thinking_tokens"),
    )


def _openai(counts: Mapping[str, Any]) -> Usage:
    went_in = counts.get("input_tokens_details") or counts.get("prompt_tokens_details")
    came_out = counts.get("output_tokens_details") or counts.get("completion_tokens_details")
    return Usage(
        input=_n(counts, "input_tokens", "prompt_tokens"),
        output=_n(counts, "output_tokens", "completion_tokens"),
        cache_read=_n(went_in, "cached_tokens"),
        cache_write=_n(went_in, "cache_write_tokens", "cache_creation_tokens"),
        cache_write_long=_n(went_in, "ttl_12h_tokens"),
        reasoning=_n(came_out, "reasoning_tokens"),
    )


def _n(counts: Any, *names: str) -> int:
    """The first of these counts that is there; a count that is missing, null or no number is 0."""
    if isinstance(counts, Mapping):
        for name in names:
            value = counts.get(name)
            if isinstance(value, int) and value >= 0:
                return value
    return 0
