"""Rules of how this repository is laid out: layout.py RULE lists the breaches of one."""

import pathlib
import posixpath
import re

import tree
from tree import rule

# Folders of include/mhla and include/mhla/cuda, and tables of contents, each with the other folders
# that it may include.
MAY_INCLUDE = {
    "core": "",
    "kernel": "core",
    "policy": "core kernel",
    "tokens": "core kernel policy",
    "stage": "core kernel policy tokens",
    "attention": "core kernel policy tokens stage",
    "gradient": "core kernel policy tokens stage attention",
    "tangent": "core kernel policy tokens stage attention gradient",
    "layer": "core kernel policy tokens stage attention gradient",
    "fit": "core kernel policy tokens stage attention",
    "io": "core",
    "distributed": "core kernel policy tokens stage attention gradient",
    "cuda/arch": "",
    "cuda/ptx": "cuda/arch",
    "cuda/tile": "cuda/ptx cuda/arch core",
    "cuda/kernel": "cuda/tile cuda/ptx cuda/arch core",
    "cuda/launch": "cuda/kernel cuda/tile cuda/ptx cuda/arch core distributed",
    "cuda/attention": "cuda/launch cuda/kernel cuda/tile cuda/ptx cuda/arch core policy "
                      "distributed",
    "mhla.hpp": "core policy attention gradient tangent layer fit",
    "fwd.hpp": "core",
    "mhla.cuh": "cuda/attention",
}
# Third-party headers per folder, besides Eigen and the standard library.
FOREIGN = {"io": "nlohmann/json.hpp fcntl.h io.h sys/stat.h unistd.h",
           "distributed": "mpi.h nccl.h cuda_runtime.h"}
FOREIGN |= {folder: "cuda.h cuda_runtime.h" for folder in MAY_INCLUDE
            if folder.startswith("cuda/") and folder != "cuda/arch"}

TOP_LEVEL = "include tests benchmarks examples CMakeLists.txt README.md LICENSE"

# Public headers that are tested as parts of an attention layer, a block, a reader, a writer, a fit,
# mixing_matrix or learned_feature_map. tests/contract/attention_layer.hpp tests layer/layer.
TESTED_WITH_OTHERS = """
    policy/mixing_view policy/map_layer policy/dpfp policy/elementwise_product
    io/replacement_file io/safetensors_entries io/safetensors_file io/safetensors_index
    fit/active_set fit/block_sums fit/check fit/fit_options fit/residual_rows
    layer/layer layer/graph_layer layer/body layer/decoding_layer layer/block
    layer/step
    layer/language_parameters layer/language_maps layer/language_steps layer/language_decoding
    """.split()

# Parts of one kernel alone are tested with that kernel: intra_block with causal_read_out_sm90,
# streaming_block and streaming_mixture with streaming_step_sm80, weighted_values with
# quadratic_sm90.
PARTS_OF_ONE_KERNEL = "intra_block streaming_block streaming_mixture weighted_values".split()


def headers(files, *folders):
    """The headers below include/mhla, as paths below that, of some folders or of all."""
    patterns = [f"include/mhla/{folder}*{kind}" for folder in folders or [""]
                for kind in (".hpp", ".cuh")]
    return [path.removeprefix("include/mhla/") for path in files.matching(*patterns)]


def header_lines(files, *folders):
    """The lines of headers: the header's path below include/mhla, the line's place, the line."""
    for header in headers(files, *folders):
        for number, line in files.lines(f"include/mhla/{header}"):
            yield header, f"include/mhla/{header}:{number}", line.strip()


def folder_of(header):
    return re.match(r"cuda/[^/.]+|[^/]+", header)[0]


@rule({"include/mhla/core/a.hpp": '#include "mhla/layer/b.hpp"\n#include "mhla/core/c.hpp"\n',
       "include/mhla/layer/b.hpp": '#include "mhla/core/a.hpp"\n#include <vector>\n',
       "include/mhla/io/d.hpp": "#include <fcntl.h>\n  #  include <nccl.h>\n",
       "include/mhla/odd/e.hpp": ""},
      "include/mhla/core/a.hpp:1: includes mhla/layer/b.hpp; core may include itself and []",
      "include/mhla/core/a.hpp:2: includes mhla/core/c.hpp, which is not there",
      'include/mhla/io/d.hpp:2: #  include <nccl.h>: expected mhla, Eigen or the standard library',
      "include/mhla/odd/e.hpp: expected odd in the table of layout.py")
def include_directions(files):
    for header in headers(files):
        if folder_of(header) not in MAY_INCLUDE:
            yield f"include/mhla/{header}: expected {folder_of(header)} in the table of layout.py"
    for header, place, line in header_lines(files):
        include = re.match(r"#\s*include\s*[<\"]mhla/([^\">]+)[>\"]", line)
        folder = folder_of(header)
        if include and f"include/mhla/{include[1]}" not in files:
            yield f"{place}: includes mhla/{include[1]}, which is not there"
        elif include:
            allowed = MAY_INCLUDE.get(folder, "")
            if folder_of(include[1]) not in [folder, *allowed.split()]:
                yield (f"{place}: includes mhla/{include[1]}; {folder} may include itself and "
                       f"[{allowed}]")
        elif re.match(r"#\s*include", line):
            foreign = re.search(r"[<\"]([^\">]+)[>\"]", line)
            if not (re.search(r'<[a-z_0-9]+>|<Eigen/|"mhla stops here"', line)
                    or foreign and foreign[1] in FOREIGN.get(folder, "").split()):
                yield f"{place}: {line}: expected mhla, Eigen or the standard library"


@rule({"README.md": "", ".github/a.md": "", "docs/b.md": ""},
      f"docs is not a name of the top level: {TOP_LEVEL}")
def top_level(files):
    for name in {path.split("/")[0] for path in files}:
        if name not in TOP_LEVEL.split() and not name.startswith("."):
            yield f"{name} is not a name of the top level: {TOP_LEVEL}"


@rule({"include/mhla/layer/a.hpp": "", "include/mhla/fit/b.hpp": "", "tests/fit/b_test.cpp": "",
       "include/mhla/core/c.hpp": "", "include/mhla/layer/layer.hpp": ""},
      "include/mhla/layer/a.hpp has no tests/layer/a_test.cpp")
def every_public_header_has_a_test(files):
    """Checks headers that users name. Forms and their gradients are held to tests/contract, and
    private headers are tested where they do more than these see."""
    for header in headers(files, "policy/", "layer/", "fit/", "io/"):
        noun = header.removesuffix(".hpp")
        if noun not in TESTED_WITH_OTHERS and f"tests/{noun}_test.cpp" not in files:
            yield f"include/mhla/{header} has no tests/{noun}_test.cpp"


@rule({"include/mhla/core/a.hpp": "", "include/mhla/core/b.hpp": "",
       "tests/core/a_test.cpp": '#include "mhla/core/b.hpp"\n',
       "tests/core/c_test.cpp": '#include "mhla/core/b.hpp"\n',
       "tests/core/d_test.cpp": '#include "mhla/layer/b.hpp"\n',
       "tests/core/case.hpp": "", "tests/support/case.hpp": ""},
      "tests/core/a_test.cpp does not include mhla/core/a.hpp",
      "tests/core/d_test.cpp includes no header of mhla/core",
      "tests/core/case.hpp: expected a test of include/mhla/core; tests/support has the rest")
def tests_mirror_include(files):
    """A failing test leads to its header: tests/F/x_test.cpp includes mhla/F/x.hpp, or headers of
    mhla/F where none has its name. Tests of tests/cuda itself test the emulator."""
    for path in files.matching("tests/*/*"):
        folder, _, name = path.removeprefix("tests/").rpartition("/")
        of_folder = [header for header in headers(files, f"{folder}/")
                     if posixpath.dirname(header) == folder]
        if folder == "cuda" or not of_folder:
            continue
        mirrored = [header for header in of_folder if path == f"tests/{header[:-4]}_test.cpp"]
        included = re.findall(r'^#include "mhla/(.*)"', files.text(path), re.M)
        if not name.endswith("_test.cpp"):
            yield f"{path}: expected a test of include/mhla/{folder}; tests/support has the rest"
        elif mirrored and mirrored[0] not in included:
            yield f"{path} does not include mhla/{mirrored[0]}"
        elif not {"mhla.hpp", *of_folder} & set(included):
            yield f"{path} includes no header of mhla/{folder}"


@rule({"tests/README.md": "[a](core/a_test.cpp) [b](contract/b.hpp) [c](package)",
       "include/mhla/core/a.hpp": "", "tests/core/a_test.cpp": "", "tests/contract/b.hpp": "",
       "tests/contract/c.hpp": "", "tests/package/more/d.cpp": "", "tests/odd/e.cpp": ""},
      "tests/README.md does not link to contract/c.hpp",
      "tests/README.md does not link into odd")
def page_of_tests_is_complete(files):
    """A promise leads to its test: tests/README.md links to each contract, or to its header, and into
    each folder that mirrors none of include/mhla, or into a folder around that."""
    linked = re.findall(r"\]\(([^)]*)\)", files.text("tests/README.md"))
    tests = [path.removeprefix("tests/") for path in files.matching("tests/*/*")]
    for path in tests:
        if path.startswith("contract/") and not {path, path.replace(".cpp", ".hpp")} & {*linked}:
            yield f"tests/README.md does not link to {path}"
    for folder in {posixpath.dirname(path) for path in tests}:
        around = [folder, *map(str, pathlib.PurePath(folder).parents)][:-1]
        if not files.exists(f"include/mhla/{folder}") and not any(
                f"{link}/".startswith(f"{outer}/") for link in linked for outer in around):
            yield f"tests/README.md does not link into {folder}"


@rule({"include/mhla/cuda/kernel/a.cuh": "static constexpr Arch kArchitecture = 1;\n",
       "include/mhla/cuda/kernel/b.cuh": "static constexpr Arch kArchitecture = 1;\n",
       "include/mhla/cuda/launch/c.cuh": "#include <cuda_runtime.h>\n",
       "include/mhla/cuda/tile/d.cuh": "",
       "tests/cuda/build/kernels.cmake": "add_kernels(b Kernel)",
       "tests/cuda/kernel_test.cpp": '#include "mhla/cuda/kernel/a.cuh"\n'
                                     '#include "mhla/cuda/kernel/b.cuh"\n'},
      "include/mhla/cuda/kernel/a.cuh has no add_kernels in tests/cuda/build/kernels.cmake",
      "include/mhla/cuda/tile/d.cuh is included by no test of tests/cuda")
def every_cuda_header_has_a_test(files):
    """A test of tests/cuda includes it. All kernels test the headers of ptx. Headers that call the
    CUDA runtime do not run without a GPU: nvcc compiles them. A kernel also has a unit of nvcc."""
    units = files.text("tests/cuda/build/kernels.cmake")
    tests = "\n".join(files.text(test) for test in files.matching("tests/cuda/*_test.cpp"))
    tested = set(re.findall(r'^#include "mhla/(cuda/.*)"', tests, re.M))
    folders = (f"cuda/{folder}/" for folder in ("tile", "kernel", "launch", "attention"))
    for header in headers(files, *folders):
        folder, noun = header.removesuffix(".cuh").rsplit("/", 1)
        text = files.text(f"include/mhla/{header}")
        if folder == "cuda/kernel" and noun in PARTS_OF_ONE_KERNEL:
            continue
        if "#include <cuda_runtime.h>" not in text and header not in tested:
            yield f"include/mhla/{header} is included by no test of tests/cuda"
        if (folder == "cuda/kernel" and " kArchitecture =" in text
                and f"add_kernels({noun} " not in units):
            yield f"include/mhla/{header} has no add_kernels in tests/cuda/build/kernels.cmake"


@rule({"include/mhla/cuda/tile/a.cuh": "basm();\nasm volatile(\"\");\nint i = threadIdx.x;\n",
       "include/mhla/cuda/launch/b.cuh": "  asm (\"\");\nint i = threadIdx.x;\n",
       "include/mhla/cuda/ptx/c.cuh": "asm volatile(\"\");\n"},
      'include/mhla/cuda/launch/b.cuh:1: asm (""); only cuda/ptx may hold assembly',
      'include/mhla/cuda/tile/a.cuh:2: asm volatile(""); only cuda/ptx may hold assembly',
      "include/mhla/cuda/tile/a.cuh:3: int i = threadIdx.x; only cuda/ptx may call CUDA")
def assembly_in_ptx_alone(files):
    """Kernels reach the device through the functions of ptx alone: an emulation can stand in."""
    for header, place, line in header_lines(files, "cuda/"):
        if header.startswith("cuda/ptx/"):
            continue
        if re.search(r"\b(asm|__asm__)\s*(volatile)?\s*\(", line):
            yield f"{place}: {line} only cuda/ptx may hold assembly"
        if header.startswith(("cuda/tile/", "cuda/kernel/")) and re.search(
                r"threadIdx|blockIdx|blockDim|gridDim|__[a-z]+(_[a-z]+)*__|__(sync|shfl|ld|st)"
                r"|atomic[A-Z]|<cuda", line):
            yield f"{place}: {line} only cuda/ptx may call CUDA"


@rule({"include/mhla/core/a.hpp": "#pragma once\n\n/// \\file\n/// What it is.\n",
       "include/mhla/core/b.hpp": "/// \\file\n/// What it is.\n#pragma once\n"},
      "include/mhla/core/b.hpp does not open with #pragma once and a /// \\file comment")
def header_opening(files):
    for header in headers(files):
        if not re.match(r"#pragma once\n+/// \\file\n/// ", files.text(f"include/mhla/{header}")):
            yield f"include/mhla/{header} does not open with #pragma once and a /// \\file comment"


@rule({"include/mhla/core/a.hpp": "\n" * 301, "tests/a.cpp": "\n" * 400,
       "tests/b.py": "\n" * 401,
       "README.md": "\n" * 121},
      "README.md has 121 lines, more than 120",
      "include/mhla/core/a.hpp has 301 lines, more than 300",
      "tests/b.py has 401 lines, more than 400")
def file_length(files):
    kinds = "hpp cuh cpp cu cmake txt sh py md".split()
    patterns = [f"{folder}/*.{kind}" for folder in tree.FOLDERS for kind in kinds]
    for path in files.matching("CMakeLists.txt", "README.md", *patterns):
        limit = 120 if path == "README.md" else 400
        if path.startswith("include/") and path.endswith(".hpp"):
            limit = 300
        lines = files.text(path).count("\n")
        if lines > limit:
            yield f"{path} has {lines} lines, more than {limit}"


@rule({"include/mhla/core/arch.hpp": "#ifdef __AVX2__\n",
       "include/mhla/cuda/arch.cuh": "#ifdef __NVCC__\n",
       "include/mhla/kernel/a.hpp": "\n#ifdef __AVX2__\n#ifdef __CUDACC__\n"},
      "include/mhla/kernel/a.hpp:2: reads __AVX2__; only core/arch.hpp may",
      "include/mhla/kernel/a.hpp:3: reads __CUDACC__; only cuda/arch.cuh may")
def target_macros(files):
    for header, place, line in header_lines(files):
        processor = re.search(r"(__AMX|__AVX|__SSE|__FMA__|__ARM|EIGEN_VECTORIZE)[A-Z0-9_]*", line)
        if processor and header != "core/arch.hpp":
            yield f"{place}: reads {processor[0]}; only core/arch.hpp may"
        device = re.search(r"__CUDA[A-Z0-9_]*|__NVCC__", line)
        if device and header not in ("core/arch.hpp", "cuda/arch.cuh"):
            yield f"{place}: reads {device[0]}; only cuda/arch.cuh may"


tree.main()
