# shellcheck shell=bash
# Sourced by examples/run.sh with the built `program`: runs it, then PyTorch, and draws.

output=throughput previous=
for argument in "$@"; do
  case $previous in --output) output=$argument ;; esac
  case $argument in --output=*) output=${argument#*=} ;; --help | -h) exec "$program" "$@" ;; esac
  previous=$argument
done
# shellcheck disable=SC2154  # of setup.sh
export PYTHONPATH=$repository/benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
python=${MHLA_PYTHON:-python3}
files=("$output.json")

step "run throughput"
"$program" "$@"
if "$python" -c 'import torch' 2>/dev/null; then
  peers=("$python" "$repository/examples/throughput/torch_peers.py")
  step "compare the blocks with PyTorch's"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$program" --quick --threads 1 --save "$work" --output "$work/quick" >"$work/log"
  "${peers[@]}" "$work/quick.json" --check "$work"
  step "run the same models in PyTorch"
  # Freed tensors stay with the process. Page faults of new ones would be half of PyTorch's time.
  MALLOC_MMAP_THRESHOLD_=$((1 << 32)) MALLOC_TRIM_THRESHOLD_=$((1 << 32)) \
    "${peers[@]}" "$output.json" "$output.peers.json"
  files+=("$output.peers.json")
else
  step "no PyTorch in $python, so nothing to compare with (MHLA_PYTHON names another Python)"
fi
for drawing in "$python" /usr/bin/python3; do
  if "$drawing" -c 'import matplotlib' 2>/dev/null; then
    "$drawing" "$repository/examples/throughput/chart.py" "$output.svg" "${files[@]}"
    step "written: ${files[*]} $output.svg"
    break
  fi
done
