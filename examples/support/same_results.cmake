# Fails unless two runs, FIRST.json and SECOND.json, have the same values of the keys in all of their
# results, to the last digit.
function(expect_same_results first second)
  file(READ ${first}.json one)
  file(READ ${second}.json other)
  string(JSON count LENGTH "${one}" results)
  math(EXPR last "${count} - 1")
  foreach(result RANGE ${last})
    foreach(key ${ARGN})
      string(JSON left GET "${one}" results ${result} ${key})
      string(JSON right GET "${other}" results ${result} ${key})
      if(NOT left STREQUAL right)
        message(FATAL_ERROR "${key} of result ${result} is '${left}' in ${first}.json and "
                            "'${right}' in ${second}.json")
      endif()
    endforeach()
  endforeach()
endfunction()
