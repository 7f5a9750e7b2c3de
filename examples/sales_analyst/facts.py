"""``story.json``: what happened, for programs. The two processes of the story write into it in turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Facts:
    """The facts of a story in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **facts: Any) -> None:
        """Add facts to those that are there."""
        known = self.read() | facts
        self._path.write_text(json.dumps(known, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def read(self) -> dict[str, Any]:
        """All facts so far."""
        if not self._path.exists():
            return {}
        return dict(json.loads(self._path.read_text(encoding="utf-8")))
