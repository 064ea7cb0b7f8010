"""Tests that the errors of mistakes.cpp are the sentences of its comments, in their order and no
others: mistakes.py COMPILER EIGEN
"""

import os
import re
import subprocess
import sys

import tree

SENTENCES = {
    "elements": "elements of one type: float, double, Eigen::half or Eigen::bfloat16",
    "tensors": "Eigen matrices with a token a row",
    "blocks": "after the tensors a call has the blocks",
    "mixing": "after the blocks a call has the mixing matrix",
    "options": "after the mixing matrix a call may have an Operator",
    "crossing": "CrossQuery reads later queries",
    "temporary": "a view of this temporary would dangle",
    "shape": "matrices and tensors have their shape: leave out {B, N, H, D}",
    "maps": "an Operator has the map of the queries, the map of the keys, then the normaliser",
    "bytes": "memory that a call is lent is of bytes",
    "offsets": "copy them into a std::vector<mhla::Index>",
}


def main():
    compiler, eigen = sys.argv[1:]
    program = tree.ROOT / "tests/package/mistakes.cpp"
    mistakes = re.findall("; +// (.*)", program.read_text())
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", tree.ROOT / "include", "-isystem",
               eigen, program] + ["-ferror-limit=0"] * ("clang" in compiler)
    output = subprocess.run(command, env=os.environ | {"LC_ALL": "C"}, capture_output=True,
                            text=True, check=False).stderr
    errors = re.findall(".*error: .*", output)
    if not mistakes or len(errors) != len(mistakes):
        sys.exit(f"{len(errors)} errors of {len(mistakes)} mistakes:\n{output}")
    for mistake, error in zip(mistakes, errors):
        if SENTENCES[mistake] not in error:
            sys.exit(f"the mistake '{mistake}': expected '{SENTENCES[mistake]}', got\n{error}")


main()
