// A user's program with ranks that are GPUs: has all of them linked, and without arguments calls
// none.

#include <cstddef>
#include <mhla/distributed/nccl.hpp>
#include <vector>

namespace {

void run(ncclComm_t comm) {
  mhla::distributed::NcclRank gpu(comm, nullptr);
  std::vector<std::byte> records(static_cast<std::size_t>(gpu.size()));
  const std::vector<mhla::Index> first(records.size() + 1);
  gpu.agree({records.data(), 1}, records);
  gpu.all_gather({}, first).wait();
  gpu.exchange({}, {}, {}).done();
  gpu.synchronize();
}

}  // namespace

int main(int count, char**) {
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (count > 1) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    run(comm);
  }
}
