# Compiles prepared.cu with NVCC, links it with the runtime that stands in (runtime.cpp), and runs it.

cmake_minimum_required(VERSION 3.25)

set(folder ${SOURCE}/tests/cuda/build)
file(MAKE_DIRECTORY ${WORK})
execute_process(COMMAND ${NVCC} -std=c++20 -O2 -diag-suppress 20012,20015 -I ${SOURCE}/include
                        -I ${SOURCE}/tests -isystem ${EIGEN}
                        -gencode arch=compute_90,code=compute_90 -cudart none
                        ${folder}/prepared.cu ${folder}/runtime.cpp -o ${WORK}/prepared
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/prepared --times OUTPUT_VARIABLE output RESULT_VARIABLE status)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "refused")
endif()
