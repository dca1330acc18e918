"""Writes what other tools check: signatures in cosign's form, and DSSE attestations of provenance.

cachesvc itself trusts neither: it checks the envelope of a bundle. Both are made with the key of the
envelope. Sources: ``specs/SIGNATURE_SPEC.md`` and ``specs/ATTESTATION_SPEC.md`` of
https://github.com/sigstore/cosign.
"""

from __future__ import annotations

import base64
from typing import Any

from cachesvc_client.bundle.seal import PublicKey, Signer
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.provenance import ATTESTATION

from .descriptors import DSSE, Descriptor, Document, manifest
from .places import Blob, ImageTarget

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
"""Media type of what cosign signs."""
SIGNATURE = "application/vnd.dev.cosign.artifact.sig.v1+json"
"""Artifact type of a manifest with such signatures."""
_CONFIG = "application/vnd.oci.image.config.v1+json"
_ANNOTATION = "dev.cosignproject.cosign/signature"
_KEY_INFO = bytes.fromhex("302a300506032b6570032100")
"""The beginning of an Ed25519 key as SubjectPublicKeyInfo (RFC 8410, section 4)."""


def put_signature(target: ImageTarget, document: Document, signer: Signer, repository: str) -> Document:
    """Signs a manifest or index as ``cosign sign`` does, and stores the signature under cosign's tag and as a
    referrer. ``repository``: the name that the signature states. Returns the signature's manifest."""
    payload = canonical(
        {
            "critical": {
                "identity": {"docker-reference": repository},
                "image": {"docker-manifest-digest": str(document.descriptor.digest)},
                "type": "cosign container image signature",
            },
            "optional": None,
        }
    )
    signature = base64.b64encode(signer.sign_message(payload)).decode()
    layer = Descriptor(SIMPLE_SIGNING, Digest.of(payload), len(payload), annotations={_ANNOTATION: signature})
    return _attach(target, document, layer, payload, SIGNATURE, "sig")


def put_attestation(
    target: ImageTarget, document: Document, verified: Accepted, signer: Signer, repository: str
) -> Document | None:
    """Attaches the provenance of a bundle as an in-toto statement about the manifest and about the pack, in a
    DSSE envelope. Returns its manifest; ``None`` for a bundle without provenance."""
    statement = verified.manifest.attestation
    if statement is None or verified.provenance is None:
        return None
    about = {"name": repository, "digest": {"sha256": document.descriptor.digest.hex}}
    whole: dict[str, Any] = {**statement, "subject": [about, *statement["subject"]]}
    envelope = signer.sign_bytes(canonical(whole), ATTESTATION)
    annotations = {"predicateType": str(statement["predicateType"]), _ANNOTATION: ""}
    layer = Descriptor(DSSE, Digest.of(envelope), len(envelope), annotations=annotations)
    return _attach(target, document, layer, envelope, ATTESTATION, "att")


def public_key_pem(key: PublicKey) -> str:
    """Returns a public key as ``cosign verify --key`` and openssl read it."""
    text = base64.b64encode(_KEY_INFO + key.raw).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n"


def _attach(
    target: ImageTarget, document: Document, layer: Descriptor, data: bytes, artifact_type: str, suffix: str
) -> Document:
    config = canonical(
        {
            "architecture": "",
            "config": {},
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": [str(layer.digest)]},
        }
    )
    described = Descriptor(_CONFIG, Digest.of(config), len(config))
    target.put_blob(Blob.of(described, config))
    target.put_blob(Blob.of(layer, data))
    attached = manifest([layer], config=described, artifact_type=artifact_type, subject=document.descriptor)
    target.put_document(attached, f"sha256-{document.descriptor.digest.hex}.{suffix}")
    return attached
