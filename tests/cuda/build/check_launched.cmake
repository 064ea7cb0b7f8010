# Checks that every kernel of the launch layer for WIDTHS (launched.cu) is an entry function of a
# unit for one of the architectures. check_unit.cmake leaves these units in WORK.

cmake_minimum_required(VERSION 3.25)

set(list ${WORK}/launched_${WIDTHS}.ptx)
string(REPLACE "x" ";" widths ${WIDTHS})
list(GET widths 0 d)
list(GET widths 1 e)
execute_process(COMMAND ${NVCC} -std=c++20 -I ${SOURCE}/include -I ${SOURCE}/tests
                        -gencode arch=compute_90a,code=sm_90a -DMHLA_ARCH=90 -DMHLA_WIDTH=${d}
                        -DMHLA_VALUE_WIDTH=${e} -ptx ${SOURCE}/tests/cuda/build/launched.cu
                        -o ${list}
                COMMAND_ERROR_IS_FATAL ANY)

# Matches a kernel's name in both mangled names: launched<Kernel> and entry<Kernel, 128, ...>.
set(checked "")
file(GLOB units ${WORK}/*_${WIDTHS}_sm*.ptx)
if(WIDTHS STREQUAL 128x256)  # gradients multiply halves of the values
  file(GLOB halves ${WORK}/*_128x128_sm*.ptx)
  list(APPEND units ${halves})
endif()
foreach(unit IN LISTS units)
  file(STRINGS ${unit} lines REGEX "\\.entry ")
  foreach(line IN LISTS lines)
    if(line MATCHES "5entryI(.*E)Li[0-9]+ELi[0-9]+ELi[0-9]+ELi[0-9]+ELi[0-9]+ELi[0-9]+EEEvNT_")
      list(APPEND checked ${CMAKE_MATCH_1})
    endif()
  endforeach()
endforeach()

set(launched 0)
set(missing "")
file(STRINGS ${list} lines REGEX "\\.entry ")
foreach(line IN LISTS lines)
  if(line MATCHES "8launchedI(.*E)EEvv")
    math(EXPR launched "${launched} + 1")
    if(NOT CMAKE_MATCH_1 IN_LIST checked)
      string(APPEND missing "\n  ${CMAKE_MATCH_1}")
    endif()
  endif()
endforeach()
list(LENGTH checked count)
message("${launched} kernels, ${count} entry functions of units")
if(missing OR launched EQUAL 0)
  message(FATAL_ERROR "no unit has:${missing}")
endif()
