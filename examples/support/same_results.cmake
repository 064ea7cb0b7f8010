# Fails unless two runs, FIRST.json and SECOND.json, have the same values of the keys for each of the
# three attentions, to the last digit.
function(expect_same_results first second)
  file(READ ${first}.json one)
  file(READ ${second}.json other)
  foreach(attention RANGE 2)
    foreach(key ${ARGN})
      string(JSON left GET "${one}" results ${attention} ${key})
      string(JSON right GET "${other}" results ${attention} ${key})
      if(NOT left STREQUAL right)
        message(FATAL_ERROR "${key} of attention ${attention} is '${left}' in ${first}.json and "
                            "'${right}' in ${second}.json")
      endif()
    endforeach()
  endforeach()
endfunction()
