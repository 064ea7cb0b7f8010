#!/usr/bin/env bash
# Plants the faults of tests/mutants/*.txt in the headers, one at a time, and tells which of them
# the tests see: bash tests/mutation.sh [--list|--check] [PATTERN]
#
# bash tests/mutation.sh --torch [PATTERN] does so for examples/torch, with its own table and pytest.
#
# A fault is killed by a test that fails, crashes or does not end. The status is 0 if all of them
# are. PATTERN, such as 'core/*' or '*eps*', picks faults by FOLDER/NAME; --list only lists them,
# --check only makes sure that each can still be planted. CXX is the compiler, MHLA_JOBS the number
# of faults that are worked on at once.
#
# A table, FOLDER.txt or FOLDER.PART.txt, is blocks of `key: value` lines with an empty line behind
# each; # begins a comment line.
#   name    what is wrong, in the words of the field
#   why     the same in a sentence
#   header  the file below include/mhla
#   old     text that stands there once, in one line, without the spaces around it
#   new     what takes its place; may be empty
#   tests   the sources below tests that one program is made of
#   filter  its tests that promise better, by full name behind the suite, as --gtest_filter; they
#           stand in the sources or in the contracts that these include
#   flags   of the compiler, where the program needs any; TESTS is the folder of tests
#   ranks   processes of Open MPI that run the program, where it is for several
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/support/setup.sh"

if [[ ${1:-} == --torch ]]; then
  shift
  # shellcheck source=/dev/null
  source "$repository/tests/support/torch.sh"
  torch_environment
  exec "$python" "$repository/examples/torch/tests/mutation.py" "$build_dir/mutants" "$@"
fi

tables=$repository/tests/mutants
compiler=${CXX:-g++}
most=${MHLA_JOBS:-$cores}
keys='name|why|header|old|new|tests|filter|flags|ranks'

fail() {
  printf '%s\n' "$*" >&2
  exit 2
}

# ---- the tables ---------------------------------------------------------------------------------

declare -a mutants=()  # FOLDER/NAME, in the order of the tables
declare -A why header old new tests filter flags ranks  # of each of them

# Takes over the record that read_table has gathered.
take_record() {
  ((${#record[@]})) || return 0
  local id=$folder/${record[name]:-} key
  [[ -n ${record[name]:-} ]] || fail "$folder: a record without a name"
  [[ -z ${header[$id]:-} ]] || fail "$id: a second one of that name"
  for key in why header old tests filter; do
    [[ -n ${record[$key]:-} ]] || fail "$id has no $key"
  done
  [[ -v record[new] ]] || fail "$id has no new"
  mutants+=("$id")
  why[$id]=${record[why]} header[$id]=${record[header]} tests[$id]=${record[tests]}
  old[$id]=${record[old]} new[$id]=${record[new]}
  filter[$id]=${record[filter]} flags[$id]=${record[flags]:-} ranks[$id]=${record[ranks]:-}
  record=()
}

read_table() {
  local folder line
  local -A record=()
  folder=$(basename "$1" .txt)
  folder=${folder%%.*}
  while IFS= read -r line; do
    if [[ $line == '#'* ]]; then
      continue
    elif [[ -z $line ]]; then
      take_record
    elif [[ $line =~ ^($keys):\ *(.*)$ && ! -v record[${BASH_REMATCH[1]}] ]]; then
      record[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
    else
      fail "$1: not a line of a record, or there twice: $line"
    fi
  done < <(cat "$1" && echo)
  take_record
}

# plant MUTANT: prints the header with the fault in it.
plant() {
  local text rest
  text=$(<"$repository/include/mhla/${header[$1]}")
  rest=${text#*"${old[$1]}"}
  [[ $rest != "$text" ]] || fail "$1: its text does not stand in ${header[$1]}"
  [[ $rest != *"${old[$1]}"* ]] || fail "$1: its text stands more than once in ${header[$1]}"
  printf '%s\n' "${text%%"${old[$1]}"*}${new[$1]}$rest"
}

# The sources that the tests of a mutant are written in: contracts are included by their users.
sources_of() {
  local source
  for source in ${tests[$1]}; do
    printf '%s\n' "$source"
    sed -n 's/^#include "\(contract\/.*\)"/\1/p' "$repository/tests/$source"
  done
}

# Makes sure that a fault can be planted and that its tests are there.
check() {
  local source piece suite places
  [[ ${old[$1]} != "${new[$1]}" ]] || fail "$1 changes nothing"
  [[ -f $repository/include/mhla/${header[$1]} ]] || fail "$1: there is no ${header[$1]}"
  plant "$1" >/dev/null
  for source in ${tests[$1]}; do
    [[ -f $repository/tests/$source ]] || fail "$1: there is no tests/$source"
  done
  mapfile -t places < <(sources_of "$1")
  for piece in ${filter[$1]//:/ }; do
    suite=${piece%.*}  # Suite, Typed/* or Name/Contract/*
    case $suite in
      */*/*) suite="INSTANTIATE.*\\(${suite%%/*}, $(cut -d/ -f2 <<<"$suite")," ;;
      *) suite="TEST.*\\(${suite%%/*}, ${piece##*.}\\)" ;;
    esac
    (cd "$repository/tests" && grep -qE "$suite" "${places[@]}" &&
      grep -qE "TEST.*, ${piece##*.}\\)" "${places[@]}") ||
      fail "$1: there is no test $piece in ${tests[$1]}"
  done
}

# ---- programs -----------------------------------------------------------------------------------

# compile FOLDER MUTANT INCLUDE...: makes FOLDER/program of the tests of a mutant.
compile() {
  local folder=$1 mutant=$2 source sources=() mpi=
  shift 2
  for source in ${tests[$mutant]}; do sources+=("$repository/tests/$source"); done
  [[ -z ${ranks[$mutant]} ]] || mpi=$(pkg-config --cflags --libs ompi-cxx)
  # shellcheck disable=SC2086  # flags are several words
  "$compiler" -std=c++20 -O1 -w ${flags[$mutant]//TESTS/$repository/tests} "${@/#/-I}" \
    "-I$repository/include" "-I$repository/tests" $packages "${sources[@]}" -o "$folder/program" \
    $mpi -lgtest_main -lgtest -pthread >"$folder/compiler.log" 2>&1
}

# run FOLDER MUTANT SECONDS: the tests that its filter picks, up to the first failure.
run() {
  local mpirun=()
  [[ -z ${ranks[$2]} ]] || mpirun=(mpirun -n "${ranks[$2]}")
  (cd "$1" && ulimit -c 0 && timeout "$3" "${mpirun[@]}" ./program --gtest_color=no \
    "--gtest_filter=${filter[$2]}" --gtest_throw_on_failure \
    >tests.log 2>&1) 2>/dev/null  # where the shell tells of aborts
}

# Mutants of the same tests share the program without any fault.
clean_folder() { printf '%s/clean/%s' "$work" "$(tr -cs 'a-zA-Z0-9\n' _ <<<"$1 $2")"; }

# clean TESTS_AND_FLAGS: builds the program without any fault, and runs it for every filter.
clean() {
  local mutant folder start result
  for mutant in "${mutants[@]}"; do
    [[ "${tests[$mutant]} ${flags[$mutant]}" == "$1" ]] || continue
    folder=$(clean_folder "${tests[$mutant]}" "${flags[$mutant]}")
    [[ ! -e $folder/broken ]] || continue
    if [[ ! -e $folder/program ]]; then
      mkdir -p "$folder"
      compile "$folder" "$mutant" || { cp "$folder/compiler.log" "$folder/broken"; continue; }
    fi
    result=$folder/$(cksum <<<"${filter[$mutant]}" | tr -d ' ')
    [[ ! -e $result ]] || continue
    start=$EPOCHSECONDS
    if run "$folder" "$mutant" 600 &&
      grep -q '^\[==========\] Running [1-9]' "$folder/tests.log"; then
      echo $((EPOCHSECONDS - start)) >"$result"
    else
      cp "$folder/tests.log" "$result.failed"
    fi
  done
}

# try MUTANT: plants it and prints what came of it, which goes to FOLDER/result too.
try() {
  local mutant=$1 folder=$work/mutants/$1 clean result seconds status=0 said
  clean=$(clean_folder "${tests[$mutant]}" "${flags[$mutant]}")
  result=$clean/$(cksum <<<"${filter[$mutant]}" | tr -d ' ')
  mkdir -p "$folder/include/mhla/$(dirname "${header[$mutant]}")"
  plant "$mutant" >"$folder/include/mhla/${header[$mutant]}"
  if [[ -e $clean/broken ]]; then
    said="ERROR     its tests do not compile even without it: $clean/broken"
  elif [[ ! -e $result ]]; then
    said="ERROR     its tests fail even without it: $result.failed"
  elif ! compile "$folder" "$mutant" "$folder/include"; then
    said="ERROR     does not compile: $folder/compiler.log"
  else
    seconds=$((60 + 10 * $(<"$result")))  # a machine may be busy
    run "$folder" "$mutant" "$seconds" || status=$?
    said="killed    by $(sed -n 's/^\[ RUN      \] //p' "$folder/tests.log" | tail -n 1)"
    if ((status == 0)); then
      said="SURVIVED  ${why[$mutant]}"
    elif ((status == 124)); then
      said+=", which did not end within $seconds s"
    elif ! grep -q Failure "$folder/tests.log"; then
      said+=", which crashed"
    fi
  fi
  rm -f "$folder/program"
  printf '%s\n' "$said" >"$folder/result"
  printf '%-58s %s\n' "$mutant" "$said"
}

# for_each FUNCTION ARGUMENT...: calls it for every argument, `most` of them at once.
for_each() {
  local function=$1 argument
  shift
  for argument in "$@"; do
    while (($(jobs -rp | wc -l) >= most)); do wait -n || true; done
    "$function" "$argument" &
  done
  wait
}

# ---- what is asked for --------------------------------------------------------------------------

action=run
if [[ ${1:-} == --* ]]; then
  action=${1#--}
  shift
fi
pattern=${1:-*}
for table in "$tables"/*.txt; do read_table "$table"; done
all=("${mutants[@]}")
mutants=()
for mutant in "${all[@]}"; do
  # shellcheck disable=SC2053  # a pattern
  [[ $mutant == $pattern ]] && mutants+=("$mutant")
done
((${#mutants[@]})) || fail "no mutant is called $pattern"

case $action in
  list)
    for mutant in "${mutants[@]}"; do printf '%-58s %s\n' "$mutant" "${why[$mutant]}"; done
    exit
    ;;
  check)
    for mutant in "${mutants[@]}"; do check "$mutant"; done
    echo "${#mutants[@]} mutants can be planted"
    exit
    ;;
  run) ;;
  *) fail "unknown option --$action" ;;
esac

require_packages g++ libeigen3-dev libgtest-dev nlohmann-json3-dev pkg-config libopenmpi-dev
set -a
# shellcheck source=/dev/null
source "$repository/tests/support/open_mpi.env"
set +a
packages=$(pkg-config --cflags eigen3 | sed 's/-I/-isystem /g')
work=$(mktemp -d)
for mutant in "${mutants[@]}"; do check "$mutant"; done

programs=()
for mutant in "${mutants[@]}"; do programs+=("${tests[$mutant]} ${flags[$mutant]}"); done
mapfile -t programs < <(printf '%s\n' "${programs[@]}" | sort -u)
step "build ${#programs[@]} programs without any fault, and run their tests"
for_each clean "${programs[@]}"
step "plant ${#mutants[@]} faults, one at a time"
for_each try "${mutants[@]}"

count() { grep -l "^$1" "$work"/mutants/*/*/result | wc -l || true; }
killed=$(count killed) survived=$(count SURVIVED) errors=$(count ERROR)
echo "$killed killed, $survived survived, $errors could not be tried"
((errors)) || rm -r "$work"
((killed == ${#mutants[@]}))
