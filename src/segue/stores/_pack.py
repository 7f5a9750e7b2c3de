"""
How stores keep bodies: compressed when it pays, and always given back as they came.

A store keeps a body's codec number beside the packed bytes. Numbers are never reused.
"""

from __future__ import annotations

import threading

import zstandard

from segue.codec import BODY_MAX_BYTES
from segue.errors import Corrupt

PLAIN = 0
ZSTD = 1

PACK_MIN_BYTES = 1_024
"""Bodies below this are stored plain: what compression would save is not worth its time."""

_LEVEL = 1
_local = threading.local()  # neither a compressor nor a decompressor may be shared by threads


def pack(body: bytes) -> tuple[int, bytes]:
    """The codec number and the bytes to store; compressed only where it saves a tenth."""
    if len(body) < PACK_MIN_BYTES:
        return PLAIN, body
    try:
        compress = _local.compress
    except AttributeError:
        compress = _local.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
    packed: bytes = compress(body)
    if len(packed) * 10 > len(body) * 9:
        return PLAIN, body
    return ZSTD, packed


def unpack(codec: int, packed: bytes) -> bytes:
    """
    The body.

    Raises:
        Corrupt: The bytes are damaged, or would grow beyond the largest body that is accepted.
    """
    if codec == PLAIN:
        return packed
    if codec != ZSTD:
        raise Corrupt(f"the body has the unknown codec {codec}; it is damaged")
    try:
        decompress = _local.decompress
    except AttributeError:
        decompress = _local.decompress = zstandard.ZstdDecompressor().decompress
    try:
        # Every frame carries its size; one beyond the limit was never packed here.
        if not 0 <= zstandard.frame_content_size(packed) <= BODY_MAX_BYTES:
            raise Corrupt("the body's packing claims a size that was never accepted; it is damaged")
        body: bytes = decompress(packed)
    except zstandard.ZstdError as error:
        raise Corrupt(f"the body cannot be unpacked ({error}); it is damaged") from error
    return body
