#include "cuda/build/instruction_table.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace mhla::cuda::build;
using Texts = std::vector<std::string>;

TEST(InstructionTable, IsReadAsItIsWritten) {
  const InstructionTable table{"release 13.0, V13.0.88",
                               {{"64x64_sm80", {{"FusedSm80", 4000}, {"MixingSm80", 3000}}},
                                {"64x64_sm90a", {{"FusedSm90", 5000}, {"MixingSm80", 3100}}}}};
  std::stringstream text;
  write_instructions(table, text);
  const InstructionTable read = read_instructions(text);
  EXPECT_EQ(read.release, table.release);
  EXPECT_EQ(read.units, table.units);
}

TEST(InstructionTable, OnePercentMoreOrLessPasses) {
  const InstructionCounts stored{{"FusedSm80", 4000}};
  EXPECT_EQ(differences(stored, {{"FusedSm80", 4040}}), Texts{});
  EXPECT_EQ(differences(stored, {{"FusedSm80", 3960}}), Texts{});
  EXPECT_EQ(differences(stored, {{"FusedSm80", 4048}}),
            Texts{"FusedSm80 has 4048 instructions, instructions.txt has 4000"});
  EXPECT_EQ(differences(stored, {{"FusedSm80", 2000}}),
            Texts{"FusedSm80 has 2000 instructions, instructions.txt has 4000"});
}

TEST(InstructionTable, EveryKernelHasACount) {
  EXPECT_EQ(differences({{"FusedSm80", 1}}, {{"MixingSm80", 1}}),
            (Texts{"MixingSm80 has no count in instructions.txt",
                   "FusedSm80 is in instructions.txt, not in the unit"}));
}

}  // namespace
