# The errors of mistakes.cpp are the sentences of its comments, in their order and no others.

cmake_minimum_required(VERSION 3.25)
set(ENV{LC_ALL} C)  # plain quotes in messages

set(elements "elements of one type: float, double, Eigen::half or Eigen::bfloat16")
set(tensors "Eigen matrices with a token a row")
set(blocks "behind the tensors a call has the blocks")
set(mixing "behind the blocks a call has the mixing matrix")
set(options "behind the mixing matrix a call may have an Operator")
set(crossing "CrossQuery reads later queries")
set(temporary "a view of this temporary would dangle")
set(offsets "copy them into a std::vector<mhla::Index>")

set(program ${CMAKE_CURRENT_LIST_DIR}/mistakes.cpp)
file(STRINGS ${program} mistakes REGEX "; +// ")
list(TRANSFORM mistakes REPLACE "^.*; +// " "")

set(limit "")
if(COMPILER MATCHES "clang")
  set(limit -ferror-limit=0)
endif()
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${limit} -I ${SOURCE}/include
                        -isystem ${EIGEN} ${program} ERROR_VARIABLE output)
string(REPLACE ";" "," output "${output}")
string(REGEX MATCHALL "[^\n]*error: [^\n]*" errors "${output}")
list(LENGTH errors count)
list(LENGTH mistakes expected)
if(NOT expected OR NOT count EQUAL expected)
  message(FATAL_ERROR "${count} errors of ${expected} mistakes:\n${output}")
endif()
foreach(mistake error IN ZIP_LISTS mistakes errors)
  string(FIND "${error}" "${${mistake}}" place)
  if(NOT ${mistake} OR place EQUAL -1)
    message(FATAL_ERROR "of the mistake '${mistake}' it is said:\n${error}")
  endif()
endforeach()
