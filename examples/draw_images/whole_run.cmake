# Checks a whole run of draw_images: equal results for any number of threads, and equal initial
# losses of all attentions. A checkpoint has a mixing matrix if the matrix is trained, which it is
# not in linear attention. PROGRAM; WORK, a folder.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/whole_run.cmake)

foreach(threads 1 3)
  execute_process(
    COMMAND ${PROGRAM} --quick --batch 24 --threads ${threads} --output ${WORK}/${threads}
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
expect_same_results(${WORK}/1 ${WORK}/3 losses frechet images)

file(READ ${WORK}/1.json one)
foreach(attention RANGE 2)
  string(JSON loss GET "${one}" results ${attention} losses 0)
  list(APPEND losses ${loss})
endforeach()
list(REMOVE_DUPLICATES losses)
list(LENGTH losses count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "first losses: ${losses}, expected the same of all attentions")
endif()

foreach(attention softmax linear mhla)
  file(STRINGS ${WORK}/1.${attention}.safetensors tensors REGEX "piece_attn")
  string(COMPARE NOTEQUAL "${tensors}" "" has)
  string(COMPARE EQUAL ${attention} mhla expected)
  if(NOT has EQUAL expected)
    message(FATAL_ERROR "${attention}: a trained mixing matrix: ${has}, expected ${expected}")
  endif()
endforeach()
