# shellcheck shell=bash
# Sourced by the run.sh scripts: installs the requirements of a build, configures and builds.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cores=$(getconf _NPROCESSORS_ONLN)

step() { printf '== %s\n' "$*" >&2; }

# Prints the commit that results are of: MHLA_COMMIT, or else that of the repository.
commit() {
  printf '%s\n' "${MHLA_COMMIT:-$(git -C "$repository" describe --always --dirty --abbrev=12 \
    --exclude='*' 2>/dev/null || echo unknown)}"
}

# quietly LOG COMMAND...: writes the output to LOG, and shows it if the command fails.
quietly() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 || {
    local status=$?
    cat "$log" >&2
    return "$status"
  }
}

is_installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# require_packages PACKAGE...: installs missing Debian packages. If it cannot, it names them and
# continues: the tools and headers may come from elsewhere.
require_packages() {
  local missing=() package as_root=()
  for package in "$@"; do is_installed "$package" || missing+=("$package"); done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || as_root=(sudo)
  if ! command -v apt-get >/dev/null || { ((EUID != 0)) && ! command -v sudo >/dev/null; }; then
    step "cannot install packages: make sure you have what Debian calls ${missing[*]}"
    return 0
  fi
  step "install ${missing[*]}"
  local log
  log=$(mktemp)
  # apt-get must not wait long if no server answers.
  if ! { quietly "$log" "${as_root[@]}" apt-get update -o Acquire::Retries=1 \
    -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 &&
    quietly "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y \
      --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"; }; then
    step "cannot install packages: make sure you have what Debian calls ${missing[*]}"
  fi
  rm "$log"
}

# build NAME TARGETS OPTION...: configures MHLA_BUILD_DIR, or build/NAME, with the options and
# builds TARGETS there. Sets `build_dir`. MHLA_CMAKE_ARGS holds more options. Scripts may share
# MHLA_BUILD_DIR, so every option that differs between them is set again.
build() {
  local name=$1 generator=() targets
  read -ra targets <<<"$2"
  shift 2
  build_dir=${MHLA_BUILD_DIR:-$repository/build/$name}
  mkdir -p "$build_dir"
  build_dir=$(cd "$build_dir" && pwd)
  if command -v ninja >/dev/null && [[ ! -f $build_dir/CMakeCache.txt ]]; then
    generator=(-G Ninja)
  fi

  step "configure $build_dir"
  # shellcheck disable=SC2086  # several options in one variable
  quietly "$build_dir/configure.log" cmake -S "$repository" -B "$build_dir" "${generator[@]}" \
    -DMHLA_NATIVE=OFF "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG" "$@" ${MHLA_CMAKE_ARGS:-}
  grep '^-- mhla: ' "$build_dir/configure.log" >&2 || true

  step "build ${targets[*]}"
  local command=(cmake --build "$build_dir" --target "${targets[@]}" --parallel "$cores")
  if [[ -t 1 ]]; then
    "${command[@]}" >&2
  else
    quietly "$build_dir/build.log" "${command[@]}"
  fi
}
