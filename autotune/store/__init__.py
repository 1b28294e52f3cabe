"""The results store: every configuration that was tried, and its result. Knows no statistics.

=========== ==========================================================================
`rows`      the values of the store, and a measurement as JSON
`address`   the store's address, and a connection to it
`schema`    the tables, and the check that a database is one of ours
`database`  opening, reading and writing the tables, and a database's errors in words
`flat`      measurements as rows of plain values
`merging`   copying the rows that another store lacks
`access`    `Store`: runs, attempts, measurements
`appending` a thread that appends the rows of a search
`sharing`   the local file of runs that share a server
=========== ==========================================================================

The only SQL of the project: SQLAlchemy Core over a SQLite file, or PostgreSQL where the address is
a ``postgresql://`` URL. Runs write to a file in both cases; its rows are merged into the server.
"""

from autotune.errors import needing

with needing("the results store"):
    from autotune.store.access import Remembered, Store
    from autotune.store.address import default_url
    from autotune.store.appending import Appender
    from autotune.store.rows import PastRun, Row, RunInfo, RunState, Scope
    from autotune.store.sharing import open_for_runs

__all__ = [
    "Appender",
    "PastRun",
    "Remembered",
    "Row",
    "RunInfo",
    "RunState",
    "Scope",
    "Store",
    "default_url",
    "open_for_runs",
]
