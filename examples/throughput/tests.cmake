# Tests of throughput, whose --quick run is Example.throughput.

set(quick ${CMAKE_CURRENT_BINARY_DIR}/throughput_quick.json)
add_test(NAME Example.throughput_results
         COMMAND ${CMAKE_COMMAND} -DRESULTS=${quick}
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/throughput/check_results.cmake)
set_tests_properties(Example.throughput PROPERTIES FIXTURES_SETUP throughput_quick)
set_tests_properties(Example.throughput_results PROPERTIES FIXTURES_REQUIRED throughput_quick
                                                           LABELS example)

foreach(option "model|no|not in" "threads|0|not in range" "seconds|-1|not in range"
               "longest|0|not in range" "softmax-seconds|x|not in range"
               "save|no_such_folder|does not exist"
               "output|no_such_folder/x|expected .*no_such_folder to be a folder")
  string(REPLACE "|" ";" option "${option}")
  list(POP_FRONT option name value expect)
  string(MAKE_C_IDENTIFIER "refuses_${name}_${value}" case)
  example_error_test(${case} throughput "${expect}" --quick --${name} ${value})
endforeach()
