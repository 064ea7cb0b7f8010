# The single header has every CPU header but those of files once. A program and a second unit of it
# compile without a warning, are linked and run.

cmake_minimum_required(VERSION 3.25)

find_program(PYTHON python3)
if(NOT PYTHON)
  message("python3 is not installed")
  return()
endif()
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/mhla)
set(single ${WORK}/mhla/mhla.hpp)
execute_process(COMMAND ${PYTHON} ${SOURCE}/.packaging/single_header.py ${single}
                COMMAND_ERROR_IS_FATAL ANY)

file(READ ${single} text)
string(REGEX MATCHALL "\n// ---- mhla/[^\n]+[.]hpp ----\n" titles "${text}")
file(GLOB_RECURSE headers RELATIVE ${SOURCE}/include ${SOURCE}/include/mhla/*/*.hpp)
list(FILTER headers EXCLUDE REGEX "^mhla/(io/|distributed/(mpi|nccl))")
list(TRANSFORM titles REPLACE "\n// ---- (.+) ----\n" "\\1")
list(SORT titles)
list(SORT headers)
if(NOT titles STREQUAL headers)
  message(FATAL_ERROR "expected once each\n${headers}\ngot\n${titles}")
elseif(NOT text MATCHES "^// mhla [^\n]*\n//\n// MIT License\n.*\n#pragma once\n")
  message(FATAL_ERROR "expected the version, the licence and #pragma once first")
endif()
string(FIND "${text}" "#include \"mhla/" own)
if(NOT own EQUAL -1)
  message(FATAL_ERROR "it includes headers of its own")
endif()

# The program of the README, whatever headers it names.
set(program ${WORK}/readme.cpp)
file(READ ${SOURCE}/examples/readme.cpp text)
string(REGEX REPLACE "#include <mhla/[^>]+>" "#include <mhla/mhla.hpp>" text "${text}")
file(WRITE ${program} "${text}")
set(compile ${COMPILER} -std=c++20 -Wall -Wextra -Werror -I ${WORK} -isystem ${EIGEN} -c ${program})
execute_process(COMMAND ${compile} -o ${WORK}/main.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${compile} -Dmain=other -o ${WORK}/other.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${COMPILER} ${WORK}/main.o ${WORK}/other.o -pthread -o ${WORK}/main
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/main COMMAND_ERROR_IS_FATAL ANY)
