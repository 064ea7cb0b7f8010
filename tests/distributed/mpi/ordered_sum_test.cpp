#include "contract/ordered_sum.hpp"

#include "support/mpi_ranks.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, OrderedSumContract, MpiRanks);

}  // namespace mhla::test
