# Tests of extend_text, on checkpoints of write_text.

if(NOT TARGET write_text)
  return()
endif()

example_whole_run_test(extend_text -DTRAIN=$<TARGET_FILE:write_text> -DSOURCE=${PROJECT_SOURCE_DIR})

set(refusals "times|0|not in range" "fit-sequences|0|not in range" "threads|0|not in range"
             "context|100|expected a multiple of --block, 64"
             "times|1000|expected less in all than the [0-9]+ bytes"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(extend_text "${refusals}" --quick
                     --text ${PROJECT_SOURCE_DIR}/include/mhla/README.md)
example_error_test(needs_a_text extend_text "--text is missing")
