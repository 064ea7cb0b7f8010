# Runs PROGRAM, whose rank 1 of 4 kills itself, with Open MPI's MPIEXEC.

cmake_minimum_required(VERSION 3.25)

set(flags "")
if(CASE STREQUAL "OthersAreToldOfAKilledRank")
  set(flags --enable-recovery)
endif()
foreach(transport vader,self tcp,self)
  foreach(run RANGE 3)
    execute_process(COMMAND ${MPIEXEC} ${flags} --mca btl ${transport} -n 4 ${PROGRAM} TIMEOUT 30
                    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
    # After a broken connection, Open MPI warns that the process "may even hang", which sometimes
    # happens.
    if(NOT transport MATCHES "tcp" OR NOT status MATCHES "timeout")
      break()
    endif()
  endforeach()
  set(told 0)
  foreach(rank 0 2 3)
    set(line "rank ${rank}: mhla::distributed: no answer within 3.000000 s from rank 1\n")
    string(FIND "${output}" "${line}" position)
    if(NOT position EQUAL -1)
      math(EXPR told "${told} + 1")
    endif()
  endforeach()
  # Over TCP, Open MPI may end some other ranks itself when it detects the broken connection. The
  # surviving ranks also report these.
  string(REGEX REPLACE "rank [023]: mhla::distributed: no answer within 3.000000 s from rank (0, )?1[^\n]*\n"
         "" rest "${output}")
  if(transport MATCHES "tcp" AND rest STREQUAL "" AND NOT status MATCHES "timeout")
    set(told 3)
  endif()
  if(CASE STREQUAL "OthersAreToldOfAKilledRank" AND NOT told EQUAL 3)
    message(FATAL_ERROR "${transport}: expected a line each of ranks 0, 2 and 3, got\n${output}\n${errors}")
  elseif(CASE STREQUAL "MpirunEndsTheOthers" AND (status EQUAL 0 OR output MATCHES "rank [0-9]:"))
    message(FATAL_ERROR "${transport}: expected that no rank lives on, got ${status} and\n${output}")
  endif()
endforeach()
