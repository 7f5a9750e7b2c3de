"""
Probes: each looks at one kind of source and tells which version holds now.

Every probe lists its blind spots: changes that its version cannot show. Drivers are imported when a
probe first runs; a missing one names its ``pip install``.
"""

from __future__ import annotations

from .call import Call
from .file import File, file_version, replace_file
from .folder import Folder
from .git import Git
from .http import Http, from_headers
from .sql import DataVersion, Lsn, Rows, Sql, Watermark, Xmin, rows_version
from .url import Url

__all__ = [
    "Call",
    "DataVersion",
    "File",
    "Folder",
    "Git",
    "Http",
    "Lsn",
    "Rows",
    "Sql",
    "Url",
    "Watermark",
    "Xmin",
    "file_version",
    "from_headers",
    "replace_file",
    "rows_version",
]
