# What trainings promise of checkpoints: a run that a signal stops and --resume goes on with ends
# with the bits of one that was not stopped; a checkpoint that is broken or of another run is
# refused with a reason.
#
# PROGRAM; NAME, that of the program in its files; ARGUMENTS of a run of mhla alone, of some seconds
# after its first step; KEYS of its result that are compared; WORK is a folder.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

# Runs PROGRAM to the end, which is to have the status.
function(run expected)
  execute_process(COMMAND ${PROGRAM} ${ARGUMENTS} ${ARGN} RESULT_VARIABLE status
                  OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  message("${output}${errors}")
  if(NOT status EQUAL expected)
    message(FATAL_ERROR "ended with '${status}', expected ${expected}")
  endif()
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

function(expect_refused why)
  run(1 --output ${WORK}/broken --resume ${ARGN})
  if(NOT errors MATCHES "${why}")
    message(FATAL_ERROR "expected an error that matches '${why}'")
  endif()
endfunction()

function(break_with command)
  execute_process(COMMAND bash -c "${command}" WORKING_DIRECTORY ${WORK}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# One run stops at Ctrl-C, as soon as it has said where it is.
string(JOIN "' '" words ${ARGUMENTS})
execute_process(
  COMMAND bash -c "'${PROGRAM}' '${words}' --output stopped 2>stopped.log & run=$!
                   until grep -q step stopped.log || ! kill -0 $run; do sleep 0.02; done
                   kill -INT $run && wait $run"
  WORKING_DIRECTORY ${WORK} RESULT_VARIABLE status)
file(READ ${WORK}/stopped.log log)
message("${log}")
if(NOT status EQUAL 130 OR NOT log MATCHES "stopped behind step [0-9]+ of [0-9]+ of mhla")
  message(FATAL_ERROR "a stopped run ended with '${status}', expected 130")
endif()
if(EXISTS ${WORK}/stopped.json)
  message(FATAL_ERROR "a stopped run has results")
endif()

run(0 --output ${WORK}/stopped --resume)
run(0 --output ${WORK}/whole)
execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${WORK}/stopped.mhla.safetensors
                        ${WORK}/whole.mhla.safetensors COMMAND_ERROR_IS_FATAL ANY)
foreach(key ${KEYS})
  foreach(name stopped whole)
    file(READ ${WORK}/${name}.json json)
    string(JSON ${name} GET "${json}" results 0 ${key})
  endforeach()
  if(NOT stopped STREQUAL whole)
    message(FATAL_ERROR "${key} of a resumed run: '${stopped}', of a whole one '${whole}'")
  endif()
endforeach()

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

file(GLOB left ${WORK}/*.part ${WORK}/*.tmp)
if(left)
  message(FATAL_ERROR "left behind: ${left}")
endif()
