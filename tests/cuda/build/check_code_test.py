"""Counts of instructions: the table is read as it is written, and each difference is named."""

import unittest

from check_code import differences, read_table, table_text


class Counts(unittest.TestCase):
    def test_table_is_read_as_it_is_written(self):
        table = {"64x64_sm80": {"FusedSm80": 4000, "MixingSm80": 3000},
                 "64x64_sm90a": {"FusedSm90": 5000, "MixingSm80": 3100}}
        self.assertEqual(read_table(table_text("release 13.0", table)), ("release 13.0", table))

    def test_one_percent_more_or_less_passes(self):
        said = "FusedSm80 has {} instructions, instructions.txt has 4000"
        for count, expected in ((4040, []), (3960, []), (4048, [said]), (2000, [said])):
            found = list(differences({"FusedSm80": 4000}, {"FusedSm80": count}))
            self.assertEqual(found, [text.format(count) for text in expected])

    def test_every_kernel_has_a_count(self):
        self.assertEqual(list(differences({"FusedSm80": 1}, {"MixingSm80": 1})),
                         ["MixingSm80 has no count in instructions.txt",
                          "FusedSm80 is in instructions.txt, not in the unit"])


if __name__ == "__main__":
    unittest.main()
