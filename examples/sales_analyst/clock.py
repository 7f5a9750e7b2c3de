"""
When the story plays: a Friday, a Monday and a Tuesday in Shanghai, after the newest August that is over.

The store judges time by its own clock. A demonstration cannot wait until tomorrow, so it moves that
clock (``shift_clock``, as tests do); within a step the clock runs on as usual.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import segue
from segue.model import to_us

ZONE_NAME = "Asia/Shanghai"
ZONE = ZoneInfo(ZONE_NAME)
NIGHT = timedelta(hours=18)
"""From Monday's last entry to Tuesday's first."""


class Story:
    """The moments of the story in one year."""

    def __init__(self, year: int) -> None:
        first = date(year, 9, 4)
        self.year = year
        self.august = date(year, 8, 1)
        self._monday = first + timedelta(days=(7 - first.weekday()) % 7)

    @classmethod
    def newest(cls, today: datetime | None = None) -> Story:
        """The story of the newest year in which it is past."""
        today = today or datetime.now(UTC)
        story = cls(today.year)
        return story if story.at(3) < today else cls(today.year - 1)

    def at(self, day: int, hour: int = 0, minute: int = 0) -> datetime:
        """A local time; Monday is day 0."""
        return datetime.combine(self._monday + timedelta(days=day), time(hour, minute), ZONE)

    @property
    def friday(self) -> datetime:
        return self.at(-3, 16, 20)

    @property
    def loaded(self) -> datetime:
        """When the warehouse was last loaded before the story."""
        return self.at(0, 2, 10)

    @property
    def monday(self) -> datetime:
        return self.at(0, 15)

    @property
    def night(self) -> datetime:
        """When the returns are booked."""
        return self.at(1, 2, 10)

    @property
    def tuesday_early(self) -> datetime:
        return self.at(1, 8, 40)


def move_clock(db: segue.Database, moment: datetime) -> None:
    """Move this handle's store clock to a moment; it runs on from there."""
    store = db.engine.store
    store.shift_clock(to_us(moment) - store.now_us())


def local(moment: datetime) -> str:
    """``Mon 15:00``, in Shanghai."""
    return moment.astimezone(ZONE).strftime("%a %H:%M")
