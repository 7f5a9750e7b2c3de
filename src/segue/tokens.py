"""
How many tokens a message is, estimated from its bytes: no tokenizer, no network, no dictionary.

It is an estimate. Providers count differently and change their tokenizers between models; what was
really used stands in an entry's ``usage``. Give ``build`` another counter where it must be exact.
"""

from __future__ import annotations

import re

BYTES_PER_TOKEN = 3.6
"""UTF-8 bytes of prose in alphabetic scripts and of code that make one token, about."""

CJK_TOKENS = 1.0
"""Tokens of one Chinese, Japanese or Korean character: 0.9 to 1.1 with today's tokenizers."""

QUOTE_TOKENS = 0.2
"""What one quotation mark adds in a short body: keys and punctuation of JSON are denser than prose."""

MESSAGE_TOKENS = 3.0
"""What every message costs, whatever is in it."""

MEDIA_TOKENS = 1_600
"""One image or other encoded attachment, whatever its size in bytes: providers count pixels and pages."""

_MEDIA_MIN_BYTES = 2_048
_DENSE_MAX_BYTES = 1_000  # longer bodies are nearly all text
_MEDIA = re.compile(rb'(?:base64,|"data"\s*:\s*")[A-Za-z0-9+/=_-]{1024,}')


def estimate_tokens(body: bytes | str) -> int:
    """
    Tokens of one message, estimated.

    Args:
        body: The message as it is sent: JSON, as UTF-8 bytes or text of any length.

    Returns:
        1 or more. Within about 25 % for prose and code in English and Chinese; attachments count
        as a flat number each, as their bytes are not what a provider counts.
    """
    data = body.encode() if isinstance(body, str) else body
    size = len(data)
    tokens = MESSAGE_TOKENS
    if size > _MEDIA_MIN_BYTES and b"base64" in data:
        data, attachments = _MEDIA.subn(b"", data)
        size = len(data)
        tokens += attachments * MEDIA_TOKENS
    if data.isascii():
        wide = data.count(b"\\u")  # escapes: six bytes that stand for one character
        size -= 6 * wide
    else:
        wide = (size - len(data.decode(errors="replace"))) // 2
        size -= 3 * wide
    if size < _DENSE_MAX_BYTES:
        tokens += data.count(b'"') * QUOTE_TOKENS
    return int(tokens + max(0, size) / BYTES_PER_TOKEN + wide * CJK_TOKENS)
