"""
Sessions of other tools, brought in: ``segue import`` from the command line, or from a program.

    from segue.importers import import_paths

    for report in import_paths(db.scope(user="lin"), ["~/.claude/projects"]):
        print(report.path, report.outcome, report.entries)

See ``docs/importing.md`` for the formats, and for what of each is kept where.
"""

from .claude_code import import_transcript
from .intake import IMPORTERS, files, has_conversations, import_file, import_paths, recognise
from .messages import import_rows
from .report import Defect, FileReport, SessionReport
from .source import Source, printable

__all__ = [
    "IMPORTERS",
    "Defect",
    "FileReport",
    "SessionReport",
    "Source",
    "files",
    "has_conversations",
    "import_file",
    "import_paths",
    "import_rows",
    "import_transcript",
    "printable",
    "recognise",
]
