"""Checks the code that nvcc makes of kernels against the plans in their names (entry.cuh).

check_code.py NVCC WORK unit UNIT ARCH [DxE]      the kernels of a unit, for ARCH 80 or 90a
check_code.py NVCC WORK control UNIT ARCH         the accepted versions of the cases of refused.cuh
check_code.py NVCC WORK case UNIT ARCH CASE       a case, which must be refused for the given reason
check_code.py NVCC WORK newer ARCH DxE            the kernels of sm_80 on a newer architecture
check_code.py NVCC WORK launched DxE              no kernel of the launch layer is without a check
check_code.py NVCC WORK two-units                 units for two architectures make one program
check_code.py NVCC WORK prepared EIGEN OPTION...  prepared calls ask CUDA once

Units leave their code in WORK, where `newer` and `launched` read it. instructions.txt has the
number of instructions of each kernel. With MHLA_WRITE_INSTRUCTIONS in the environment the numbers
are written there instead. Prints a line for each kernel and for each breach. The exit status is 1
after a breach.
"""

import fcntl
import math
import os
import re
import struct
import subprocess
import sys
from collections import Counter, defaultdict, namedtuple
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
TABLE = FOLDER / "instructions.txt"
FLAGS = ("-std=c++20", "-I", ROOT / "include", "-I", ROOT / "tests")
COUNT_TOLERANCE = 0.01  # a count may differ by this share of the stored one
ROW_KERNELS = "Mixing|DecayMixing|DecayProducts|SummaryProducts"
NEWER_STACK = 16  # bytes of spilled registers that a newer architecture may have

# Members of Needs (entry.cuh), each with its instructions in PTX, and with the name and the opcode
# of its machine code. Source of the opcodes: the output of nvdisasm -hex for sm_80 and sm_90a.
NEEDS = {
    "kMma": ("mma.sync.aligned", "HMMA", 0x23c),
    "kWgmma": ("wgmma.mma_async.sync.aligned wgmma.fence.sync.aligned "
               "wgmma.commit_group.sync.aligned wgmma.wait_group.sync.aligned", "HGMMA", 0xdf0),
    "kMatrices": ("ldmatrix.sync.aligned", "LDSM", 0x83b),
    "kCopies": ("cp.async.cg.shared.global cp.async.commit_group cp.async.wait_group", "LDGSTS",
                0xfae),
    "kTensorLoads": ("cp.async.bulk.tensor.5d.shared::cluster.global mbarrier.init "
                     "mbarrier.arrive.expect_tx mbarrier.try_wait fence.mbarrier_init", "UTMALDG",
                     0x5b4),
    "kWaits": ("griddepcontrol.wait", "ACQBULK", 0x82e),
    "kLaunches": ("griddepcontrol.launch_dependents", "PREEXIT", 0x82d),
    "kTensorStores": ("cp.async.bulk.tensor.5d.global.shared::cta cp.async.bulk.commit_group "
                      "cp.async.bulk.wait_group.read", "UTMASTG", 0x3b5),
    "kHints": ("createpolicy.fractional.L2::evict_first .L2::cache_hint", None, None),
}
FENCE, LOCAL_LOAD, LOCAL_STORE = 0x3c6, 0x983, 0x387  # FENCE.VIEW.ASYNC, LDL, STL

# Bytes of shared memory: the limit of a block, and of all blocks of a multiprocessor, each of which
# takes 1024 bytes more.
SHARED_MEMORY = {80: (166912, 167936), 90: (232448, 233472), 100: (232448, 233472)}
SHARED_MEMORY |= {arch: (101376, 102400) for arch in (86, 89, 120)}

Plan = namedtuple("Plan", "threads blocks registers shared_bytes needs fences")


def run(*command):
    """Runs a command. Returns its output, or ends with it if the command fails."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout + "refused")
    return done.stdout


# ---- what nvcc makes ----------------------------------------------------------------------------

def readable(names):
    """Names in the source, without the parameters, by their mangled names."""
    names = list(names)
    lines = run("c++filt", *names).splitlines() if names else []
    return {name: re.sub(r"mhla::cuda::(build::)?|^void ", "", line).partition(">(")[0] + ">"
            for name, line in zip(names, lines)}


def entries_of(ptx):
    """The text of each entry function of a PTX file, by name."""
    return dict(text.split("(", 1) for text in ptx.split(".entry ")[1:])


def instructions_of(cubin):
    """The opcodes of each function of a cubin, counted: an ELF file with the code of F in .text.F.

    The low 12 bits of each instruction of 16 bytes are its opcode.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("cubin: not a 64-bit ELF file")
    (first,), (size, count, names) = (struct.unpack_from("<Q", cubin, 0x28),
                                      struct.unpack_from("<3H", cubin, 0x3a))
    sections = [struct.unpack_from("<IIQQQQ", cubin, first + i * size) for i in range(count)]
    functions = {}
    for name, _, _, _, begin, length in sections:
        at = sections[names][4] + name
        text = cubin[at:cubin.index(b"\0", at)].decode()
        if text.startswith(".text."):
            code = cubin[begin:begin + length // 16 * 16]
            functions[text[6:]] = Counter(low & 0xfff for low, _ in struct.iter_unpack("<QQ", code))
    return functions


def report_of(text):
    """The report of ptxas -v: what each entry function uses, and breaches."""
    entries, breaches, entry, function = {}, [], {}, None
    for line in text.splitlines():
        # Names may contain any of these words.
        words = re.sub(r"'[^']*'|Function properties for .*", "", line)
        if re.search(r"C7[0-9]{3}|warning|error|fatal", words, re.I):
            breaches.append(f"ptxas says: {line}")
        if found := re.search(r"Compiling entry function '([^']+)'", line):
            entry = entries.setdefault(found[1], {"shared": 0})
        elif found := re.search(r"Function properties for ([^ ]+)", line):
            function = entries.get(found[1])
            if function is None:
                breaches.append(f"{readable([found[1]])[found[1]]} is not inlined")
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                                r"(\d+) bytes spill loads", line):
            if function is not None:
                function |= {"stack": int(found[1]), "spilled": int(found[2]) + int(found[3])}
        elif found := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            entry |= {"registers": int(found[1]), "shared": int(shared[1]) if shared else 0}
    return entries, breaches


# ---- what it should be --------------------------------------------------------------------------

def register_limit(threads, blocks):
    """As in kernel/occupancy.cuh."""
    return min(65536 // (threads * blocks) // 8 * 8, 255)


def breaches_of_resources(arch, plan, used):
    shared, (of_block, of_all) = plan.shared_bytes + used["shared"], SHARED_MEMORY[arch]
    if used["spilled"]:
        yield "spills registers"
    if used["stack"]:
        yield f"has a stack frame of {used['stack']} bytes"
    if plan.registers > register_limit(plan.threads, plan.blocks):
        yield "plans with more registers than its blocks may have"
    if used["registers"] > plan.registers:
        yield f"has {used['registers']} registers, planned {plan.registers}"
    if shared > of_block:
        yield f"has {shared} bytes of shared memory, a block may have {of_block}"
    if plan.blocks * (shared + 1024) > of_all:
        yield f"leaves no shared memory for {plan.blocks} blocks"
    if plan.threads % 32 or plan.threads * plan.blocks > 2048:
        yield "has more threads than a multiprocessor"


def breaches_of_newer(plan, used):
    """On a newer architecture than the plan is for, whose compiler may spill a few registers."""
    if used["stack"] > NEWER_STACK:
        yield f"has a stack frame of {used['stack']} bytes"
    if used["registers"] > register_limit(plan.threads, 1):
        yield "has more registers than a block"
    if plan.threads > 1024:
        yield "has more threads than a block"


def breaches_of_code(arch, plan, ptx, code):
    """Compares the instructions of a kernel's PTX and machine code with those that it needs."""
    bits = dict(re.findall(r"(k\w+) = (\d+),", (FOLDER / "entry.cuh").read_text()))
    for need, (instructions, name, opcode) in NEEDS.items():
        exists = arch >= 90 or need not in ("kWaits", "kLaunches")
        counts = [(what, ptx.count(what)) for what in instructions.split()]
        for what, found in counts + ([(name, code[opcode])] if name else []):
            if not (exists and plan.needs & int(bits[need])):
                if found:
                    yield f"has {found} {what}, planned none"
            elif not found:
                yield f"has no {what}"
    if ptx.count("fence.proxy.async") < plan.fences:
        yield (f"has {ptx.count('fence.proxy.async')} fence.proxy.async in its PTX, "
               f"planned at least {plan.fences}")
    if ptx.count("wgmma.fence") < ptx.count("wgmma.commit_group"):
        yield "begins fewer groups of wgmma than it ends"
    if ".local" in ptx or "__local_depot" in ptx:
        yield "has local memory in its PTX"
    if plan.fences and not code[FENCE]:
        yield "has no FENCE in its code"
    if code[LOCAL_LOAD] + code[LOCAL_STORE]:
        yield "has local memory in its code"


def breaches_of_kernels(arch, report, ptx, cubin):
    """Prints a line for each kernel. With an ARCH that is neither 80 nor 90, only the needs of a
    thread block are checked, of the kernels that calls take there (launch/plan.cuh)."""
    used, breaches = report_of(report)
    bodies, codes = entries_of(ptx), instructions_of(cubin)
    yield from breaches
    if not bodies or len(bodies) != len(codes):
        yield f"the PTX has {len(bodies)} kernels, the cubin {len(codes)}"
    for name, kernel in readable(bodies).items():
        plan = Plan(*map(int, re.search(r"entry<.*" + 6 * r", (\d+)" + ">$", kernel).groups()))
        one, code = used.get(name, {}), codes.get(name, Counter())
        if "registers" not in one or "stack" not in one:
            yield f"{kernel} is not in the report of ptxas"
            continue
        found = []
        if arch in (80, 90):
            found += breaches_of_resources(arch, plan, one)
            found += breaches_of_code(arch, plan, bodies[name], code)
        elif plan.shared_bytes + one["shared"] <= SHARED_MEMORY[arch][0]:
            found += breaches_of_newer(plan, one)
        yield from (f"{kernel} {breach}" for breach in found)
        print(f"{kernel}: {one['registers']} registers of {plan.registers}, {plan.shared_bytes} "
              f"bytes, {code[0x23c]} HMMA, {code[0xdf0]} HGMMA")


# ---- counts of instructions ---------------------------------------------------------------------

def read_table(text):
    """The CUDA release whose nvcc made the code, and counts by unit and by template of kernels."""
    release, head, *rows = text.splitlines()
    table = defaultdict(dict)
    for kernel, *counts in map(str.split, rows):
        for unit, count in zip(head.split()[1:], counts):
            if count != "-":
                table[unit][kernel] = int(count)
    return release, table


def table_text(release, table):
    kernels = sorted({kernel for counts in table.values() for kernel in counts})
    lines = [release, f"{'kernel':24}" + "".join(f"{unit:>15}" for unit in sorted(table))]
    for kernel in kernels:
        counts = (table[unit].get(kernel, "-") for unit in sorted(table))
        lines.append(f"{kernel:24}" + "".join(f"{count:>15}" for count in counts))
    return "\n".join(lines) + "\n"


def differences(stored, found):
    """Kernels of a unit whose count is not the stored one, and kernels without one or the other."""
    for kernel, count in found.items():
        if kernel not in stored:
            yield f"{kernel} has no count in instructions.txt"
        elif abs(count - stored[kernel]) > COUNT_TOLERANCE * stored[kernel]:
            yield f"{kernel} has {count} instructions, instructions.txt has {stored[kernel]}"
    for kernel in stored.keys() - found.keys():
        yield f"{kernel} is in instructions.txt, not in the unit"


def breaches_of_counts(work, unit, ptx, cubin):
    """Compares or writes the counts of a unit. They hold for one CUDA release alone."""
    codes = instructions_of(cubin)
    counts = Counter()
    for name, kernel in readable(codes).items():
        counts[re.match(r"entry<(\w+)", kernel)[1]] += codes[name].total()
    release = re.search(r"release .*", ptx)[0]
    with open(work / "instructions.lock", "w", encoding="utf-8") as lock:  # units may write, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        stored_release, table = read_table(TABLE.read_text())
        if "MHLA_WRITE_INSTRUCTIONS" in os.environ:
            table[unit] = counts
            TABLE.write_text(table_text(release, table))
        elif stored_release != release:
            print(f"instructions not compared: the table is of {stored_release}, this is {release}")
        else:
            yield from differences(table[unit], counts)


# ---- commands -----------------------------------------------------------------------------------

def breaches_of_unit(nvcc, work, unit, arch, widths="", definitions=(), name=""):
    """Compiles a unit to PTX and to a cubin, and yields the breaches of its kernels."""
    code = work / f"{Path(unit).stem}{name}_{widths}_sm{arch}"
    target = ["-gencode", f"arch=compute_{arch},code=sm_{arch}", "-Werror", "all-warnings"]
    number = int(arch.rstrip("a"))
    definitions = [f"-DMHLA_ARCH={number}", *definitions]
    if widths:
        of_keys, of_values = widths.split("x")
        definitions += [f"-DMHLA_WIDTH={of_keys}", f"-DMHLA_VALUE_WIDTH={of_values}"]
    ptx, cubin = code.with_suffix(".ptx"), code.with_suffix(".cubin")
    run(nvcc, *FLAGS, *target, *definitions, "-ptx", unit, "-o", ptx)
    report = run(nvcc, *target, "-Xptxas", "-v", "-cubin", ptx, "-o", cubin)
    code.with_suffix(".txt").write_text(report)
    yield from breaches_of_kernels(number, report, ptx.read_text(), cubin.read_bytes())
    if widths:
        unit = f"{widths}_sm{arch}"
        yield from breaches_of_counts(work, unit, ptx.read_text(), cubin.read_bytes())


def check_newer(nvcc, work, arch, widths):
    """Devices of sm_86 and sm_89 run the code of sm_80. For others a driver compiles its PTX."""
    ptx = work / f"kernels_{widths}_sm80.ptx"
    code = ptx if arch.startswith("8") else work / f"kernels_{widths}_sm80_on_{arch}"
    cubin = code.with_suffix(".cubin")
    if code == ptx:
        report = code.with_suffix(".txt").read_text()
    else:
        report = run(nvcc, f"-arch=sm_{arch}", "-Werror", "all-warnings", "-Xptxas", "-v", "-cubin",
                     ptx, "-o", cubin)
    return breaches_of_kernels(int(arch), report, ptx.read_text(), cubin.read_bytes())


def stand_in(kernel):
    """The mangled name without what a checked kernel may have otherwise. That is the 16-bit type, as
    a unit has one. Kernels that see summaries as rows of numbers have other widths of the same
    kind: kernels.cmake."""
    if re.search(rf"\d({ROW_KERNELS})Sm80I", kernel):
        numbers = math.prod(map(int, re.findall(r"Li(\d+)E", kernel)))  # of a summary
        kind = "power of two" if numbers.bit_count() == 1 else numbers % 128
        kernel = re.sub(r"Li\d+E", "", kernel) + f" {kind}"
    return re.sub("8bfloat16|4half", "T", kernel)


def check_launched(nvcc, work, widths, *pairs):
    """Every kernel that launched.cu lists must be an entry function of a unit, by mangled names.
    The units are those of all pairs of widths."""
    of_keys, of_values = widths.split("x")
    listed = work / f"launched_{widths}.ptx"
    run(nvcc, *FLAGS, "-gencode", "arch=compute_90a,code=sm_90a", "-DMHLA_ARCH=90",
        f"-DMHLA_WIDTH={of_keys}", f"-DMHLA_VALUE_WIDTH={of_values}", "-ptx",
        FOLDER / "launched.cu", "-o", listed)
    reports = "".join((work / f"kernels_{pair}_sm{arch}.txt").read_text()
                      for pair in pairs for arch in ("80", "90a"))
    checked = {stand_in(kernel) for kernel in re.findall(
        r"entry function '\w*?5entryI(\w*E)" + 6 * r"Li\d+E" + "EEvNT_", reports)}
    launched = re.findall(r"\.entry \w*?8launchedI(\w*E)EEvv", listed.read_text())
    print(f"{len(launched)} kernels, {len(checked)} entry functions of units")
    if not launched:
        yield "no kernel is launched"
    for kernel in launched:
        if stand_in(kernel) not in checked:
            yield f"no unit has {kernel}"


def check_case(nvcc, work, unit, arch, case):
    """A case of refused.cuh must be refused for the reason in the unit."""
    reason = re.search(f"^// expect {case}: (.*)", Path(unit).read_text(), re.M)[1]
    definitions = [f"-DMHLA_CASE={case}", f"-DMHLA_PLANT_{case}"]
    try:
        said = "\n".join(breaches_of_unit(nvcc, work, unit, arch, "", definitions, case))
    except SystemExit as refused:
        said = str(refused)
    print(said)
    if not re.search(reason, said):
        yield f"{case} is not refused with '{reason}'"


def check_control(nvcc, work, unit, arch):
    return breaches_of_unit(nvcc, work, unit, arch, "", ["-DMHLA_CONTROL"])


def check_two_units(nvcc, work):
    """Units that are compiled for other architectures launch their own kernels: two_units/main.cpp.
    The CUDA runtime is a stand-in: runtime.cpp.
    """
    for unit, arch in ((1, "80"), (2, "80"), (2, "90a")):
        run(nvcc, *FLAGS, "-gencode", f"arch=compute_{arch},code=sm_{arch}", f"-DUNIT={unit}", "-c",
            FOLDER / "two_units/unit.cu", "-o", work / f"unit_{unit}_{arch}.o")
    for arch in ("80", "90a"):
        program = work / f"two_units_{arch}"
        run(nvcc, *FLAGS, f"-DDIFFERENT={int(arch == '90a')}", "-cudart", "none",
            FOLDER / "two_units/main.cpp", FOLDER / "runtime.cpp", work / "unit_1_80.o",
            work / f"unit_2_{arch}.o", "-o", program)
        run(program)
    return ()


def check_prepared(nvcc, work, eigen, *options):
    """Runs prepared.cu with the forms of the package for PyTorch, beside the same stand-in."""
    package, program = ROOT / "examples/torch/csrc/cuda", work / "prepared"
    times = "MHLA_TIME_HOST" in os.environ
    run(nvcc, *options, *FLAGS, "-Xcompiler", "-O2" if times else "-Og", "-I", package,
        "-isystem", eigen, "-DMHLA_TYPE=Eigen::bfloat16", "-DMHLA_WIDTH=64",
        "-DMHLA_VALUE_WIDTH=64", "-gencode", "arch=compute_80,code=compute_80", "-cudart", "none",
        FOLDER / "prepared.cu", FOLDER / "package.cu", FOLDER / "runtime.cpp",
        package / "forms.cu", "-o", program)
    print(run(program, "--times") if times else run(program))
    return ()


def main():
    nvcc, work, command, *arguments = sys.argv[1:]
    commands = {"unit": breaches_of_unit, "control": check_control, "case": check_case,
                "newer": check_newer, "launched": check_launched, "two-units": check_two_units,
                "prepared": check_prepared}
    Path(work).mkdir(parents=True, exist_ok=True)
    breaches = list(commands[command](nvcc, Path(work), *arguments))
    for breach in breaches:
        print(f"breach: {breach}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
