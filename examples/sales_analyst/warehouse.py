"""
The warehouse: a real DuckDB file with one table of orders, made by a generator that always gives the same rows.

``restate`` is what happens to warehouses at night: returns are booked late, rows change, ``updated_at`` moves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import duckdb

REGIONS = {"华东": 420, "华南": 360, "华北": 300, "西南": 180}
"""Region and orders in a full month."""

CHANNELS = {"线上": 40, "经销商": 35, "门店": 25}
SKUS = {"Q7 净水机": (30, 2980), "Q5 净水机": (25, 1980), "D3 台饮机": (20, 1280), "F2 滤芯": (25, 260)}
"""SKU: its share of the orders in percent, and its price in yuan."""

SEASON = {6: 96, 7: 100, 8: 91}
"""Month and its volume in percent: August is weaker everywhere."""

GROUPS = ("month", "region", "channel", "sku")

_SCHEMA = """
CREATE SCHEMA sales;
CREATE TABLE sales.orders (
    order_id   INTEGER PRIMARY KEY,
    ordered_on DATE NOT NULL,
    region     VARCHAR NOT NULL,
    channel    VARCHAR NOT NULL,
    sku        VARCHAR NOT NULL,
    amount     INTEGER NOT NULL,            -- yuan
    returned   INTEGER NOT NULL DEFAULT 0,  -- yuan of it that came back
    updated_at TIMESTAMP NOT NULL           -- UTC; stamped at every insert and update
)
"""

# Net sales in units of 10,000 yuan. The column to group by is one of four constants, never a caller's text.
_NET = "round(sum(amount - returned) / 10000.0, 1)"
_BY = {
    "month": f"""
        SELECT strftime(ordered_on, '%Y-%m') AS name, {_NET} AS sales, count(*) AS orders
        FROM sales.orders WHERE ($region IS NULL OR region = $region) AND ordered_on < $until
        GROUP BY name ORDER BY name""",
    **{
        column: f"""
        SELECT {column} AS name,
               coalesce(round(sum(amount - returned) FILTER (ordered_on < $start) / 10000.0, 1), 0) AS before,
               coalesce(round(sum(amount - returned) FILTER (ordered_on >= $start) / 10000.0, 1), 0) AS sales
        FROM sales.orders
        WHERE ($region IS NULL OR region = $region) AND ordered_on >= $previous AND ordered_on < $until
        GROUP BY name ORDER BY sales - before, name"""
        for column in ("region", "channel", "sku")
    },
}


@dataclass(frozen=True)
class Restated:
    """What a restatement did: rows changed, and net sales of the month before and after, in 10,000 yuan."""

    rows: int
    before: float
    after: float


class Warehouse:
    """
    An open warehouse.

    DuckDB lets one process at a time write a file: close it before another process opens it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = duckdb.connect(str(path))

    @classmethod
    def make(cls, path: Path, *, year: int, loaded_at: datetime) -> Self:
        """A new file with the orders of June to August, the last of them loaded at ``loaded_at``."""
        made = cls(path)
        made._connection.execute(_SCHEMA)
        columns = list(zip(*_orders(year, loaded_at), strict=True))
        unnested = ", ".join("unnest(?)" for _ in columns)
        made._connection.execute(f"INSERT INTO sales.orders SELECT {unnested}", [list(c) for c in columns])
        return made

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same file, for one thread; close it after use."""
        return self._connection.cursor()

    def sales(self, *, by: str, month: date, region: str | None = None) -> list[dict[str, Any]]:
        """Net sales in 10,000 yuan: by month up to ``month``, or by group with the month before for comparison."""
        values = {"region": region, "start": month, "until": _next(month), "previous": _previous(month)}
        query = _BY[by]
        with self.cursor() as cursor:
            cursor.execute(query, {name: value for name, value in values.items() if f"${name}" in query})
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def watermark(self, region: str | None = None) -> datetime:
        """The newest ``updated_at`` of a region, or of all."""
        with self.cursor() as cursor:
            cursor.execute(WATERMARK, [region])
            return _one(cursor.fetchone()).replace(tzinfo=UTC)  # type: ignore[no-any-return]

    def restate(self, *, region: str, month: date, share: tuple[int, int], at: datetime) -> Restated:
        """
        Book returns late: of the month's online Q7 orders of a region, those with ``order_id % share[1] == share[0]``.
        """
        before = self._net(region, month)
        with self.cursor() as cursor:
            cursor.execute(
                """UPDATE sales.orders SET returned = amount, updated_at = ?
                   WHERE region = ? AND channel = '线上' AND sku = 'Q7 净水机' AND returned = 0
                     AND ordered_on >= ? AND ordered_on < ? AND order_id % ? = ?""",
                [at.astimezone(UTC).replace(tzinfo=None), region, month, _next(month), share[1], share[0]],
            )
            rows = _one(cursor.fetchone())
        return Restated(rows, before, self._net(region, month))

    def _net(self, region: str, month: date) -> float:
        return float(self.sales(by="month", region=region, month=month)[-1]["sales"])

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


WATERMARK = "SELECT max(updated_at) FROM sales.orders WHERE $1 IS NULL OR region = $1"
"""Tells one state of a region's orders from another. It does not see deletes; this warehouse has none."""


def _one(row: Sequence[Any] | None) -> Any:
    assert row is not None
    return row[0]


def _orders(year: int, loaded_at: datetime) -> list[tuple[Any, ...]]:
    draw = random.Random(20260831)
    rows: list[tuple[Any, ...]] = []
    for month, season in SEASON.items():
        for region, full in REGIONS.items():
            for _ in range(full * season // 100):
                rows.append(_order(draw, len(rows) + 1, date(year, month, draw.randint(1, 30)), region))
    # The nightly load stamps what it brings; the last rows came with the load of ``loaded_at``.
    last = loaded_at.astimezone(UTC).replace(tzinfo=None)
    newest = {region: max(row[0] for row in rows if row[2] == region) for region in REGIONS}
    return [(*row[:-1], last) if newest[row[2]] == row[0] else row for row in rows]


def _order(draw: random.Random, number: int, day: date, region: str) -> tuple[Any, ...]:
    channel = _weighted(draw, CHANNELS)
    sku = _weighted(draw, {name: share for name, (share, _) in SKUS.items()})
    amount = SKUS[sku][1] * draw.randint(6, 18)
    loaded = datetime.combine(day + timedelta(days=1), datetime.min.time()) + timedelta(hours=2, minutes=10)
    return number, day, region, channel, sku, amount, 0, loaded


def _weighted(draw: random.Random, shares: dict[str, int]) -> str:
    at = draw.randrange(sum(shares.values()))
    for name, share in shares.items():
        at -= share
        if at < 0:
            return name
    raise AssertionError


def _next(month: date) -> date:
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)


def _previous(month: date) -> date:
    return (month.replace(day=1) - timedelta(days=1)).replace(day=1)
