#include "contract/ranks.hpp"
#include "support/thread_ranks.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Threads, RanksContract, ThreadRanks);

}  // namespace mhla::test
