# Tests of draw_images; Example.draw_images checks gradients, DDIM and the distance.

if(EXISTS ${mhla_fashion_mnist})
  example_whole_run_test(draw_images)
  example_checkpoint_test(draw_images "frechet|images" --quick --attention mhla --steps 150 --batch 8
                          --threads 1)
else()
  message(STATUS "mhla: no test of drawing without Fashion-MNIST (Debian: dataset-fashion-mnist)")
endif()

set(refusals "attention|no|not in" "dim|0|not in range" "dim|10|expected a multiple of 4 x --heads"
             "heads|0|not in range" "rate|nan|expected a number above 0" "steps|0|not in range"
             "batch|0|not in range" "images|10|not in range" "guidance|-1|expected a number from 0"
             "drawn|1|not in range" "ddim|0|not in range" "sets|0|not in range"
             "data|nowhere|train-images.* is not there"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(draw_images "${refusals}")
example_error_test(needs_a_checkpoint_to_resume draw_images
                   "nothing.softmax.safetensors is not there"
                   --output ${CMAKE_CURRENT_BINARY_DIR}/nothing --resume)
