# Compiles two_units/unit.cu with NVCC for the lists of architectures FIRST and SECOND, links both
# into one program, and runs it: two_units/main.cpp. The CUDA runtime is one that stands in: runtime.cpp.

cmake_minimum_required(VERSION 3.25)

set(folder ${SOURCE}/tests/cuda/build/two_units)
set(different 1)
if(FIRST STREQUAL SECOND)
  set(different 0)
endif()
set(out ${WORK}/two_units_${different})
file(MAKE_DIRECTORY ${out})
set(options -std=c++20 -I ${SOURCE}/include -I ${SOURCE}/tests)
set(unit 1)
foreach(list "${FIRST}" "${SECOND}")
  string(REGEX REPLACE "[0-9]+a?" "-gencode;arch=compute_\\0,code=sm_\\0" targets "${list}")
  execute_process(COMMAND ${NVCC} ${options} ${targets} -DUNIT=${unit} -c ${folder}/unit.cu
                          -o ${out}/unit_${unit}.o
                  COMMAND_ERROR_IS_FATAL ANY)
  math(EXPR unit "${unit} + 1")
endforeach()
execute_process(COMMAND ${NVCC} ${options} -DDIFFERENT=${different} -cudart none ${folder}/main.cpp
                        ${SOURCE}/tests/cuda/build/runtime.cpp
                        ${out}/unit_1.o ${out}/unit_2.o -o ${out}/program
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${out}/program OUTPUT_VARIABLE output RESULT_VARIABLE status)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "refused")
endif()
