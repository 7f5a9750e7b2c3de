"""A file on any storage that fsspec knows: S3, GCS, Azure, SFTP, WebHDFS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from segue.errors import Invalid, MissingExtra
from segue.ledger import Answer, Denied, Gone, Unanswered, Version

from .reach import Reach

# The names that file systems give to what tells one content from another, the surest first.
_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("version-id", ("VersionId", "version_id", "generation")),
    ("etag", ("ETag", "etag", "e_tag")),
    ("checksum", ("md5Hash", "content_md5", "md5", "checksum", "crc32c")),
)


class Url:
    """
    The version is the object's version id, ETag or checksum, else its time of modification and size.

    Args:
        url: ``s3://bucket/report.csv``; None: the source's name is the address, below one of ``allow``.
        allow: Addresses below which sources may be looked at.
        options: Of the file system (credentials, endpoint), as fsspec takes them.

    Blind spots: where the storage only tells time and size, an edit that keeps both. An ETag of a multipart
    upload changes when the same bytes are uploaded in other parts. Some storages answer late.
    """

    def __init__(
        self, url: str | None = None, *, allow: Iterable[str] = (), options: Mapping[str, Any] | None = None
    ) -> None:
        allow = tuple(allow)
        if url is None and not allow:
            raise Invalid("give the url, or allow=… the addresses that sources may name", where="url")
        self._url = url
        self._reach = Reach(allow)
        self._options = dict(options or {})

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """What the storage says now; with the rights of ``options``, whoever the principal is."""
        url = self._url or source
        if self._url is None and not self._reach.covers(url):
            return Unanswered("outside the addresses that may be looked at")
        # fsspec keeps file systems and listings: a cached listing would prove yesterday's file.
        filesystem, path = _fsspec().core.url_to_fs(url, skip_instance_cache=True, **self._options)
        filesystem.invalidate_cache()
        try:
            info = filesystem.info(path)
            return _version(info, seen) or _by_time(filesystem, path, info)
        except FileNotFoundError:
            return Gone()
        except PermissionError:
            return Denied()


def _version(info: Mapping[str, Any], seen: Version | None) -> Version | None:
    ordered = sorted(_NAMES, key=lambda named: seen is None or named[0] != seen.kind)
    for kind, names in ordered:
        value = next((info[name] for name in names if info.get(name) not in (None, "", "null")), None)
        if value is not None:
            return Version.of(value, kind)
    return None


def _by_time(filesystem: Any, path: str, info: Mapping[str, Any]) -> Answer:
    try:
        modified = filesystem.modified(path)
    except (NotImplementedError, KeyError):
        return Unanswered("the storage tells neither a checksum nor a time")
    return Version("modified+size", f"{Version.of(modified).value} {info.get('size')}")


def _fsspec() -> Any:
    try:
        return import_module("fsspec")
    except ImportError as error:
        raise MissingExtra("world", "fsspec") from error
