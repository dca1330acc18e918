"""Define the settings, their defaults and what each is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from cachesvc.schema.namespaces import BOUNDS
from cachesvc_client.wire.manifest.records import MAX_PACK_BYTES

from .values import (
    Variables,
    absolute_path,
    ages_by_namespace,
    encrypted_url,
    networks,
    origin_url,
    postgresql_url,
    roles_by_value,
    scope_list,
    zero_or_ten,
)

PREFIX = "CACHESVC_SERVER_"
"""Beginning of the variables' names."""
SECRET = frozenset({"database", "redis", "first_token", "online_key", "oidc_client_secret", "upstream_token"})
"""Settings that hold passwords: their values are not shown."""
OPTIONS = ("data", "host", "port")
"""Settings that are options of ``cachesvc serve`` too."""
Bytes = Annotated[ByteSize, Field(ge=0, le=BOUNDS["keep_bytes"][1])]
"""Type of a size: a number of bytes, or a text such as ``200GiB``."""


class Settings(BaseSettings):
    """The settings. Every default serves one machine; times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it by name
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it by name
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the places of a setting, the first of which that has it decides."""
        return init_settings, Variables(settings_cls)

    data: Annotated[Path, AfterValidator(absolute_path)] = Path("cachesvc-data")
    """Folder of the index (SQLite), the packs and the signing key. A registry with ``database``,
    ``first_token`` and ``bucket``, ``oci_repository`` or ``packs_url`` needs none."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8750, ge=0, le=65535)
    """Port to listen on; 0 takes any free one."""
    tls_certificate: Path | None = None
    """Certificate chain (PEM). With ``tls_key`` the registry serves HTTPS, and loads renewed files without
    a restart. Without it the registry serves HTTP, for loopback or behind a proxy: clients send no token over
    plain HTTP to another machine."""
    tls_key: Path | None = None
    """Private key (PEM) of ``tls_certificate``."""
    database: Annotated[str, AfterValidator(postgresql_url)] = ""
    """URL of PostgreSQL, such as ``postgresql://user:password@host/name``. Empty: SQLite in ``data``."""
    bucket: str = ""
    """Name of the S3 bucket. Empty: a folder in ``data``. Credentials are read as every AWS tool reads
    them."""
    bucket_prefix: str = ""
    """Prefix of every key, for a bucket that contains other objects too."""
    bucket_endpoint: str = Field(default="", pattern="^$|^https?://")
    """Address of the S3. Empty: AWS."""
    bucket_public_endpoint: str = Field(default="", pattern="^$|^https?://")
    """Address of the S3 as clients reach it. Empty: the same as ``bucket_endpoint``."""
    bucket_addressing: Literal["auto", "path", "virtual"] = "auto"
    """Where requests name the bucket: in the ``path``, or in the host (``virtual``). ``auto`` is as AWS's
    tools do, or the other if the store refuses that and takes the other."""
    oci_repository: str = Field(default="", pattern="^$|^[^/]+/[^:@]+$")
    """Repository of an OCI registry that has the packs, in the place of a bucket:
    ``host[:port]/repository``. It is reached by HTTPS, on this machine by HTTP. Credentials are read as
    docker reads them (``DOCKER_CONFIG``). Clients get packs through this registry."""
    oci_plain_http: bool = False
    """Reach ``oci_repository`` by HTTP on another machine too. No credentials are sent to it then."""
    packs_url: str = Field(default="", pattern=r"^$|^[a-z][a-z0-9+.-]*://([^/@:]+@)?[^@]+$")
    """URL of another store for the packs, in the place of a bucket: ``SCHEME://...``, where an installed
    distribution has a store for the scheme. It holds no password: the store says where it reads that."""
    downloads: Literal["store", "registry"] = "store"
    """Where clients get packs that are in a bucket: from the store itself by presigned links, or through the
    registry, where clients cannot reach the store. A client whose link fails asks the registry anyway."""
    link_seconds: int = Field(default=120, ge=10, le=604_800)
    """How long a presigned link is valid: a download must begin within it, else the client gets the pack
    through the registry. Anyone who has a link needs no token, and a link outlives a quarantine by this time;
    with ``downloads = "registry"`` there are none."""
    redis: str = Field(default="", pattern="^$|^(redis|rediss|unix)://")
    """URL of Redis, for hints that replicas share. Empty: each process keeps its own. Losing Redis costs
    time, never truth."""
    first_token: str = Field(default="", pattern="^$|^csv_[A-Za-z0-9_-]{32,200}$")
    """Secret of the first admin's token, for deployments that store secrets: a database without an admin gets
    this token, and no signing key is made. Empty: the first start makes both, in the data
    folder."""
    online_key: str = Field(default="", pattern="^$|^ed25519-private:[A-Za-z0-9+/]{43}=$")
    """Private key with which the registry signs snapshot and timestamp of its trust metadata, as ``cachesvc
    keygen`` writes one; the same for every replica. The operator signs root and targets
    (``cachesvc admin trust init``). Empty: a registry with its index in ``data`` makes all keys itself, and
    one with ``database`` has no trust metadata."""
    online_key_file: Path | None = None
    """File with that key, in the place of ``online_key``."""
    lease_seconds: int = Field(default=900, ge=60, le=86_400)
    """How long an upload may be silent before its bytes may be collected."""
    grace_seconds: int = Field(default=7200, ge=0)
    """How long an object stays in the store after its last reference, so that downloads under way can end. It
    must be longer than ``link_seconds``."""
    claim_seconds: int = Field(default=60, ge=2, le=3600)
    """How long the process that compiles for others may be silent before one of them takes over."""
    log: Literal["text", "json"] = "text"
    """``text``: lines for people. ``json``: one object for each line, and one line for each request."""
    metrics_namespaces: bool = False
    """Show bytes, entries and quota of each namespace in ``/metrics``, and the starts of each name.
    ``/metrics`` asks for no token: turn this on where it is kept inside."""
    peers: bool = False
    """Have agents of nodes (``cachesvc node --peers``) find packs at each other: the registry passes
    on what they offer, to those who may read the namespace."""
    web_page: bool = True
    """Serve the web page of operators at ``/ui``. It needs a login: with a token, or as ``oidc_issuer``
    says."""
    private_addresses: bool = False
    """Send events of webhooks, and questions to the issuers of CI tokens, to loopback, link-local and
    private addresses too. Every administrator of a namespace can name a receiver and an issuer: turn this on
    where all of them may reach what the registry reaches. What the settings name (the issuer of
    ``oidc_issuer``, the upstream of a mirror, a store) may have any address."""
    webhook_plain_http: bool = False
    """Send events of webhooks by ``http://`` too. Anyone who is on the way can then read them."""
    public_url: Annotated[str, AfterValidator(origin_url)] = ""
    """Address at which browsers reach this registry, such as ``https://cache.example``. With ``oidc_issuer``:
    the identity provider sends browsers back to ``/ui/login/callback`` there, and to no other address."""
    oidc_issuer: Annotated[str, AfterValidator(encrypted_url)] = ""
    """Issuer of an OpenID Connect provider, letter by letter as its discovery document says it: people log in
    to the web page there too. It needs ``public_url``, ``oidc_client_id``, a client secret, and
    ``oidc_roles``."""
    oidc_client_id: str = ""
    """What the provider calls this registry."""
    oidc_client_secret: str = ""
    """Secret of that client."""
    oidc_client_secret_file: Path | None = None
    """File with that secret, in the place of ``oidc_client_secret``."""
    oidc_scopes: Annotated[str, AfterValidator(scope_list)] = "openid profile email"
    """What the provider is asked for, with spaces. Some providers need ``groups`` too."""
    oidc_claim: str = Field(default="groups", min_length=1)
    """Claim of the ID token that decides what a person may do: a text, or a list of texts. With ``email``
    only addresses count that the provider has verified."""
    oidc_roles: Annotated[dict[str, list[str]], NoDecode, BeforeValidator(roles_by_value)] = Field(
        default_factory=dict
    )
    """What each value of that claim allows, such as ``{"cache-admins": "admin in *", "ml": "read in team"}``;
    in a variable as JSON. No one else has a role."""
    oidc_session_seconds: int = Field(default=3600, ge=300, le=28_800)
    """How long such a login lasts. A role that the provider takes away ends then, at the latest."""
    upstream_url: Annotated[str, AfterValidator(encrypted_url)] = ""
    """Address of the registry that this one mirrors. It needs ``upstream_root`` and a token. Empty: this
    registry mirrors none."""
    upstream_token: str = Field(default="", pattern="^$|^csv_[A-Za-z0-9_-]{16,200}$")
    """Token of the mirror at that registry, with the role ``read`` in the namespaces that are mirrored."""
    upstream_token_file: Path | None = None
    """File with that token, in the place of ``upstream_token``."""
    upstream_root: Path | None = None
    """File of the root of trust of that registry, as ``cachesvc login`` pins it there. What no signature
    leads to from it is not mirrored."""
    upstream_seconds: int = Field(default=5, ge=1, le=300)
    """Time between two looks of a mirror at that registry."""
    upstream_offline_seconds: int = Field(default=86_400, ge=0, le=604_800)
    """How long a token that the other registry has confirmed counts while that registry does not answer."""
    shutdown_seconds: int = Field(default=10, ge=0)
    """How long requests under way may take to end after SIGTERM."""
    connections: int = Field(default=10_000, ge=1)
    """Connections at once, or about three quarters of the limit on open files, if that is less. When all are
    taken, a new one takes the place of the one that has waited longest without a request."""
    address_connections: int | None = Field(default=None, ge=1)
    """Connections of one client address at once. Not set: as ``connections``; behind a proxy all clients have
    the proxy's address. Those on which no one has shown a token are a third of ``connections`` at most,
    unless the address is one of ``proxies``: the oldest of them is closed for a new one."""
    proxies: Annotated[list[str], NoDecode, BeforeValidator(networks)] = Field(default_factory=list)
    """Addresses or networks of proxies before this registry, such as ``10.1.0.0/16``; in a variable with
    commas. The address of a client is the last one that such a proxy has in ``X-Forwarded-For``; all
    else there counts nothing. It must append to that header or replace it."""
    header_seconds: int = Field(default=20, ge=1)
    """How long a client may take from its connection, or from an answer, until its next request's headers are
    complete. After that the connection is closed."""
    token_requests: int = Field(default=1000, ge=1)
    """Requests that one token may have under way at once in one process. More are answered with 429."""
    gc_seconds: Annotated[int, AfterValidator(zero_or_ten)] = 3600
    """Time between two collections of what no one needs; 10 or more. 0: this process never collects, for
    deployments that run ``cachesvc admin gc``."""
    keep_revisions: int = Field(default=10, ge=1)
    """Newest revisions of each entry that are kept. This setting, ``keep_days``, ``unused_days``,
    ``keep_bytes`` and ``quota_bytes`` apply to each namespace without a bound of its own
    (``cachesvc admin namespaces set``)."""
    keep_days: int = Field(default=30, ge=0)
    """Every revision that is younger than this is kept."""
    unused_days: int | None = Field(default=None, ge=1, le=BOUNDS["unused_days"][1])
    """Days after which an entry that was offered to no one is deleted. Not set: such entries stay."""
    lane_days: int = Field(default=30, ge=1, le=BOUNDS["unused_days"][1])
    """Days after which an entry of a lane that was offered to no one is deleted, in every namespace; 36600
    is as good as never."""
    older_model_days: int = Field(default=14, ge=1, le=BOUNDS["unused_days"][1])
    """Days after which an entry is deleted whose target has a newer entry of another model for the same
    environment: counted from that one's publication, or from the last start that used it. 36600 is as good as
    never."""
    keep_bytes: Bytes | None = None
    """Bytes of a namespace above which collection evicts revisions, those of lanes before the trunk's. Not
    set: it evicts none."""
    max_age: Annotated[
        dict[str, Annotated[int, Field(ge=1)]], NoDecode, BeforeValidator(ages_by_namespace)
    ] = Field(default_factory=dict)
    """For how long after its signature a revision counts at services with a pinned root: ages by namespace,
    such as ``*=180d,team=30d``. They stand in the targets that this registry signs itself; an operator who
    signs the targets says it with ``cachesvc admin trust max-age``. Not set: 365 days."""
    quota_bytes: Bytes | None = None
    """Bytes of a namespace above which a publication is refused. Not set: none is."""
    reserve_bytes: Bytes = Field(default=ByteSize(64 << 20))
    """Bytes of ``data``'s disk, at most a sixteenth of it, that a file named ``reserve`` keeps. A full disk
    gets them back, and the registry is read-only until there is room. 0: none is kept."""
    max_pack_bytes: int = Field(default=MAX_PACK_BYTES, ge=1, le=MAX_PACK_BYTES)
    """Size of the largest pack that is accepted, in bytes."""

    @property
    def embedded(self) -> bool:
        """Whether ``data`` has the index or the packs, so that one server at a time works in it."""
        return not (self.database and self.packs_elsewhere)

    @property
    def packs_elsewhere(self) -> str:
        """The bucket, the repository or the URL of the packs; empty where they are in ``data``."""
        return self.bucket or self.oci_repository or self.packs_url
