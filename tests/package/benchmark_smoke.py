"""Runs the smallest benchmarks briefly, and checks the results: benchmark_smoke.py PROGRAM WORK

Every form is there, names are well formed, each case has its counters, and the context names the
compiler and the machine.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

CASES = ["/(deit_s|growth_256|mixing_16)/", "/(double|bfloat16)/dit_s_512/threads:1",
         "^(Causal|Streaming|Linear|EigenProgram|Backward|BackwardKept|LinearBackward|Distance.*)"
         "/cpu/float/nlp_340m.*/threads:1",
         "^Layer.*/vision_deit_s/threads:1", "/language_340m_token/threads:1", "^Peak"]
OVER_PLAIN = """Tangent PerHead PerHeadBackward Gate GateBackward Distance DistanceBackward
    BlockCausal BlockCausalBackward BlockStreaming""".split()  # times over those of the plain form
FORMS = OVER_PLAIN + """Bidirectional Causal Streaming Softmax Linear EigenProgram Peak Backward
    BackwardKept LinearBackward SoftmaxBackward DenseMixing BandMixing SparseMixing DecayMixing
    NoMixing Layer LayerBackward LayerBackwardKept""".split()
NAME = "([A-Za-z]+)/cpu/(float|double|bfloat16)/[a-z0-9_]+/threads:[12]"
COMMIT = "0123456789ab-dirty"


def breaches(results):
    context, cases = results["context"], results["benchmarks"]
    for key in "compiler flags class cpu_model instruction_set commit".split():
        if not context.get(key):
            yield f"the context has no {key}"
    if context["commit"] != COMMIT:
        yield f"the commit is {context['commit']}, expected {COMMIT}"
    march = re.findall(r"-march=(\S+)", context["flags"])
    if march and context["class"] != march[-1]:
        yield f"the class is {context['class']}, expected {march[-1]}"
    for case in cases:
        name = re.fullmatch(NAME, case["name"])
        if not name:
            yield f"the name is {case['name']}, expected {NAME}"
            continue
        counters = {"flops", "of_peak"}
        if name[1] != "Peak":
            counters |= {"bytes", "tokens"}
        if re.match("Streaming/cpu/float/nlp_340m(_late)?/", name[0]):
            counters.add("of_l2_read")
        if "Backward" in name[1] or name[1] in OVER_PLAIN:
            counters.add("of_forward")
        for counter in sorted(counters):
            if not case.get(counter, 0) > 0:
                yield f"{name[0]} has {counter} {case.get(counter)}, expected more than 0"
    for form in set(FORMS) - {case["name"].split("/")[0] for case in cases}:
        yield f"no case of {form}"


def main():
    program, work = sys.argv[1:]
    os.makedirs(work, exist_ok=True)
    output = pathlib.Path(work, "benchmarks.json")
    subprocess.run([program, f"--benchmark_filter={'|'.join(CASES)}", "--benchmark_min_time=0.001",
                    f"--benchmark_out={output}", "--benchmark_out_format=json"],
                   env=os.environ | {"MHLA_COMMIT": COMMIT}, check=True)
    found = list(breaches(json.loads(output.read_text())))
    if found:
        sys.exit("\n  ".join([f"{output}:", *found]))


main()
