"""
What an import finds in folders, by format, as a Markdown table: files, sessions, entries, tokens, defects.

    python bench/imported.py FOLDER …

The sessions are made in memory. Figures only; no text of a file is printed.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

import segue
from segue.importers import import_paths


def main() -> None:
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    defects: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with segue.open("memory:") as db:
        for report in import_paths(db.scope(), sys.argv[1:]):
            name = report.format if report.outcome in ("imported", "unchanged") else "named with the reason"
            usage = report.usage
            rows[name] += Counter(
                files=1, sessions=len(report.sessions), entries=report.entries, input=usage.input, output=usage.output
            )
            defects[name] += report.counts
    print("| format | files | sessions | entries | tokens in | tokens out | defects |")
    print("|---|---|---|---|---|---|---|")
    for name, row in sorted(rows.items(), key=lambda item: (item[0] == "named with the reason", item[0])):
        told = ", ".join(f"{kind} {count:,}" for kind, count in sorted(defects[name].items())) or "–"
        columns = (row[column] for column in ("files", "sessions", "entries", "input", "output"))
        print(f"| {name} | {' | '.join(f'{number:,}' for number in columns)} | {told} |")


if __name__ == "__main__":
    main()
