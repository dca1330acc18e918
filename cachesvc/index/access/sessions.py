"""Store sessions of the web page."""

from __future__ import annotations

import sqlalchemy as sa
from sqlmodel import col, select

from ..sql import Rows
from ..tables import SessionRow


class Sessions(Rows):
    """Sessions, by the hash of their secret. A session has no rights of its own: it names a token."""

    def add(self, session_hash: str, token: str, expires: int, most: int) -> None:
        """Adds a session of a token. Of a token that has ``most`` already, the one that ends first is
        deleted."""
        kept = (
            sa.select(col(SessionRow.session_hash))
            .where(col(SessionRow.token) == token)
            .order_by(col(SessionRow.expires).desc(), col(SessionRow.session_hash))
            .limit(most - 1)
        )
        others = (col(SessionRow.token) == token, col(SessionRow.session_hash).not_in(kept))
        self._change(sa.delete(SessionRow).where(*others))
        self._session.add(SessionRow(session_hash=session_hash, token=token, expires=expires))

    def token(self, session_hash: str, now: int) -> str | None:
        """Returns the id of the token that the session is for; ``None`` if it is over or does not exist."""
        query = select(SessionRow.token).where(
            SessionRow.session_hash == session_hash, SessionRow.expires > now
        )
        return self._session.exec(query).first()

    def remove(self, session_hash: str) -> bool:
        """Ends a session, and returns whether there was one."""
        row = sa.delete(SessionRow).where(col(SessionRow.session_hash) == session_hash)
        return bool(self._change(row))

    def forget(self, now: int) -> int:
        """Deletes the sessions that are over, and returns how many."""
        return self._change(sa.delete(SessionRow).where(col(SessionRow.expires) <= now))
