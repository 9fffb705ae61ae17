# The gateway and, from the same image, emulated engines. Nothing in it runs as root.
FROM python:3.11.15-slim-trixie@sha256:db3ff2e1800a8581e2c48a27c3995339d47bdf046da21c7627accd3d51053a93 AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# To compile the kernels of the predictors.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/headway
COPY requirements/runtime.txt requirements/runtime.txt
RUN /opt/headway/bin/pip install --require-hashes -r requirements/runtime.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY router router
COPY policies policies
COPY predictors predictors
COPY backends backends
COPY benchmarks benchmarks
# What builds and installs packages is not needed to run them.
RUN /opt/headway/bin/pip install --no-deps --no-build-isolation . \
    && /opt/headway/bin/pip uninstall --yes cython setuptools pip

FROM python:3.11.15-slim-trixie@sha256:db3ff2e1800a8581e2c48a27c3995339d47bdf046da21c7627accd3d51053a93
COPY --from=build /opt/headway /opt/headway
ENV PATH=/opt/headway/bin:$PATH PYTHONUNBUFFERED=1
# The database of a fleet file with a relative path lands in the working directory: mount a volume there.
RUN useradd --system --uid 10001 --user-group --no-create-home headway \
    && install --directory --owner=headway --group=headway /var/lib/headway /etc/headway
USER 10001:10001
WORKDIR /var/lib/headway
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["headway"]
CMD ["serve", "--config", "/etc/headway/fleet.yaml", "--host", "0.0.0.0"]
