#!/usr/bin/env bash
# Builds the benchmarks of the CUDA path for the GPU of this machine and runs them:
#   bash benchmarks/run.sh --cuda [arguments]
# --help lists the arguments. Prints a table and writes it as JSON; where PyTorch is present and
# sees the GPU it times the same operator and softmax attention there. Without nvcc or without a GPU
# it says so and ends.
#
#   MHLA_PYTHON   the Python that is asked for PyTorch; python3 where it is not set
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/support/setup.sh"

PATH=$PATH:/usr/local/cuda/bin
if ! command -v nvcc >/dev/null; then
  step "no nvcc: the CUDA path is not measured"
  exit
fi
# Such as "9.0", one line for each GPU; the first is measured.
if ! capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) ||
  [[ -z $capability ]]; then
  step "no GPU that nvidia-smi knows: the CUDA path is not measured"
  exit
fi
case ${capability%%$'\n'*} in
  8.*) architectures=80-real ;;
  9.0) architectures=90a-real ;;
  *) architectures="80;90a-real" ;; # newer devices run PTX of 80
esac

require_packages g++ cmake ninja-build libeigen3-dev
build cuda-benchmarks mhla_cuda_bench -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF \
  -DMHLA_BUILD_BENCHMARKS=ON -DMHLA_BUILD_CUDA_BENCHMARKS=ON -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CUDA_ARCHITECTURES="$architectures"

MHLA_COMMIT=$(commit)
MHLA_GPU_DRIVER=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1) || true
export MHLA_COMMIT MHLA_GPU_DRIVER

json=$build_dir/cuda_benchmarks.json
quick=()
measures=yes
for argument in "$@"; do
  case $argument in
    --out=*) json=${argument#*=} ;;
    --quick) quick=(--quick) ;;
    --list | --once | --roofline | --help | -h) measures= ;;
  esac
done
program=$build_dir/benchmarks/cuda/mhla_cuda_bench
if [[ -z $measures ]]; then exec "$program" "$@"; fi

peers=${json%.json}.peers.json
begin=$(mktemp)
trap 'rm -f "$begin"' EXIT
step "run mhla_cuda_bench"
status=0
"$program" --out="$json" "$@" || status=$?
if [[ ! $json -nt $begin ]]; then exit "$status"; fi  # earlier results stay
rm -f "$peers"

python=${MHLA_PYTHON:-python3}
export PYTHONPATH=$repository/benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  step "run the same in PyTorch"
  "$python" "$repository/benchmarks/peers/torch_cuda_peers.py" "$json" "$peers" \
    "${quick[@]}" || status=1
else
  step "no PyTorch with a GPU in $python (MHLA_PYTHON names another Python)"
fi
for file in "$json" "$peers"; do
  if [[ -f $file ]]; then step "written: $file"; fi
done
exit "$status"
