#!/usr/bin/env bash
# `make demo`: start the service, capture GPT-2 small, ask for its peaks over HTTP and show them beside the measured ones.
# `--keep` leaves the service up.
set -euo pipefail
exec python "$(dirname "${BASH_SOURCE[0]}")/demo.py" "$@"
