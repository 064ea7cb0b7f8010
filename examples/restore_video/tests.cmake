# Tests of restore_video, on videos made here; Example.restore_video checks its gradients.

set(work ${CMAKE_CURRENT_BINARY_DIR}/restore_video_videos)
set(mhla_video ${work}/whole.ppm)
file(MAKE_DIRECTORY ${work})
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env "PAGE=${PROJECT_SOURCE_DIR}/include/mhla/README.md"
          bash -c "frame() { printf 'P6\\n%s\\n255\\n' \"$1\"
                             tail -c +$2 \"$PAGE\" | head -c 1152; }
                   for i in $(seq 60); do frame '24 16' $i; done >whole.ppm
                   head -c 30000 whole.ppm >short.ppm
                   (frame '24 16' 1; frame '16 24' 1) >mixed.ppm
                   sed s/255/254/ mixed.ppm >dark.ppm"
  WORKING_DIRECTORY ${work} COMMAND_ERROR_IS_FATAL ANY)

example_whole_run_test(restore_video -DVIDEO=${mhla_video})
example_checkpoint_test(
  restore_video "psnr" --video ${mhla_video} --attention mhla --dim 8 --depth 1 --heads 1
  --frames 4 --batch 1 --steps 2000 --threads 1)

set(refusals "attention|no|not in" "dim|0|not in range" "heads|3|heads of an even width"
             "patch|7|expected a divisor of the video's 24 x 16 pixels"
             "rate|nan|expected a number above 0" "masked|1|expected a number between 0 and 1"
             "steps|0|not in range" "batch|0|not in range"
             "stride|5|has 60 frames, expected at least 380 for clips of 76"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(restore_video "${refusals}" --video ${mhla_video})
foreach(video "missing|cannot be read" "short|ends in frame 25" "mixed|has another size in frame 1"
              "dark|has no .P6., width, height and 255 before frame 0")
  string(REPLACE "|" ";" video "${video}")
  list(POP_FRONT video name expect)
  example_error_test(refuses_a_${name}_video restore_video "${name}.ppm ${expect}"
                     --video ${work}/${name}.ppm)
endforeach()
example_error_test(needs_a_checkpoint_to_resume restore_video
                   "nothing.softmax.safetensors is not there"
                   --output ${CMAKE_CURRENT_BINARY_DIR}/nothing --resume)
