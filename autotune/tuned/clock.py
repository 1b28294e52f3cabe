"""The time format of records."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp() -> str:
    """Return the time now as records hold it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def moment(text: str) -> datetime:
    """Return a record's time, which is ISO 8601 and in UTC unless it has a zone."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a time of ISO 8601") from error
