# Installs SOURCE below WORK and builds programs against it. One run tests one CASE.

cmake_minimum_required(VERSION 3.25)

include(${CMAKE_CURRENT_LIST_DIR}/package_steps.cmake)

foreach(variable CXXFLAGS CMAKE_BUILD_TYPE CMAKE_CXX_COMPILER_LAUNCHER)
  unset(ENV{${variable}})  # consumers set these themselves
endforeach()
set(installed ${WORK}/moved)
set(without_json -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
set(without_mpi -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)

# Configures mhla as a top-level project in a folder, with further options.
function(configure_alone folder)
  file(REMOVE_RECURSE ${folder})
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${folder} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF
      -DMHLA_BUILD_BENCHMARKS=OFF ${without_json} ${without_mpi} ${ARGN})
endfunction()

function(check_Install)
  file(REMOVE_RECURSE ${WORK}/prefix ${installed})
  configure_alone(${WORK}/build)
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
  run_consumer(-DCMAKE_PREFIX_PATH=${installed} ${without_json} ${without_mpi})
endfunction()

# Tests folders of headers and data inside and outside the prefix.
function(check_AbsoluteFoldersWork)
  set(root "${WORK}/absolute folders")
  foreach(prefix "${root}" "${root}/host")
    file(REMOVE_RECURSE "${root}")
    configure_alone(${WORK}/absolute -DCMAKE_INSTALL_PREFIX=${prefix}
                    -DCMAKE_INSTALL_INCLUDEDIR=${root}/headers
                    -DCMAKE_INSTALL_DATADIR=${root}/data)
    run(${CMAKE_COMMAND} --install ${WORK}/absolute)
    file(READ ${root}/data/pkgconfig/mhla.pc text)
    cmake_path(RELATIVE_PATH prefix BASE_DIRECTORY ${root}/data/pkgconfig OUTPUT_VARIABLE to_prefix)
    cmake_path(SET to_headers ${root}/headers)
    cmake_path(RELATIVE_PATH to_headers BASE_DIRECTORY ${prefix})
    if(NOT text MATCHES "prefix=.{pcfiledir}/${to_prefix}\nincludedir=.{prefix}/${to_headers}\n")
      message(FATAL_ERROR "mhla.pc:\n${text}")
    endif()
    run_consumer(-Dmhla_DIR=${root}/data/cmake/mhla ${without_json} ${without_mpi})
  endforeach()
endfunction()

# Builds and runs the program of a component. CUDA programs run without a device. They are built as
# PTX of one architecture, without optimisation, because CudaBuild compiles every kernel for both.
function(component_works component)
  find_program(NVCC nvcc PATHS /usr/local/cuda/bin)
  find_library(NCCL nccl PATHS /usr/local/cuda PATH_SUFFIXES lib64 lib)
  set(needs_io JSON)
  set(needs_mpi MPI)
  set(needs_cuda NVCC)
  set(needs_nccl NVCC NCCL)
  foreach(needed IN LISTS needs_${component})
    if(NOT ${needed})
      message("${needed} is not installed")
      return()
    endif()
  endforeach()
  set(language "")
  if(component MATCHES "cuda|nccl")
    set(ENV{CUDACXX} ${NVCC})
    set(ENV{CUDAARCHS} 80-virtual)
    set(ENV{CUDAFLAGS} "${IDLE_KERNELS}")
    set(language -DMORE_LANGUAGES=CUDA)
  endif()
  configure_consumer(-DCMAKE_PREFIX_PATH=${installed} -DCOMPONENTS=${component} ${language})
  expect_configured()
  run(${CMAKE_COMMAND} --build ${WORK}/${CASE})
  run(${WORK}/${CASE}/consumer_${component} ${WORK}/${CASE}/written)
endfunction()

# Expects an error that names what a component lacks, or an unknown component.
function(check_ComponentsNameWhatTheyNeed)
  foreach(case "io|\"io\" needs nlohmann_json" "mpi|\"mpi\" needs MPI" "cuda|LANGUAGES CXX CUDA"
          "nccl|\"nccl\" needs the language CUDA" "nonesuch|no component \"nonesuch\"")
    string(REGEX MATCH "^([a-z]+)[|](.*)$" matched "${case}")
    set(expect "${CMAKE_MATCH_2}")
    configure_consumer(-DCMAKE_PREFIX_PATH=${installed} -DCOMPONENTS=${CMAKE_MATCH_1}
                       ${without_json} ${without_mpi})
    string(REGEX REPLACE "[ \n]+" " " errors "${errors}")  # CMake breaks lines
    string(FIND "${errors}" "${expect}" place)
    if(status EQUAL 0 OR place EQUAL -1)
      message(FATAL_ERROR "expected the error '${expect}', got:\n${errors}")
    endif()
  endforeach()
endfunction()

# The tests' stand-ins for NCCL and CUDA must match the declarations of NCCL and CUDA.
function(check_StandInsAreDeclaredAsNccl)
  find_path(NCCL nccl.h PATHS /usr/local/cuda/include)
  find_path(CUDA cuda_runtime.h PATHS /usr/local/cuda/include)
  if(NOT NCCL OR NOT CUDA)
    message("NCCL is not installed")
    return()
  endif()
  foreach(source cuda nccl)
    run(${COMPILER} -std=c++20 -fsyntax-only -I ${SOURCE}/tests -isystem ${NCCL} -isystem ${CUDA}
        ${SOURCE}/tests/support/nccl/${source}_stand_in.cpp)
  endforeach()
endfunction()

function(check_SubdirectoryWorks)
  run_consumer(-DMHLA_SOURCE=${SOURCE})
endfunction()

# Eigen and nlohmann_json are targets of the user's build, which does not export them.
function(check_FetchedDependenciesWork)
  set(folder ${WORK}/${CASE})
  file(REMOVE_RECURSE ${folder})
  foreach(stub Eigen3::Eigen nlohmann_json::nlohmann_json)
    string(REGEX MATCH "^[^:]+" name ${stub})
    file(WRITE ${folder}/${name}/CMakeLists.txt
         "add_library(fetched_${name} INTERFACE)\nadd_library(${stub} ALIAS fetched_${name})\n"
         "target_include_directories(fetched_${name} INTERFACE \"${EIGEN}\")\n")
  endforeach()
  set(begin "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\n"
            "include(FetchContent)\n"
            "FetchContent_Declare(Eigen3 SOURCE_DIR ${folder}/Eigen3 OVERRIDE_FIND_PACKAGE)\n"
            "add_subdirectory(${folder}/nlohmann_json nlohmann_json)\n")
  set(end "add_executable(app \"${consumer}/main.cpp\")\n"
          "target_link_libraries(app PRIVATE mhla::mhla mhla::io)\n")
  file(WRITE ${folder}/subdirectory/CMakeLists.txt
       ${begin} "add_subdirectory(${SOURCE} mhla)\n" ${end})
  file(WRITE ${folder}/installed/CMakeLists.txt
       ${begin} "find_package(mhla CONFIG REQUIRED COMPONENTS io)\n" ${end})
  foreach(user subdirectory installed)
    run(${CMAKE_COMMAND} -S ${folder}/${user} -B ${folder}/${user}/build -G ${GENERATOR}
        -DCMAKE_CXX_COMPILER=${COMPILER} -DMHLA_INSTALL=ON -Dmhla_DIR=${installed}/share/cmake/mhla)
  endforeach()
endfunction()

# CMake prints the hint on -march always, and the warning if the build type is empty. Each appears
# once.
function(check_SubdirectoryTellsOfSlowBuilds)
  set(warning "CMAKE_BUILD_TYPE[ \n]+is[ \n]+empty")
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

# Exports the targets with and without install rules. They are found in both build folders and in
# the installed copy.
function(check_ExportedTargetsWork)
  set(folder ${WORK}/${CASE})
  file(REMOVE_RECURSE ${folder})
  foreach(install ON OFF)
    run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/exporter -B ${folder}/${install}
        -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release
        -DMHLA_SOURCE=${SOURCE} -DMHLA_INSTALL=${install})
  endforeach()
  run(${CMAKE_COMMAND} --install ${folder}/ON --prefix ${folder}/installed)
  if(EXISTS ${folder}/installed/share/cmake/mhla/mhla-components.cmake)
    message(FATAL_ERROR "targets are installed that mhla-config.cmake makes")
  endif()
  file(WRITE ${folder}/user/CMakeLists.txt
       "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\n"
       "find_package(exporter REQUIRED)\nadd_executable(app \"${consumer}/main.cpp\")\n"
       "foreach(name mhla io mpi)\n"
       "  if(TARGET exporter::\${name}_user)\n"
       "    target_link_libraries(app PRIVATE exporter::\${name}_user)\n"
       "  endif()\nendforeach()\n")
  foreach(package OFF ON installed)
    run(${CMAKE_COMMAND} -S ${folder}/user -B ${folder}/user_${package} -G ${GENERATOR}
        -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${folder}/${package})
  endforeach()
  run(${CMAKE_COMMAND} --build ${folder}/user_OFF)
  run(${folder}/user_OFF/app)
endfunction()

# A second copy of the project, after a first or an installed one, adds nothing and prints a
# message.
function(check_AddingItAgainReturns)
  foreach(first -DMHLA_SOURCE=${SOURCE} -DCMAKE_PREFIX_PATH=${installed})
    configure_consumer(${first} -DMHLA_AGAIN=${SOURCE})
    expect_configured()
    if(NOT output MATCHES "there is a target mhla::mhla already")
      message(FATAL_ERROR "expected a line on the second copy, got:\n${output}")
    endif()
  endforeach()
endfunction()

# Runs the port with functions that do the work of vcpkg's functions.
function(check_VcpkgPortWorks)
  file(REMOVE_RECURSE ${WORK}/vcpkg)
  file(STRINGS ${SOURCE}/include/mhla/core/version.hpp version REGEX "kVersion\\[\\]")
  file(READ ${SOURCE}/.packaging/vcpkg/vcpkg.json manifest)
  string(JSON manifest GET "${manifest}" version-semver)
  if(NOT version MATCHES "\"${manifest}\"")
    message(FATAL_ERROR "vcpkg.json says ${manifest} of ${version}")
  endif()
  include(${SOURCE}/.packaging/vcpkg/portfile.cmake)
  set(port ${WORK}/vcpkg/share/mhla)
  if(EXISTS ${WORK}/vcpkg/share/cmake OR NOT EXISTS ${port}/copyright)
    message(FATAL_ERROR "expected everything in share/mhla, with the licence")
  endif()
  configure_consumer(-DCMAKE_PREFIX_PATH=${WORK}/vcpkg)
  expect_configured()
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" SOURCE_PATH OPTIONS)
  run(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${WORK}/vcpkg_build -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_INSTALL_PREFIX=${WORK}/vcpkg ${arg_OPTIONS})
endfunction()
function(vcpkg_cmake_install)
  run(${CMAKE_COMMAND} --build ${WORK}/vcpkg_build --target install)
endfunction()
# Moves CMake's files to share/<port>, one folder closer to their prefix.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" CONFIG_PATH "")
  file(RENAME ${WORK}/vcpkg/${arg_CONFIG_PATH} ${WORK}/vcpkg/share/mhla)
  file(REMOVE_RECURSE ${WORK}/vcpkg/share/cmake)
  set(targets ${WORK}/vcpkg/share/mhla/mhla-targets.cmake)
  file(READ ${targets} text)
  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
  file(WRITE ${targets} "${text}")
endfunction()
function(vcpkg_fixup_pkgconfig)
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" FILE_LIST)
  file(COPY_FILE ${arg_FILE_LIST} ${WORK}/vcpkg/share/mhla/copyright)
endfunction()

# Each ```cmake block of include/mhla/README.md configures a separate project. A missing target is
# an error. FetchContent gets this checkout.
function(check_LinesOfThePageWork)
  file(READ ${SOURCE}/include/mhla/README.md rest)
  string(REPLACE "\n```cmake\n" "\n```cmake\n#block\n" rest "${rest}")
  string(REPLACE ";" "" rest "${rest}")
  string(REGEX MATCHALL "#block\n[^`]*" blocks "${rest}")
  list(LENGTH blocks count)
  if(count LESS 2)
    message(FATAL_ERROR "expected 2 blocks of CMake in include/mhla/README.md, got ${count}")
  endif()
  foreach(block IN LISTS blocks)
    set(project ${WORK}/${CASE}/${count})
    math(EXPR count "${count} - 1")
    file(REMOVE_RECURSE ${project})
    file(WRITE ${project}/CMakeLists.txt
         "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\n"
         "add_executable(app \"${consumer}/main.cpp\")\n${block}")
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
  file(READ ${WORK}/build/docs/html/index.html text)
  if(NOT text MATCHES "Begin with")
    message(FATAL_ERROR "the index of the reference does not say where to begin")
  endif()
  foreach(list namespaces annotated files)
    file(READ ${WORK}/build/docs/html/${list}.html text)
    if(text MATCHES "MHLA_CUDA_ARCHS|MHLA_TARGET|>detail<|::detail")
      message(FATAL_ERROR "${list}.html of the reference lists ${CMAKE_MATCH_0}")
    endif()
  endforeach()
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

if(CASE MATCHES "^Component(.+)Works$")
  string(TOLOWER ${CMAKE_MATCH_1} component)
  component_works(${component})
else()
  cmake_language(CALL check_${CASE})
endif()
