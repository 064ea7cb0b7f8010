#!/usr/bin/env bash
# Builds and runs tests.
#
#     bash tests/run.sh [ctest arguments]
# runs the tests of the CPU library. With arguments, such as -R Golden, it shows their output too.
#
#     bash tests/run.sh --all [ctest arguments]
# runs the tests of the CPU library, and then all others. Arguments, such as -L emulated, select
# from both.
#
#     bash tests/run.sh --sanitize
# runs the tests of core, distributed, io and gradient under ThreadSanitizer, and all CPU tests
# under AddressSanitizer and UndefinedBehaviorSanitizer, in separate builds.
#
#     bash tests/run.sh --torch [pytest arguments]
# tests the operators and modules of examples/torch. MHLA_PYTHON names a Python that has PyTorch,
# MHLA_GOLDEN_DIR a folder of more stored cases.
#
#     bash tests/run.sh --wheel
# builds the wheel of examples/torch from its source archive, as `python -m build` does with PyPI.
# It then tests the wheel in a second, empty environment. Most of its minutes download PyTorch.
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
# On some systems ThreadSanitizer needs addresses that are not randomised. Some containers forbid
# that.
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

require_packages g++ cmake ninja-build libeigen3-dev libgtest-dev nlohmann-json3-dev python3
if [[ ${1:-} == --sanitize ]]; then
  sanitized thread thread {core,distributed,io,gradient}_test
  sanitized address address,undefined {core,kernel,policy,tokens,stage,attention,gradient}_test \
    {layer,fit,distributed,io,nccl,amx,golden}_test
  exit
fi

all=
if [[ ${1:-} == --all ]]; then
  all=1
  shift
fi
# ctest ignores arguments that it does not know, and runs all tests.
takes_option() { [[ $1 =~ ^-[A-Za-z] ]] || ctest --help | grep -wF -e "${1%%=*}" >/dev/null; }
if (($#)) && { [[ $1 != -* ]] || ! takes_option "$1"; }; then
  printf 'unknown argument %s, expected an option of ctest, such as -R REGEX, or one of:\n' "$1" >&2
  sed -n 's/^#     /  /p' "$0" >&2
  exit 2
fi
if [[ -n $all ]]; then
  require_packages libbenchmark-dev libopenmpi-dev libstb-dev zlib1g-dev libcli11-dev \
    dataset-fashion-mnist doxygen clang libclang-rt-dev  # for the reference and the fuzz test
fi
# Tests on little data take longer to compile than to run, so they are built with -O1. Tests of
# tests/levels.cmake are built with -O2.
options=(-DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=ON -DMHLA_BUILD_BENCHMARKS=OFF
  "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")

# run_tests ARGUMENT...: runs the tests that the arguments of ctest select.
run_tests() {
  step test
  ctest --test-dir "$build_dir" --no-tests=error --output-on-failure -j"$cores" "$@"
}

say_passed() { step "$1 passed, after $(((SECONDS + 30) / 60)) minutes"; }

if [[ -z $all || $# == 0 ]]; then
  build tests cpu_tests "${options[@]}"
  run_tests -L '^cpu$' ${1:+--verbose} "$@"
  say_passed "the tests of the CPU library"
fi
if [[ -z $all ]]; then
  step "left out: CUDA, other instruction sets, packages, examples, MPI, fuzzing (bash tests/run.sh" \
    "--all) and sanitizers (bash tests/run.sh --sanitize)"
  exit
fi
build tests all "${options[@]}"
if (($#)); then
  run_tests --verbose "$@"
else
  run_tests -LE '^cpu$'
  say_passed "all tests"
  step "left out: sanitizers (bash tests/run.sh --sanitize)"
fi
