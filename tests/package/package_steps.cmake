# Steps of a user's project below WORK, in the folder CASE, for tests of packages.

set(consumer ${CMAKE_CURRENT_LIST_DIR}/consumer)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Sets `status`, `output` and `errors`.
function(configure_consumer)
  file(REMOVE_RECURSE ${WORK}/${CASE})
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${consumer} -B ${WORK}/${CASE} -G ${GENERATOR}
                          -DCMAKE_CXX_COMPILER=${COMPILER} ${ARGN}
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  set(status ${status} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

macro(expect_configured)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${errors}")
  endif()
endmacro()

function(run_consumer)
  configure_consumer(${ARGN})
  expect_configured()
  run(${CMAKE_COMMAND} --build ${WORK}/${CASE})
  run(${WORK}/${CASE}/consumer)
endfunction()
