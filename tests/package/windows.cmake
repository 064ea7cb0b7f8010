# Builds a program for 64-bit Windows with MinGW and runs it in Wine.

cmake_minimum_required(VERSION 3.25)

find_program(compiler x86_64-w64-mingw32-g++-posix)
find_program(emulator NAMES wine64 wine)
foreach(needed compiler emulator JSON_INCLUDE)
  if(NOT ${needed})
    message("the ${needed} for Windows is not installed")
    return()
  endif()
endforeach()

file(MAKE_DIRECTORY ${WORK})
list(TRANSFORM JSON_INCLUDE PREPEND -idirafter)
execute_process(COMMAND ${compiler} -std=c++20 -O1 -static -I ${SOURCE}/include -isystem ${EIGEN}
                        ${JSON_INCLUDE} ${CMAKE_CURRENT_LIST_DIR}/windows.cpp -o ${WORK}/windows.exe
                COMMAND_ERROR_IS_FATAL ANY)
set(ENV{WINEPREFIX} ${WORK}/prefix)
set(ENV{WINEDEBUG} -all)
execute_process(COMMAND ${emulator} ${WORK}/windows.exe WORKING_DIRECTORY ${WORK}
                COMMAND_ERROR_IS_FATAL ANY)
