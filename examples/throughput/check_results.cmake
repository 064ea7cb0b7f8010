# Checks the RESULTS of throughput --quick: every model once, and a rate for each attention. It
# checks the operation counts of DiT-S/2, 16 images of 64 tokens in 16 blocks, calculated by hand:
#
#   a block's dense layers 2 * 1024 * 12 * 384^2 and LePE 2 * 1024 * 9 * 384, the ends
#   2 * 1024 * 384 * (16 + 32), and an attention of 96 heads of width 64: softmax 4 * 64^2 * 64,
#   linear 4 * 64 * 64^2, MHLA (4 * 64 + 2 * 16^2) * 64^2 each.

cmake_minimum_required(VERSION 3.25)
file(READ ${RESULTS} results)

set(expected "DiT-S/2;DeiT-S;VLT-T 2;SANA block;Wan layer;340M;340M token")
set(found "")
string(JSON count LENGTH "${results}" results)
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  string(JSON model GET "${results}" results ${i} model)
  list(APPEND found "${model}")
  foreach(attention softmax linear mhla)
    string(JSON rate GET "${results}" results ${i} items_per_second ${attention})
    if(NOT rate GREATER 0)
      message(FATAL_ERROR "${model} with ${attention}: ${rate} items a second, expected more")
    endif()
  endforeach()
endforeach()
if(NOT found STREQUAL expected)
  message(FATAL_ERROR "models are ${found}, expected ${expected}")
endif()

math(EXPR outside "12 * 2 * 1024 * (12 * 384 * 384 + 9 * 384) + 2 * 1024 * 384 * (16 + 32)")
set(softmax "4 * 64 * 64 * 64")
set(linear "4 * 64 * 64 * 64")
set(mhla "(4 * 64 + 2 * 16 * 16) * 64 * 64")
foreach(attention softmax linear mhla)
  math(EXPR flops "${outside} + 12 * 96 * ${${attention}}")
  string(JSON given GET "${results}" results 0 flops ${attention})
  if(NOT given EQUAL flops)
    message(FATAL_ERROR "flops of DiT-S/2 with ${attention} are ${given}, expected ${flops}")
  endif()
endforeach()
