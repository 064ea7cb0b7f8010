#!/usr/bin/env bash
# Gets what mutation.py needs and runs it, with --torch for examples/torch: see mutation.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/support/setup.sh"

python=python3 program=$repository/tests/mutation.py
torch=
if [[ ${1:-} == --torch ]]; then
  shift
  torch=--torch program=$repository/examples/torch/tests/torch_mutation.py
fi
case "$torch $*" in
  *--list* | *--check* | *--help*) ;;
  --torch*)
    # shellcheck source=/dev/null
    source "$repository/tests/support/torch.sh"
    torch_environment
    ;;
  *) require_packages g++ libeigen3-dev libgtest-dev nlohmann-json3-dev pkg-config libopenmpi-dev \
    python3 ;;
esac
exec "$python" -B "$program" "$@"
