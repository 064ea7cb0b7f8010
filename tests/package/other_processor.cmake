# Builds the tests of the product and of the forms for 64-bit Arm and runs them in an emulator.
# Counts the instructions of the register tile's loop, and checks that rows are prefetched.

cmake_minimum_required(VERSION 3.25)

find_program(compiler aarch64-linux-gnu-g++)
find_program(disassembler aarch64-linux-gnu-objdump)
find_program(emulator NAMES qemu-aarch64 qemu-aarch64-static)
find_path(googletest src/gtest-all.cc PATHS /usr/src/googletest/googletest /usr/src/gtest)
foreach(needed compiler disassembler emulator googletest)
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

# Compiles a program text to NAME.o with the options of fast programs.
function(compile name text)
  file(WRITE ${WORK}/${name}.cpp "${text}")
  execute_process(
    COMMAND ${compiler} -std=c++20 -O3 -DNDEBUG -I ${SOURCE}/include -isystem ${EIGEN} -c
            ${WORK}/${name}.cpp -o ${WORK}/${name}.o
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Instructions of an 8 x 3 tile written by hand: 24 multiply-adds, 8 loads of A, 2 of B, 4 updates
# of pointers and counters, a comparison and a branch. One move between registers is allowed, which
# costs processors nothing. Sums that g++ spills to the stack would exceed the limit: without
# read_after there are 48.
set(by_hand 41)
compile(tile "#include \"mhla/kernel/product.hpp\"
template void mhla::detail::multiply_panels<false, float>(const mhla::detail::Product<float>&);\n")
# Counts the instructions of every innermost loop with 24 multiply-adds. The tile has one loop that
# prefetches, and one without prefetches, which is shorter.
file(WRITE ${WORK}/loops.awk [[
/^[0-9a-f]+ </ { n = 0 }
/^ +[0-9a-f]+:/ {
  sub(":", "", $1)
  line[$1] = ++n
  sum[n] = sum[n - 1] + ($2 == "fmla")
  if ($2 ~ /^b\./ && $3 in line && sum[n] - sum[line[$3] - 1] == 24) {
    instructions = n - line[$3] + 1
    if (!fewest || instructions < fewest) fewest = instructions
  }
}
END { print fewest + 0 }
]])
execute_process(COMMAND ${disassembler} -d --no-show-raw-insn ${WORK}/tile.o
                COMMAND awk -f ${WORK}/loops.awk OUTPUT_VARIABLE fewest
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(fewest EQUAL 0)
  message(FATAL_ERROR "no loop of 24 multiply-adds")
elseif(fewest GREATER by_hand)
  message(FATAL_ERROR "the tile's loop has ${fewest} instructions, by hand it has ${by_hand}")
endif()

# Copied rows are prefetched. g++ deletes a prefetch if it does not know its effect.
compile(rows "#include \"mhla/kernel/panels.hpp\"
#include \"mhla/tokens/gather.hpp\"
namespace mhla::detail {
template void gather(MatrixView<const float>, const Index*, Index, Rows<float>);
template void Panels<float>::pack_rows(MatrixView<const float>, Index, Index) const;
}\n")
execute_process(COMMAND ${disassembler} -d --no-show-raw-insn ${WORK}/rows.o
                COMMAND awk "/>:$/ { f = $2 } /prfm/ { with[f] } END { print length(with) }"
                OUTPUT_VARIABLE functions OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT functions EQUAL 2)
  message(FATAL_ERROR "${functions} of 2 functions load rows ahead")
endif()
