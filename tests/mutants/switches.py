"""Headers in which a variable of the environment chooses between many faults.

One program then tries all faults of its headers. A line such as

    for (Index i = 0; i < n; ++i) sum += x[i];

becomes a line of the same number, here with fault 7 in an expression:

    for (Index i = (::switches::on(7) ? (1) : (0)); i < n; ++i) sum += x[i];

A fault that changes a whole statement becomes an if statement. Faults of declarations, types and
constants cannot be switched: the compiler refuses them, or they change nothing.
"""

import os
import re
import threading
from dataclasses import dataclass

VARIABLE = "MHLA_FAULT"
DEFINITION = f"""\
#include <cstdlib>
#include <type_traits>
namespace switches {{
inline const int chosen = std::getenv("{VARIABLE}") ? std::atoi(std::getenv("{VARIABLE}")) : 0;
constexpr bool on(int fault) {{ return !std::is_constant_evaluated() && chosen == fault; }}
}}  // namespace switches
"""

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'|//.*|[A-Za-z_]\w*|\.?\d[\w.\']*|::|->|'
                   r"\+\+|--|<<=|>>=|&&|\|\||[-+*/%&|^=!<>]=|<<|\S")
OPEN, CLOSE = "([{", ")]}"
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
BOUNDS = {",", ";", "?", ":", "return"}  # of expressions
KEYWORDS = {"return", "throw", "if", "for", "while", "else", "const", "auto", ";"}
STATEMENT = re.compile(r"(?:return|if|for|while|break|continue|throw)\b|\+\+|--|\*|\(|"
                       r"[\w:]+(?:<[^;=]*?>)?(?:\.|->|\(|\[|;|\+\+|--| *[-+*/%&|^]?= )")


@dataclass(frozen=True)
class Choice:
    """A part of a line, and what a fault has in its place."""
    number: int
    begin: int
    end: int
    new: str
    statement: bool


def tokens_of(text):
    return [(match[0], *match.span()) for match in TOKEN.finditer(text)]


def balanced(words):
    open_ones = []
    for word in words:
        if word in tuple(OPEN):
            open_ones.append(CLOSE[OPEN.index(word)])
        elif word in tuple(CLOSE) and (not open_ones or open_ones.pop() != word):
            return False
    return not open_ones


def edge(words, place, step, bounds):
    """The place of a bound or of a bracket around a place, -1 or the end without one."""
    inner, outer = (CLOSE, OPEN) if step < 0 else (OPEN, CLOSE)
    depth = 0
    while 0 <= place < len(words):
        word = words[place]
        if depth == 0 and (word in tuple(outer) or word in bounds):
            return place
        depth += (word in tuple(inner)) - (word in tuple(outer))
        place += step
    return place


def differing(old, new):
    """The places of the first word that differs and of the first of the common end."""
    first, last = 0, len(old)
    shift = len(new) - last
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    while last > first and last + shift > first and old[last - 1] == new[last + shift - 1]:
        last -= 1
    return first, last


def is_expression(words, before, after):
    """Whether words between two others are an expression that may stand in parentheses."""
    begins = before in ("(", "[", "{", "||", "&&", ",", "?", ":", "return") or before in ASSIGNMENTS
    ends = after in (")", "]", "}", "||", "&&", ",", "?", ":", ";")
    alone = "?" not in words or not {before, after} & {"?", ":", "||", "&&"}
    whole = words.count("?") == words.count(":")
    tight = "||" not in words or "&&" not in (before, after)
    return bool(begins and ends and alone and whole and tight and words and words[0] != "{" and
                balanced(words) and edge(words, 0, +1, {","}) == len(words) and
                not KEYWORDS & set(words))


def choice_in_expression(number, old, new, before):
    """A choice between the least expressions around the words that differ, or None."""
    old_tokens, new_tokens = tokens_of(old), tokens_of(new)
    old_words, new_words = [t[0] for t in old_tokens], [t[0] for t in new_tokens]
    goes_on = old_words[-1:] and old_words[-1] in ("&&", "||")  # in the next line
    first, last = differing(old_words, new_words)
    shift = len(new_words) - len(old_words)
    for bounds in (BOUNDS | ASSIGNMENTS, BOUNDS - {"?", ":"} | ASSIGNMENTS) * 4:
        first, last = edge(old_words, first - 1, -1, bounds) + 1, edge(old_words, last, +1, bounds)
        if last == len(old_words) and goes_on:
            last -= 1
        if last >= len(old_words):
            return None
        left, right = old_words[first - 1] if first else before, old_words[last]
        if first == 0 and right == ";":
            return None  # a statement
        parts = old_words[first:last], new_words[first:last + shift]
        if all(is_expression(part, left, right) for part in parts):
            text = new[new_tokens[first][1]:new_tokens[last + shift - 1][2]]
            return Choice(number, old_tokens[first][1], old_tokens[last - 1][2], text, False)
        if bounds & {"?"}:
            continue  # with the whole conditional
        first, last = edge(old_words, first - 1, -1, ()), edge(old_words, last, +1, ())
        if first < 0 or last >= len(old_words):
            return None
        last += 1  # with the brackets around it
    return None


def without_comment(line):
    return re.sub(r"\s*//.*", "", line) if '"' not in line else line


def is_statement(text, before):
    return (before in (";", "{", "}", ")") and text.endswith(";") and
            balanced([token[0] for token in tokens_of(text)]) and STATEMENT.match(text))


def choice_of(number, line, fault, before):
    """How a fault is switched in its line, or None."""
    changed = without_comment(line.replace(fault.old, fault.new))
    line = without_comment(line)
    text, new = line.strip(), changed.strip()
    if text.startswith("#") or "\\" in line:
        return None
    if choice := choice_in_expression(number, line, changed, before):
        return choice
    if is_statement(text, before) and (not new or is_statement(new, before)):
        begin = line.index(text)
        return Choice(number, begin, begin + len(text), new, True)
    return None


def switched(line, choices):
    """A line with choices, from right to left, and the numbers of those that have a place."""
    numbers, groups = [], []
    for choice in sorted(choices, key=lambda c: c.begin - c.end):  # the widest first
        for group in groups:
            if group[0].begin <= choice.begin and choice.end <= group[0].end:
                group.append(choice)
                break
            if choice.begin < group[0].end and group[0].begin < choice.end:
                break  # overlaps
        else:
            groups.append([choice])
    for group in sorted(groups, key=lambda g: -g[0].begin):
        outer = group[0]
        text = line[outer.begin:outer.end]
        for choice in group:
            numbers.append(choice.number)
            new = (line[outer.begin:choice.begin] + choice.new + line[choice.end:outer.end])
            test = f"::switches::on({choice.number})"
            text = (f"{{ if ({test}) {{ {new} }} else {{ {text} }} }}" if outer.statement else
                    f"({test} ? ({new}) : ({text}))")
        line = line[:outer.begin] + text + line[outer.end:]
    return line, numbers


class Switches:
    """A folder of headers that have the switches of faults."""

    def __init__(self, root, faults, read, folder):
        self.folder, self.lock = folder, threading.Lock()
        self.numbers = {fault: number for number, fault in enumerate(faults, 1)}
        self.texts, self.choices = {}, {}  # by file; by number, with the file and the line
        for fault, number in self.numbers.items():
            lines = read(root / fault.file).splitlines()
            place = next(i for i, line in enumerate(lines) if fault.old in line)
            code = (without_comment(line).strip() for line in reversed(lines[:place]))
            words = tokens_of(next(filter(None, code), ""))
            before = words[-1][0] if words else ";"
            if choice := choice_of(number, lines[place], fault, before):
                self.choices[number] = fault.file, place, choice
        self.originals = {fault.file: read(root / fault.file) for fault in faults}
        for file in self.originals:
            self.write(file)

    def write(self, file):
        """Writes a header. Compilers may read it meanwhile."""
        lines, places = self.originals[file].splitlines(), {}
        for of, place, choice in list(self.choices.values()):
            if of == file:
                places.setdefault(place, []).append(choice)
        for place, choices in places.items():
            lines[place], numbers = switched(without_comment(lines[place]), choices)
            for choice in choices:
                if choice.number not in numbers:
                    del self.choices[choice.number]
        self.texts[file] = "\n".join(lines) + "\n"
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"part.{path.name}")
        part.write_text(self.texts[file], encoding="utf-8")
        os.replace(part, path)

    def number(self, fault):
        """The number of a fault, 0 if it has no switch."""
        number = self.numbers[fault]
        return number if number in self.choices else 0

    def drop(self, log):
        """Takes back the switches that a compiler names, first those of errors. Returns whether
        there were any."""
        with self.lock:
            for pattern in (r"include/mhla/(\S+?):(\d+):\d+: error:", r"include/mhla/(\S+?):(\d+):",
                            r"include/mhla/(\S+?):()"):
                said = set(re.findall(pattern, log))
                named = [number for number, (file, place, _) in self.choices.items()
                         if {(file, str(place + 1)), (file, "")} & said]
                files = {self.choices.pop(number)[0] for number in named}
                for file in files:
                    self.write(file)
                if named:
                    return True
        return False
