# Checks a whole run of extend_text. It takes the checkpoint of write_text, or trains an equal one.
# Learned matrices give the bits per byte of write_text. Results do not depend on threads. Windows
# differ after the first window alone. Streams have the bits of the causal form, and bounds of
# change hold. PROGRAM, TRAIN, SOURCE; WORK, a folder.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/whole_run.cmake)

file(GLOB headers ${SOURCE}/include/mhla/layer/*.hpp)  # a text
foreach(header IN LISTS headers)
  file(READ ${header} text)
  file(APPEND ${WORK}/text "${text}")
endforeach()

macro(run)
  run_program(0 ${ARGN} --text ${WORK}/text --quick --steps 10)
endmacro()

run(${TRAIN} --attention mhla --letters 10 --held-out 8 --output ${WORK}/1)
run(${PROGRAM} --held-out 2 --threads 1 --output ${WORK}/1)
if(output MATCHES "  step " OR NOT output MATCHES "attention has the bits of the causal form")
  message(FATAL_ERROR "trained again, or no proof of the bits of streams")
endif()
run(${PROGRAM} --held-out 2 --threads 3 --output ${WORK}/3)
expect_same_files(${WORK}/1.mhla.safetensors ${WORK}/3.mhla.safetensors)
expect_same_results(${WORK}/1.extend ${WORK}/3.extend bits)

# Expects two numbers to agree to eight decimals.
function(expect_same what left right)
  string(SUBSTRING ${left} 0 10 left)
  string(SUBSTRING ${right} 0 10 right)
  if(NOT left STREQUAL right)
    message(FATAL_ERROR "${what}: ${left}, expected ${right}")
  endif()
endfunction()

file(READ ${WORK}/1.json trained)
file(READ ${WORK}/1.extend.json json)
string(JSON expected GET "${trained}" results 0 held_out_bits)
string(JSON bits GET "${json}" results 0 bits 3)
expect_same("learned matrices in windows" ${bits} ${expected})
foreach(pair "0;1" "2;3" "4;5" "6;7" "7;9")  # of rows; row 8 has the same terms as matrices
  list(GET pair 0 left)
  list(GET pair 1 right)
  string(JSON expected GET "${json}" results ${left} bits 0)
  string(JSON bits GET "${json}" results ${right} bits 0)
  expect_same("the first window of row ${right}" ${bits} ${expected})
endforeach()
