# Passes if PROGRAM with ARGUMENT, one argument or a list, exits with a nonzero status and prints a
# match of EXPECT.

cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${PROGRAM} ${ARGUMENT} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT status MATCHES "^[1-9][0-9]*$")
  message(FATAL_ERROR "ended with '${status}', expected an error status")
elseif(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "expected a message that matches '${EXPECT}'")
endif()
