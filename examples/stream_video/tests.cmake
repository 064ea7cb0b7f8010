# Tests of stream_video. Each run checks the gradient of the model, and streams against one call.
set(refusals "steps|0|not in range" "frames|3|not in range" "rate|nan|expected a finite number"
             "output|no_such_folder/x|expected .*no_such_folder to be a folder")
example_option_tests(stream_video "${refusals}" --quick)
