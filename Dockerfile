# Two images from one file:
#   docker build --target client -t cachesvc-client .    the thin client: run, pull, doctor
#   docker build --target server -t cachesvc .           the registry, and what people and CI type
# Both run as user 10001 and need no writable root: the registry writes under /data and /tmp alone
#   docker run --read-only --tmpfs /tmp -v cachesvc:/data -p 8750:8750 cachesvc
# Settings are CACHESVC_SERVER_* variables. Other commands of the same image, with the same variables:
#   docker run … cachesvc admin --local migrate --apply      (also: admin --local gc --apply, tokens, fsck)

FROM python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3 AS base
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PATH=/venv/bin:$PATH

FROM base AS build
WORKDIR /src
COPY requirements/build.txt requirements/client.txt requirements/server.txt requirements/
RUN python -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    && /build/bin/uv venv --no-python-downloads /venv
# Bytecode is compiled here: at run time the root may be read-only.
ENV UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 VIRTUAL_ENV=/venv

FROM build AS build-client
RUN /build/bin/uv pip install --require-hashes -r requirements/client.txt
COPY client client
# uv leaves a lock that anybody may write.
RUN /build/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation -w dist ./client \
    && /build/bin/uv pip install --no-deps dist/*.whl \
    && rm -f /venv/.lock

FROM build-client AS build-server
RUN /build/bin/uv pip install --require-hashes -r requirements/server.txt
COPY pyproject.toml setup.py LICENSE README.md ./
COPY cachesvc cachesvc
RUN /build/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation -w dist . \
    && /build/bin/uv pip install --no-deps dist/cachesvc-*.whl \
    && rm -f /venv/.lock

FROM base AS client
LABEL org.opencontainers.image.title=cachesvc-client org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.description="Restores what torch.compile and Triton compiled elsewhere"
COPY --from=build-client /venv /venv
USER 10001:10001
ENTRYPOINT ["cachesvc-client"]

FROM base AS server
LABEL org.opencontainers.image.title=cachesvc org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.description="A registry of what torch.compile and Triton compiled"
COPY --from=build-server /venv /venv
RUN install -d -o 10001 -g 10001 -m 0700 /data
USER 10001:10001
# Variables and not options, so that they hold for `admin --local` too and can be set otherwise.
ENV HOME=/data CACHESVC_SERVER_HOST=0.0.0.0 CACHESVC_SERVER_DATA=/data
VOLUME /data
EXPOSE 8750
STOPSIGNAL SIGTERM
# Asks the port and by the protocol that the variables set; Kubernetes has probes of its own.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import os, ssl, urllib.request as r; e = os.environ.get; s = e('CACHESVC_SERVER_TLS_KEY'); r.urlopen('http%s://127.0.0.1:%s/healthz' % ('s' * bool(s), e('CACHESVC_SERVER_PORT') or 8750), timeout=2, context=ssl._create_unverified_context() if s else None)"]
ENTRYPOINT ["cachesvc"]
CMD ["serve"]
