# Runs the smallest cases of BENCH, briefly, and checks what it writes to WORK: every form is there,
# names are well formed, every case has its counters, the context names compiler and machine.

cmake_minimum_required(VERSION 3.25)

file(MAKE_DIRECTORY ${WORK})
set(json ${WORK}/benchmarks.json)
set(ENV{MHLA_COMMIT} 0123456789ab-dirty)
set(vision "/(deit_s|growth_256|mixing_16)/|/(double|bfloat16)/dit_s_512/threads:1")
set(language "^(Causal|Streaming|Linear|EigenProgram|Backward|BackwardKept|LinearBackward)/cpu/float/nlp_340m.*/threads:1")
set(layers "^Layer.*/vision_deit_s/threads:1|/language_340m_token/threads:1")
execute_process(COMMAND ${BENCH} "--benchmark_filter=${vision}|${language}|${layers}|^Peak"
                        --benchmark_min_time=0.001 --benchmark_out=${json}
                        --benchmark_out_format=json
                COMMAND_ERROR_IS_FATAL ANY)

file(READ ${json} results)
set(wrong "")

foreach(key compiler flags class cpu_model instruction_set commit)
  string(JSON value ERROR_VARIABLE error GET "${results}" context ${key})
  if(error OR value STREQUAL "")
    string(APPEND wrong "\n  the context has no ${key}")
  endif()
endforeach()
string(JSON commit GET "${results}" context commit)
if(NOT commit STREQUAL "0123456789ab-dirty")
  string(APPEND wrong "\n  the commit is ${commit}")
endif()

string(JSON flags GET "${results}" context flags)
string(JSON class GET "${results}" context class)
if(flags MATCHES ".*-march=([^ ]+)" AND NOT class STREQUAL CMAKE_MATCH_1)
  string(APPEND wrong "\n  the class is ${class} for ${flags}")
endif()

set(forms "")
string(JSON count LENGTH "${results}" benchmarks)
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  string(JSON case GET "${results}" benchmarks ${i})
  string(JSON name GET "${case}" name)
  if(NOT name MATCHES "^([A-Za-z]+)/cpu/(float|double|bfloat16)/[a-z0-9_]+/threads:[12]$")
    string(APPEND wrong "\n  the name ${name}")
    continue()
  endif()
  set(form ${CMAKE_MATCH_1})
  list(APPEND forms ${form})
  set(counters flops of_peak)
  if(NOT form STREQUAL Peak)
    list(APPEND counters bytes tokens)
  endif()
  if(name MATCHES "^Streaming/cpu/float/nlp_340m(_late)?/")
    list(APPEND counters of_l2_read)
  endif()
  if(form MATCHES "Backward")
    list(APPEND counters of_forward)
  endif()
  foreach(counter IN LISTS counters)
    string(JSON value ERROR_VARIABLE error GET "${case}" ${counter})
    if(error OR NOT value GREATER 0)
      string(APPEND wrong "\n  ${name} has ${counter} '${value}'")
    endif()
  endforeach()
endforeach()

foreach(form Bidirectional Causal Streaming Softmax Linear EigenProgram Peak Backward BackwardKept
        LinearBackward SoftmaxBackward DenseMixing BandMixing SparseMixing DecayMixing NoMixing
        Layer LayerBackward LayerBackwardKept)
  if(NOT form IN_LIST forms)
    string(APPEND wrong "\n  no case of ${form}")
  endif()
endforeach()

if(wrong)
  message(FATAL_ERROR "the results are not as they should be:${wrong}")
endif()
