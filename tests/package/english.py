"""The rule on English: english.py PlainEnglish lists sentences that stop a reader.

Sentences are those of pages and comments. A pattern marks a place to look at, not a verdict, so a
share of them may stay.
"""

import pathlib
import re

import tree
from tree import rule

LIMIT = 0.015  # of all sentences
MOST_WORDS = 30
ARTICLE = r"\b(?:times|bytes|numbers|flops|ns|µs|us|ms|s|MB|steps|reads|one|share|task|coefficients)"
UNIT = (r"(?:token|row|head|block|step|call|column|pair|layer|form|class|file|line|seed|rank|image|"
        r"checkpoint|byte|item|slot|side)\b")
PATTERNS = {
    "begins with a word that hides its subject":
        re.compile(r"(What|Whose|Whether|How|Of|Or|As)\b(?!.*\?)"),
    '"per" is the word for a unit': re.compile(rf".*{ARTICLE} an? {UNIT}"),
    "has a word for which the field has another":
        re.compile(r".*\b(second cache|behind (it|them|the|each|what|others|a|an)\b|meets?\b|"
                   r"(is|are|be) told\b|hears? of|under ?way)", re.I),
    "begins with a pronoun without its noun":
        re.compile(r"(Those|That of|Others|The others|Neither|None|One) "
                   r"(that|of|whose|which|where|with|is|are|has|have)\b"),
    f"has more than {MOST_WORDS} words": re.compile(rf"(\S+\s+){{{MOST_WORDS}}}\S"),
}
COMMENT = re.compile(r"\s*(?:///?|#)(?!!)\s?(.*)$")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")


def page_lines(lines):
    """The lines of a page that are prose, None where a paragraph ends."""
    code = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        code ^= fence
        if code or fence or not line.strip() or re.match(r"[|#]|    ", line):
            yield None
        elif item := ITEM.match(line):
            yield None
            yield line[item.end():]
        else:
            yield line


def comment_lines(lines):
    """The lines of comments, None where a paragraph ends."""
    for line in lines:
        comment = COMMENT.match(line)
        text = comment[1] if comment else ""
        prose = text.strip() and not re.match(r"   |\\file|include", text)
        yield re.sub(r"^\\(param|throws|tparam|return)\s+(\S+\s+)?", "", text) if prose else None


def sentences(files, path):
    """The sentences of a page, or of the comments of another file."""
    lines = files.text(path).splitlines()
    prose = page_lines(lines) if path.endswith(".md") else comment_lines(lines)
    text = "\n".join("\n" if line is None else line.strip() for line in prose)
    for paragraph in re.split(r"\n\n+", text):
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`(\[])", paragraph.replace("\n", " ")):
            if sentence.strip():
                yield sentence.strip()


@rule({"README.md": "What it does is short. A token takes 3 ns a head.\n\n- One is more.\n",
       "tests/a.hpp": "/// A buffer.\n/// It lies behind the others.\nint a;  // Of code, nothing.\n",
       "tests/a.sh": "#!/bin/sh\n# " + "word " * 31 + "\n"},
      "5 of 6 sentences, more than 1.5 %",
      "README.md: begins with a word that hides its subject: What it does is short.",
      'README.md: "per" is the word for a unit: A token takes 3 ns a head.',
      "README.md: begins with a pronoun without its noun: One is more.",
      "tests/a.hpp: has a word for which the field has another: It lies behind the others.",
      "tests/a.sh: has more than 30 words: " + ("word " * 31).strip())
def plain_english(files):
    """At most a share of the sentences of pages and comments have a pattern that stops a reader."""
    count, places = 0, []
    kinds = {".hpp", ".cuh", ".cpp", ".cu", ".h", ".md", ".cmake", ".sh", ".py"}
    for path in files:
        if pathlib.PurePath(path).suffix not in kinds:
            continue
        for sentence in sentences(files, path):
            count += 1
            places += [f"{path}: {name}: {sentence}" for name, pattern in PATTERNS.items()
                       if pattern.match(sentence)]
    if len(places) > LIMIT * count:
        yield f"{len(places)} of {count} sentences, more than {LIMIT:.1%}".replace("%", " %")
        yield from places


tree.main()
