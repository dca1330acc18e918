"""Check what depends on more than one setting."""

from __future__ import annotations

from cachesvc_client.wire.errors import InvalidRequest

from .fields import Settings


def check_together(settings: Settings) -> None:
    """Checks what depends on more than one setting. Raises ``InvalidRequest``."""
    linked = settings.bucket or settings.packs_url
    if linked and settings.downloads == "store" and settings.grace_seconds <= settings.link_seconds:
        raise InvalidRequest(
            f"grace_seconds: {settings.grace_seconds} is not above link_seconds, {settings.link_seconds}: "
            "packs would be deleted while links to them hold",
            'raise grace_seconds, lower link_seconds, or set downloads = "registry"',
        )
    for name in ("bucket_prefix", "bucket_endpoint", "bucket_public_endpoint"):
        if getattr(settings, name) and not settings.bucket:
            raise InvalidRequest(f"{name}: is set, and bucket is not", "name the bucket, or remove it")
    stores = [name for name in ("bucket", "oci_repository", "packs_url") if getattr(settings, name)]
    if len(stores) > 1:
        raise InvalidRequest(f"{', '.join(stores)}: both are set", "set one of them")
    if settings.oci_plain_http and not settings.oci_repository:
        raise InvalidRequest(
            "oci_plain_http: is set, and oci_repository is not", "name the repository, or remove it"
        )
    if settings.online_key and settings.online_key_file is not None:
        raise InvalidRequest("online_key, online_key_file: both are set", "set one of them")
    _check_login(settings)
    _check_mirror(settings)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InvalidRequest("tls_certificate, tls_key: one is set without the other", "set both or none")


def _check_mirror(settings: Settings) -> None:
    """Raises ``InvalidRequest`` for a mirror of which only a part is set, or that a mirror cannot have."""
    parts = ("upstream_token", "upstream_token_file", "upstream_root")
    present = [name for name in parts if getattr(settings, name)]
    if not settings.upstream_url:
        if present:
            raise InvalidRequest(f"{present[0]}: is set, and upstream_url is not", "name the registry there")
        return
    if settings.upstream_token and settings.upstream_token_file is not None:
        raise InvalidRequest("upstream_token, upstream_token_file: both are set", "set one of them")
    if not settings.upstream_token and settings.upstream_token_file is None:
        raise InvalidRequest(
            "upstream_url: is set, and neither upstream_token nor upstream_token_file is",
            "the mirror needs a token of its own there, with the role read",
        )
    if settings.upstream_root is None:
        raise InvalidRequest(
            "upstream_url: is set, and upstream_root is not",
            "it names the file of the root of that registry, as cachesvc login pins it",
        )
    for name in ("database", "online_key", "online_key_file", "oidc_issuer"):
        if getattr(settings, name):
            raise InvalidRequest(
                f"{name}: is set, and upstream_url too", "a mirror is one process with its index in data"
            )


def _check_login(settings: Settings) -> None:
    """Raises ``InvalidRequest`` for a login at a provider of which only a part is set."""
    needed = {
        name: bool(getattr(settings, name))
        for name in ("oidc_issuer", "public_url", "oidc_client_id", "oidc_roles")
    }
    secrets = ("oidc_client_secret", "oidc_client_secret_file")
    if all(getattr(settings, name) for name in secrets):
        raise InvalidRequest(f"{', '.join(secrets)}: both are set", "set one of them")
    needed["oidc_client_secret or oidc_client_secret_file"] = any(getattr(settings, name) for name in secrets)
    present = [name for name in Settings.model_fields if name.startswith("oidc_") and getattr(settings, name)]
    present = [name for name in present if name in settings.model_fields_set]
    absent = [name for name, there in needed.items() if not there]
    if present and absent:
        raise InvalidRequest(
            f"{present[0]}: is set, and {', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not",
            "a login at an identity provider needs all of them",
        )
    if present and not settings.web_page:
        raise InvalidRequest(f"{present[0]}: is set, and web_page is off", "people log in to the page alone")
