#!/usr/bin/env bash
# Builds the benchmarks for this processor and runs them:
#   bash benchmarks/run.sh [Google Benchmark arguments]
# such as --benchmark_filter=Bidirectional. Prints a table of medians and writes it as JSON and as a
# picture. If PyTorch is installed, times the same operator in PyTorch, on the same data. If
# onnxruntime and onnx are installed, times linear attention in ONNX Runtime.
#   MHLA_PYTHON   the Python that is searched for them; default python3
#
#   bash benchmarks/run.sh --classes [Google Benchmark arguments]
# builds and runs them for x86-64-v2, x86-64-v3 and this processor, prints one table and draws one
# picture. A class that this processor does not have is left out.
#
#   bash benchmarks/run.sh --cuda [arguments]
# measures the CUDA path instead: cuda/run.sh.
#
#   bash benchmarks/run.sh --distributed [REPETITIONS]
# measures two ranks of MPI instead: distributed/run.sh.
set -euo pipefail
if [[ ${1:-} == --cuda || ${1:-} == --distributed ]]; then
  part=${1#--}
  shift
  exec bash "$(dirname "${BASH_SOURCE[0]}")/$part/run.sh" "$@"
fi
source "$(dirname "${BASH_SOURCE[0]}")/../tests/support/setup.sh"
export PYTHONPATH=$repository/benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
python=${MHLA_PYTHON:-python3}

MHLA_COMMIT=$(commit)
export MHLA_COMMIT

# build_bench OPTION...: builds the benchmarks, and sets build_dir as build does.
build_bench() {
  build benchmarks mhla_bench -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF \
    -DMHLA_BUILD_BENCHMARKS=ON -DCMAKE_BUILD_TYPE=Release "$@"
}

# run_bench FOLDER JSON [Google Benchmark arguments]: JSON appears when it is complete.
run_bench() {
  step "run $1/benchmarks/mhla_bench"
  "$1/benchmarks/mhla_bench" --benchmark_min_time=0.1 --benchmark_repetitions=5 \
    --benchmark_enable_random_interleaving=true --benchmark_out="$2.part" \
    --benchmark_out_format=json "${@:3}"
  mv "$2.part" "$2"
}

# draw PICTURE RESULTS...: draws the results if matplotlib is installed.
draw() {
  local drawing
  for drawing in "$python" /usr/bin/python3; do
    if "$drawing" -c 'import matplotlib' 2>/dev/null; then
      "$drawing" "$repository/benchmarks/charts.py" "$@"
      return
    fi
  done
  step "no matplotlib in $python and /usr/bin/python3, so no picture"
}

# Names the files that exist.
tell_written() {
  local file
  for file in "$@"; do
    if [[ -f $file ]]; then step "written: $file"; fi
  done
}

# accepts_arguments ARGUMENT...: exits if --classes cannot pass an argument on.
accepts_arguments() {
  local argument
  for argument in "$@"; do
    case $argument in
      --benchmark_out=* | --benchmark_out_format=* | --benchmark_list_tests* | --help)
        step "--classes does not go with $argument: it runs cases, and names its results itself"
        exit 2
        ;;
    esac
  done
}

# compare_classes [Google Benchmark arguments]
compare_classes() {
  local root=${MHLA_BUILD_DIR:-$repository/build} levels class folder folders=()
  mkdir -p "$root"
  # shellcheck disable=SC2086  # CXX may be several words
  ${CXX:-c++} "$repository/tests/support/levels_of_processor.cpp" -o "$root/levels"
  levels=$("$root/levels")
  # All classes are built first, so that their runs are close in time.
  for class in x86-64-v2 x86-64-v3 native; do
    if [[ $class != native && ";$levels;" != *";$class;"* ]]; then
      step "$class is left out: this processor does not have its instructions"
      continue
    fi
    MHLA_BUILD_DIR=$root/benchmarks-$class \
      build_bench "-DCMAKE_CXX_FLAGS=-march=$class"
    folders+=("$build_dir")
  done
  for folder in "${folders[@]}"; do
    run_bench "$folder" "$folder.json" "$@" >&2  # one table is printed
  done
  local results=("${folders[@]/%/.json}") picture=$root/benchmarks-classes.svg
  rm -f "$picture"
  python3 "$repository/benchmarks/classes.py" "${results[@]}"
  draw "$picture" "${results[@]}"
  tell_written "${results[@]}" "$picture"
}

packages=(g++ cmake ninja-build libeigen3-dev libbenchmark-dev python3-matplotlib)
if [[ ${1:-} == --classes ]]; then
  shift
  accepts_arguments "$@"
  require_packages "${packages[@]}"
  compare_classes "$@"
  exit
fi

require_packages "${packages[@]}"
build_bench -DMHLA_NATIVE=ON
json=$build_dir/benchmarks.json
format=json
arguments=()
for argument in "$@"; do
  case $argument in
    --benchmark_out=*) json=${argument#*=} && continue ;;
    --benchmark_out_format=*) format=${argument#*=} ;;
    --benchmark_list_tests | --benchmark_list_tests=true | --help)
      exec "$build_dir/benchmarks/mhla_bench" "$@"
      ;;
  esac
  arguments+=("$argument")
done
run_bench "$build_dir" "$json" "${arguments[@]}"
if [[ $format != json ]]; then
  tell_written "$json"
  exit
fi
picture=${json%.json}.svg
peers=${json%.json}.peers.json
onnxruntime=${json%.json}.onnxruntime.json
rm -f "$picture" "$peers" "$onnxruntime"

draw "$picture" "$json"
if "$python" -c 'import torch' 2>/dev/null; then
  step "run the same operator in PyTorch"
  # Freed tensors stay with the process. Page faults of new ones would be half of PyTorch's time.
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
tell_written "$json" "$picture" "$peers" "$onnxruntime"
