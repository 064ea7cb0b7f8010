# What train_images promises of a whole run: the same losses for any number of threads, and a model
# that reads back from its file with the same test accuracy. PROGRAM, DATA; WORK is a folder.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
set(common --data ${DATA} --test-images 300)

# Runs PROGRAM with the given arguments; `output` is what it printed.
function(run)
  execute_process(COMMAND ${PROGRAM} ${common} ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out
                  ERROR_VARIABLE errors)
  message("${out}${errors}")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "ended with '${status}', expected 0")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

function(expect_same what first second)
  if(NOT first STREQUAL second)
    message(FATAL_ERROR "${what} differs: '${first}' and '${second}'")
  endif()
endfunction()

set(small --dim 16 --depth 1 --images 384 --batch 32 --epochs 1)
run(${small} --threads 1 --output ${WORK}/one)
run(${small} --threads 3 --output ${WORK}/three)
file(READ ${WORK}/one.json one)
file(READ ${WORK}/three.json three)
foreach(attention RANGE 2)
  foreach(key losses test_accuracy learned_mixing)
    string(JSON first GET "${one}" results ${attention} ${key})
    string(JSON second GET "${three}" results ${attention} ${key})
    expect_same("${key} of attention ${attention} with 1 and 3 threads" "${first}" "${second}")
  endforeach()
endforeach()

run(${small} --attention mhla --init uniform --output ${WORK}/uniform)
string(REGEX MATCH "mhla +[0-9]+ +([0-9.]+) %" row "${output}")
set(trained "${CMAKE_MATCH_1}")
run(--evaluate ${WORK}/uniform.mhla.safetensors)
string(REGEX MATCH "mhla attention, test accuracy ([0-9.]+) %" row "${output}")
if(trained STREQUAL "")
  message(FATAL_ERROR "no test accuracy in the table")
endif()
expect_same("test accuracy of the trained and the loaded model" "${trained}" "${CMAKE_MATCH_1}")

file(GLOB left ${WORK}/*.part ${WORK}/*.tmp)
if(left)
  message(FATAL_ERROR "left behind: ${left}")
endif()
