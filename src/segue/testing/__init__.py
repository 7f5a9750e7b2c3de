"""
What holds a store to the contract: ``StoreSuite`` (pytest), a model, a linearizability checker.

``docs/writing-a-store.md`` shows how. Needs pytest and hypothesis.
"""

from __future__ import annotations

from segue.errors import MissingExtra

try:
    import hypothesis  # noqa: F401 - here to be missed early and by name
    import pytest
except ImportError as error:
    raise MissingExtra("testing", error.name or "pytest") from error

_AREAS = (
    "append attributes case child content erasure forks handles histories ids lease linear listing matrix model names "
    "processes queue races reading suite"
)
pytest.register_assert_rewrite(*(f"segue.testing.{area}" for area in _AREAS.split()))

from .case import StoreCase, draft, drafts  # noqa: E402 - asserts are rewritten from here on
from .matrix import capability_matrix  # noqa: E402
from .suite import StoreSuite  # noqa: E402

__all__ = ["StoreCase", "StoreSuite", "capability_matrix", "draft", "drafts"]
