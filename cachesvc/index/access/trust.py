"""Store the files of trust metadata, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlmodel import col, select

from ..sql import Rows, take_turns
from ..tables import TrustFileRow


@dataclass(frozen=True, slots=True)
class TrustFile:
    """A signed file. ``expires``: seconds of UTC."""

    role: str
    version: int
    expires: int
    data: bytes


class TrustFiles(Rows):
    """Files of trust metadata, by role and version. Files are added, and never changed."""

    def take_turns(self) -> None:
        """Makes other callers of this method wait until this transaction ends."""
        take_turns(self._session)

    def newest(self, role: str) -> TrustFile | None:
        """Returns the file of the highest version of a role, if there is one."""
        query = select(TrustFileRow).where(TrustFileRow.role == role)
        row = self._session.exec(query.order_by(col(TrustFileRow.version).desc()).limit(1)).first()
        return _file(row) if row else None

    def get(self, role: str, version: int) -> TrustFile | None:
        """Returns the file of a version of a role, if there is one."""
        row = self._session.get(TrustFileRow, (role, version))
        return _file(row) if row else None

    def add(self, file: TrustFile, now: int) -> None:
        """Adds a file of a new version."""
        text = file.data.decode()
        row = TrustFileRow(role=file.role, version=file.version, expires=file.expires, data=text, created=now)
        self._session.add(row)
        self._session.flush()

    def keep(self, role: str, number: int) -> None:
        """Removes all but the newest files of a role."""
        versions = select(TrustFileRow.version).where(TrustFileRow.role == role)
        newest = versions.order_by(col(TrustFileRow.version).desc())
        last = self._session.exec(newest.offset(number).limit(1)).first()
        if last is not None:
            of_role = (col(TrustFileRow.role) == role, col(TrustFileRow.version) <= last)
            self._change(sa.delete(TrustFileRow).where(*of_role))


def _file(row: TrustFileRow) -> TrustFile:
    return TrustFile(row.role, row.version, row.expires, row.data.encode())
