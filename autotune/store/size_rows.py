"""Rows of times on problem sizes: one row for each size, with the times of several configurations.

Only the fit of answers for other sizes reads them, not the search.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

import msgspec
import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.store.database import Database, scopes, sizes
from autotune.store.rows import ROTATED, SizeTimes, decode, encode
from autotune.values import Configuration, Problem

#: Decodes pairs of a configuration, left as JSON, and its time in milliseconds.
_PAIRS = msgspec.json.Decoder(list[tuple[msgspec.Raw, float]])
#: Columns that identify a row.
CONTENT = ("run_id", "scope_id", "created", "times")


def values_of(measured: SizeTimes, run_id: int, scope_id: int, created: str) -> dict[str, object]:
    """Return the columns of a new row."""
    times = encode(list(measured.times_ms.items()))
    return {"run_id": run_id, "scope_id": scope_id, "times": times, "created": created}


def of_kernel(kernel: str, source: str, device_name: str) -> sa.ColumnElement[bool]:
    """Return the condition on rows of a kernel with this fingerprint of its sources, on a device model."""
    of_scope = (
        scopes.c.timing == ROTATED,
        scopes.c.kernel == kernel,
        scopes.c.source == source,
        scopes.c.device_name == device_name,
    )
    return sizes.c.scope_id.in_(sa.select(scopes.c.id).where(*of_scope))


def count(store: Database, chosen: sa.ColumnElement[bool]) -> int:
    """Count the rows that match."""
    with store.reading() as connection:
        return connection.scalar(sa.select(sa.func.count(sizes.c.id)).where(chosen)) or 0


def read(
    store: Database, chosen: sa.ColumnElement[bool], arguments: Iterable[str]
) -> list[SizeTimes]:
    """Return the rows that match and have one of these fingerprints of the arguments, oldest first."""
    query = sa.select(sizes.c.id, sizes.c.times, scopes.c.problem).join_from(sizes, scopes)
    query = query.where(chosen, scopes.c.arguments.in_(list(arguments))).order_by(sizes.c.id)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    configuration = cache(partial(decode, kind=Configuration))  # rows share a few configurations
    found = []
    for number, times, problem in rows:
        try:
            times_ms = {
                configuration(bytes(text).decode()): ms for text, ms in _PAIRS.decode(times)
            }
            found.append(SizeTimes(decode(problem, Problem), times_ms))
        except (msgspec.MsgspecError, ValueError) as error:
            raise StoreError(
                f"results store {store.address}: row {number} of sizes is damaged ({error}); delete "
                "it, or name another store by AUTOTUNE_STORE"
            ) from None
    return found
