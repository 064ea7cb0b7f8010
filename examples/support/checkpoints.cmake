# Checks checkpoints of trainings. A run that a signal stops and --resume continues gives the bits
# of a run without a stop. A checkpoint that is broken or of another run is refused with a reason.
#
# cmake -DPROGRAM=... -DNAME=... -DKEYS=... -DWORK=... -P checkpoints.cmake -- ARGUMENT...
# PROGRAM; NAME of the program in its files; KEYS of its result that are compared, KEY|KEY...; WORK,
# a folder; arguments of a run of mhla alone that takes some seconds after its first step.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/whole_run.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../../tests/package/script_arguments.cmake)
string(REPLACE "|" ";" KEYS "${KEYS}")

macro(run expected)
  run_program(${expected} ${PROGRAM} ${script_arguments} ${ARGN})
endmacro()

function(expect_refused why)
  run(1 --output ${WORK}/broken --resume ${ARGN})
  if(NOT output MATCHES "${why}")
    message(FATAL_ERROR "expected an error that matches '${why}'")
  endif()
endfunction()

function(break_with command)
  execute_process(COMMAND bash -c "${command}" WORKING_DIRECTORY ${WORK}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# One run stops at Ctrl-C, after its first line of progress.
string(JOIN "' '" words ${script_arguments})
execute_process(
  COMMAND bash -c "'${PROGRAM}' '${words}' --output stopped 2>stopped.log & run=$!
                   until grep -q step stopped.log || ! kill -0 $run; do sleep 0.02; done
                   kill -INT $run && wait $run"
  WORKING_DIRECTORY ${WORK} RESULT_VARIABLE status)
file(READ ${WORK}/stopped.log log)
message("${log}")
if(NOT status EQUAL 130 OR NOT log MATCHES "stopped after step [0-9]+ of [0-9]+ of mhla")
  message(FATAL_ERROR "a stopped run ended with '${status}', expected 130")
endif()
if(EXISTS ${WORK}/stopped.json)
  message(FATAL_ERROR "a stopped run has results")
endif()

run(0 --output ${WORK}/stopped --resume)
run(0 --output ${WORK}/whole)
expect_same_files(${WORK}/stopped.mhla.safetensors ${WORK}/whole.mhla.safetensors)
expect_same_results(${WORK}/stopped ${WORK}/whole ${KEYS})

set(file broken.mhla.safetensors)
break_with("head -c 1000 whole.mhla.safetensors >${file}")
expect_refused("${file}")
break_with("printf '\\2\\0\\0\\0\\0\\0\\0\\0{}' >${file}")
expect_refused("${file} has no metadata \"${NAME}\", expected a checkpoint of ${NAME}")
break_with("cp whole.mhla.safetensors ${file} &&
            printf '\\377\\377\\377\\377' | dd of=${file} bs=1 conv=notrunc status=none \
              seek=$(($(stat -c %s ${file}) - 4))")
expect_refused("${file} has tensor .* with an infinity or NaN, expected finite numbers")
break_with("cp whole.mhla.safetensors ${file}")
expect_refused("${file} is of another run: it has 1 for \"/settings/seed\", expected 2" --seed 2)
expect_nothing_left_behind()
