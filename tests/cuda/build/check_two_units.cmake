# Compiles two_units/unit.cu with NVCC for sm_80 twice and for sm_90a. Links two of the units into a
# program for one architecture and into one for both, and runs both: two_units/main.cpp. The CUDA runtime
# is one that stands in: runtime.cpp.

cmake_minimum_required(VERSION 3.25)

set(folder ${SOURCE}/tests/cuda/build)
set(out ${WORK}/two_units)
file(MAKE_DIRECTORY ${out})
set(options -std=c++20 -I ${SOURCE}/include -I ${SOURCE}/tests)
foreach(unit 1_80 2_80 2_90a)
  string(REGEX MATCH "(.)_(.*)" matched ${unit})
  set(target -gencode arch=compute_${CMAKE_MATCH_2},code=sm_${CMAKE_MATCH_2})
  execute_process(COMMAND ${NVCC} ${options} ${target} -DUNIT=${CMAKE_MATCH_1}
                          -c ${folder}/two_units/unit.cu -o ${out}/unit_${unit}.o
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
foreach(second 80 90a)
  string(COMPARE EQUAL ${second} 90a different)
  execute_process(COMMAND ${NVCC} ${options} -DDIFFERENT=${different} -cudart none
                          ${folder}/two_units/main.cpp ${folder}/runtime.cpp ${out}/unit_1_80.o
                          ${out}/unit_2_${second}.o -o ${out}/program_${second}
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${out}/program_${second} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
