"""A sales analyst whose session is kept, brought back on the next day, and told what changed meanwhile."""

from importlib.util import find_spec

for _name in ("duckdb", "rich"):
    if find_spec(_name) is None:
        raise ImportError(f"{_name} is not installed; run: pip install 'segue[examples]'")
