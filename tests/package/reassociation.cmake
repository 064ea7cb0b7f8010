# Compiles and runs reassociated.cpp with FLAGS that let a compiler reassociate sums.

cmake_minimum_required(VERSION 3.25)

separate_arguments(FLAGS)
file(MAKE_DIRECTORY ${WORK})
execute_process(COMMAND ${COMPILER} -std=c++20 -O2 ${FLAGS} -I ${SOURCE}/include -isystem ${EIGEN}
                        ${SOURCE}/tests/package/reassociated.cpp -o ${WORK}/reassociated
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/reassociated COMMAND_ERROR_IS_FATAL ANY)
