"""Owns the import of an image of MCV: it becomes a bundle, signed by the user who imports it.

Nobody whom cachesvc knows has signed such an image. So the user names the key that signs, what the bundle
is called, and the environment for which it was compiled, which the image says in part only.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from cachesvc.oci.descriptors import Document
from cachesvc.oci.mcv_read import McvImage, read_mcv
from cachesvc.oci.places import ImageSource
from cachesvc_client.bundle.file import SUFFIX
from cachesvc_client.bundle.seal import PublicKey, Signer
from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Incompatible, InvalidRequest, StorageFull
from cachesvc_client.wire.factors import Facts
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target


@dataclass(frozen=True, slots=True)
class ImportedImage:
    """Describes the bundle that an image became. ``left_out``: number of files that no kind knows."""

    name: str
    target: Target
    digest: Digest
    signer: PublicKey
    files: int
    left_out: int
    path: Path


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Says what the user decides about an image. ``facts``: the environment for which it was compiled."""

    signer: Signer
    name: Name
    target: Target
    facts: Facts


def import_mcv(
    source: ImageSource, document: Document, into: Path, options: ImportOptions, what: str
) -> ImportedImage:
    """Write the bundle of an image of MCV: into a folder, or as ``into`` itself if that ends as bundle
    files do.

    Raises ``InvalidRequest`` and ``Corrupt`` as `read_mcv` does, ``Incompatible`` if it was compiled for
    another GPU than the environment has, ``StorageFull``.
    """
    path = into if into.suffix == SUFFIX else into / f"{options.target.replace('/', '-')}{SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFull(f"{path.parent}: {error.strerror or error}") from None
    with tempfile.TemporaryDirectory(prefix="cachesvc-oci-") as scratch:
        image = read_mcv(source, document, Path(scratch), what)
        _check_targets(image, options.facts, what)
        build_bundle(image.files, _draft(image, document, options, what), options.signer, path)
    return ImportedImage(
        str(options.name),
        options.target,
        document.descriptor.digest,
        options.signer.public,
        len(image.files),
        len(image.left_out),
        path,
    )


def _check_targets(image: McvImage, facts: Facts, what: str) -> None:
    """Raise ``Incompatible`` unless the image was compiled for the GPU of the environment: the bundle will
    say that it fits there."""
    here = str(facts.get("compute_capability", ""))
    if not here:
        raise InvalidRequest(
            f"{what}: compiled for {_targets_text(image)}, and the environment has no GPU",
            "--here FILE: what cachesvc-client doctor --json printed where the kernels shall run",
        )
    if all(str(row["arch"]).rstrip("af") != here.replace(".", "") for row in image.targets):
        raise Incompatible(
            f"{what}: compiled for {_targets_text(image)}, and the environment's GPU is {here}",
            "--here FILE: what cachesvc-client doctor --json printed where the kernels shall run",
        )


def _targets_text(image: McvImage) -> str:
    return ", ".join(f"{row['backend']} {row['arch']}" for row in image.targets)[:200]


def _draft(image: McvImage, document: Document, options: ImportOptions, what: str) -> Draft:
    # The next import of the same target replaces this one, so its content is no part of the workload.
    workload = Workload(script=Digest.of(canonical(["mcv", image.cache.name, options.target])))
    return Draft(
        name=options.name,
        target=options.target,
        fingerprint=options.facts,
        workload=workload,
        scopes=("gpu", "host") if image.host_code else ("gpu",),
        build=Build(
            remarks={
                "imported": "an image of MCV, which nobody known here had signed",
                "image": what,
                "digest": str(document.descriptor.digest),
            }
        ),
    )
