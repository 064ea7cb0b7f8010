# cmake -DPROGRAM=... -DEXPECT=... -P expect_failure.cmake -- ARGUMENT...
# Passes if PROGRAM with the arguments exits with a nonzero status and prints a match of EXPECT.

cmake_minimum_required(VERSION 3.25)

include(${CMAKE_CURRENT_LIST_DIR}/script_arguments.cmake)

execute_process(COMMAND ${PROGRAM} ${script_arguments}
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT status MATCHES "^[1-9][0-9]*$")
  message(FATAL_ERROR "ended with '${status}', expected an error status")
elseif(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "expected a message that matches '${EXPECT}'")
endif()
