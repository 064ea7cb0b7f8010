# Tests of distributed, with 65,536 tokens.

if(MPIEXEC_EXECUTABLE)
  foreach(ranks 1 2)
    example_ranks_test(distributed_${ranks} ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
                       ${MPIEXEC_PREFLAGS} $<TARGET_FILE:distributed> 16)
  endforeach()
endif()
