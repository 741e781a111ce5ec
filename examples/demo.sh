#!/usr/bin/env bash
# `make demo`: start the service, capture GPT-2 small and ask for its peaks over HTTP, on a large card and on a small one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$(mktemp -d)
trap 'kill "${service:-}" 2>/dev/null && wait "$service" 2>/dev/null || true; rm -rf "$folder"' EXIT
[ -t 1 ] || export COLUMNS=120 # a pipe has no width
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

# A port nobody holds, unless told otherwise.
port=${PEAKCAST_PORT:-$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
server=http://127.0.0.1:$port

say "peakcast serve --port $port &"
peakcast serve --port "$port" --log-format console >"$folder/service.log" 2>&1 &
service=$!
python - "$server" "$service" <<'PYTHON' || { cat "$folder/service.log" >&2; exit 1; }
import os, sys, time
import httpx

server, service = sys.argv[1], int(sys.argv[2])
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        reply = httpx.get(f"{server}/health/ready")
        if reply.status_code == 200:
            sys.exit(print(reply.text))
    except httpx.TransportError:
        pass
    try:
        os.kill(service, 0)
    except ProcessLookupError:
        sys.exit("the service stopped before it was ready:")
    time.sleep(0.2)
sys.exit("the service was not ready after 60 s:")
PYTHON

say "peakcast capture examples/gpt2_small.py:workload --plans eager,inductor -o gpt2_small.json"
peakcast capture examples/gpt2_small.py:workload --plans eager,inductor -o "$folder/gpt2_small.json"

say "peakcast predict gpt2_small.json --server $server --device-memory 80GiB"
peakcast predict "$folder/gpt2_small.json" --server "$server" --device-memory 80GiB

# On a card this small only some plans fit: the decision changes, and the reason says why. Exit code 3: none fits.
say "peakcast predict gpt2_small.json --server $server --device-memory 6GiB"
peakcast predict "$folder/gpt2_small.json" --server "$server" --device-memory 6GiB || [ $? -eq 3 ]
