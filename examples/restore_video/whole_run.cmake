# What restore_video promises of a whole run: the same results for any number of threads, and a
# picture; of a file of frames as of what it draws itself. PROGRAM, VIDEO; WORK is a folder.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

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
file(READ ${WORK}/one.json one)
file(READ ${WORK}/three.json three)
foreach(attention RANGE 2)
  foreach(key losses psnr)
    string(JSON first GET "${one}" results ${attention} ${key})
    string(JSON second GET "${three}" results ${attention} ${key})
    if(NOT first STREQUAL second)
      message(FATAL_ERROR "${key} of attention ${attention} with 1 and 3 threads: "
                          "'${first}' and '${second}'")
    endif()
  endforeach()
endforeach()

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
