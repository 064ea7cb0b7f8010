# What convert promises of a whole run: a model with linear attention loses nothing, matrices fitted
# to softmax are nearer than locality, results do not depend on threads, a checkpoint with MHLA is
# refused, and what it trained can be evaluated. PROGRAM, TRAIN, DATA; WORK is a folder.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/same_results.cmake)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

function(run)
  execute_process(COMMAND ${ARGN} --data ${DATA} --test-images 300 RESULT_VARIABLE status
                  OUTPUT_VARIABLE out ERROR_VARIABLE errors)
  message("${out}${errors}")
  set(status ${status} PARENT_SCOPE)
  set(output "${out}${errors}" PARENT_SCOPE)
endfunction()
function(expect_status expected)
  if(NOT status EQUAL expected)
    message(FATAL_ERROR "ended with '${status}', expected ${expected}")
  endif()
endfunction()

run(${TRAIN} --dim 16 --depth 2 --images 384 --batch 32 --epochs 1 --output ${WORK}/t)
expect_status(0)
foreach(threads 1 3)
  run(${PROGRAM} ${WORK}/t.softmax.safetensors ${WORK}/t.linear.safetensors --images 64
      --fit-images 40 --threads ${threads} --output ${WORK}/${threads})
  expect_status(0)
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

run(${TRAIN} --evaluate ${WORK}/1.fitted.safetensors)
expect_status(0)
run(${PROGRAM} ${WORK}/t.mhla.safetensors --output ${WORK}/refused)
expect_status(1)
if(NOT output MATCHES "has MHLA attention, expected softmax or linear")
  message(FATAL_ERROR "an error that does not say what was expected")
endif()
