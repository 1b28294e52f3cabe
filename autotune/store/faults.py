"""A database's errors in words for a person: what happened, where, what to do."""

from __future__ import annotations

import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.store.address import Address

NO_RUN = "there is no such run here; begin_run first"
KEPT = "what was stored before is kept, and the same command resumes there"

#: SQLite's primary result codes, by the start of their names.
SQLITE = {
    "SQLITE_BUSY": "another process has held its lock for {wait:g} s; let that process finish, or "
    "see which one it is: fuser '{where}'",
    "SQLITE_LOCKED": "another part of this process has held its lock for {wait:g} s",
    "SQLITE_FULL": f"the disk is full; free some space: {KEPT}",
    "SQLITE_IOERR": "the disk fails, or a quota or file-size limit (ulimit -f) is reached; change "
    f"that: {KEPT}",
    "SQLITE_TOOBIG": "a value is too large for the database",
    "SQLITE_NOTADB": "it is no SQLite database, or a damaged one, and was left as it is; move it "
    "away, or name another file by AUTOTUNE_STORE",
    "SQLITE_CORRUPT": "the file is damaged; move it away, and save what can be read: "
    "sqlite3 OLD .recover | sqlite3 NEW",
    "SQLITE_CONSTRAINT": NO_RUN,
    "SQLITE_CANTOPEN": "the file or its folder may not be opened or written by this user; change its "
    "permissions, or name another file by AUTOTUNE_STORE",
    "SQLITE_READONLY": "the file or its folder is read-only for this user; change its permissions, "
    "or name another file by AUTOTUNE_STORE",
}
for _name in ("SQLITE_PERM", "SQLITE_AUTH", "SQLITE_NOLFS"):
    SQLITE[_name] = SQLITE["SQLITE_CANTOPEN"]

#: PostgreSQL's SQLSTATE codes, by their start; https://www.postgresql.org/docs/current/errcodes-appendix.html
POSTGRESQL = {
    "53100": f"the server's disk is full; free some space there: {KEPT}",
    "53": f"the server is out of a resource; wait, or raise its limit: {KEPT}",
    "55P03": "another session has held a lock for {wait:g} s; see pg_stat_activity for which one",
    "42501": "this user may not do that; GRANT the rights, or use another user",
    "25006": "the server takes no writes (a standby?); name the primary server",
    "57P": f"the server is going down or starting; wait until it is up: {KEPT}",
    "23503": NO_RUN,
    "XX": f"the database is damaged; see the server's log: {KEPT}",
}
UNREACHABLE = (
    "the server cannot be reached, or does not let this user in; check that it runs, and host, "
    "port, user, password and database"
)
CHANGED = "the tables are not as this version of autotune left them; name another store"


def explained(error: Exception, address: Address) -> StoreError:
    """Return an error of SQLAlchemy as one message; raise it ``from None``: a driver's may quote secrets."""
    cause = getattr(error, "orig", None) or error
    text = address.without_secrets(" ".join(str(cause).split()))
    advice = _advice(cause, address).format(wait=address.wait_s, where=address)
    return StoreError(f"results store {address}: {text}: {advice}")


def _advice(cause: Exception, address: Address) -> str:
    if address.path:
        return _by_start(SQLITE, getattr(cause, "sqlite_errorname", ""))
    if isinstance(cause, sa.exc.SQLAlchemyError):
        return CHANGED
    state = getattr(cause, "sqlstate", None)  # None where no server answered
    return _by_start(POSTGRESQL, state) if state else UNREACHABLE


def _by_start(table: dict[str, str], code: str) -> str:
    return next((advice for start, advice in table.items() if code.startswith(start)), CHANGED)
