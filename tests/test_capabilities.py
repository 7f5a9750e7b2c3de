"""The table of what each store declares is in the docs as the suite prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

import segue
import stores
from segue.testing import capability_matrix

PAGE = Path(__file__).parents[1] / "docs" / "stores.md"
NAMES = ["memory", *(getattr(each, "values", [each])[0] for each in stores.SHARED)]

pytestmark = pytest.mark.server


def test_the_docs_show_what_the_stores_declare(tmp_path):
    declared = []
    for name in NAMES:
        with stores.url_of(name, tmp_path) as url, segue.open(url) as db:
            declared.append((name, db.engine.store.capabilities))
    table = capability_matrix(declared)
    assert f"```text\n{table}\n```" in PAGE.read_text("utf-8"), f"docs/stores.md needs this table:\n{table}"
