# Compiles prepared.cu, package.cu and forms of the package for PyTorch with NVCC and OPTIONS, links them
# with the runtime that stands in (runtime.cpp), and runs the program.

cmake_minimum_required(VERSION 3.25)

set(folder ${SOURCE}/tests/cuda/build)
set(package ${SOURCE}/examples/torch/csrc/cuda)
file(MAKE_DIRECTORY ${WORK})
execute_process(COMMAND ${NVCC} ${OPTIONS} -std=c++20 -O2 -diag-suppress 20012,20015
                        -I ${SOURCE}/include -I ${SOURCE}/tests -I ${package} -isystem ${EIGEN}
                        -DMHLA_TYPE=bfloat16 -DMHLA_WIDTH=64 -DMHLA_VALUE_WIDTH=64
                        -gencode arch=compute_80,code=compute_80 -cudart none
                        ${folder}/prepared.cu ${folder}/package.cu ${folder}/runtime.cpp
                        ${package}/forms.cu -o ${WORK}/prepared
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/prepared --times OUTPUT_VARIABLE output RESULT_VARIABLE status)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "refused")
endif()
