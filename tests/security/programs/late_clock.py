"""``attached.py`` where the clock is wrong by the seconds of the first argument. That of the file system is
right: only the age of a revision is looked at here."""

import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from cachesvc_client.trust import accept

wrong_by = float(sys.argv.pop(1))
accept.time = SimpleNamespace(time=lambda: time.time() + wrong_by)
runpy.run_path(str(Path(__file__).with_name("attached.py")), run_name="__main__")
