# Abele in a container, with PyTorch's CPU build:
#   docker build -t abele .
#   docker run --rm -it abele                         # Python, which knows abele and poptorch
#   docker run --rm abele abele env                   # what works there
#   docker run --rm abele python /opt/examples/python/gpt.py
FROM debian:12 AS build
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates g++ git python3-dev python3-venv
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /abele
COPY . .
RUN ./dev setup
RUN ./dev wheel && .venv/bin/pip freeze --exclude abele | grep -E "^(torch|numpy)==" > build/wheels/requirements.txt

FROM debian:12
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-venv && \
    rm -rf /var/lib/apt/lists/*
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY --from=build /abele/build/wheels /wheels
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install -q --no-cache-dir -r /wheels/requirements.txt /wheels/abele-*.whl && \
    rm -r /wheels
COPY examples /opt/examples
COPY LICENSE /opt/LICENSE
ENV PATH=/opt/venv/bin:$PATH
CMD ["python"]
