# The operator and the CLI. Small: no torch, which only the workers need, in images of their own.
#   docker build -t REGISTRY/orchestra:VERSION . && docker push REGISTRY/orchestra:VERSION
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY src ./src
RUN python -m venv /opt/orchestra \
 && /opt/orchestra/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".[cluster,sync,hub]" \
 && /opt/orchestra/bin/pip uninstall --yes pip setuptools \
 && /opt/orchestra/bin/python -m compileall -q /opt/orchestra

FROM python:${PYTHON}-slim
# For `workspace.source: git`, and for object stores behind TLS.
RUN apt-get update \
 && apt-get install -y --no-install-recommends git ca-certificates \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/orchestra /opt/orchestra
# The root is read-only where the operator runs, and nothing here wants to write.
ENV PATH=/opt/orchestra/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["orchestra"]
CMD ["operator"]
