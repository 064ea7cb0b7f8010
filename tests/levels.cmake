# Tests for other instruction sets than that of the build: the best two of x86-64, x86-64-v2,
# x86-64-v3 and x86-64-v4 that this processor has, or MHLA_TEST_LEVELS. Their names begin with the
# level: ctest -R '^x86-64-v3[.]'.
#
# An instruction set changes the packet length. So these are tests of code that works in packets,
# and tests that compare whole forms and gradients with stored numbers. Packets of x86-64-v2 are as
# long as those of x86-64, for which golden_test is compiled already.

set(packet_sources kernel/exponential_test.cpp kernel/inner_products_test.cpp kernel/packet_test.cpp
                   kernel/product_test.cpp kernel/transpose_test.cpp)
# Computes little, so it is not optimised for users' builds as packets are.
set_source_files_properties(golden_test.cpp PROPERTIES COMPILE_OPTIONS "${quick}")

if(NOT GTest_FOUND OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  return()
endif()
if(NOT DEFINED MHLA_TEST_LEVELS AND CMAKE_CROSSCOMPILING)
  set(MHLA_TEST_LEVELS "")
elseif(NOT DEFINED MHLA_TEST_LEVELS)
  try_run(status compiled ${CMAKE_CURRENT_BINARY_DIR}
          ${CMAKE_CURRENT_SOURCE_DIR}/support/levels_of_processor.cpp RUN_OUTPUT_VARIABLE levels)
  if(NOT compiled OR NOT status EQUAL 0)
    set(levels x86-64)
  endif()
  list(REVERSE levels)
  list(SUBLIST levels 0 2 levels)
  set(MHLA_TEST_LEVELS ${levels} CACHE STRING "Levels of x86-64 that some tests are compiled for")
endif()

foreach(level IN LISTS MHLA_TEST_LEVELS)
  set(test_prefix "${level}.")
  set(test_label level)
  set(test_flags $<$<CONFIG:Release>:-O2> -march=${level})  # optimised like users' builds
  mhla_test(level_${level}_test ${packet_sources})
  if(TARGET golden_test AND level MATCHES "v[34]$")
    target_sources(level_${level}_test PRIVATE golden_test.cpp)
    target_link_libraries(level_${level}_test PRIVATE mhla::io)
    target_compile_definitions(level_${level}_test PRIVATE MHLA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  endif()
endforeach()
unset(test_prefix)
set(test_label cpu)
unset(test_flags)
