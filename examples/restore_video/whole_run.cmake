# Checks a whole run of restore_video: equal results for any number of threads, and a picture, from
# a file of frames and from a drawn video. PROGRAM, VIDEO; WORK, a folder.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/whole_run.cmake)

function(run output)
  execute_process(COMMAND ${PROGRAM} --quick --steps 4 ${ARGN} --output ${WORK}/${output}
                  COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
  file(SIZE ${WORK}/${output}.png bytes)
  if(bytes LESS 1000)
    message(FATAL_ERROR "a picture of ${bytes} bytes")
  endif()
endfunction()

run(one --threads 1)
run(three --threads 3)
expect_same_results(${WORK}/one ${WORK}/three losses psnr)

run(file --video ${VIDEO} --patch 4 --frames 4 --threads 1)
file(READ ${WORK}/file.json json)
foreach(size frames=60 height=16 width=24)
  string(REPLACE "=" ";" size ${size})
  list(POP_FRONT size key expected)
  string(JSON read GET "${json}" video ${key})
  if(NOT read EQUAL expected)
    message(FATAL_ERROR "${key} of the video is ${read}, expected ${expected}")
  endif()
endforeach()
