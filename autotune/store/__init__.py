"""The results store: every configuration that was tried, and what came of it. Knows no statistics.

=========== ==========================================================================
`rows`      what goes in and comes out, and a measurement's form as JSON
`address`   where the store is, and a connection to it
`schema`    the tables, and whether a database is one of ours
`faults`    what a database's complaint means and what to do about it
`database`  opening, reading and writing the tables
`merging`   what one store has and another lacks
`spool`     where runs write while their server is away
`access`    `Store`: runs, attempts, measurements
`appending` rows of a search, appended beside it
`upkeep`    what a whole store holds; removing what is old
=========== ==========================================================================

The only SQL of the project: SQLAlchemy Core over a SQLite file, or PostgreSQL where the address is
a ``postgresql://`` URL. A run only ever adds measurements; `upkeep` alone removes some.
"""

from autotune.errors import needing

with needing("the results store"):
    from autotune.store.access import Remembered, Store
    from autotune.store.address import default_url
    from autotune.store.appending import Appender
    from autotune.store.rows import PastRun, Row, RunInfo, RunState, Scope

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
]
