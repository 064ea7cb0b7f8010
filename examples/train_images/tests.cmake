# Tests of train_images; Example.train_images checks its gradients.

if(EXISTS ${mhla_fashion_mnist})
  example_whole_run_test(train_images -DDATA=${mhla_fashion_mnist})
  example_checkpoint_test(
    train_images "test_accuracy|learned_mixing" --data ${mhla_fashion_mnist} --attention mhla
    --dim 16 --depth 1 --images 1024 --batch 16 --epochs 2 --test-images 300 --threads 1)
  example_error_test(needs_a_checkpoint_to_resume train_images
                     "nothing.softmax.safetensors is not there" --data ${mhla_fashion_mnist}
                     --images 64 --output ${CMAKE_CURRENT_BINARY_DIR}/nothing --resume)
else()
  message(STATUS "mhla: no test of training without Fashion-MNIST (Debian: dataset-fashion-mnist)")
endif()

set(work ${CMAKE_CURRENT_BINARY_DIR}/train_images_broken)
file(WRITE ${work}/train-images-idx3-ubyte.gz "not an archive")
file(WRITE ${work}/weights.safetensors "not weights")

set(refusals "attention|no|not in" "attention||required" "dim|0|not in range"
             "dim|x|not in range" "heads|5|expected a divisor of --dim"
             "blocks|3|expected a power of two" "blocks|512|not in range" "init|random|not in"
             "epochs|0|not in range" "images|60001|not in range" "batch|-1|not in range"
             "rate|0|expected a number above 0" "rate|nan|expected a number above 0"
             "rate|x|--rate: Failed parsing x" "threads|0|not in range" "seed|-1|not in range"
             "images|10|--batch is 64, expected at most the number of training images"
             "lepe|2|expected 0 or odd" "no_such_option|1|not expected"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(train_images "${refusals}")

example_error_test(names_missing_data train_images "nowhere/train-images.* is not there"
                   --data ${work}/nowhere)
example_error_test(names_broken_data train_images "train-images.* has magic number"
                   --data ${work})
example_error_test(names_a_missing_checkpoint train_images missing.safetensors
                   --evaluate ${work}/missing.safetensors)
example_error_test(names_a_broken_checkpoint train_images weights.safetensors
                   --evaluate ${work}/weights.safetensors)
