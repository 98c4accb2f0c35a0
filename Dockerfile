# Stages: `tpu` for a TPU VM (not run on a TPU yet), `gpu`, and `cpu`, the
# default:  docker build -t lamb-tf .     docker build --target gpu .
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS base
# For a registry behind a private certificate; unset otherwise.
ARG PIP_CERT
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends make \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 lamb
WORKDIR /home/lamb/lamb-tf
COPY requirements requirements
RUN python3 -m venv /opt/venv \
 && pip="/opt/venv/bin/pip install -qq --no-cache-dir --require-hashes" \
 && $pip -r requirements/build.lock \
 && $pip --no-deps --no-build-isolation \
        -r requirements/lock.txt -r requirements/data.lock
COPY --chown=lamb . .
# The stamp tells make that the environment is complete.
RUN /opt/venv/bin/pip install -qq --no-deps --no-build-isolation -e . \
 && touch /opt/venv/.complete && chown lamb /home/lamb/lamb-tf
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
CMD ["python", "-m", "bert_pretrain.pretrain", "--help"]

# libtpu is pinned: tensorflow-tpu 2.20 aborts at import with later ones.
FROM base AS tpu
ARG PIP_CERT
RUN /opt/venv/bin/pip uninstall -q -y tensorflow \
 && /opt/venv/bin/pip install -qq --no-cache-dir --no-deps \
        tensorflow-tpu==2.20.0 libtpu==0.0.29
USER lamb

FROM base AS gpu
ARG PIP_CERT
RUN /opt/venv/bin/pip install -qq --no-cache-dir 'tensorflow[and-cuda]==2.20.0'
USER lamb

FROM base AS cpu
USER lamb
