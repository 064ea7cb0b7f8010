# Tests with what PyPI has, one CASE a run. Without python3 or PyPI they are skipped.

cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/package_steps.cmake)

find_program(PYTHON python3)
set(pip ${PYTHON} -m pip --disable-pip-version-check --quiet --retries 0 --timeout 20)

# pip(ARGUMENT...) sets `got`.
function(pip)
  set(got FALSE PARENT_SCOPE)
  if(PYTHON)
    execute_process(COMMAND ${pip} ${ARGN} RESULT_VARIABLE status ERROR_VARIABLE errors)
    if(status EQUAL 0)
      set(got TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

# The recipe makes a package of the checkout, with Eigen of the system and with Eigen as a package,
# and CMake's own find_package finds it.
function(check_ConanRecipeWorks)
  find_program(CONAN conan)
  if(NOT CONAN)
    if(NOT EXISTS ${WORK}/conan/conans/conan.py)
      pip(install --target ${WORK}/conan "conan>=2,<3")
      if(NOT got)
        message("conan is not installed")
        return()
      endif()
    endif()
    set(ENV{PYTHONPATH} ${WORK}/conan)
    set(CONAN ${PYTHON} -m conans.conan)
  endif()
  set(ENV{CONAN_HOME} ${WORK}/conan_home)
  set(ENV{CXX} ${COMPILER})
  set(ENV{MHLA_TEST_EIGEN} ${EIGEN})
  file(REMOVE_RECURSE ${WORK}/conan_home)
  run(${CONAN} profile detect)
  run(${CONAN} create ${CMAKE_CURRENT_LIST_DIR}/conan_eigen --version 3.4.0 --no-remote)
  set(recipe ${SOURCE}/.packaging/conan)
  foreach(system True False)
    file(REMOVE_RECURSE ${WORK}/${CASE}_toolchain)
    set(flags --no-remote -s compiler.cppstd=20 -o "mhla/*:system_dependencies=${system}")
    run(${CONAN} create ${recipe} ${flags})
    run(${CONAN} install --requires "mhla/[*]" ${flags} -g CMakeToolchain -g CMakeDeps
        -of ${WORK}/${CASE}_toolchain)
    configure_consumer(-DCMAKE_TOOLCHAIN_FILE=${WORK}/${CASE}_toolchain/conan_toolchain.cmake
                       -DCMAKE_BUILD_TYPE=Release)
    expect_configured()
  endforeach()
  run(${CMAKE_COMMAND} --build ${WORK}/${CASE})
  run(${WORK}/${CASE}/consumer)
endfunction()

# A package for Python holds the headers of Eigen 5.
function(check_Eigen5Works)
  set(wheels ${WORK}/eigency)
  if(NOT EXISTS ${wheels}/eigency)
    pip(download --no-deps --only-binary :all: --dest ${wheels} "eigency>=5,<6")
    file(GLOB wheel ${wheels}/*.whl)
    if(NOT got OR NOT wheel)
      message("Eigen 5 is not installed")
      return()
    endif()
    file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${wheels})
  endif()
  set(flags -std=c++20 -Wall -Wextra -Werror -I ${SOURCE}/include
      -isystem ${wheels}/eigency/eigen)
  set(json "${JSON_INCLUDE}")  # behind the directories of the compiler, one of which it may be
  list(TRANSFORM json PREPEND -idirafter)
  run(${COMPILER} ${flags} ${json} -fsyntax-only ${HEADERS})
  run(${COMPILER} ${flags} ${SOURCE}/examples/readme.cpp -pthread -o ${WORK}/eigen5)
  run(${WORK}/eigen5)
endfunction()

file(MAKE_DIRECTORY ${WORK})
cmake_language(CALL check_${CASE})
