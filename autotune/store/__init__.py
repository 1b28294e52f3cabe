"""The results store: the result of every configuration that was tried. It computes no statistics.

=========== ===========================================================================
`rows`      the values of the store, and a measurement as JSON
`connection` the store's address, a connection to it, and messages for database errors
`database`  the tables, and transactions that read and write them
`flat`      measurements as rows of plain values
`size_rows` the times of configurations on problem sizes
`access`    `Store`: runs, attempts, measurements; `Appender`: a thread that appends rows
`sharing`   copying the rows that another store lacks; the local file of runs that share a server
=========== ===========================================================================

This folder has the only SQL of the project: SQLAlchemy Core over a SQLite file, or over PostgreSQL if
the address is a ``postgresql://`` URL. Runs always write to a file. Its rows are merged into the server.
"""

from autotune.errors import needing

with needing("the results store"):
    from autotune.store.access import Appender, Remembered, Store
    from autotune.store.connection import default_url
    from autotune.store.rows import ROTATED, PastRun, Row, RunInfo, RunState, Scope, SizeTimes
    from autotune.store.sharing import open_for_runs

__all__ = [
    "ROTATED",
    "Appender",
    "PastRun",
    "Remembered",
    "Row",
    "RunInfo",
    "RunState",
    "Scope",
    "SizeTimes",
    "Store",
    "default_url",
    "open_for_runs",
]
