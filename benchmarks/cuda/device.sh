#!/usr/bin/env bash
# Does on a GPU all that waits for one, the most valuable first:
#   bash benchmarks/cuda/device.sh [PIECE...]
# Without a GPU it says so and ends. With programs that are built already it takes under 8 minutes.
#
#   tests      the device tests, in parallel parts
#   torch      the tests of mhla_torch that run on CUDA
#   sm80       the device tests of width 64 by the sm_80 kernels, from PTX
#   times      gradients in PyTorch, beside softmax attention and FLA
#   sanitizer  compute-sanitizer on small calls
#   train      the training example, a minute
#   probe      whether written lines leave L2
#
# More pieces run where they are named, the last three for 8 minutes each:
#
#   options    cases of the benchmarks with options that are off by default, and without
#   random     11,000 random problems of forms and gradients, and 1,000 runs with equal bits
#   models     whole models with each attention
#   trainings  trials of training at length
#
# Writes PIECE.log, gradients.json, models.md, tables of trials and summary.md into MHLA_RESULTS. Ends
# with 1 if a piece failed.
#
#   MHLA_RESULTS        folder of the results; build/device
#   MHLA_PREBUILT       folder of programs: cuda_device_*_test, sm80/cuda_device_forms_test, l2_probe,
#                       mhla_cuda_bench
#   MHLA_TORCH_PACKAGE  folder with mhla_torch and what else Python needs; otherwise it is built
#   MHLA_PYTHON         a Python with PyTorch, and for trials with numpy and Pillow; python3
#   MHLA_DATA           folder of Fashion-MNIST; that of Debian's dataset-fashion-mnist
#   MHLA_TRIALS         trials that share the time, a number is of tokens;
#                       "language images:1024 images:4096 video convert"
#   MHLA_TRIALS_DATA    their data; otherwise that of examples/torch/trials/data.sh
#   MHLA_SANITIZER      a compute-sanitizer to use before that on the PATH
#   MHLA_COMMIT         what summary.md says of the commit, where there is no git
# shellcheck disable=SC2317  # functions are called by their names
set -euo pipefail
self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/device.sh
source "$(dirname "$self")/../../tests/support/setup.sh"

PATH=$PATH:/usr/local/cuda/bin
if ! card=$(nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader \
  2>/dev/null) || [[ -z $card ]]; then
  step "no GPU that nvidia-smi knows: nothing is run on a device"
  exit
fi
card=${card%%$'\n'*}

# Seconds of each piece, without what it builds: 470 for those of `all`.
declare -A limits=([tests]=105 [torch]=75 [sm80]=60 [times]=110 [sanitizer]=50 [train]=45 [probe]=25
  [options]=60 [random]=475 [models]=475 [trainings]=475)
all=(tests torch sm80 times sanitizer train probe)
results=${MHLA_RESULTS:-$repository/build/device}
mkdir -p "$results"
results=$(cd "$results" && pwd)
python=${MHLA_PYTHON:-python3}
prebuilt=${MHLA_PREBUILT:-}
package=${MHLA_TORCH_PACKAGE:-$results/package}
export PYTHONPATH=$package:$repository/benchmarks:$repository/examples/torch
export PYTHONPATH=$PYTHONPATH:$repository/examples/throughput PYTHONDONTWRITEBYTECODE=1
export PYTHONUNBUFFERED=1 CUDA_CACHE_MAXSIZE=$((4 << 30))

# skip REASON: ends a piece that cannot run here.
skip() {
  printf 'skipped: %s\n' "$*"
  exit 77
}

# folder_of NAME PROGRAM: where a prebuilt program is, or where build_NAME makes it.
folder_of() {
  if [[ -n $prebuilt && -x $prebuilt/$2 ]]; then
    dirname "$prebuilt/$2"
  else
    echo "$repository/build/device-$1"
  fi
}

# ---- what is built -------------------------------------------------------------------------------

# build_device_tests NAME OPTION...: the programs, into build/device-NAME.
build_device_tests() {
  local folder=$repository/build/device-$1
  shift
  cmake -S "$repository" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DMHLA_NATIVE=OFF \
    -DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=OFF -DMHLA_BUILD_BENCHMARKS=OFF \
    "-DCMAKE_CXX_FLAGS_RELEASE=-O2" -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$folder" "$@"
  cmake --build "$folder" --parallel "$cores" --target cuda_device_tests
}
build_tests() {
  [[ $(folder_of tests cuda_device_forms_test) == "$prebuilt" ]] || build_device_tests tests
}
build_sm80() {
  [[ $(folder_of sm80 sm80/cuda_device_forms_test) == "$prebuilt/sm80" ]] ||
    build_device_tests sm80 -DMHLA_DEVICE_WIDTH=64 -DCMAKE_CUDA_ARCHITECTURES=80-virtual
}
build_torch() {
  [[ -n ${MHLA_TORCH_PACKAGE:-} || -d $package/mhla_torch ]] && return
  "$python" -m pip install --disable-pip-version-check --no-build-isolation --no-deps \
    --target "$package" -C cmake.define.MHLA_TORCH_CUDA=ON "$repository/examples/torch"
}
build_times() { build_torch; }
build_train() { build_torch; }
build_models() { build_torch; }
build_trainings() {
  build_torch
  [[ -n ${MHLA_TRIALS_DATA:-} || -d $results/trials-data/frames ]] ||
    bash "$repository/examples/torch/trials/data.sh" "$results/trials-data"
}
build_sanitizer() { build_tests; }
build_random() { build_tests; }
build_probe() {
  local folder
  folder=$(folder_of probe l2_probe)
  [[ $folder == "$prebuilt" ]] && return
  mkdir -p "$folder"
  nvcc -O3 -std=c++17 -arch=native -o "$folder/l2_probe" "$repository/benchmarks/cuda/l2_probe.cu"
}
build_options() {
  local folder
  folder=$(folder_of options mhla_cuda_bench)
  [[ $folder == "$prebuilt" ]] && return
  cmake -S "$repository" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DMHLA_BUILD_TESTS=OFF \
    -DMHLA_BUILD_EXAMPLES=OFF -DMHLA_BUILD_BENCHMARKS=ON -DMHLA_BUILD_CUDA_BENCHMARKS=ON \
    -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$folder"
  cmake --build "$folder" --parallel "$cores" --target mhla_cuda_bench
}

# ---- the pieces ----------------------------------------------------------------------------------

# run_part FOLDER PROGRAM TEST KIND: one test of one type and width.
run_part() {
  local status=0 begin=$SECONDS
  "$1/$2" "$3" "$4" >"$results/part.$2.$3.$4" 2>&1 || status=$?
  printf '%s %s %s %s, %d s\n' "$([[ $status == 0 ]] && echo passed || echo "FAILED($status)")" "$2" \
    "$3" "$4" $((SECONDS - begin))
  [[ $status == 0 ]] || { tail -n 25 "$results/part.$2.$3.$4" && false; }
}

# Kernels that are newest come first; the longest test begins early.
run_tests() {
  local folder program kind pattern part
  folder=$(folder_of tests cuda_device_forms_test)
  for program in "$folder"/cuda_device_*_test; do
    program=$(basename "$program")
    for part in $("$folder/$program" --list); do
      for kind in {bfloat16,half}_{64_64,72_72,128_128,128_256}; do
        [[ $part == Forms.ManyHeads && $kind == half* ]] || echo "$folder $program $part $kind"
      done
    done
  done >"$results/part.list"
  for pattern in ManyHeads gradient 'ManyBlocks|Rotary|Gains' .; do
    grep -E "$pattern" "$results/part.list" || true
  done | awk '!seen[$0]++' | xargs -P "$cores" -L 1 bash "$self" run_part || local failed=1
  rm -f "$results"/part.*
  return "${failed:-0}"
}

# The runs with equal bits are the longest parts.
run_random() {
  local folder part kind
  folder=$(folder_of tests cuda_device_random_test)
  export MHLA_PROBLEMS=500 MHLA_RUNS=1000
  for part in Random.RunsHaveTheSameBits Random.Gradients Random.Forms; do
    for kind in {bfloat16,half}_{64_64,72_72,128_128,128_256} float_{64_64,72_72,128_128}; do
      echo "$folder cuda_device_random_test $part $kind"
    done
  done | xargs -P "$cores" -L 1 bash "$self" run_part || local failed=1
  rm -f "$results"/part.*
  return "${failed:-0}"
}

run_sm80() {
  local folder kind failed=0 ids=()
  folder=$(folder_of sm80 sm80/cuda_device_forms_test)
  for kind in bfloat16_64_64 half_64_64; do
    "$folder/cuda_device_forms_test" Forms. "$kind" &
    ids+=($!)
  done
  for kind in "${ids[@]}"; do wait "$kind" || failed=1; done
  return "$failed"
}

run_torch() {
  local parallel=()
  "$python" -c 'import torch, mhla_torch; assert torch.cuda.is_available()' ||
    skip "no PyTorch with a GPU and mhla_torch in $python"
  "$python" -c 'import xdist' 2>/dev/null && parallel=(-n 8)
  "$python" -m pytest -p no:cacheprovider -q --durations=5 "${parallel[@]}" -k "cuda or device" \
    "$repository/examples/torch/tests"
}

run_times() {
  "$python" "$repository/benchmarks/peers/torch_cuda_gradients.py" "$results/gradients.json" --quick \
    --seconds=$((limits[times] - 15))
}

# sanitizer_for PROGRAM: MHLA_SANITIZER where the driver runs it, otherwise that on the PATH.
sanitizer_for() {
  local candidate
  for candidate in ${MHLA_SANITIZER:+"$MHLA_SANITIZER"} compute-sanitizer; do
    if [[ $(timeout 20 "$candidate" --launch-count 1 "$1" RefusedLaunches 2>&1) == \
      *"1 passed, 0 failed"* ]]; then
      echo "$candidate"
      return
    fi
  done
}

run_sanitizer() {
  local sanitizer folder program part tool options ids=() id
  folder=$(folder_of tests cuda_device_forms_test)
  sanitizer=$(sanitizer_for "$folder/cuda_device_streams_test")
  [[ -n $sanitizer ]] || skip "no compute-sanitizer that works here"
  "$sanitizer" --version | tail -n 2
  for program in "$folder"/cuda_device_{gradients,forms}_test; do
    [[ -x $program ]] || continue
    part=Forms.Rotary
    [[ $program == *gradients* ]] && part=$("$program" --list | sed -n 1p)
    for tool in memcheck synccheck racecheck; do
      options=(--tool "$tool" --launch-count 100 --error-exitcode 3)
      if [[ $tool == racecheck ]]; then
        options+=(--racecheck-report hazard)
        [[ $("$sanitizer" --help) != *num-cuda-barriers* ]] || options+=(--num-cuda-barriers 256)
      fi
      {
        local status=0
        timeout -k 2 $((limits[sanitizer] - SECONDS - 5)) "$sanitizer" "${options[@]}" "$program" \
          "$part" bfloat16_64_64 >"$results/part.$(basename "$program").$tool" 2>&1 || status=$?
        printf '%s %s %s: status %d\n' "$tool" "$(basename "$program")" "$part" "$status"
        tail -n 12 "$results/part.$(basename "$program").$tool"
        [[ $status == 0 ]]
      } &
      ids+=($!)
    done
  done
  local failed=0
  for id in "${ids[@]}"; do wait "$id" || failed=1; done
  rm -f "$results"/part.*
  return "$failed"
}

run_options() {
  local folder option
  folder=$(folder_of options mhla_cuda_bench)
  for option in "" --overlap-heads --slabs --join-stages; do
    echo "options: ${option:-none}"
    "$folder/mhla_cuda_bench" --quick --filter='512|n4096|wan|t8192' ${option:+"$option"}
  done
}

run_train() {
  "$python" "$repository/examples/torch/train.py" --device cuda --seconds 10 \
    ${MHLA_DATA:+--data "$MHLA_DATA"} --output "$results/train"
}

run_models() {
  "$python" "$repository/benchmarks/cuda/models.py" "$results/models.json" \
    --seconds=$((limits[models] - 20))
}

run_trainings() {
  local trials trial failed=0 tokens
  read -ra trials <<<"${MHLA_TRIALS:-language images:1024 images:4096 video convert}"
  for trial in "${trials[@]}"; do
    tokens=()
    [[ $trial != *:* ]] || tokens=(--tokens "${trial#*:}")
    "$python" "$repository/examples/torch/trials/${trial%:*}.py" "${tokens[@]}" \
      --output "$results/${trial/:/_}" --data "${MHLA_TRIALS_DATA:-$results/trials-data}" \
      --seconds=$(((limits[trainings] - 35) / ${#trials[@]})) || failed=1
  done
  return "$failed"
}

run_probe() {
  local folder
  folder=$(folder_of probe l2_probe)
  "$folder/l2_probe"
  command -v ncu >/dev/null || return 0
  # The program names an arm per launch, ncu writes a line per kernel: both in the same order.
  ncu --clock-control none --cache-control none --csv --page raw \
    --metrics dram__bytes_write.sum,dram__bytes_read.sum --log-file "$results/part.ncu" \
    "$folder/l2_probe" --once | grep ^arm >"$results/part.arms"
  echo "by ncu: arm, MB of the buffer, DRAM bytes read and written (units in the first line)"
  grep '^"' "$results/part.ncu" | awk -F'","' '{ sub(/"$/, ""); print $(NF - 1) "," $NF }' |
    paste -d, <(printf 'arm\nunit\n' && cat "$results/part.arms") - || cat "$results/part.ncu"
  rm -f "$results"/part.*
}

# ---- one after another ---------------------------------------------------------------------------

if [[ ${1:-} == run_* || ${1:-} == build_* ]]; then
  "$@"
  exit
fi

pieces=("$@")
(($#)) || pieces=("${all[@]}")
for piece in "${pieces[@]}"; do
  if [[ -z ${limits[$piece]:-} ]]; then
    printf 'no piece "%s"; there are: %s\n' "$piece" "${all[*]} options random models trainings" >&2
    exit 2
  fi
done

{
  printf '# On a device\n\n| | |\n|---|---|\n| card | %s |\n' "$card"
  printf '| nvcc | %s |\n' "$(nvcc --version 2>/dev/null | grep release || echo none)"
  printf '| Python | %s |\n' "$("$python" -c '
import importlib.metadata as m, torch
print("torch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(),
      *(f"{d.name} {d.version}" for d in m.distributions()
        if d.name in ("triton", "flash-linear-attention", "fla-core")))' 2>/dev/null || echo none)"
  printf '| commit | %s |\n| begun | %s |\n\n' "$(commit)" "$(date -u '+%F %T')"
  printf '| piece | status | seconds | to build |\n|---|---|---|---|\n'
} >"$results/summary.md"

failed=0
for piece in "${pieces[@]}"; do
  step "$piece"
  begin=$SECONDS status=0
  bash "$self" "build_$piece" >"$results/$piece.log" 2>&1 || status=$?
  built=$((SECONDS - begin)) begin=$SECONDS text=
  if ((status)); then
    text="not built: status $status"
  else
    timeout -k 5 "${limits[$piece]}" bash "$self" "run_$piece" >"$results/$piece.log" 2>&1 || status=$?
    case $status in
      0) text=passed ;;
      77) text=$(tail -n 1 "$results/$piece.log") status=0 ;;
      124 | 137) text="cut off after ${limits[$piece]} s" ;;
      *) text="FAILED: status $status" ;;
    esac
  fi
  ((status)) && failed=1
  printf '| %s | %s | %d | %d |\n' "$piece" "$text" $((SECONDS - begin)) "$built" >>"$results/summary.md"
done
for piece in "${pieces[@]}"; do
  step "the end of $piece.log"
  tail -n 12 "$results/$piece.log" >&2
done
rm -f "$results"/part.*
cat "$results/summary.md"
step "written: $results"
exit "$failed"
