"""What happens in a simulated week, by a seed: deploys, starts, upgrades, and what goes wrong."""

from __future__ import annotations

from . import clock  # first: nothing may know another time

# isort: split
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.names import Name, Target

from .alerts import Alerts
from .world import Node, Served, start, verdicts, warm

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
NAMES, DEPLOYS, STARTS = 20, 300, 500
FACTS = {
    "schema": 1,
    "python_abi": "cp311",
    "platform": "linux-x86_64",
    "libc": "2.36",
    "cuda": "none",
    "triton": "3.7.0",
}
MACHINES = {
    "a100": {"gpu": "NVIDIA A100", "gpu_capability": "8.0"},
    "h200": {"gpu": "NVIDIA H200", "gpu_capability": "9.0"},
    "l4": {"gpu": "NVIDIA L4", "gpu_capability": "8.9"},
}
TORCHES = ("2.12.0", "2.13.0", "2.14.0")


@dataclass
class Service:
    """A name that is deployed: ``model`` runs, of which ``newest`` is the last that was made. ``machines``:
    where it starts; ``torch``: with what."""

    name: Name
    targets: tuple[Target, ...]
    model: int = 1
    newest: int = 1
    machines: list[str] = field(default_factory=list)
    torch: str = TORCHES[0]
    nodes: dict[tuple[str, int], Node] = field(default_factory=dict)

    def facts(self, machine: str) -> dict[str, Any]:
        """Return the environment of one of its machines."""
        return {**FACTS, **MACHINES[machine], "torch": self.torch}


@dataclass
class Counts:
    """What was asked, and how it went. ``agreed``: how often a gate that knows which model is deployed passed
    before a hit, or failed before a compile; ``agreed_without``: how often one that does not know it did.
    ``unknown``: questions to which the first answered *unknown*, which fails."""

    questions: int = 0
    agreed: int = 0
    agreed_without: int = 0
    unknown: int = 0
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)


class Week:
    """The life of one week, by a seed."""

    def __init__(
        self, served: Served, folder: Path, seed: int, alerts: Alerts, toggle_redis: Callable[[], None]
    ) -> None:
        self.served, self.folder, self.alerts = served, folder, alerts
        self.random, self.counts = random.Random(seed), Counts()
        self.began = time.time()
        self._toggle_redis = toggle_redis
        self.days, self._token, self._token_at, self._quota_at = 7.0, "", 0.0, 0.0
        self.causes: dict[str, list[tuple[float, float, bool]]] = {}
        self.starts: list[tuple[float, bool]] = []
        self.services = []
        for number in range(NAMES):
            targets = tuple(Target(f"part{one}") for one in range(1 + number % 3))
            machines = self.random.sample(list(MACHINES), 1 + number % 2)
            self.services.append(Service(Name.parse(f"team/model-{number:02d}"), targets, machines=machines))

    def run(self) -> None:
        """Live the week: what is planned, in the order of its time."""
        for service in self.services:
            self.warm(service)
        plan: list[tuple[float, Callable[[], object]]] = []
        for _ in range(DEPLOYS):
            plan.append((self.random.uniform(0, 7 * DAY), self.deploy))
        for _ in range(STARTS):
            plan.append((self.random.uniform(0, 7 * DAY), self.any_start))
        for number in range(7 * 24 * 30):
            plan.append((number * 2 * MINUTE, self.scrape))
        for day in range(7):
            plan.append((day * DAY + 3 * HOUR, self.served.collect))
        plan += self.incidents()
        for at, do in sorted(plan, key=lambda row: row[0]):
            if at > self.days * DAY:
                return
            clock.move_to(self.began + at)
            do()

    def incidents(self) -> list[tuple[float, Callable[[], object]]]:
        """Return what goes wrong in this week, and when it is mended."""
        disk, backup = self.served.data / "foreign", self.folder / "backup.sqlite3"
        kept = self.folder / "root.key"

        def kill_redis() -> None:
            self.note("Redis is killed")
            self._toggle_redis()

        def fill() -> None:
            self.note("the disk is full")
            with suppress(OSError), disk.open("wb") as file:
                while True:
                    file.write(b"x" * 65_536)

        def empty() -> None:
            self.note("the disk has room")
            self.cause("CachesvcDiskNearlyFull", time.time() - 4 * HOUR)
            disk.unlink()

        def back_up() -> None:
            self.note("a backup is made")
            self.served.backup(backup)

        def restore() -> None:
            self.note("the database is restored from a backup of 9 hours ago")
            self.served.restore(backup)

        def warm_all() -> None:
            self.note("CI warms all names, as the page on operating says after a restore")
            for service in self.services:
                self.warm(service)

        def renew() -> None:
            self.note("the root is renewed")
            self.cause("CachesvcTrustExpires", self.began)
            shutil.move(kept, self.served.data / "root.key")
            self.served.sign_anew()

        return [
            (0.6 * DAY, self.old_token),
            (0.9 * DAY, self.old_token),
            (1.2 * DAY, kill_redis),
            (1.2 * DAY + 2 * HOUR, self.redis_is_back),
            (2.0 * DAY, lambda: self.upgrade(TORCHES[1])),
            (3.1 * DAY, fill),
            (3.1 * DAY + 4 * HOUR, empty),
            (4.0 * DAY + 3 * HOUR, renew),
            (4.5 * DAY, lambda: self.set_clock(3)),
            (4.7 * DAY, lambda: self.set_clock(-3)),
            (4.9 * DAY, lambda: self.set_clock(0)),
            (5.0 * DAY, lambda: self.upgrade(TORCHES[2])),
            (5.3 * DAY, self.quota),
            (5.3 * DAY + 2 * HOUR, self.quota),
            (5.6 * DAY, back_up),
            (5.6 * DAY + 9 * HOUR, restore),
            (5.6 * DAY + 9.5 * HOUR, warm_all),
        ]

    def old_token(self) -> None:
        """Make a token that ends in five days, or revoke it."""
        if not self._token:
            self.note("a token ends in five days")
            self._token, self._token_at = self.served.add_token(), time.time()
            return
        self.note("that token is revoked")
        self.cause("CachesvcTokensExpire", self._token_at)
        self.served.revoke(self._token)

    def quota(self) -> None:
        """Let 95 % of a quota be used, or end the quota."""
        if not self._quota_at:
            self.note("95 % of the quota are used")
            self._quota_at = time.time()
            self.served.set_quota(0.95)
            return
        self.note("there is no quota any more")
        self.cause("CachesvcQuotaNearlyFull", self._quota_at)
        self.served.set_quota(0)

    def set_clock(self, days: float) -> None:
        """Let the clock of one host be off."""
        self.note(f"the clock of one host is off by {days:.0f} days")
        service = self.services[3]
        self.node(service, service.machines[0], 1).off = days * DAY

    def redis_is_back(self) -> None:
        """Start Redis again."""
        self.note("Redis is back")
        self.cause("CachesvcRedisDown", time.time() - 2 * HOUR)
        self._toggle_redis()

    def cause(self, alert: str, since: float, must: bool = True) -> None:
        """Keep that there was a cause of an alert until now."""
        self.causes.setdefault(alert, []).append((since, time.time(), must))

    def compiling(self) -> None:
        """Keep as causes when starts compiled: the alert must come where a third of an hour's did for 45
        minutes, and may where a tenth did. The metric counts revisions, and this counts starts."""
        if "CachesvcTrustExpires" not in self.causes:
            self.cause("CachesvcTrustExpires", self.began)  # it was not renewed yet
        for share, must, least in ((0.35, True, 45 * MINUTE), (0.1, False, 0.0)):
            since = 0.0
            for moment in range(int(self.began), int(time.time()) + 120, 120):
                found = [compiled for at, compiled in self.starts if moment - HOUR < at <= moment]
                if found and sum(found) > share * len(found):
                    since = since or moment
                elif since:
                    if moment - since > least:
                        row = (since, float(moment), must)
                        self.causes.setdefault("CachesvcServicesCompile", []).append(row)
                    since = 0.0

    def note(self, text: str) -> None:
        """Keep what happened, for the report."""
        day, rest = divmod(time.time() - self.began, DAY)
        self.counts.events.append(f"day {day + 1:.0f}, {rest / HOUR:04.1f} h: {text}")

    def scrape(self) -> None:
        """Read the metrics as Prometheus does."""
        self.alerts.scrape(self.served.url)

    def node(self, service: Service, machine: str, number: int) -> Node:
        """Return a host of a service; with a new torch it is another container on the same disk."""
        key = (machine, number)
        if key not in service.nodes:
            store = self.folder / "nodes" / f"{service.name.name}-{machine}-{number}"
            store.mkdir(parents=True)
            service.nodes[key] = Node(store, {})
        node = service.nodes[key]
        node.facts = service.facts(machine)
        return node

    def warm(self, service: Service, machines: list[str] | None = None, torch: str = "") -> bool:
        """Let CI make the entries of a service's model. Return whether it could."""
        try:
            for machine in machines or service.machines:
                facts = {**service.facts(machine), **({"torch": torch} if torch else {})}
                warm(self.served, service.name, service.targets, facts, service.model)
        except CacheSvcError as error:
            self.counts.outcomes[f"CI: {error.code}"] += 1
            return False
        return True

    def deploy(self) -> None:
        """Deploy a service as teams do: mostly with a new model that CI has warmed before."""
        service = self.random.choice(self.services)
        kind = self.random.choices(
            ("model", "nothing", "environment", "typo", "rollback", "unwarmed"), (60, 20, 8, 6, 5, 1)
        )[0]
        self.counts.outcomes[f"deploy: {kind}"] += 1
        before = service.model
        if kind in ("model", "unwarmed"):
            service.newest += 1
            service.model = service.newest
        if kind == "model" and not self.warm(service):
            service.model = before  # the gate is red, and the deploy is put off
        elif kind == "environment":
            others = [one for one in MACHINES if one not in service.machines]
            if others:
                service.machines.append(others[0])
                if self.random.random() < 0.5:
                    self.warm(service, others[:1])
                self.start(service, others[0])
                self.warm(service, others[:1])
        elif kind == "typo":
            wrong = str(service.name).replace("model", "modle") if self.random.random() < 0.5 else ""
            name = Name.parse(wrong or f"{service.name.namespace}/{service.name.name}:prdo")
            for _ in range(3):
                self.start(service, service.machines[0], name)
            self.cause("CachesvcNamesUnknown", time.time())
        elif kind == "rollback" and service.model > 1:
            service.model -= 1
        elif kind == "unwarmed":
            self.start(service, service.machines[0])
            self.start(service, service.machines[0])
            self.warm(service)
        for machine in service.machines:
            self.start(service, machine)

    def upgrade(self, torch: str) -> None:
        """Roll a new torch out: most teams warm before it, three do after their first cold starts."""
        self.note(f"torch {torch} is rolled out")
        for number, service in enumerate(self.services):
            early = number % 7 == 0
            if not early:
                self.warm(service, torch=torch)
            service.torch = torch
            for machine in service.machines:
                self.start(service, machine)
            if early:
                self.warm(service)

    def any_start(self) -> None:
        """Start a service somewhere: a host is replaced, or another one is added."""
        service = self.random.choice(self.services)
        self.start(service, self.random.choice(service.machines))

    def start(self, service: Service, machine: str, name: Name | None = None) -> None:
        """Ask coverage, start, and compare."""
        node = self.node(service, machine, self.random.randrange(2))
        name = name or service.name
        said = verdicts(self.served, name, service.targets, node.facts, service.model)
        without = verdicts(self.served, name, service.targets, node.facts, None)
        with clock.off_by(node.off):
            hits, why = start(self.served, node, name, service.targets, service.model)
        self.starts.append((time.time(), not all(hits.values())))
        for target, hit in hits.items():
            self.counts.questions += 1
            verdict = said.get(target, "none")
            self.counts.outcomes["start: hit" if hit else "start: compiled"] += 1
            self.counts.unknown += verdict.startswith("unknown")
            self.counts.agreed_without += without.get(target, "none").startswith("warm") == hit
            if verdict.startswith("warm") == hit:
                self.counts.agreed += 1
                continue
            day = (time.time() - self.began) / DAY
            where = {"day": round(day, 2), "name": str(name), "target": target, "machine": machine}
            self.counts.disagreements.append({**where, "coverage": verdict, "hit": hit, "why": why})
