# shellcheck shell=bash
# Sourced after setup.sh by scripts that run examples/torch.

base=${MHLA_PYTHON:-python3}

# share_torch PYTHON: lets an environment use PyTorch 2.10 or newer of `base`; fails without it.
share_torch() {
  local site place
  site=$("$base" -c 'import os, torch
assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
print(os.path.dirname(torch.__path__[0]))' 2>/dev/null) || return 1
  step "PyTorch is that of $base"
  place=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$site" >"$place/torch_of_base.pth"
}

# torch_environment: creates a Python environment with PyTorch and mhla_torch, built from this tree,
# and sets `build_dir` and `python`. It uses PyTorch 2.10 or newer of MHLA_PYTHON (default: python3)
# if present; otherwise it installs PyPI's.
torch_environment() {
  require_packages g++ cmake ninja-build libeigen3-dev python3-venv
  build_dir=${MHLA_BUILD_DIR:-$repository/build/torch}
  mkdir -p "$build_dir"
  build_dir=$(cd "$build_dir" && pwd)
  local packages=(scikit-build-core numpy matplotlib pillow pytest)
  python=$build_dir/venv/bin/python
  if [[ ! -x $python ]]; then
    step "make $build_dir/venv"
    "$base" -m venv "$build_dir/venv"
  fi
  share_torch "$python" || packages+=("torch>=2.10")
  step "install ${packages[*]}"
  quietly "$build_dir/install.log" "$python" -m pip install --disable-pip-version-check \
    "${packages[@]}"
  # The torchvision must match the installed PyTorch.
  "$python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
    >"$build_dir/torch.txt"
  "$python" -m pip install --disable-pip-version-check -c "$build_dir/torch.txt" timm \
    >"$build_dir/timm.log" 2>&1 || step "timm is not installed, so its tests are skipped"
  step "build mhla_torch: over ten minutes on two cores if nvcc makes kernels for CUDA"
  quietly "$build_dir/build.log" "$python" -m pip install --disable-pip-version-check \
    --no-build-isolation --no-deps --force-reinstall -C build-dir="$build_dir/package" \
    "$repository/examples/torch"
  # Modules of tests and examples: code shared with benchmarks/, and the models that they train.
  export PYTHONPATH=$repository/benchmarks:$repository/examples/torch:$repository/examples/throughput
  export PYTHONDONTWRITEBYTECODE=1
  export MHLA_TORCH_EMULATION=$build_dir/emulation  # kernels for CUDA, for tests without a device
}

# test_wheel: builds the source archive of examples/torch, and from it the wheel, in pip's isolated
# environment with only the requirements of pyproject.toml. It installs the wheel into an empty
# environment, with the PyTorch of `base` if it has one, and runs it there.
test_wheel() {
  require_packages g++ cmake ninja-build libeigen3-dev python3-venv
  build_dir=${MHLA_BUILD_DIR:-$repository/build/wheel}
  mkdir -p "$build_dir"
  build_dir=$(cd "$build_dir" && pwd)
  local name pip=(-m pip --disable-pip-version-check) alone=()
  rm -rf "$build_dir/dist"
  for name in builder user; do "$base" -m venv --clear "$build_dir/$name"; done
  step "build the source archive, and the wheel from it (downloads PyTorch)"
  quietly "$build_dir/install.log" "$build_dir/builder/bin/python" "${pip[@]}" install build
  quietly "$build_dir/build.log" "$build_dir/builder/bin/python" -m build \
    -C cmake.define.MHLA_NATIVE=OFF --outdir "$build_dir/dist" "$repository/examples/torch"
  step "install $(cd "$build_dir/dist" && ls ./*.whl) into an empty environment"
  python=$build_dir/user/bin/python
  share_torch "$python" && alone=(--no-deps)
  quietly "$build_dir/install.log" "$python" "${pip[@]}" install "${alone[@]}" "$build_dir"/dist/*.whl
  step "run it away from its sources"
  cp "$repository/examples/torch/tests/smoke.py" "$build_dir"
  (cd "$build_dir" && "$python" -I smoke.py)
}
