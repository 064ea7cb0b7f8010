#!/usr/bin/env bash
# Builds the tests and the examples and runs them: bash tests/run.sh [ctest arguments]
# With arguments, such as -R Golden, the tests' own output is shown too.
#
#   bash tests/run.sh --sanitize
# runs the tests of core, distributed, io and gradient under ThreadSanitizer, and all CPU tests under
# AddressSanitizer and UndefinedBehaviorSanitizer, in builds of their own.
#
#   bash tests/run.sh --all
# runs the tests, and then those under sanitizers.
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

# sanitized NAME SANITIZERS PROGRAM...: builds programs of tests with sanitizers and runs them.
# ThreadSanitizer requires of some kernels that addresses are not randomised, which some containers
# forbid.
sanitized() {
  local name=$1 sanitizers=$2 program in_place=(setarch -R)
  shift 2
  "${in_place[@]}" true 2>/dev/null || in_place=(env)
  MHLA_BUILD_DIR=${MHLA_BUILD_DIR:+$MHLA_BUILD_DIR/$name} build "$name" "$*" \
    -DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=OFF -DMHLA_BUILD_BENCHMARKS=OFF \
    "-DCMAKE_CXX_FLAGS=-fsanitize=$sanitizers -fno-sanitize-recover=all" \
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1 -DNDEBUG"
  for program in "$@"; do
    step "test $program with $sanitizers"
    "${in_place[@]}" "$build_dir/tests/$program" --gtest_brief=1
  done
}

require_packages g++ cmake ninja-build libeigen3-dev libgtest-dev libbenchmark-dev nlohmann-json3-dev \
  libopenmpi-dev libstb-dev zlib1g-dev libcli11-dev dataset-fashion-mnist \
  doxygen clang libclang-rt-dev  # for the reference and the fuzz test
mode=
if [[ ${1:-} == --all || ${1:-} == --sanitize ]]; then
  mode=$1
  shift
fi
if [[ $mode != --sanitize ]]; then
  # What runs on little data takes longer to compile than to run. tests/levels.cmake optimises more.
  build tests all -DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=ON -DMHLA_BUILD_BENCHMARKS=OFF \
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"

  step test
  ctest --test-dir "$build_dir" --no-tests=error --output-on-failure -j"$cores" ${1:+--verbose} "$@"
fi
if [[ -n $mode ]]; then
  sanitized thread thread {core,distributed,io,gradient}_test
  sanitized address address,undefined {core,kernel,policy,tokens,stage,attention,gradient}_test \
    {layer,fit,distributed,io,nccl,amx,golden}_test
fi
