"""Checks that the faults of mutants.txt fit the sources; mutation.py runs the tests with each."""

import mutation


def test_each_fault_can_be_planted():
    faults = mutation.read_table()
    assert len({fault["name"] for fault in faults}) == len(faults) > 0
    for fault in faults:
        mutation.planted(fault)
