# Tests of convert, on checkpoints of train_images.

if(NOT TARGET train_images)
  return()
endif()

if(EXISTS ${mhla_fashion_mnist})
  example_whole_run_test(convert -DTRAIN=$<TARGET_FILE:train_images> -DDATA=${mhla_fashion_mnist})
endif()

set(work ${CMAKE_CURRENT_BINARY_DIR}/convert_broken)
file(WRITE ${work}/weights.safetensors "not weights")
set(refusals "blocks|3|expected a power of two" "blocks|1|not in range"
             "fit-images|0|not in range" "rate|0|expected a number above 0"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(convert "${refusals}" ${work}/weights.safetensors)
example_error_test(names_a_missing_checkpoint convert missing.safetensors
                   ${work}/missing.safetensors)
example_error_test(names_a_broken_checkpoint convert weights.safetensors
                   ${work}/weights.safetensors)
