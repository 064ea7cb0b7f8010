#!/usr/bin/env bash
# Builds the benchmarks for this processor and runs them:
#   bash benchmarks/run.sh [Google Benchmark arguments]
# such as --benchmark_filter=Bidirectional. Prints a table of medians and writes them as JSON and as
# a picture; where PyTorch is present it times the same operator there, on the same data, and where
# onnxruntime and onnx are, linear attention in ONNX Runtime.
#   MHLA_PYTHON   the Python that is asked for these; python3 where it is not set
#
#   bash benchmarks/run.sh --classes [arguments]
# does so for x86-64-v2, x86-64-v3 and this processor, one after the other, and prints one table.
#
#   bash benchmarks/run.sh --cuda [arguments]
# measures the CUDA path instead: cuda/run.sh.
set -euo pipefail
if [[ ${1:-} == --cuda ]]; then
  shift
  exec bash "$(dirname "${BASH_SOURCE[0]}")/cuda/run.sh" "$@"
fi
source "$(dirname "${BASH_SOURCE[0]}")/../tests/support/setup.sh"
export PYTHONPATH=$repository/benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
python=${MHLA_PYTHON:-python3}

# draw PICTURE RESULTS...: where there is matplotlib.
draw() {
  local drawing
  for drawing in "$python" /usr/bin/python3; do
    if "$drawing" -c 'import matplotlib' 2>/dev/null; then
      "$drawing" "$repository/benchmarks/charts.py" "$@"
      break
    fi
  done
}

if [[ ${1:-} == --classes ]]; then
  shift
  folder=${MHLA_BUILD_DIR:-$repository/build}
  results=()
  for class in x86-64-v2 x86-64-v3 native; do
    results+=("$folder/benchmarks-$class.json")
    # The peers do not depend on the class.
    MHLA_BUILD_DIR=$folder/benchmarks-$class \
      MHLA_PYTHON=$([[ $class == native ]] && echo "$python" || echo false) \
      MHLA_CMAKE_ARGS="-DMHLA_NATIVE=OFF -DCMAKE_CXX_FLAGS=-march=$class ${MHLA_CMAKE_ARGS:-}" \
      bash "$repository/benchmarks/run.sh" "$@" --benchmark_out="${results[-1]}"
  done
  python3 "$repository/benchmarks/classes.py" "${results[@]}"
  draw "$folder/benchmarks-classes.svg" "${results[@]}"
  step "written: $folder/benchmarks-classes.svg"
  exit
fi

require_packages g++ cmake ninja-build libeigen3-dev libbenchmark-dev python3-matplotlib
build benchmarks mhla_bench -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF \
  -DMHLA_BUILD_BENCHMARKS=ON -DMHLA_NATIVE=ON -DCMAKE_BUILD_TYPE=Release

MHLA_COMMIT=$(git -C "$repository" describe --always --dirty --abbrev=12 --exclude='*' \
  2>/dev/null) || MHLA_COMMIT=unknown
export MHLA_COMMIT

json=$build_dir/benchmarks.json
format=json
for argument in "$@"; do
  case $argument in
    --benchmark_out=*) json=${argument#*=} ;;
    --benchmark_out_format=*) format=${argument#*=} ;;
    --benchmark_list_tests | --benchmark_list_tests=true | --help)
      exec "$build_dir/benchmarks/mhla_bench" "$@"
      ;;
  esac
done

step "run mhla_bench"
"$build_dir/benchmarks/mhla_bench" --benchmark_min_time=0.1 --benchmark_repetitions=5 \
  --benchmark_enable_random_interleaving=true --benchmark_out="$json" \
  --benchmark_out_format=json "$@"
if [[ $format != json ]]; then
  step "written: $json"
  exit
fi
picture=${json%.json}.svg
peers=${json%.json}.peers.json
onnxruntime=${json%.json}.onnxruntime.json
rm -f "$picture" "$peers" "$onnxruntime"

draw "$picture" "$json"
if "$python" -c 'import torch' 2>/dev/null; then
  step "run the same operator in PyTorch"
  # Freed tensors stay with the process: new ones would be half of PyTorch's time in page faults.
  MALLOC_MMAP_THRESHOLD_=$((1 << 32)) MALLOC_TRIM_THRESHOLD_=$((1 << 32)) \
    "$python" "$repository/benchmarks/peers/torch_peers.py" "$json" "$peers"
else
  step "no PyTorch in $python, so nothing to compare with (MHLA_PYTHON names another Python)"
fi
if "$python" -c 'import onnxruntime, onnx' 2>/dev/null; then
  step "run linear attention in ONNX Runtime"
  "$python" "$repository/benchmarks/peers/onnxruntime_peers.py" "$json" "$onnxruntime"
else
  step "no onnxruntime and onnx in $python, so no comparison with ONNX Runtime's linear attention"
fi
for file in "$json" "$picture" "$peers" "$onnxruntime"; do
  if [[ -f $file ]]; then step "written: $file"; fi
done
