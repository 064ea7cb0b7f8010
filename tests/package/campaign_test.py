"""The campaign knows its programs by name, counts cases, and rings an alarm near a bound."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import campaign  # noqa: E402

ROUND = """[ RUN      ] Causal/Forward/float.EqualsTheDefinition
seeds 1000 to 1999
causal: worst error 0.75 of the bound in 17 outputs
[       OK ] Causal/Forward/float.EqualsTheDefinition (1 ms)
[ RUN      ] Half/Tangent/causal_tangent.IsTheDirectionalDerivative
seeds 40 to 59
causal: worst error 0.9 of the bound in 17 outputs
[       OK ] Half/Tangent/causal_tangent.IsTheDirectionalDerivative (1 ms)
[ RUN      ] Failures.OfForms
12 cases
[       OK ] Failures.OfForms (1 ms)
"""


def expect(got, expected):
    if got != expected:
        sys.exit(f"expected {expected}, got {got}")


def main():
    campaign.run = lambda *_, **__: (0, ROUND)
    expect(campaign.step(Path("attention_test"), "*", 1),
           (1032, ["Causal/Forward/float.EqualsTheDefinition has 0.75 of its bound"], []))
    for name, program in (("fuzz/api_fuzz", "fuzz/api_fuzz"),
                          ("random/fit_test", "fit_test")):
        options = argparse.Namespace(names=[name], first=2, rounds=4, build="default")
        expect([*campaign.steps_left(options, {(name.split("/")[0], "default", program, "3")})],
               [(name.split("/")[0], "default", [(program, 2), (program, 4)])])


if __name__ == "__main__":
    main()
