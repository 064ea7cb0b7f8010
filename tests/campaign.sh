#!/usr/bin/env bash
# Gets what campaign.py needs and runs it: see campaign.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/support/setup.sh"

case "$*" in
  *--list* | *--table* | *--help*) ;;
  *)
    require_packages g++ cmake ninja-build libeigen3-dev libgtest-dev nlohmann-json3-dev python3 \
      clang libclang-rt-dev libopenmpi-dev
    ;;
esac
exec python3 -B "$repository/tests/campaign.py" "$@"
