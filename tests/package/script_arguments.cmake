# Sets `script_arguments` to the arguments of a script: cmake -P SCRIPT -- ARGUMENT...

math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  list(APPEND script_arguments "${CMAKE_ARGV${i}}")
endforeach()
string(REGEX REPLACE "^.*;--;|;$" "" script_arguments "${script_arguments};")
