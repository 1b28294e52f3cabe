"""The times of records: ISO 8601, UTC, to the second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: Maximum difference between the clocks of two machines.
_MAX_CLOCK_DIFFERENCE = timedelta(days=1)


def timestamp() -> str:
    """Return the current time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def moment(text: str) -> datetime:
    """Return the time of an ISO 8601 text; the zone is UTC unless the text has one."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not an ISO 8601 time") from error


def is_future(text: str, now: datetime | None = None) -> bool:
    """Return whether a time is later than the clock of any machine may say; default: than now."""
    return moment(text) - (now or datetime.now(UTC)) > _MAX_CLOCK_DIFFERENCE
