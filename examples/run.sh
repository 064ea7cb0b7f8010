#!/usr/bin/env bash
# Builds and runs an example:
#
#     bash examples/run.sh                    attention_map on examples/data/astronaut.png
#     bash examples/run.sh NAME [arguments]   another example, such as train_images --quick
#     bash examples/run.sh torch [arguments]  trains in PyTorch, and times PyTorch's operators;
#                                             with --device cuda trains three attentions on a GPU
#     bash examples/run.sh throughput         models per second; also in PyTorch, if in MHLA_PYTHON
#     bash examples/run.sh distributed [M]    attention on 4 ranks of Open MPI; M blocks, or 1024
#     bash examples/run.sh claims [FOLDER]    the paper's claims of mixing, over three seeds; keeps
#                                             results that are in FOLDER, or in claims
#     bash examples/run.sh --list             lists the examples
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tests/support/setup.sh"

list() { (cd "$repository/examples" && printf '%s\n' *.cpp torch | sed 's/\.cpp$//'); }

if [[ ${1:-} == --list ]]; then
  list
  exit
fi

name=${1:-attention_map}
(($# > 0)) && shift
if [[ $name == torch ]]; then
  on_cuda=$([[ " $* " =~ " --device cuda "|" --device=cuda " ]] && echo yes || true)
  if [[ $on_cuda ]] && ! nvidia-smi >/dev/null 2>&1; then
    step "no GPU that nvidia-smi knows: nothing is trained"
    exit
  fi
  source "$repository/tests/support/torch.sh"
  [[ " $*" == *" --data"* ]] || require_packages dataset-fashion-mnist
  torch_environment
  step "train with softmax and with MHLA"
  "$python" "$repository/examples/torch/train.py" "$@"
  [[ -z $on_cuda ]] || exit 0
  step "time the operators"
  # Freed memory stays with the process. Otherwise half of PyTorch's time would be page faults.
  exec env MALLOC_MMAP_THRESHOLD_=$((1 << 32)) MALLOC_TRIM_THRESHOLD_=$((1 << 32)) \
    "$python" "$repository/examples/torch/speed.py"
fi
if [[ $name != claims && (! $name =~ ^[a-z0-9_]+$ || ! -f $repository/examples/$name.cpp) ]]; then
  printf 'no example "%s"; there are: %s\n' "$name" "$(list | paste -sd ' ')" >&2
  exit 2
fi
if [[ $name == attention_map && ${1:--} == -* ]]; then  # a PICTURE comes first
  set -- "$repository/examples/data/astronaut.png" "$@"
fi
if [[ $name == claims && ${1:-} == -* ]]; then
  printf 'claims: the first argument is %s, expected a folder\n' "$1" >&2
  exit 2
fi

packages=(g++ cmake ninja-build libeigen3-dev libstb-dev nlohmann-json3-dev libcli11-dev)
case $name in
  train_images | convert | draw_images | image_sizes) packages+=(zlib1g-dev python3-matplotlib dataset-fashion-mnist) ;;
  write_text | extend_text) packages+=(python3-matplotlib bible-kjv bible-kjv-text) ;;
  throughput) packages+=(python3-matplotlib) ;;
  distributed) packages+=(libopenmpi-dev) ;;
  restore_video) packages+=(ffmpeg) ;;
  claims) packages+=(zlib1g-dev python3-matplotlib dataset-fashion-mnist ffmpeg) ;;
esac
require_packages "${packages[@]}"

build_example() {
  build examples "$1" -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=ON \
    -DMHLA_BUILD_BENCHMARKS=OFF -DMHLA_NATIVE=ON -DCMAKE_BUILD_TYPE=Release
}

# Decodes the video to $build_dir/box.ppm.
decode_video() {
  if [[ ! -f $build_dir/box.mp4 ]]; then
    step "take the clip out of opencv-doc, without installing its 96 MB"
    (cd "$build_dir" && apt-get download -q opencv-doc) >&2
    dpkg-deb --fsys-tarfile "$build_dir"/opencv-doc_*.deb |
      tar xO ./usr/share/doc/opencv-doc/opencv4/html/box.mp4.gz | gunzip >"$build_dir/box.part"
    rm "$build_dir"/opencv-doc_*.deb
    mv "$build_dir/box.part" "$build_dir/box.mp4"
  fi
  step "decode it to frames of 96 x 72 pixels"
  ffmpeg -loglevel fatal -y -i "$build_dir/box.mp4" -vf scale=96:72:flags=area -c:v ppm \
    -f image2pipe "$build_dir/box.ppm" </dev/null
}

if [[ $name == claims ]]; then
  build_example train_images
  build_example restore_video
  decode_video
  step "train what the folder ${1:-claims} has not"
  exec python3 "$repository/examples/train_images/claims.py" "$build_dir"/examples/train_images \
    "$build_dir"/examples/restore_video "$build_dir/box.ppm" "${1:-claims}" "${@:2}"
fi

build_example "$name"
if [[ $name =~ ^(write|extend)_text$ && " $*" != *" --text"[\ =]* ]]; then
  step "unpack the King James Bible"
  bible -l79 gen1:1-rev22:21 </dev/null >"$build_dir/kjv.txt"
  set -- --text "$build_dir/kjv.txt" "$@"
fi
if [[ $name == restore_video && " $*" != *" --video"[\ =]* ]]; then
  decode_video
  set -- --video "$build_dir/box.ppm" "$@"
fi
if [[ $name == throughput ]]; then
  program=$build_dir/examples/throughput
  source "$repository/examples/throughput/run.sh"
  exit
fi
if [[ $name == distributed ]]; then
  step "run distributed on 4 ranks"
  set -a
  source "$repository/tests/support/open_mpi.env"
  set +a
  exec mpirun -n 4 "$build_dir/examples/distributed" "$@"
fi
step "run $name"
exec "$build_dir/examples/$name" "$@"
