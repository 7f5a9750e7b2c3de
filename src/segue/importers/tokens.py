"""Tokens as the providers tell them, as Segue counts them: parts of the input and of the output are inside of these."""

from __future__ import annotations

from typing import Any

from segue.model import Usage

from .records import count


def of_anthropic(told: Any) -> Usage | None:
    """Out of a ``usage`` of Anthropic Messages, which tells cached tokens beside the input; None when there is none."""
    if not isinstance(told, dict):
        return None
    read, write = count(told, "cache_read_input_tokens"), count(told, "cache_creation_input_tokens")
    long = count(told.get("cache_creation"), "ephemeral_1h_input_tokens") if write else 0
    return Usage(
        count(told, "input_tokens") + read + write, count(told, "output_tokens"), read, write, min(write, long), 0
    )


def of_chat(told: dict[str, Any]) -> Usage:
    """Out of a ``usage`` of OpenAI chat."""
    return Usage(
        count(told, "prompt_tokens"),
        count(told, "completion_tokens"),
        count(told.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=count(told.get("completion_tokens_details"), "reasoning_tokens"),
    )


def of_responses(told: dict[str, Any]) -> Usage:
    """Out of a ``usage`` of OpenAI Responses; its details may be an object, or a list with one."""
    given, said = (_first(told.get(name)) for name in ("input_tokens_details", "output_tokens_details"))
    return Usage(
        count(told, "input_tokens"),
        count(told, "output_tokens"),
        count(given, "cached_tokens"),
        count(given, "cache_write_tokens"),
        reasoning=count(said, "reasoning_tokens"),
    )


def _first(details: Any) -> Any:
    return details[0] if isinstance(details, list) and details else details
