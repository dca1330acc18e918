"""Uploads in flight."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from cachesvc_client.wire.names import Lane, Namespace, ShortName

from .sql import changed
from .tables import UploadRow


@dataclass(frozen=True, slots=True)
class Upload:
    """See ``tables.UploadRow``. ``key`` is ``None`` until all bytes were received."""

    upload: str
    token: str
    namespace: Namespace
    name: ShortName
    lane: Lane | None
    size: int
    leased_until: int
    key: str | None = None


_TABLE: Any = UploadRow.__table__  # type: ignore[attr-defined]
_BY_ID = sa.select(_TABLE).where(_TABLE.c.upload == sa.bindparam("upload"))

_ADD = sa.insert(_TABLE)
_THIS = sa.update(_TABLE).where(_TABLE.c.upload == sa.bindparam("upload_"))
_LEASE = _THIS.values(leased_until=sa.bindparam("until"))
_HOLD = _THIS.where(_TABLE.c.key.is_(None)).values(key=sa.bindparam("key_"))


class Uploads:
    """One row per upload."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, upload: Upload) -> None:
        """A new one."""
        self._session.connection().execute(_ADD, {**asdict(upload), "lane": upload.lane or ""})

    def get(self, upload: str) -> Upload | None:
        """By id."""
        row: Any = self._session.connection().execute(_BY_ID, {"upload": upload}).first()
        if row is None:
            return None
        lane = Lane(row.lane) if row.lane else None
        namespace, name = Namespace(row.namespace), ShortName(row.name)
        return Upload(row.upload, row.token, namespace, name, lane, row.size, row.leased_until, row.key)

    def lease(self, upload: str, leased_until: int) -> bool:
        """Moves the lease; false if the row is gone."""
        values = {"upload_": upload, "until": leased_until}
        return bool(self._session.connection().execute(_LEASE, values).rowcount)

    def hold(self, upload: str, key: str) -> bool:
        """Names the object that was received; false if another one was first, or the row is gone."""
        values = {"upload_": upload, "key_": key}
        return bool(self._session.connection().execute(_HOLD, values).rowcount)

    def drop(self, upload: str) -> None:
        """Forgets it; absent is fine."""
        changed(self._session, sa.delete(UploadRow).where(col(UploadRow.upload) == upload))

    def drop_over(self, now: int) -> int:
        """Forgets those whose lease is over; how many."""
        return changed(self._session, sa.delete(UploadRow).where(col(UploadRow.leased_until) < now))
