#!/usr/bin/env bash
# Measures attention over two ranks, and over one:
#   bash benchmarks/run.sh --distributed [REPETITIONS]
# The ranks are on two hosts (network namespaces that tests/distributed/mpi/two_hosts.sh joins by a
# cable) at each of RATES ("200mbit 1gbit 10gbit"), which tc sets. Where there is no root, or no
# namespaces, it says that it cannot set a bandwidth, and the ranks talk through memory.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/support/setup.sh"

require_packages g++ cmake ninja-build libeigen3-dev libopenmpi-dev openmpi-bin iproute2
build distributed-benchmarks mhla_distributed_ranks -DMHLA_BUILD_TESTS=OFF \
  -DMHLA_BUILD_EXAMPLES=OFF -DMHLA_BUILD_BENCHMARKS=ON -DCMAKE_BUILD_TYPE=Release -DMHLA_NATIVE=ON
program=$build_dir/benchmarks/distributed/mhla_distributed_ranks

for rate in ${RATES:-200mbit 1gbit 10gbit}; do
  step "two ranks, two hosts, $rate"
  status=0
  RATE=$rate bash "$repository/tests/distributed/mpi/two_hosts.sh" "$program" "$@" || status=$?
  case $status in
    0) ;;
    77)
      step "cannot set a bandwidth: the ranks talk through memory"
      mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "$program" "$@"
      break
      ;;
    *) exit $status ;;
  esac
done
step "one rank"
mpirun --allow-run-as-root --bind-to none -n 1 "$program" "$@"
