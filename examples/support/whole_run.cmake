# Parts of tests of whole runs: an empty folder WORK, programs that end as expected, and equal
# results.

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

# Runs a command and expects the exit status `expected`; sets `output` to its output.
function(run_program expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
                  ERROR_VARIABLE errors)
  message("${output}${errors}")
  if(NOT status EQUAL expected)
    message(FATAL_ERROR "ended with '${status}', expected ${expected}")
  endif()
  set(output "${output}${errors}" PARENT_SCOPE)
endfunction()

function(expect_same_files first second)
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${first} ${second}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(expect_nothing_left_behind)
  file(GLOB left ${WORK}/*.tmp)
  if(left)
    message(FATAL_ERROR "left behind: ${left}")
  endif()
endfunction()

# Fails unless two runs, FIRST.json and SECOND.json, have the same values of the keys in all of
# their results, to the last digit.
function(expect_same_results first second)
  file(READ ${first}.json one)
  file(READ ${second}.json other)
  string(JSON count LENGTH "${one}" results)
  math(EXPR last "${count} - 1")
  foreach(result RANGE ${last})
    foreach(key ${ARGN})
      string(JSON left GET "${one}" results ${result} ${key})
      string(JSON right GET "${other}" results ${result} ${key})
      if(NOT left STREQUAL right)
        message(FATAL_ERROR "${key} of result ${result} is '${left}' in ${first}.json and "
                            "'${right}' in ${second}.json")
      endif()
    endforeach()
  endforeach()
endfunction()
