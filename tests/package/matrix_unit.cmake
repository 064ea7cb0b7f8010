# Compiles the bidirectional form of bfloat16 tensors for processors with and without AMX, and
# counts the AMX instructions. The program is not run.

cmake_minimum_required(VERSION 3.25)

set(march_ProductsRunOnAmx -march=sapphirerapids)
set(march_NoTilesWithoutAmx -march=x86-64-v3)
set(march_NoTilesWhereTheyAreEmulated -march=sapphirerapids -DMHLA_EMULATE_MATRIX_UNIT)

find_program(objdump objdump)
if(NOT objdump)
  message("objdump is not installed")
  return()
endif()
file(MAKE_DIRECTORY ${WORK})
set(unit ${WORK}/${CASE})
file(WRITE ${unit}.cpp "int main() {}\n")
execute_process(COMMAND ${COMPILER} -march=sapphirerapids -c ${unit}.cpp -o ${unit}.o
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
if(NOT status EQUAL 0)
  message("a compiler for processors with AMX is not installed")
  return()
endif()

file(WRITE ${unit}.cpp [[
#include "mhla/attention/bidirectional.hpp"

using T = Eigen::bfloat16;
mhla::Matrix<T> attend(const mhla::Matrix<T>& x, const mhla::MixingMatrix<float>& m) {
  return mhla::bidirectional(x, x, x, mhla::Contiguous(x.rows(), 64), m);
}
]])
execute_process(COMMAND ${COMPILER} -std=c++20 -O2 ${march_${CASE}} -I ${SOURCE}/include
                        -isystem ${EIGEN} -c ${unit}.cpp -o ${unit}.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${objdump} -d ${unit}.o OUTPUT_VARIABLE code COMMAND_ERROR_IS_FATAL ANY)
# The last is an argument of the system call that asks for the tiles.
foreach(instruction ldtilecfg tilerelease tilezero tileloadd tilestored tdpbf16ps "[$]0x1023")
  string(REGEX MATCHALL "[ \t]${instruction}[, \t\n]" found "${code}")
  list(LENGTH found count)
  message("${instruction}: ${count}")
  if(CASE STREQUAL "ProductsRunOnAmx" AND count EQUAL 0)
    message(FATAL_ERROR "no ${instruction}")
  elseif(NOT CASE STREQUAL "ProductsRunOnAmx" AND count GREATER 0)
    message(FATAL_ERROR "${count} times ${instruction}")
  endif()
endforeach()
