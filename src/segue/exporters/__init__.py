"""
Sessions out: the original bytes, a bundle, messages of a format, Markdown, a page.

Each exporter writes to a binary file and returns a report of what it left out. ``segue export`` is the same from the
command line.
"""

from .bundle import export_bundle, import_bundle
from .html import export_html
from .markdown import export_markdown
from .messages import export_messages
from .original import Left, export_original

__all__ = [
    "Left",
    "export_bundle",
    "export_html",
    "export_markdown",
    "export_messages",
    "export_original",
    "import_bundle",
]
