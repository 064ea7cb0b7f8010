#!/usr/bin/env bash
# Builds the benchmarks for this processor and runs them:
#   bash benchmarks/run.sh [Google Benchmark arguments]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/support/setup.sh"

require_packages g++ cmake ninja-build libeigen3-dev libbenchmark-dev
build benchmarks mhla_bench -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF \
  -DMHLA_BUILD_BENCHMARKS=ON -DMHLA_NATIVE=ON -DCMAKE_BUILD_TYPE=Release

step "run mhla_bench"
exec "$build_dir/benchmarks/mhla_bench" "$@"
