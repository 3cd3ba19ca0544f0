#!/bin/sh
# Checks Abele on this machine's accelerator and writes one JSON: docs/device_check.md.
#   scripts/check_device.sh [--out FILE] [--headers DIR] [--minutes 8] [--only STEP,...] [--list] [--dry-run]
# ABELE_PYTHON: the interpreter whose torch is meant (default: python3, then python).
for python in ${ABELE_PYTHON:+"$ABELE_PYTHON"} python3 python; do
  command -v "$python" > /dev/null 2>&1 && exec "$python" "${0%/*}/check_device.py" "$@"
done
echo "check_device.sh: no Python; set ABELE_PYTHON to an interpreter that has torch" >&2
exit 2
