# Installs SOURCE below WORK and builds programs against it, one CASE a run.

cmake_minimum_required(VERSION 3.25)

set(consumer ${CMAKE_CURRENT_LIST_DIR}/consumer)
set(installed ${WORK}/moved)
set(without_json -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(configure_consumer)
  file(REMOVE_RECURSE ${WORK}/${CASE})
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${consumer} -B ${WORK}/${CASE} -G ${GENERATOR}
                          -DCMAKE_CXX_COMPILER=${COMPILER} ${ARGN}
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  set(status ${status} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

function(run_consumer)
  configure_consumer(${ARGN})
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${errors}")
  endif()
  run(${CMAKE_COMMAND} --build ${WORK}/${CASE})
  run(${WORK}/${CASE}/consumer)
endfunction()

function(check_Install)
  file(REMOVE_RECURSE ${WORK}/build ${WORK}/prefix ${installed})
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF
      -DMHLA_BUILD_BENCHMARKS=OFF ${without_json})
  file(STRINGS ${WORK}/build/CMakeCache.txt release REGEX "^CMAKE_BUILD_TYPE:STRING=Release$")
  if(NOT release AND NOT GENERATOR MATCHES "Multi-Config|Visual Studio|Xcode")
    message(FATAL_ERROR "built alone without a build type it is not built as Release")
  endif()
  run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${WORK}/prefix)
  file(RENAME ${WORK}/prefix ${installed})
  file(GLOB_RECURSE files ${installed}/share/*)
  if(NOT files)
    message(FATAL_ERROR "nothing is installed in share")
  endif()
  foreach(file IN LISTS files)
    file(READ ${file} text)
    foreach(path ${SOURCE} ${WORK} ${EIGEN})
      string(FIND "${text}" "${path}" position)
      if(NOT position EQUAL -1)
        message(FATAL_ERROR "${file} holds the path ${path}")
      endif()
    endforeach()
  endforeach()
endfunction()

function(check_InstalledCopyWorks)
  run_consumer(-DCMAKE_PREFIX_PATH=${installed} ${without_json})
endfunction()

function(check_ComponentIoWorks)
  if(NOT JSON)
    message("nlohmann_json is not installed")
    return()
  endif()
  run_consumer(-DCMAKE_PREFIX_PATH=${installed} -DCOMPONENTS=io)
  run(${WORK}/${CASE}/consumer_io ${WORK}/${CASE}/written.safetensors)
endfunction()

function(check_ComponentIoNeedsJson)
  configure_consumer(-DCMAKE_PREFIX_PATH=${installed} -DCOMPONENTS=io ${without_json})
  if(status EQUAL 0 OR NOT errors MATCHES "\"io\"[ \n]+needs[ \n]+nlohmann_json")
    message(FATAL_ERROR "expected an error that names nlohmann_json, got:\n${errors}")
  endif()
endfunction()

# Builds for one architecture: CudaBuild compiles every kernel for both. Runs what can run on this
# machine.
function(check_ComponentCudaWorks)
  find_program(NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT NVCC)
    message("nvcc is not installed")
    return()
  endif()
  set(ENV{CUDACXX} ${NVCC})
  set(ENV{CUDAARCHS} 80)
  run_consumer(-DCMAKE_PREFIX_PATH=${installed} ${without_json} -DCOMPONENTS=cuda
               -DMORE_LANGUAGES=CUDA)
  run(${WORK}/${CASE}/consumer_cuda)
endfunction()

function(check_ComponentCudaNeedsTheLanguage)
  configure_consumer(-DCMAKE_PREFIX_PATH=${installed} ${without_json} -DCOMPONENTS=cuda)
  if(status EQUAL 0 OR NOT errors MATCHES "LANGUAGES[ \n]+CXX[ \n]+CUDA")
    message(FATAL_ERROR "expected an error that names the language, got:\n${errors}")
  endif()
endfunction()

function(check_UnknownComponentIsRefused)
  configure_consumer(-DCMAKE_PREFIX_PATH=${installed} -DCOMPONENTS=nonesuch)
  if(status EQUAL 0 OR NOT errors MATCHES "no component[ \n]+\"nonesuch\"")
    message(FATAL_ERROR "expected an error that names the component, got:\n${errors}")
  endif()
endfunction()

function(check_SubdirectoryWorks)
  run_consumer(-DMHLA_SOURCE=${SOURCE})
endfunction()

# Of -march always, of an empty build type where it is empty; once.
function(check_SubdirectoryTellsOfSlowBuilds)
  set(warning "CMAKE_BUILD_TYPE is[ \n]+empty")
  set(warning_Release "^$")
  foreach(type "" _Release)
    string(REPLACE _ "-DCMAKE_BUILD_TYPE=" option "${type}")
    configure_consumer(-DMHLA_SOURCE=${SOURCE} ${option})
    if(NOT output MATCHES "-march=native" OR NOT errors MATCHES "${warning${type}}")
      message(FATAL_ERROR "with '${option}' expected a line on -march and the warning "
                          "'${warning${type}}', got:\n${output}${errors}")
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} ${WORK}/${CASE} OUTPUT_VARIABLE output
                    ERROR_VARIABLE errors)
    if("${output}${errors}" MATCHES "-march=native|empty")
      message(FATAL_ERROR "expected to be told once, but again:\n${output}${errors}")
    endif()
  endforeach()
endfunction()

function(check_PlainCompilerCallWorks)
  file(MAKE_DIRECTORY ${WORK}/${CASE})
  run(${COMPILER} -std=c++20 -I ${SOURCE}/include -I ${EIGEN} ${consumer}/main.cpp
      -o ${WORK}/${CASE}/consumer)
  run(${WORK}/${CASE}/consumer)
endfunction()

# Each ```cmake block of README.md configures a project of its own; a target that is not there is an
# error. FetchContent gets this checkout.
function(check_LinesOfTheReadmeWork)
  file(READ ${SOURCE}/README.md rest)
  string(REPLACE "\n```cmake\n" "\n```cmake\n#block\n" rest "${rest}")
  string(REPLACE ";" "" rest "${rest}")
  string(REGEX MATCHALL "#block\n[^`]*" blocks "${rest}")
  list(LENGTH blocks count)
  if(count LESS 2)
    message(FATAL_ERROR "expected 2 blocks of CMake in README.md, got ${count}")
  endif()
  foreach(block IN LISTS blocks)
    set(project ${WORK}/${CASE}/${count})
    math(EXPR count "${count} - 1")
    file(REMOVE_RECURSE ${project})
    file(WRITE ${project}/CMakeLists.txt
         "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\n"
         "add_executable(app ${consumer}/main.cpp)\n${block}")
    run(${CMAKE_COMMAND} -S ${project} -B ${project}/build -G ${GENERATOR}
        -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${installed}
        -DFETCHCONTENT_SOURCE_DIR_MHLA=${SOURCE})
  endforeach()
endfunction()

function(check_ReferenceHasNoWarning)
  find_program(DOXYGEN doxygen)
  if(NOT DOXYGEN)
    message("doxygen is not installed")
    return()
  endif()
  run(${CMAKE_COMMAND} --build ${WORK}/build --target docs)
  file(READ ${WORK}/build/docs/html/mixing_8hpp.html text)
  if(NOT text MATCHES "Stage 4 of 5.*sum_b m_ib S_b")
    message(FATAL_ERROR "the page of stage/mixing.hpp has no formula")
  endif()
endfunction()

function(check_PkgConfigWorks)
  find_program(PKG_CONFIG pkg-config)
  if(NOT PKG_CONFIG)
    message("pkg-config is not installed")
    return()
  endif()
  set(ENV{PKG_CONFIG_PATH} ${installed}/share/pkgconfig)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs mhla OUTPUT_VARIABLE flags
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  file(MAKE_DIRECTORY ${WORK}/${CASE})
  run(${COMPILER} -std=c++20 ${consumer}/main.cpp ${flags} -o ${WORK}/${CASE}/consumer)
  run(${WORK}/${CASE}/consumer)
endfunction()

cmake_language(CALL check_${CASE})
