"""Results of calls whose payload is replaced by a text: how each format writes them, and what binds to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_THINKING = frozenset({"thinking", "redacted_thinking"})


def masked(format: str, value: Any, texts: Mapping[str, str]) -> Any | None:
    """
    A message with other texts as the results of calls, or None when it holds no such result.

    Args:
        format: Whose message it is.
        value: The message.
        texts: By call id.
    """
    if not isinstance(value, dict):
        return None
    if format == "anthropic":
        return _anthropic(value, texts)
    if format == "openai.responses" and value.get("type") in _OUTPUTS and value.get("call_id") in texts:
        return {**value, "output": texts[value["call_id"]]}
    if format == "openai.chat" and value.get("role") == "tool" and value.get("tool_call_id") in texts:
        return {**value, "content": texts[value["tool_call_id"]]}
    return None


def _anthropic(value: dict[str, Any], texts: Mapping[str, str]) -> Any | None:
    content = value.get("content")
    if not isinstance(content, list) or not any(_is_result(block, texts) for block in content):
        return None
    shown = [{**b, "content": texts[b["tool_use_id"]]} if _is_result(b, texts) else b for b in content]
    return {**value, "content": shown}


def _is_result(block: Any, texts: Mapping[str, str]) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result" and block.get("tool_use_id") in texts


def is_bound(format: str, value: Any) -> bool:
    """
    Whether a message of the model holds thinking that is bound to all that stands before it.

    Anthropic's thinking is signed over its prefix, OpenAI's reasoning items are dropped when theirs
    changed; chat interfaces pass signed thinking on under names of their own.
    """
    if not isinstance(value, dict):
        return False
    if format == "anthropic":
        content = value.get("content")
        return isinstance(content, list) and any(isinstance(b, dict) and b.get("type") in _THINKING for b in content)
    if format == "openai.responses":
        return value.get("type") == "reasoning"
    return bool(value.get("thinking_blocks") or value.get("reasoning_details"))
