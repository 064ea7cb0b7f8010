# Checks a whole run of convert. A model with linear attention loses nothing. Matrices fitted to
# softmax are nearer than locality. Results do not depend on threads. A checkpoint with MHLA is
# refused. A trained conversion can be evaluated. Without a checkpoint convert trains a model.
# PROGRAM, TRAIN, DATA; WORK, a folder.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/whole_run.cmake)

macro(run expected)
  run_program(${expected} ${ARGN} --data ${DATA} --test-images 100)
endmacro()

run(0 ${TRAIN} --dim 16 --depth 2 --images 384 --batch 32 --epochs 1 --freeze-mixing --output ${WORK}/t)
foreach(threads 1 3)
  run(0 ${PROGRAM} ${WORK}/t.softmax.safetensors ${WORK}/t.linear.safetensors --images 64
      --fit-images 40 --threads ${threads} --output ${WORK}/${threads})
endforeach()
expect_same_results(${WORK}/1 ${WORK}/3 residuals mixing test_accuracy starts)

file(READ ${WORK}/1.json json)
foreach(block 0 1)
  string(JSON locality GET "${json}" results 0 residuals ${block} locality)
  string(JSON fitted GET "${json}" results 0 residuals ${block} fitted)
  if(NOT fitted LESS locality)
    message(FATAL_ERROR "block ${block} fitted to softmax: ${fitted}, expected less than ${locality}")
  endif()
  string(JSON fitted GET "${json}" results 1 residuals ${block} fitted)
  if(NOT fitted LESS 1e-3)
    message(FATAL_ERROR "block ${block} fitted to linear attention: ${fitted}, expected nothing")
  endif()
endforeach()
string(JSON accuracy GET "${json}" results 1 test_accuracy)
string(JSON converted GET "${json}" results 1 starts fitted converted)
if(NOT converted EQUAL accuracy)
  message(FATAL_ERROR "linear attention converted: ${converted}, expected ${accuracy}")
endif()

foreach(teacher softmax linear)
  run(0 ${TRAIN} --evaluate ${WORK}/1.t.${teacher}.fitted.safetensors)
  file(STRINGS ${WORK}/1.t.${teacher}.fitted.safetensors header LIMIT_INPUT 4000 REGEX piece_attn)
  if(NOT header)
    message(FATAL_ERROR "a converted model is saved without its mixing matrices")
  endif()
endforeach()
run(1 ${PROGRAM} ${WORK}/t.mhla.safetensors --output ${WORK}/refused)
if(NOT output MATCHES "has MHLA attention, expected softmax or linear")
  message(FATAL_ERROR "an error that does not say what was expected")
endif()

run(0 ${PROGRAM} --images 16 --fit-images 8 --output ${WORK}/alone)
run(0 ${TRAIN} --evaluate ${WORK}/alone.softmax.safetensors)
if(NOT output MATCHES "softmax attention" OR NOT EXISTS ${WORK}/alone.json)
  message(FATAL_ERROR "without a checkpoint, a model with softmax is trained and converted")
endif()
