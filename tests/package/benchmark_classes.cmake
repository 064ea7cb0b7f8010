# benchmarks/run.sh --classes on a processor that has x86-64-v2 but not x86-64-v3, with stand-ins
# for the compiler, for cmake and for the benchmarks: one table and one picture of two classes.
# Results of another name are refused.

cmake_minimum_required(VERSION 3.25)

foreach(name bash python3)
  find_program(${name} ${name})
  if(NOT ${name})
    message("${name} is not installed")
    return()
  endif()
endforeach()
file(REMOVE_RECURSE ${WORK})

function(write_program name text)
  file(WRITE ${WORK}/bin/${name} "#!${bash}\n${text}")
  file(CHMOD ${WORK}/bin/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

write_program(dpkg-query "echo installed\n")
write_program(c++ [[
printf '#!/bin/sh\nprintf "x86-64;x86-64-v2"\n' >"${@: -1}"
chmod +x "${@: -1}"
]])
# Configures folder $4: what runs there gives the results of the class that is in the flags.
write_program(cmake [=[
if [[ $1 == -S ]]; then
  mkdir "$4/benchmarks"
  cp "${0%/*}/mhla_bench" "$4/benchmarks"
  printf '%s\n' "$@" | sed -n 's/^-DCMAKE_CXX_FLAGS=-march=//p' >"$4/class"
fi
]=])
write_program(mhla_bench [[
folder=${0%/*}/..
echo a table of one class
cp "$folder/../../$(<"$folder/class").json" \
  "$(printf '%s\n' "$@" | sed -n 's/^--benchmark_out=//p')"
]])

# case(NAME MILLISECONDS FLOPS OF_PEAK): one repetition, appended to `cases`.
set(family 0)
function(case name milliseconds flops of_peak)
  string(APPEND cases "${comma}{\"name\": \"${name}\", \"run_name\": \"${name}\",
    \"run_type\": \"iteration\", \"family_index\": ${family}, \"label\": \"grid=1x16x16\",
    \"real_time\": ${milliseconds}, \"time_unit\": \"ms\", \"flops\": ${flops},
    \"of_peak\": ${of_peak}}")
  math(EXPR family "${family} + 1")
  set(cases "${cases}" PARENT_SCOPE)
  set(family ${family} PARENT_SCOPE)
  set(comma "," PARENT_SCOPE)
endfunction()

# Writes `cases` as the results of a class.
function(write_results class instruction_set)
  file(WRITE ${WORK}/${class}.json "{\"context\": {\"class\": \"${class}\", \"compiler\": \"g++\",
    \"instruction_set\": \"${instruction_set}\", \"cpu_model\": \"a processor\", \"commit\": \"1\"},
    \"benchmarks\": [${cases}]}")
  set(cases "" PARENT_SCOPE)
  set(comma "" PARENT_SCOPE)
endfunction()

set(deit Bidirectional/cpu/float/deit_s)
set(growth Bidirectional/cpu/float/growth_256)
set(nlp Causal/cpu/float/nlp_340m)
case(Peak/cpu/float/registers/threads:1 0.001 5e10 1.0)
case(${deit}/threads:1 12 1e10 0.25)
case(${deit}/threads:1 16 1.5e10 0.375)
case(${deit}/threads:1 14 1.25e10 0.3)
case(${deit}/threads:2 7 2.5e10 0.25)
case(${nlp}/threads:1 1500 3e10 0.6)
case(${growth}/threads:1 3 2e10 0.5)
write_results(x86-64-v2 sse2)
case(Peak/cpu/float/registers/threads:1 0.001 2e11 1.0)
case(${deit}/threads:1 2 10e10 0.5)
case(${nlp}/threads:1 500 9e10 0.45)
case(${nlp}/threads:2 250 18e10 0.44)
case(${growth}/threads:1 1 6e10 0.3)
write_results(native avx512)

set(expected [[
case                               class                1 thread   GFLOP/s of peak x first    2 threads   GFLOP/s of peak x first
Peak/cpu/float/registers           x86-64-v2 (sse2)      1.00 us     50.00   1.000    1.00
Peak/cpu/float/registers           native (avx512)       1.00 us    200.00   1.000    4.00
Bidirectional/cpu/float/deit_s     x86-64-v2 (sse2)     14.00 ms     12.50   0.300    1.00      7.00 ms     25.00   0.250    1.00
Bidirectional/cpu/float/deit_s     native (avx512)       2.00 ms    100.00   0.500    8.00
Causal/cpu/float/nlp_340m          x86-64-v2 (sse2)       1.50 s     30.00   0.600    1.00
Causal/cpu/float/nlp_340m          native (avx512)     500.00 ms     90.00   0.450    3.00    250.00 ms    180.00   0.440
Bidirectional/cpu/float/growth_256 x86-64-v2 (sse2)      3.00 ms     20.00   0.500    1.00
Bidirectional/cpu/float/growth_256 native (avx512)       1.00 ms     60.00   0.300    3.00
]])

set(ENV{PATH} "${WORK}/bin:$ENV{PATH}")
set(ENV{CXX} c++)
set(ENV{MHLA_BUILD_DIR} ${WORK}/build)
unset(ENV{MHLA_PYTHON})
execute_process(COMMAND ${bash} ${SOURCE}/benchmarks/run.sh --classes
                OUTPUT_VARIABLE table ERROR_VARIABLE steps COMMAND_ERROR_IS_FATAL ANY)
if(NOT table STREQUAL expected)
  message(FATAL_ERROR "expected\n${expected}\ngot\n${table}")
elseif(NOT steps MATCHES "== x86-64-v3 is left out: this processor does not have its instruct")
  message(FATAL_ERROR "expected x86-64-v3 to be left out with a sentence, got\n${steps}")
endif()

execute_process(COMMAND ${bash} ${SOURCE}/benchmarks/run.sh --classes --benchmark_out=x.json
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE refusal)
if(NOT status EQUAL 2 OR NOT refusal MATCHES "^== --classes does not go with --benchmark_out=x")
  message(FATAL_ERROR "expected --benchmark_out to be refused, got status ${status}\n${refusal}")
endif()

if(steps MATCHES "== no matplotlib in ")
  message("matplotlib is not installed")
  return()
endif()
file(READ ${WORK}/build/benchmarks-classes.svg text)
string(REGEX MATCHALL "<!-- [a-z0-9-]+ \\([a-z0-9_]+\\) -->" lines "${text}")
set(of_chart "<!-- x86-64-v2 (sse2) -->;<!-- native (avx512) -->")
if(NOT lines STREQUAL "${of_chart};${of_chart}")
  message(FATAL_ERROR "expected one line a class in both charts, got '${lines}'")
endif()
