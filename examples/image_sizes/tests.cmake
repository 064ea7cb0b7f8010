# Tests of image_sizes.

if(EXISTS ${mhla_fashion_mnist})
  example_test(image_sizes_quick image_sizes --quick --data ${mhla_fashion_mnist})
  set_tests_properties(Example.image_sizes_quick PROPERTIES PASS_REGULAR_EXPRESSION
                       "\nDistanceMixing, all offsets +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+\n")
endif()
set(refusals "images|10|not in range" "epochs|0|not in range" "data|nowhere|is not there")
example_option_tests(image_sizes "${refusals}")
