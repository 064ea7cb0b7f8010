#include "mhla/distributed/ordered_sum.hpp"

#include "contract/ordered_sum.hpp"
#include "support/thread_ranks.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Threads, OrderedSumContract, ThreadRanks);

}  // namespace mhla::test
