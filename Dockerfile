# docker build -t topo-scheduler:0.1.0 .
#
# Runs as any non-root user, with a read-only root and no capability. tests/ship carries these very instructions out
# under bubblewrap and starts the result that way.

FROM python:3.12-slim AS base
# HOME: a random user has none, and libraries look for one.
# NUMBA_CPU_NAME: kernels compiled here must fit every node the image may run on.
# *_NUM_THREADS: one core is all there is; libraries would otherwise start a thread for each core of the node.
# MALLOC_ARENA_MAX: a heap for each thread is memory that never comes back.
ENV PATH=/opt/topo-scheduler/bin:$PATH \
    HOME=/ \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CPU_NAME=generic \
    NUMBA_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    MALLOC_ARENA_MAX=2

FROM base AS build
WORKDIR /src
# Every package is pinned with its hashes; manifests/image/lock.sh writes both files again.
COPY manifests/image/requirements.txt manifests/image/build-requirements.txt locks/
RUN python -m venv --without-pip /opt/topo-scheduler \
    && pip --python /opt/topo-scheduler/bin/python install --no-cache-dir --require-hashes -r locks/requirements.txt
RUN python -m venv --without-pip /opt/build \
    && pip --python /opt/build/bin/python install --no-cache-dir --require-hashes -r locks/build-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY examples examples
COPY topo_scheduler topo_scheduler
RUN /opt/build/bin/python -m hatchling build --target wheel --directory /opt/wheels \
    && pip --python /opt/topo-scheduler/bin/python install --no-cache-dir --no-deps --no-index /opt/wheels/*.whl
# Away from the sources, so that the installed package is what is compiled.
WORKDIR /
RUN python -m topo_scheduler.kernels.warm /opt/topo-scheduler/kernels \
    && chmod -R a+rX /opt/topo-scheduler/kernels

FROM base
ENV TOPO_SCHEDULER_WARM_CACHE=/opt/topo-scheduler/kernels
COPY --from=build /opt/topo-scheduler /opt/topo-scheduler
# Metrics and health.
EXPOSE 10261
# A number, because runAsNonRoot can't look a name up.
USER 65532:65532
ENTRYPOINT ["topo-scheduler"]
CMD ["run"]
