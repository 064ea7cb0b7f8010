#!/usr/bin/env bash
# Builds the tests and the examples and runs them: bash tests/run.sh [ctest arguments]
# With arguments, such as -R Golden, the tests' own output is shown too.
#
#   bash tests/run.sh --torch [pytest arguments]
# tests the operators and modules of examples/torch instead. MHLA_PYTHON names a Python that has
# PyTorch, MHLA_GOLDEN_DIR a folder of more stored cases.
#
#   bash tests/run.sh --wheel
# builds the wheel of examples/torch from its source archive, as `python -m build` does with PyPI,
# and tries it in a second, empty environment: some minutes, most of them PyTorch's download.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/support/setup.sh"

if [[ ${1:-} == --torch ]]; then
  shift
  source "$repository/tests/support/torch.sh"
  torch_environment
  step test
  exec "$python" -m pytest -p no:cacheprovider --show-capture=no \
    "$repository/examples/torch/tests" "$@"
fi

if [[ ${1:-} == --wheel ]]; then
  source "$repository/tests/support/torch.sh"
  test_wheel
  exit
fi

require_packages g++ cmake ninja-build libeigen3-dev libgtest-dev libbenchmark-dev nlohmann-json3-dev \
  libopenmpi-dev libstb-dev zlib1g-dev libcli11-dev dataset-fashion-mnist \
  doxygen clang libclang-rt-dev  # for the reference and the fuzz test
# What runs on little data takes longer to compile than to run. tests/levels.cmake optimises more.
build tests all -DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=ON -DMHLA_BUILD_BENCHMARKS=OFF \
  "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"

step test
ctest --test-dir "$build_dir" --no-tests=error --output-on-failure -j"$cores" ${1:+--verbose} "$@"
