"""Rules of what the pages say: pages.py RULE lists the breaches of one.

The pages are the README.md of the repository, of its folders and those of .github.
"""

import concurrent.futures
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import tempfile

import tree
from tree import rule

PICTURE_LIMIT = 60000  # bytes


def pages(files):
    return files.matching("README.md", ".github/*.md", *(f"{f}/*.md" for f in tree.FOLDERS))


def blocks(text):
    """The language and the text of each block between fences."""
    return re.findall(r"^```(\w*)\n(.*?)\n```$", text, re.M | re.S)


def prose(text):
    """The text of a page without code, which keeps its lines."""
    text = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def run_compiler(compiler, eigen, *arguments):
    """Compiles. Precompiled headers of g++ lose the pragma that stops this one warning."""
    subprocess.run([compiler, "-std=c++20", "-Wno-ignored-attributes", "-I",
                    tree.ROOT / "include", "-isystem", eigen, *arguments], check=True)


def precompile(compiler, eigen, work):
    """A header that is compiled once for all programs that include <mhla/mhla.hpp>."""
    header = pathlib.Path(work, "precompiled.hpp")
    header.write_text("#include <mhla/mhla.hpp>\n")
    run_compiler(compiler, eigen, "-x", "c++-header", header, "-o", f"{header}.gch")
    return header


def run_program(page, program, compiler, eigen, work, has_json, precompiled):
    """The output of a program of a page, or None where something that it needs is missing."""
    if "#include <mhla/io/" in program and has_json != "1":
        print(f"left out: a program of {page}, which needs nlohmann_json")
        return None
    if "#include <mhla/distributed/mpi" in program:
        compiler = shutil.which("mpicxx")
        if not compiler:
            print(f"left out: a program of {page}, which needs mpicxx")
            return None
    print(f"a program of {page}", flush=True)
    first = ["-include", precompiled.result()] if precompiled else []
    with tempfile.TemporaryDirectory(dir=work) as folder:
        source = pathlib.Path(folder, "program.cpp")
        source.write_text(program + "\n")
        run_compiler(compiler, eigen, *first, source, "-o", source.with_suffix(""))
        return subprocess.run([source.with_suffix("")], cwd=folder, stdout=subprocess.PIPE,
                              text=True, check=True).stdout


@rule({"README.md": "```cpp\n#include <cstdio>\nint main() { std::puts(\"1\"); }\n```\n"
                    "```text\n2\n```\n"},
      "README.md says that a program prints\n2\n\nand it prints\n1\n")
def programs_run(files, compiler, eigen, work, has_json):
    """Every program compiles and runs, and prints the ```text block that follows it, if one does.
    Lines of C++ that include nothing are put into a program."""
    os.makedirs(work, exist_ok=True)
    programs = []  # each: its page, its text, whether it includes all, what should be printed
    for page in pages(files):
        is_after_program = False
        for language, block in blocks(files.text(page)):
            if language == "text" and is_after_program:
                programs[-1][3] = f"{block}\n"
            if language == "cpp" and "#include" not in block:
                block = f"#include <mhla/mhla.hpp>\nint main() {{\n{block}\n}}"
            is_after_program = language == "cpp" and "int main" in block
            if is_after_program:
                programs.append([page, block, "#include <mhla/mhla.hpp>" in block, None])
    programs.sort(key=lambda program: program[2])  # others need not wait for the header
    precompiled = None
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as executor:
        if any(includes_all for _, _, includes_all, _ in programs):
            precompiled = executor.submit(precompile, compiler, eigen, work)
        runs = [executor.submit(run_program, page, program, compiler, eigen, work, has_json,
                                precompiled if includes_all else None)
                for page, program, includes_all, _ in programs]
    for (page, _, _, text), run in zip(programs, runs):
        printed = run.result()
        if None not in (printed, text) and printed != text:
            yield f"{page} says that a program prints\n{text}\nand it prints\n{printed}"


def links(files, page):
    """The links of a page: line, link, the path that it leads to, the section."""
    for number, line in enumerate(prose(files.text(page)).split("\n"), 1):
        for link in re.findall(r"\]\(([^)]*)\)", line):
            if not re.match("https?://", link):
                path, _, section = link.partition("#")
                target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
                yield number, link, target if path else page, section


def sections(files, page):
    """The names by which links find the sections of a page."""
    titles = re.findall(r"^#+ (.*)", prose(files.text(page)), re.M)
    return [re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles]


@rule({"README.md": "# A b\n[a](tests/a.md) [b](tests/README.md#there) ![c](c.png)\n[d](#a-b)\n"
                    "`[no](link)`\n```\n[no](link)\n```\n[e](https://e) [f](tests)",
       "tests/README.md": "# Here\n[f](../README.md#f)", "c.png": "c" * 60001,
       "examples/g.cpp": ""},
      "README.md:2: links to tests/a.md: no tests/a.md",
      "README.md:2: links to tests/README.md#there: tests/README.md has no such section",
      "README.md:2: shows c.png, of 60001 bytes, more than 60000",
      "tests/README.md:2: links to ../README.md#f: README.md has no such section",
      "no page links to examples/g.cpp")
def links_lead(files):
    """Links and pictures are there, with the sections they name; pictures are small; a link leads
    to each page and to each example."""
    reached = {"README.md"}
    for page in pages(files):
        for number, link, target, section in links(files, page):
            reached.add(target)
            if not files.exists(target):
                yield f"{page}:{number}: links to {link}: no {target}"
            elif re.search(r"\.(jpg|png|svg)$", target):
                if (size := files.bytes(target)) > PICTURE_LIMIT:
                    yield (f"{page}:{number}: shows {target}, of {size} bytes, more than "
                           f"{PICTURE_LIMIT}")
            elif section and section not in sections(files, target):
                yield f"{page}:{number}: links to {link}: {target} has no such section"
    examples = [path for path in files.matching("examples/*.cpp") if path.count("/") == 1]
    for path in pages(files) + examples:
        if path not in reached:
            yield f"no page links to {path}"


@rule({"README.md": "See `tests/a.hpp`,\nmhla/b.hpp and include/mhla.",
       "include/mhla/c.hpp": ""},
      "README.md:1: names tests/a.hpp, which is not there",
      "README.md:2: names include/mhla/b.hpp, which is not there")
def paths_exist(files):
    """Paths from the top of the repository, and names of headers, are there."""
    name = r"[A-Za-z0-9_./-]*[A-Za-z0-9_]"
    for page in pages(files):
        for number, line in files.lines(page):
            paths = re.findall(rf"(?<![A-Za-z0-9_./<-])((?:{'|'.join(tree.FOLDERS)})/{name})", line)
            paths += [f"include/{header}" for header in
                      re.findall(rf"(?<![A-Za-z0-9_./-])(mhla/{name}\.(?:hpp|cuh))", line)]
            for path in paths:
                if not files.exists(path):
                    yield f"{page}:{number}: names {path}, which is not there"


def flat(text):
    """The text without ends of lines and indentation."""
    return re.sub(r"\s+", " ", text).replace("( ", "(")


def missing_lines(files, page, lines, paths):
    """The breaches of lines of a page that are in none of the files."""
    text = flat("\n".join(files.text(path) for path in paths))
    if not lines:
        yield f"{page} has no lines of {', '.join(paths)}"
    for line in lines:
        if line not in text:
            yield f"{page} has a line that is not in {', '.join(paths)}: {line}"


@rule({"README.md": "```cpp\nint main() { return 1; }\n```\n"
                    "`mhla::A<float> a(b);` `mhla::C<float> c`",
       "examples/readme.cpp": "// The program.\n\nint main() {}\n",
       "include/mhla/layer/README.md": "mhla::A<float>\n  a(b);",
       "include/mhla/cuda/README.md": "```cuda\ncall(  // runs\n  d);\nother();\n```",
       "tests/package/consumer/cuda.cu": "  call(\n      d);", "tests/package/consumer/nccl.cu": "",
       "tests/package/consumer/training.cu": ""},
      "the program of README.md is not that of examples/readme.cpp",
      "README.md has a line that is not in include/mhla/layer/README.md: mhla::C<float> c",
      "include/mhla/cuda/README.md has a line that is not in tests/package/consumer/cuda.cu, "
      "tests/package/consumer/nccl.cu, tests/package/consumer/training.cu: other();")
def code_is_tested(files):
    """The first program is examples/readme.cpp; the layers of README.md are in a program of their
    own page, and the lines of CUDA in one of tests/package/consumer."""
    readme = files.text("README.md")
    program = next(block for _, block in blocks(readme) if "int main" in block)
    if f"\n\n{program}\n" not in files.text("examples/readme.cpp"):
        yield "the program of README.md is not that of examples/readme.cpp"
    layers = re.findall(r"`(mhla::[A-Za-z]+<float> [^`\n]+)", readme)
    yield from missing_lines(files, "README.md", layers, ["include/mhla/layer/README.md"])
    page = "include/mhla/cuda/README.md"
    code = "\n".join(block for language, block in blocks(files.text(page)) if language == "cuda")
    lines = [flat(line).strip() for line in re.sub(r" *//.*", "", code).split("\n") if line.strip()]
    yield from missing_lines(files, page, lines, [
        f"tests/package/consumer/{name}.cu" for name in ("cuda", "nccl", "training")])


tree.main()
