# Runs the fuzz PROGRAM for 100,000 executions, or as many as 15 seconds allow. Failures are
# crashes, leaks, sanitizer reports, inputs that take more than a second and use of more than 512
# MiB. The input of a failure stays in WORK.

cmake_minimum_required(VERSION 3.25)

set(executions 100000)
set(seconds 15)

if(NOT COMPILER)
  message("clang++ with libFuzzer is not installed")
  return()
endif()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
# Short allocation traces and a small quarantine give three times as many executions.
set(ENV{ASAN_OPTIONS} malloc_context_size=2:quarantine_size_mb=4:detect_stack_use_after_return=0)
execute_process(COMMAND ${PROGRAM} -runs=${executions} -max_total_time=${seconds} -seed=1
                        -max_len=512 -timeout=1 -rss_limit_mb=512 -entropic=0
                        -artifact_prefix=${WORK}/
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX MATCH "Done ([0-9]+) runs in ([0-9]+) second" done "${output}")
set(count ${CMAKE_MATCH_1})
set(time ${CMAKE_MATCH_2})
if(NOT status EQUAL 0 OR NOT done)
  string(LENGTH "${output}" length)
  if(length GREATER 8000)
    math(EXPR from "${length} - 8000")
    string(SUBSTRING "${output}" ${from} -1 output)
  endif()
  message(FATAL_ERROR "${PROGRAM} ended with ${status}:\n${output}")
endif()
string(REGEX MATCH ".*cov: ([0-9]+)" last "${output}")
message("${count} executions in ${time} seconds, ${CMAKE_MATCH_1} edges covered")
if(count LESS 10000)
  message(FATAL_ERROR "fewer than 10,000 executions: too few to say anything")
elseif(count LESS executions)
  message("fewer than ${executions}: the machine is slow or busy")
endif()
