# An image for workers: torch and orchestra's trainers. Build it from the repository's root:
#   docker build -f docker/trainer.Dockerfile -t trainer .
#   docker build -f docker/trainer.Dockerfile --build-arg EXTRA=llm -t trainer-llm .        (fine-tuning, too)
# The user's own code comes with the job; this holds only what rarely changes.
ARG BASE=pytorch/pytorch:2.9.1-cuda13.0-cudnn9-runtime
FROM ${BASE}
ARG EXTRA=train

# Triton compiles its launcher when a model is compiled, so the image needs a C compiler.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/orchestra
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src ./src
# The base's torch stays: pip finds it installed and new enough.
RUN pip install --no-cache-dir ".[${EXTRA}]" && python -c "import orchestra.train, torch; print(torch.__version__)"

# Anybody may run it: clusters give containers user ids of their own.
RUN mkdir -p /workspace && chmod 1777 /workspace
WORKDIR /workspace
USER 1000
CMD ["python", "-m", "orchestra.train.smoke", "--help"]
