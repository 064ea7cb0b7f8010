# Checks ranks of write_text. They give the bits of one rank. If one rank is interrupted, all stop,
# and --resume continues.
#
# cmake -DPROGRAM=... -DTEXT=... -DWORK=FOLDER -P ranks.cmake -- MPIEXEC ARGUMENT...

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../support/whole_run.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../../tests/package/script_arguments.cmake)
set(ranks ${script_arguments})

set(arguments --text ${TEXT} --attention mhla --dim 16 --depth 1 --context 128 --block 16
              --steps 400 --threads 1 --letters 50)

function(run)
  execute_process(COMMAND ${ARGN} ${arguments} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${PROGRAM} --output one)

# The process that wrote its number last is interrupted after the first line of progress of rank 0.
string(JOIN "' '" words ${ranks} bash -c "echo $$ >>ranks && exec \"$@\"" rank ${PROGRAM}
       ${arguments})
execute_process(
  COMMAND bash -c "'${words}' --output several 2>several.log & all=$!
                   until grep -q step several.log || ! kill -0 $all; do sleep 0.02; done
                   kill -INT $(tail -n 1 ranks); wait $all"
  WORKING_DIRECTORY ${WORK} RESULT_VARIABLE status)
file(READ ${WORK}/several.log log)
message("${log}")
file(STRINGS ${WORK}/ranks started)
list(LENGTH started started)
if(NOT started EQUAL 3)
  message(FATAL_ERROR "${started} ranks started, expected 3")
endif()
if(NOT status EQUAL 130 OR NOT log MATCHES "stopped after step [0-9]+ of 400 of mhla")
  message(FATAL_ERROR "stopped ranks ended with '${status}', expected 130")
endif()

run(${ranks} ${PROGRAM} --output several --resume)
expect_same_results(${WORK}/one ${WORK}/several losses held_out_bits paragraph)
expect_same_files(${WORK}/one.mhla.safetensors ${WORK}/several.mhla.safetensors)
