# Compiles all headers, every form and the benchmarks with g++ and clang++, for each instruction set.
# Warnings fail these tests where MHLA_WARNINGS_AS_ERRORS is on.
#
# g++ warns of loops and of memory only where it optimises. For some loops that is only -O3, the
# level of CMake's Release. It also needs programs with few calls, which are inlined. So g++
# compiles one program per form, for one instruction set. clang++ warns while it parses, and while
# it optimises of loops that it does not unroll as told. Parsing is enough for all other tests.

set(parse -fsyntax-only)
set(speed -O3 -DNDEBUG)
set(optimize ${speed} -S -o /dev/null)

# compile_test(NAME COMPILER FLAG... FILE...) adds a test that compiles FILE... .
function(compile_test name compiler)
  set(command ${MHLA_${compiler}} -std=c++20 ${MHLA_WARNINGS} ${includes}
              -I ${PROJECT_SOURCE_DIR}/benchmarks ${ARGN})
  if(NOT MHLA_${compiler})
    set(command ${CMAKE_COMMAND} -E echo "${compiler} is not installed")
  endif()
  package_test(Compilers.${name}_${compiler} ${command})
endfunction()

# Precompiles HEADER to HEADER.gch for the tests that require the fixture.
function(precompile_test name compiler fixture header)
  compile_test(${name} ${compiler} ${ARGN} -x c++-header ${header} -o ${header}.gch)
  set_tests_properties(Compilers.${name}_${compiler} PROPERTIES FIXTURES_SETUP ${fixture})
endfunction()

# One file with all headers and all code that depends on the packet length, so that Eigen is parsed
# once.
find_package(benchmark CONFIG QUIET)
set(peak "")
if(benchmark_FOUND)
  set(peak "#include \"${PROJECT_SOURCE_DIR}/benchmarks/peak_bench.cpp\"")
endif()
set(forms ${CMAKE_CURRENT_SOURCE_DIR}/forms.cpp)
set(everything ${CMAKE_CURRENT_BINARY_DIR}/everything.cpp)
file(CONFIGURE OUTPUT everything.cpp @ONLY CONTENT [[
#include "@CMAKE_CURRENT_BINARY_DIR@/all_headers.cpp"
#include "@forms@"
@peak@
]])

# All headers after macros of other libraries. The headers that ours include come first.
list(REMOVE_DUPLICATES foreign_headers)
list(TRANSFORM foreign_headers REPLACE "^#include (<.+>).*" "#if __has_include(\\1)\n#include \\1\n#endif\n")
list(JOIN foreign_headers "" foreign_headers)
set(behind_macros ${CMAKE_CURRENT_BINARY_DIR}/behind_macros.cpp)
file(CONFIGURE OUTPUT behind_macros.cpp @ONLY CONTENT [[
@foreign_headers@
#include "@CMAKE_CURRENT_SOURCE_DIR@/macro_names.hpp"
#include "@CMAKE_CURRENT_BINARY_DIR@/all_headers.cpp"
]])

find_program(MHLA_g++ g++)
find_program(MHLA_clang++ NAMES clang++ clang++-19 clang++-14)
find_program(MHLA_aarch64-linux-gnu-g++ aarch64-linux-gnu-g++)
find_program(MHLA_x86_64-w64-mingw32-g++-posix x86_64-w64-mingw32-g++-posix)

# The NCCL headers, with stand-ins for the headers of NCCL and CUDA.
set(nccl ${CMAKE_CURRENT_BINARY_DIR}/nccl.cpp)
file(CONFIGURE OUTPUT nccl.cpp CONTENT [[
#include "mhla/distributed/nccl_connection.hpp"
#include "mhla/distributed/nccl_connection.hpp"
#include "mhla/distributed/nccl.hpp"
#include "mhla/distributed/nccl.hpp"
]])
foreach(compiler g++ clang++)
  compile_test(NcclHeadersPass ${compiler} ${parse} -I ${PROJECT_SOURCE_DIR}/tests/support/nccl
               ${nccl})
endforeach()

compile_test(HeadersPassBehindMacrosOfOthers g++ ${parse} ${behind_macros})

# All headers and forms with Eigen's index as int, and with libc++, some versions of which lack
# parts of C++20.
set(headers_and_forms ${CMAKE_CURRENT_BINARY_DIR}/headers_and_forms.cpp)
file(CONFIGURE OUTPUT headers_and_forms.cpp @ONLY CONTENT [[
#include "@CMAKE_CURRENT_BINARY_DIR@/all_headers.cpp"
#include "@forms@"
]])
compile_test(IndicesOfIntPass g++ ${parse} -Wno-conversion -DEIGEN_DEFAULT_DENSE_INDEX_TYPE=int
             ${headers_and_forms})
set(libcxx_probe ${CMAKE_CURRENT_BINARY_DIR}/libcxx_probe.cpp)
file(CONFIGURE OUTPUT libcxx_probe.cpp CONTENT "#include <ranges>\n")
execute_process(COMMAND ${MHLA_clang++} -stdlib=libc++ -std=c++20 ${parse} ${libcxx_probe}
                RESULT_VARIABLE no_libcxx OUTPUT_QUIET ERROR_QUIET)
if(no_libcxx)
  package_test(Compilers.LibcxxPasses ${CMAKE_COMMAND} -E echo "libc++ is not installed")
else()
  compile_test(LibcxxPasses clang++ ${parse} -stdlib=libc++ ${headers_and_forms})
endif()

# All headers on other systems. On Windows they follow <windows.h>.
set(windows ${CMAKE_CURRENT_BINARY_DIR}/windows.cpp)
file(CONFIGURE OUTPUT windows.cpp @ONLY CONTENT [[
#define NOMINMAX
#include <windows.h>
#include "@CMAKE_CURRENT_BINARY_DIR@/all_headers.cpp"
]])
compile_test(HeadersPass aarch64-linux-gnu-g++ ${parse} ${CMAKE_CURRENT_BINARY_DIR}/all_headers.cpp)
compile_test(HeadersPassBehindWindowsH x86_64-w64-mingw32-g++-posix ${parse} ${windows})
script_test(Windows.FilesOfAnyNameAreReadAndWritten windows -DJSON_INCLUDE=${json}
            -DWORK=${CMAKE_CURRENT_BINARY_DIR}/windows)
# A program of nvcc, whose front end rewrites the headers for the host's compiler.
set(program ${CMAKE_COMMAND} -E echo "nvcc is not installed")
if(MHLA_NVCC)
  list(JOIN includes "," host_includes)
  set(program ${MHLA_NVCC} -std=c++20 -Xcompiler "${host_includes}" ${nvcc_warnings}
              -diag-suppress 1675  # from MHLA_UNROLL
              -x cu -c ${CMAKE_CURRENT_BINARY_DIR}/all_headers.cpp
              -o ${CMAKE_CURRENT_BINARY_DIR}/all_headers.o)
endif()
package_test(Compilers.HeadersPass_nvcc ${program})
script_test(OtherProcessor.ProductAndFormsAreRight other_processor
            -DWORK=${CMAKE_CURRENT_BINARY_DIR}/other_processor)

if(TARGET mhla::mpi)
  set(mpi_headers ${CMAKE_CURRENT_BINARY_DIR}/mpi_headers.cpp)
  file(CONFIGURE OUTPUT ${mpi_headers} CONTENT [[
#include "mhla/distributed/mpi_transfer.hpp"
#include "mhla/distributed/mpi.hpp"
#include "mhla/distributed/mpi.hpp"
]])
  get_target_property(mpi MPI::MPI_CXX INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM mpi PREPEND -isystem)
  compile_test(MpiHeadersPass g++ ${parse} ${mpi} ${mpi_headers})
  compile_test(MpiHeadersPass clang++ ${parse} ${mpi} ${mpi_headers})
endif()

set(levels default)
set(march "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  # One level per packet length, and AMX beside the longest. Packets of x86-64-v2 are as long as those
  # of x86-64.
  set(levels x86-64 x86-64-v3 sapphirerapids)
endif()
foreach(level IN LISTS levels)
  if(NOT level STREQUAL "default")
    set(march -march=${level})
  endif()
  set(avx512 "")
  if(level STREQUAL "sapphirerapids")
    set(avx512 -Wno-uninitialized -Wno-maybe-uninitialized)  # as in the main CMakeLists.txt
  endif()
  compile_test(EverythingPasses_${level} g++ ${march} ${avx512} ${parse} -Werror=sign-conversion
               ${everything})
  compile_test(EverythingPasses_${level} clang++ ${march} ${parse} ${everything})
  if(level MATCHES "v3|default")
    set(header ${CMAKE_CURRENT_BINARY_DIR}/headers_of_forms.hpp)
    # Without our headers, because g++ forgets which of their warnings are off.
    file(CONFIGURE OUTPUT ${header} CONTENT "#include <Eigen/Core>\n")
    precompile_test(HeadersOfFormsPass g++ headers_of_forms ${header} ${march} ${speed})
    foreach(form bidirectional causal streaming linear softmax batched bidirectional_gradient
            causal_gradient linear_gradient softmax_gradient batched_gradient)
      compile_test(FormPassesOptimized_${form} g++ ${march} -DFORM=${form} ${optimize}
                   -include ${header} -Winvalid-pch ${forms})
      set_tests_properties(Compilers.FormPassesOptimized_${form}_g++
                           PROPERTIES FIXTURES_REQUIRED headers_of_forms)
    endforeach()
    compile_test(FormsPassOptimized_${level} clang++ ${march} ${optimize} ${forms})
  endif()
endforeach()

# Compiles the benchmarks for the last level. g++ builds mhla_bench for the same level:
# CMakeLists.txt.
if(benchmark_FOUND)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/benchmarks/*.cpp
       ${PROJECT_SOURCE_DIR}/benchmarks/support/*.cpp)
  set(benchmarks ${CMAKE_CURRENT_BINARY_DIR}/benchmarks.cpp)
  list(TRANSFORM sources REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE text)
  list(JOIN text "" text)
  file(CONFIGURE OUTPUT ${benchmarks} CONTENT "${text}" @ONLY)
  compile_test(BenchmarksPass clang++ ${march} ${parse} -DMHLA_COMPILER=\"\" -DMHLA_FLAGS=\"\"
               -DMHLA_CLASS=\"\" -I ${PROJECT_SOURCE_DIR}/tests ${benchmarks})
endif()
