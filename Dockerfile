# docker build -t rlexp . ; docker run --rm -v "$PWD/results:/work/results" rlexp run /opt/rlexp/experiments/cartpole-dqn.yaml
FROM python:3.11-slim AS build

# The CPU build of torch. For GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Optional packages, such as [atari,video,plot,sweep,redis]
ARG EXTRAS=""

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /opt/rlexp
COPY constraints.txt ./
# torch first, and in a layer of its own: it is the largest part and changes rarely.
RUN pip install --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY rlexp rlexp
COPY experiments experiments
RUN pip install --constraint constraints.txt ".$EXTRAS"

FROM python:3.11-slim
# tini is process 1: it passes SIGTERM on, and reaps what envs leave behind.
RUN apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 rlexp && mkdir -p /work/results && chown -R rlexp /work
COPY --from=build /opt/venv /opt/venv
COPY experiments /opt/rlexp/experiments
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 RLEXP_OUT=/work/results
USER rlexp
WORKDIR /work
# docker stop: every running trial writes a checkpoint, then the container ends with 143. It has 10 s unless -t says more.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "rlexp"]
CMD ["--help"]
