# Compiles the PTX that check_unit.cmake has left in WORK for sm_80 and WIDTHS for a newer ARCH, and
# has CHECK look at the resources of the kernels.

cmake_minimum_required(VERSION 3.25)

set(ptx ${WORK}/kernels_${WIDTHS}_sm80.ptx)
set(out ${WORK}/kernels_${WIDTHS}_sm80_on_${ARCH})
execute_process(COMMAND ${NVCC} -arch=sm_${ARCH} -Werror all-warnings -Xptxas -v -cubin ${ptx}
                        -o ${out}.cubin
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(status EQUAL 0)
  file(WRITE ${out}.txt "${output}")
  execute_process(COMMAND ${CHECK} ${ARCH} ${out}.txt ${ptx} ${out}.cubin
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
endif()
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "refused")
endif()
