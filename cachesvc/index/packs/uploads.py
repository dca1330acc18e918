"""Store uploads that are under way."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc_client.wire.names import Lane, Namespace, ShortName

from ..sql import Rows
from ..tables import ObjectRow, UploadRow


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
    started: int | None = None


_TABLE: Any = UploadRow.__table__  # type: ignore[attr-defined]
_BY_ID = sa.select(_TABLE).where(_TABLE.c.upload == sa.bindparam("upload"))

_ADD = sa.insert(_TABLE)
_THIS = sa.update(_TABLE).where(_TABLE.c.upload == sa.bindparam("upload_"))
_LEASE = _THIS.values(leased_until=sa.bindparam("until"))
_HOLD = _THIS.where(_TABLE.c.key.is_(None)).values(key=sa.bindparam("key_"))


class Uploads(Rows):
    """The uploads, one row for each."""

    def add(self, upload: Upload) -> None:
        """Adds an upload."""
        self._run(_ADD, {**asdict(upload), "lane": upload.lane or ""})

    def get(self, upload: str) -> Upload | None:
        """Returns the upload with this id, if there is one."""
        row: Any = self._run(_BY_ID, {"upload": upload}).first()
        if row is None:
            return None
        lane = Lane(row.lane) if row.lane else None
        namespace, name = Namespace(row.namespace), ShortName(row.name)
        return Upload(
            row.upload, row.token, namespace, name, lane, row.size, row.leased_until, row.key, row.started
        )

    def lease(self, upload: str, leased_until: int) -> bool:
        """Moves the lease of an upload; false if its row is gone."""
        values = {"upload_": upload, "until": leased_until}
        return bool(self._run(_LEASE, values).rowcount)

    def hold(self, upload: str, key: str) -> bool:
        """Records the key of the received object; false if the upload has one already, or its row is gone."""
        values = {"upload_": upload, "key_": key}
        return bool(self._run(_HOLD, values).rowcount)

    def oldest_unfinished(self, now: int) -> int | None:
        """Returns when the oldest upload began whose lease holds and whose pack no commit has taken; ``None``
        if there is none."""
        objects: Any = ObjectRow.__table__  # type: ignore[attr-defined]
        pending = sa.or_(_TABLE.c.key.is_(None), objects.c.share.is_not(None))
        query = (
            sa.select(sa.func.min(_TABLE.c.started))
            .select_from(_TABLE.outerjoin(objects, objects.c.key == _TABLE.c.key))
            .where(_TABLE.c.leased_until >= now, pending)
        )
        oldest: int | None = self._run(query).scalar()
        return oldest

    def drop(self, upload: str) -> None:
        """Deletes the row of an upload, if there is one."""
        self._change(sa.delete(UploadRow).where(col(UploadRow.upload) == upload))

    def drop_over(self, now: int) -> int:
        """Deletes the uploads whose lease is over, and returns how many."""
        return self._change(sa.delete(UploadRow).where(col(UploadRow.leased_until) < now))
