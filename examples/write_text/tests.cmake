# Tests of write_text; Example.write_text checks its gradients and decoding.

set(mhla_text ${PROJECT_SOURCE_DIR}/include/mhla/README.md)
example_whole_run_test(write_text -DTEXT=${mhla_text})
example_checkpoint_test(
  write_text "held_out_bits|paragraph" --text ${mhla_text} --attention mhla --dim 16 --depth 1
  --context 128 --block 16 --steps 300 --threads 1 --letters 50)
if(TARGET mhla::mpi AND MPIEXEC_EXECUTABLE)
  set(ranks ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 3 ${MPIEXEC_PREFLAGS})
  example_ranks_test(
    write_text_ranks ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:write_text> -DTEXT=${mhla_text}
    -DWORK=${CMAKE_CURRENT_BINARY_DIR}/write_text_ranks
    -P ${CMAKE_CURRENT_SOURCE_DIR}/write_text/ranks.cmake -- ${ranks})
endif()

set(refusals "attention|no|not in" "dim|0|not in range" "heads|3|heads of an even width"
             "block|4096|at most --context" "rate|nan|expected a number above 0"
             "init|random|not in" "steps|0|not in range" "batch|0|not in range" "temperature|0|not in range"
             "temperature|nan|expected a finite number"
             "context|4096|expected at least 81940 for this --context"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(write_text "${refusals}" --text ${mhla_text})
example_error_test(needs_a_text write_text "--text is missing")
example_error_test(names_a_missing_text write_text "no_text cannot be read" --text no_text)
example_error_test(names_a_folder write_text "support cannot be read"
                   --text ${CMAKE_CURRENT_SOURCE_DIR}/support)
example_error_test(needs_a_checkpoint_to_resume write_text
                   "nothing.softmax.safetensors is not there" --text ${mhla_text} --context 512
                   --output ${CMAKE_CURRENT_BINARY_DIR}/nothing --resume)
