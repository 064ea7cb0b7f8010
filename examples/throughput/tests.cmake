# Tests of throughput; Example.throughput is its --quick run.

set(quick ${CMAKE_CURRENT_BINARY_DIR}/throughput_quick.json)
add_test(NAME Example.throughput_results
         COMMAND ${CMAKE_COMMAND} -DRESULTS=${quick}
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/throughput/check_results.cmake)
set_tests_properties(Example.throughput PROPERTIES FIXTURES_SETUP throughput_quick)
set_tests_properties(Example.throughput_results PROPERTIES FIXTURES_REQUIRED throughput_quick
                                                           LABELS example)

set(refusals "model|no|not in" "threads|0|not in range" "seconds|-1|not in range"
             "longest|0|not in range" "softmax-seconds|x|not in range"
             "save|no_such_folder|does not exist"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(throughput "${refusals}" --quick)
