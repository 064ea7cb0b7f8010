# Compiles UNIT for ARCH (80 or 90a) with NVCC to PTX, and the PTX to a cubin. CHECK then checks
# both and the report of ptxas. WIDTHS is DxE: kWidth and kValueWidth of entry.cuh. A CASE of
# refused.cuh must be refused for the reason in UNIT. With CONTROL all cases must pass.

cmake_minimum_required(VERSION 3.25)

if(NOT NVCC)
  message("nvcc is not installed")
  return()
endif()
file(MAKE_DIRECTORY ${WORK})
cmake_path(GET UNIT STEM name)
set(out ${WORK}/${name}${CASE}_${WIDTHS}_sm${ARCH})
set(target -gencode arch=compute_${ARCH},code=sm_${ARCH})
string(REGEX REPLACE "[^0-9]" "" arch ${ARCH})
set(definitions -DMHLA_ARCH=${arch})
if(WIDTHS MATCHES "^([0-9]+)x([0-9]+)$")
  list(APPEND definitions -DMHLA_WIDTH=${CMAKE_MATCH_1} -DMHLA_VALUE_WIDTH=${CMAKE_MATCH_2})
  set(table ${SOURCE}/tests/cuda/build/instructions.txt ${WIDTHS}_sm${ARCH})
endif()

# Sets `status` and `output`.
function(check_unit)
  execute_process(COMMAND ${NVCC} -std=c++20 -Werror all-warnings -I ${SOURCE}/include
                          -I ${SOURCE}/tests ${target} ${definitions}
                          -ptx ${UNIT} -o ${out}.ptx
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(status EQUAL 0)
    execute_process(COMMAND ${NVCC} ${target} -Werror all-warnings -Xptxas -v -cubin ${out}.ptx
                            -o ${out}.cubin
                    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(status EQUAL 0)
      file(WRITE ${out}.txt "${output}")
      file(LOCK ${WORK}/instructions.lock GUARD FUNCTION)  # of the table, which units may write
      execute_process(COMMAND ${CHECK} ${arch} ${out}.txt ${out}.ptx ${out}.cubin ${table}
                      RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    endif()
  endif()
  set(status ${status} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

if(CONTROL)
  list(APPEND definitions -DMHLA_CONTROL)
elseif(CASE)
  list(APPEND definitions -DMHLA_CASE=${CASE} -DMHLA_PLANT_${CASE})
endif()
check_unit()
message("${output}")
if(NOT CASE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "refused")
  endif()
  return()
endif()

file(STRINGS ${UNIT} expected REGEX "^// expect ${CASE}: ")
string(REGEX REPLACE "^// expect ${CASE}: " "" expected "${expected}")
if(status EQUAL 0)
  message(FATAL_ERROR "${CASE} is accepted")
elseif(NOT expected OR NOT output MATCHES "${expected}")
  message(FATAL_ERROR "refused, but not with '${expected}'")
endif()
