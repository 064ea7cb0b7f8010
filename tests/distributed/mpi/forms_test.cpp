#include "contract/ranks.hpp"
#include "support/mpi_ranks.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, RanksContract, MpiRanks);

}  // namespace mhla::test
