"""Causal linear attention in ONNX Runtime: onnxruntime_peers.py RESULTS.json PEERS.json

The operator LinearAttention (com.microsoft, from 1.25.1 on) with the rule "linear" is a running sum
S_t = S_t-1 + k_t v_t^T that q_t reads: linear attention without feature map, normaliser or mixing.
Its input is the features of the same data. It runs with as many threads, and is checked against the
definition before it is timed. Ratios are its time over the times in RESULTS.json of this library's
causal linear form, which also maps features and divides, and ("after mixing") of causal MHLA,
which also mixes blocks. Above 1 this library is faster.
"""

import json
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from peers import reference, report
from peers.workload import Shape
from support import results

SHAPES = ("nlp_340m", "long_causal")


def session_of(shape, threads):
    """A session of a model that is one operator.

    Throws if this version of ONNX Runtime does not have the operator.
    """
    widths = {"q": shape.width, "k": shape.width, "v": shape.values, "out": shape.values}
    packed = {name: (shape.batch, shape.tokens, shape.heads * w) for name, w in widths.items()}
    packed["state"] = (shape.batch, shape.heads, shape.width, shape.values)
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
              for name, sizes in packed.items()}
    node = helper.make_node("LinearAttention", ["q", "k", "v"], ["out", "state"],
                            domain="com.microsoft", q_num_heads=shape.heads,
                            kv_num_heads=shape.heads, update_rule="linear", scale=1.0)
    graph = helper.make_graph([node], "linear_attention", [values[name] for name in "qkv"],
                              [values["out"], values["state"]])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def row(q, k, v, t):
    """Row t of the definition in float64, and its bound for a chain of t products and sums."""
    weights = k[:t + 1] @ q[t]
    bound = reference.rounding_bound(t + 1 + len(q[t]))
    return weights @ v[:t + 1], bound * (np.abs(k[:t + 1]) @ np.abs(q[t])) @ np.abs(v[:t + 1])


def compare(linear, mixed, rows):
    """Times the operator on the shape of two cases, and appends a row per case."""
    shape = Shape(linear.sizes)
    q, k, v = shape.inputs()
    inputs = [np.maximum(q, 0) + np.float32(1e-6), np.maximum(k, 0) + np.float32(1e-6), v]
    binding = (session := session_of(shape, linear.threads)).io_binding()
    for name, tensor in zip("qkv", inputs):
        binding.bind_cpu_input(name, tensor.reshape(shape.batch, shape.tokens, -1))
    for name in ("out", "state"):
        binding.bind_output(name)
    run = lambda: session.run_with_iobinding(binding)
    run()
    out = binding.copy_outputs_to_cpu()[0].reshape(v.shape)
    worst = reference.worst_of_samples(shape, inputs, out, row)
    if not report.report(linear, "LinearAttention", worst, run, rows):
        return False
    report.add_row(mixed, "... after mixing", rows[-1]["seconds"], rows)
    return True


def main():
    context, cases = results.load(sys.argv[1])
    found = {(case.form, case.shape, case.threads): case for case in cases
             if case.scalar == "float" and case.shape in SHAPES}
    pairs = [(case, found["Causal", *key[1:]]) for key, case in found.items()
             if case.form == "Linear" and ("Causal", *key[1:]) in found]
    if not pairs:
        print("no causal form ran on a shape of ONNX Runtime's: nothing to compare with",
              file=sys.stderr)
        return 0
    try:
        session_of(Shape(pairs[0][0].sizes), 1)
    except Exception as error:  # ONNX Runtime's own types
        print(f"ONNX Runtime {onnxruntime.__version__} does not run LinearAttention: "
              f"{str(error).splitlines()[0]}", file=sys.stderr)
        return 0
    print(f"ONNX Runtime {onnxruntime.__version__}, {context['cpu_model']}, float")
    print(f"{'shape':28} {'peer':23} {'its time':>13} {'mhla':>13} {'ratio':>8}")
    rows = []
    right = [compare(linear, mixed, rows) for linear, mixed in pairs]
    context = {**context, "onnxruntime": onnxruntime.__version__}
    results.save(sys.argv[2], json.dumps({"context": context, "peers": rows}, indent=1))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
