# Has CHECK look at the kernels of WIDTHS for a newer ARCH than sm_80. Devices of sm_86 and sm_89 run the
# code of sm_80, which check_unit.cmake has left in WORK. For others its PTX is compiled.

cmake_minimum_required(VERSION 3.25)

set(ptx ${WORK}/kernels_${WIDTHS}_sm80.ptx)
set(code ${WORK}/kernels_${WIDTHS}_sm80)
if(NOT ARCH MATCHES "^8")
  set(code ${code}_on_${ARCH})
  execute_process(COMMAND ${NVCC} -arch=sm_${ARCH} -Werror all-warnings -Xptxas -v -cubin ${ptx}
                          -o ${code}.cubin
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${output}")
  endif()
  file(WRITE ${code}.txt "${output}")
endif()
execute_process(COMMAND ${CHECK} ${ARCH} ${code}.txt ${ptx} ${code}.cubin
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "refused")
endif()
