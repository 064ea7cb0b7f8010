# Builds the tests of the product and of the forms for 64-bit Arm, and runs them in an emulator.

cmake_minimum_required(VERSION 3.25)

find_program(compiler aarch64-linux-gnu-g++)
find_program(emulator NAMES qemu-aarch64 qemu-aarch64-static)
find_path(googletest src/gtest-all.cc PATHS /usr/src/googletest/googletest /usr/src/gtest)
foreach(needed compiler emulator googletest)
  if(NOT ${needed})
    message("the ${needed} for 64-bit Arm is not installed")
    return()
  endif()
endforeach()

file(MAKE_DIRECTORY ${WORK})
execute_process(
  COMMAND ${compiler} -std=c++20 -O1 -static -DINSTRUCTION_SET="neon" -I ${SOURCE}/include
          -I ${SOURCE}/tests -isystem ${EIGEN} -isystem ${googletest}/include
          -isystem ${googletest} ${SOURCE}/tests/kernel/product_test.cpp
          ${SOURCE}/tests/package/other_processor.cpp ${googletest}/src/gtest-all.cc
          ${googletest}/src/gtest_main.cc -o ${WORK}/neon -pthread
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${emulator} ${WORK}/neon COMMAND_ERROR_IS_FATAL ANY)
