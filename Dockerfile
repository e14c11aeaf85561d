# syntax=docker/dockerfile:1
# docker build -t hotdraft .
# docker build -t hotdraft:cuda --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cu130 .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_VERSION=2.13.0
# The CPU build; every index of builds for a CUDA version is its neighbour.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/hotdraft
ENV PATH=/opt/hotdraft/bin:${PATH}
# A layer of its own: it is the largest and changes least.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --index-url "${TORCH_INDEX_URL}" "torch==${TORCH_VERSION}"
# hadolint ignore=DL3008 # Debian's, of the image's release
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hotdraft hotdraft
# hadolint ignore=DL3013 # pyproject.toml says which versions
RUN --mount=type=cache,target=/root/.cache/pip pip install ".[postgres]"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="hotdraft" \
      org.opencontainers.image.description="Speculative decoding whose draft model learns from the traffic it serves." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 hotdraft \
    && useradd --uid 10001 --gid hotdraft --no-log-init --create-home hotdraft \
    && install --directory --owner hotdraft --group hotdraft /hotdraft /hotdraft/runs /cache
COPY --from=build /opt/hotdraft /opt/hotdraft
# Triton, which torch's builds for a GPU bring along, compiles where it runs.
# hadolint ignore=DL3008 # Debian's, of the image's release
RUN if ls -d /opt/hotdraft/lib/python3*/site-packages/triton; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
COPY hotdraft/pipeline/config/shipped-configs /hotdraft/configs
ENV PATH=/opt/hotdraft/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/cache/huggingface \
    HOTDRAFT_CACHE=/cache/hotdraft \
    HOTDRAFT_CONFIG=/hotdraft/configs/smollm2.yaml \
    HOTDRAFT_SERVER__HOST=0.0.0.0
WORKDIR /hotdraft
USER 10001:10001
# Models; and everything a run makes: replay buffer, jobs, logs, and the MLflow store where no other is named.
VOLUME ["/cache", "/hotdraft/runs"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["hotdraft"]
CMD ["serve", "--self-improve"]
