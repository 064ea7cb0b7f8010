# Checks a whole run of write_text. Results are equal for any number of threads. After training,
# MHLA token by token equals MHLA over the whole sequence. A frozen mixing matrix has no state of
# the optimiser, and is in no checkpoint. PROGRAM, TEXT; WORK, a folder.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/whole_run.cmake)

function(run name)
  run_program(0 ${PROGRAM} --text ${TEXT} --quick --letters 100 --output ${WORK}/${name} ${ARGN})
  if(NOT output MATCHES "whole blocks: logits have the bits of the whole sequence")
    message(FATAL_ERROR "no proof of the bits of whole blocks")
  endif()
endfunction()

run(1 --steps 10 --threads 1)
run(3 --steps 10 --threads 3)
expect_same_results(${WORK}/1 ${WORK}/3 losses held_out_bits paragraph)

file(READ ${WORK}/1.json one)
foreach(attention RANGE 2)
  # Memory of the states is constant except with softmax, where it grows with the position.
  string(JSON early GET "${one}" results ${attention} tokens 0 state_bytes)
  string(JSON late GET "${one}" results ${attention} tokens 3 state_bytes)
  math(EXPR growth "${late} / ${early}")
  set(expected 1)
  if(attention EQUAL 0)
    set(expected 8)
  endif()
  if(NOT growth EQUAL expected)
    message(FATAL_ERROR "state of attention ${attention}: ${early} bytes, then ${late}")
  endif()
endforeach()

run(frozen --steps 1 --attention mhla --freeze-mixing)
file(STRINGS ${WORK}/1.mhla.safetensors learned REGEX "layers.0.mixing")
file(STRINGS ${WORK}/frozen.mhla.safetensors frozen REGEX "layers.0.mixing")
if(learned STREQUAL "" OR NOT frozen STREQUAL "")
  message(FATAL_ERROR "mixing that is learned: '${learned}', and frozen: '${frozen}'")
endif()
