"""The files of this repository, and how rules on them are run.

A rule is a function of files that yields its breaches. `@rule(PLANTED, EXPECTED...)` adds a rule
that finds exactly the breaches EXPECTED in the files PLANTED, which are texts by their paths.
`main` runs the rule on these files too, so each run proves that the rule can fail.
"""

import fnmatch
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("include", "tests", "benchmarks", "examples")
RULES = {}  # name: (function, planted files, the breaches in them)


class Files(dict):
    """Files by their paths below the repository: a text each, or where it is read from."""

    def exists(self, path):
        """True for the path of a file and for that of a folder."""
        return path in self or any(file.startswith(path.rstrip("/") + "/") for file in self)

    def matching(self, *patterns):
        """The paths that match one of the patterns, whose * matches / too."""
        return [path for path in self if any(fnmatch.fnmatchcase(path, p) for p in patterns)]

    def text(self, path):
        return self[path] if isinstance(self[path], str) else self[path].read_text()

    def bytes(self, path):
        return len(self[path]) if isinstance(self[path], str) else self[path].stat().st_size

    def lines(self, path):
        """The lines of a file with their numbers."""
        return enumerate(self.text(path).splitlines(), 1)


def repository():
    """The files that git tracks, and new ones of FOLDERS. Without git, all but build folders."""
    def listed(*arguments):
        output = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", *arguments],
                                capture_output=True, text=True, check=False).stdout
        return [path for path in output.split("\0") if (ROOT / path).is_file()]

    paths = listed() + listed("--others", "--exclude-standard", *FOLDERS)
    if not paths:
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        paths = [str(path) for path in found if not path.parts[0].startswith("build")]
    return Files({path: ROOT / path for path in paths})


def rule(planted, *expected):
    """Adds a rule, whose name in CTest is that of its function in CamelCase."""
    def add(function):
        RULES[function.__name__.title().replace("_", "")] = (function, planted, expected)
        return function
    return add


def main():
    """Runs the rule that the first argument names, with the arguments after it."""
    name, *arguments = sys.argv[1:]
    check, planted, expected = RULES[name]
    planted, breaches = (sorted(check(files, *arguments))
                         for files in (Files(planted), repository()))
    if planted != sorted(expected):
        sys.exit("\n  ".join([f"{name}, of planted breaches: expected", *sorted(expected)])
                 + "\n  ".join(["\ngot", *planted]))
    if breaches:
        sys.exit("\n  ".join([f"{name}:", *breaches]))
