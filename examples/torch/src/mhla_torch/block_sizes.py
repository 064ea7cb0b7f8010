"""Blocks of the queries and of the keys in a call: how many there are, and checks of their sizes.

Functions take the arguments of a call by name.
"""

import math

from mhla_torch import checks


def block_counts(named):
    """Numbers of blocks of the queries and of the keys in a call of bidirectional or causal."""
    def count(tokens, width):
        return (tokens + width - 1) // width

    counts, axis = [], 2 if named.get("layout") == "bhnd" else 1
    for argument, most, side in (("q", "max_queries", ""), ("k", "max_keys", "key_")):
        tokens = named.get(most) or named[argument].shape[axis]
        if "grid" not in named:
            counts.append(count(tokens, named["block"]))
            continue
        side = side if named.get("key_block") else ""
        prefix, grid, block = (named[side + part] for part in ("prefix", "grid", "block"))
        sizes = zip(grid, block) if grid else [(tokens - prefix, block[0])]
        counts.append(math.prod(count(n, w) for n, w in sizes) + (prefix > 0))
    return counts


def expect_sizes(name, named):
    """Checks arguments of the blocks of queries and of keys in a call of bidirectional."""
    axis, keys = 2 if named.get("layout") == "bhnd" else 1, "key_" if named["key_block"] else ""
    if not keys and (named["key_grid"] or named["key_prefix"]):
        checks.fail(name, "key_grid or key_prefix", "is given without key_block",
                    "all that the keys have")
    for side in dict.fromkeys(("", keys)):
        sizes = (named[side + part] for part in ("grid", "block", "prefix"))
        checks.expect_blocks(name, side, *sizes)
    if named.get("query_offsets") is not None:
        return  # offsets tell how long a sequence is
    for side, argument in (("", "q"), (keys, "k")):
        prefix, shape = named[side + "prefix"], named[argument].shape
        if prefix and len(shape) == 4 and prefix > shape[axis]:
            checks.fail(name, side + "prefix", f"is {prefix}",
                        f"at most {shape[axis]}, the tokens of {argument}")


def expect_steps(name, step, key_step, named):
    """Checks that steps of the queries and of the keys of block_causal are equally many."""
    for argument, blocks in (("step", step), ("key_step", key_step)):
        if blocks is not None and blocks < 1:
            checks.fail(name, argument, f"is {blocks}", "at least 1")
    if not named.get("key_block"):
        if key_step is not None:
            checks.fail(name, "key_step", "is given without key_block", "both")
        return
    named = {"grid": (), "prefix": 0, "key_grid": (), "key_prefix": 0} | named
    expect_sizes(name, named)
    if named.get("query_offsets") is not None and not (named["grid"] and named["key_grid"]):
        checks.fail(name, "query_offsets", "is given with key_block",
                    "a grid and a key_grid, which tell how many steps a sequence has")
    rows, columns = (count - (named[prefix] > 0) for count, prefix in
                     zip(block_counts(named), ("prefix", "key_prefix")))
    if rows * (key_step or step) != columns * step:
        checks.fail(name, "key_block", f"makes {columns} blocks in steps of {key_step or step}",
                    f"as many steps as {rows} query blocks in steps of {step}")
