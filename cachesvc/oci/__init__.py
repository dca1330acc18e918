"""Exchanges bundles with OCI registries and with OCI image layouts on disk.

`places` says what a place of images is; `distribution` is a registry, `image_layout` a folder and
`layout_tar` a tar file. `bundle_artifact` puts a bundle into a place and finds it there, `signatures`
writes what other tools check, and `mcv_write` and `mcv_read` convert from and to images of MCV. Nothing
here decides about trust: the envelope that `bundle_artifact` finds passes `bundle.check` like every other
one.

Sources of the formats: the OCI image specification 1.1 and the OCI distribution specification 1.1
(https://github.com/opencontainers), cosign's ``SIGNATURE_SPEC.md``, and MCV's ``spec-compat.md``.
"""
