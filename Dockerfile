# OpenSetDA on a CPU: docs/install.md says how to build and run it.
FROM python:3.11-slim AS build

RUN python -m venv /opt/osda
ENV PATH=/opt/osda/bin:$PATH
WORKDIR /build
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY licenses licenses
COPY src src

# torch's headers and tests are of no use here.
ARG TORCH=/opt/osda/lib/python3.11/site-packages/torch
RUN pip install --no-cache-dir --no-compile -c constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu '.[onnx]' \
    && rm -rf "$TORCH/include" "$TORCH/test" "$TORCH"/bin/test_* "$TORCH"/bin/protoc*

# A first run writes the bytecode of the modules that are used, and tries the installation.
RUN OSDA_CACHE=/tmp/cache osda demo --quick --quiet --out /tmp/demo && rm -r /tmp/demo /tmp/cache

FROM python:3.11-slim
COPY --from=build /opt/osda /opt/osda
ENV PATH=/opt/osda/bin:$PATH OSDA_CACHE=/cache
RUN useradd --create-home --uid 1000 osda && install -d -m 1777 /cache /data
USER 1000
WORKDIR /data
ENTRYPOINT ["osda"]
CMD ["--help"]
