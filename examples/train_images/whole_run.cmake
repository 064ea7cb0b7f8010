# Checks a whole run of train_images: equal losses for any number of threads, and a model that is
# read back from its file with the same test accuracy. PROGRAM, DATA; WORK, a folder.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/whole_run.cmake)

macro(run)
  run_program(0 ${PROGRAM} --data ${DATA} --test-images 300 ${ARGN})
endmacro()

set(small --dim 16 --depth 1 --images 384 --batch 32 --epochs 1)
run(${small} --threads 1 --output ${WORK}/one)
run(${small} --threads 3 --output ${WORK}/three)
expect_same_results(${WORK}/one ${WORK}/three losses test_accuracy learned_mixing)

run(${small} --attention mhla --init uniform --output ${WORK}/uniform)
string(REGEX MATCH "mhla +[0-9]+ +([0-9.]+) %" row "${output}")
set(trained "${CMAKE_MATCH_1}")
run(--evaluate ${WORK}/uniform.mhla.safetensors)
string(REGEX MATCH "mhla attention, test accuracy ([0-9.]+) %" row "${output}")
if(trained STREQUAL "")
  message(FATAL_ERROR "no test accuracy in the table")
endif()
if(NOT trained STREQUAL CMAKE_MATCH_1)
  message(FATAL_ERROR "test accuracy of the trained model '${trained}', of the loaded one "
                      "'${CMAKE_MATCH_1}'")
endif()
expect_nothing_left_behind()
