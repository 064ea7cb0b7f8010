# CASE must not compile, and for the reason its first line expects. With MHLA_CONTROL the mistake is
# gone and it must compile, so that nothing else can be what was refused: Reject.NoneOfTheControls.
# Where a FLAG of the compiler is the mistake, EXPECT is the reason.

cmake_minimum_required(VERSION 3.25)
set(ENV{LC_ALL} C)  # plain quotes in messages

# What is of CUDA compiles with the emulation's instructions.
set(compile ${COMPILER} -std=c++20 -fsyntax-only -I ${SOURCE}/tests/support/cuda
            -I ${SOURCE}/include -isystem ${EIGEN} ${FLAG} ${CASE})

set(expected "${EXPECT}")
if(NOT expected)
  file(STRINGS ${CASE} expected LIMIT_COUNT 1 REGEX "^// expect: ")
  string(REGEX REPLACE "^// expect: " "" expected "${expected}")
endif()
if(NOT expected)
  message(FATAL_ERROR "${CASE} has no line '// expect: <regex>'")
endif()

execute_process(COMMAND ${compile} RESULT_VARIABLE status ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "${CASE} compiles")
elseif(NOT output MATCHES "${expected}")
  message("${output}")
  message(FATAL_ERROR "refused, but not with '${expected}'")
endif()
