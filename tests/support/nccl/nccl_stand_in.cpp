// The NCCL of stand_in.hpp. A group is a step of a stream. It posts the messages that the rank
// sends, and ends when all sent messages have been taken and all expected messages have arrived.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "support/nccl/stand_in.hpp"

namespace {

enum class Kind { kSend, kReceive, kAllGather, kBroadcast };

struct Call {
  Kind kind;
  const std::byte* from;
  std::byte* to;
  std::size_t bytes;
  int peer;  // or root
  bool over = false;
};

struct Message {
  const std::byte* from;
  std::size_t bytes;
  bool taken = false;
};

struct Collective {
  std::map<int, Call> calls;  // by rank, of ranks that have called
  int copied = 0;             // ranks that have received their data
};

/// Calls of a thread that form one group.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Call> calls{};
};
thread_local Group group;

struct Member;

/// All ranks of a communicator.
struct Clique {
  explicit Clique(int ranks) : size(ranks), met(static_cast<std::size_t>(ranks)) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Member*> members;
  std::vector<bool> met;  // by rank: has ended a group
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> sent;  // from, to
  std::deque<Collective> collectives;
};

struct Member {
  Member(std::shared_ptr<Clique> ranks, int number, bool waits)
      : clique(std::move(ranks)), rank(number), blocking(waits) {}
  const std::shared_ptr<Clique> clique;
  const int rank;
  const bool blocking;
  // Guarded by the clique's mutex.
  ncclResult_t error = ncclSuccess;
  bool in_progress = false;  // its last call is in progress
  bool running = false;      // a group runs in its stream
  bool aborted = false;
  std::size_t collectives = 0;        // number of collectives it took part in
  std::optional<Group> on_its_way{};  // group waiting to enter its stream
  bool asked = false;                 // state was queried since then
};

/// Reports a call in which real ranks would hang or read wrong data.
void break_down(Clique& clique, const std::string& what) {
  stand_in::add_breach(what);
  for (Member* member : clique.members) member->error = ncclInvalidUsage;
}

bool receive(Member& member, const Call& call) {
  auto& queue = member.clique->sent[{call.peer, member.rank}];
  if (queue.empty() || queue.front()->from == nullptr) return false;
  const std::shared_ptr<Message> message = queue.front();
  queue.pop_front();
  if (message->bytes != call.bytes) {
    break_down(*member.clique, "a message of " + std::to_string(message->bytes) +
                                   " bytes, expected " + std::to_string(call.bytes));
    return false;
  }
  stand_in::copy(call.to, message->from, message->bytes);
  message->taken = true;
  return true;
}

/// Copies the data that a rank receives by a collective, once all ranks have called it.
bool collect(Member& member, Collective& all, const Call& call) {
  if (all.calls.size() < static_cast<std::size_t>(member.clique->size)) return false;
  for (const auto& [rank, other] : all.calls) {
    if (other.kind != call.kind || other.bytes != call.bytes || other.peer != call.peer) {
      break_down(*member.clique, "collectives that differ");
      return false;
    }
    if (call.kind == Kind::kAllGather) {
      stand_in::copy(call.to + static_cast<std::size_t>(rank) * call.bytes, other.from, call.bytes);
    } else if (rank == call.peer) {
      stand_in::copy(call.to, other.from, call.bytes);
    }
  }
  ++all.copied;
  return true;
}

/// Runs a group in its stream.
void run(Member& member, std::vector<Call> calls) {
  Clique& clique = *member.clique;
  std::unique_lock lock(clique.mutex);
  if (member.aborted) return;
  member.running = true;
  std::vector<std::shared_ptr<Message>> messages;
  std::vector<std::pair<std::size_t, Call>> collectives;  // number of each in the clique
  std::vector<Call> receives;
  for (const Call& call : calls) {
    if (call.kind == Kind::kSend) {
      messages.push_back(std::make_shared<Message>(Message{call.from, call.bytes}));
      clique.sent[{member.rank, call.peer}].push_back(messages.back());
    } else if (call.kind == Kind::kReceive) {
      receives.push_back(call);
    } else {
      const std::size_t number = member.collectives++;
      if (clique.collectives.size() <= number) clique.collectives.resize(number + 1);
      clique.collectives[number].calls[member.rank] = call;
      collectives.emplace_back(number, call);
    }
  }
  clique.changed.notify_all();
  const auto advance = [&](Call& call, const auto& step) {
    if (!call.over && (call.over = step(call))) clique.changed.notify_all();
    return call.over;
  };
  const auto ended = [&] {
    bool all = true;
    for (Call& call : receives) {
      all &= advance(call, [&](const Call& x) { return receive(member, x); });
    }
    for (auto& [number, call] : collectives) {
      Collective& others = clique.collectives[number];
      all &= advance(call, [&](const Call& x) { return collect(member, others, x); });
      all &= others.copied == clique.size;
    }
    for (const auto& message : messages) all &= message->taken;
    return all || member.aborted;
  };
  while (!ended()) clique.changed.wait(lock);
  member.running = false;
  clique.changed.notify_all();
  if (!member.aborted) return;
  for (const auto& message : messages) message->from = nullptr;  // no rank takes it now
  for (const auto& [number, call] : collectives) {
    clique.collectives[number].calls.erase(member.rank);
  }
}

/// Puts a group into its stream, once its ranks are connected.
void connect(const std::shared_ptr<Member>& member) {
  if (!member->on_its_way) return;
  for (const Call& call : member->on_its_way->calls) {
    const bool all = call.kind == Kind::kAllGather || call.kind == Kind::kBroadcast;
    for (int r = 0; r < member->clique->size; ++r) {
      if ((all || r == call.peer) && !member->blocking &&
          !member->clique->met[static_cast<std::size_t>(r)])
        return;
    }
  }
  const Group ended = *std::exchange(member->on_its_way, std::nullopt);
  stand_in::launch(ended.stream, [member, calls = ended.calls] { run(*member, calls); });
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Member> member;
};

namespace {

ncclResult_t add(Call call, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  const char* breach = nullptr;
  if (group.depth == 0) breach = "a call outside of a group";
  if (group.comm != nullptr && group.comm != comm) breach = "a group of two communicators";
  if (comm->member->on_its_way) breach = "a call before the one before has ended";
  if (type != ncclUint8) breach = "not bytes";
  if (!stand_in::in_device(call.from == nullptr ? call.to : call.from, call.bytes)) {
    breach = "not in device memory";
  }
  if (breach != nullptr) {
    stand_in::add_breach(breach);
    return ncclInvalidUsage;
  }
  group.comm = comm;
  group.stream = stream;
  group.calls.push_back(call);
  return ncclSuccess;
}

/// Answer to a call that may be asynchronous.
ncclResult_t go_on(Member& member) {
  member.asked = false;
  member.in_progress = !member.blocking;
  return member.blocking ? ncclSuccess : ncclInProgress;
}

void leave(ncclComm_t comm, bool abort) {
  if (group.depth > 0) stand_in::add_breach("a group is open");
  {
    Member& member = *comm->member;
    std::unique_lock lock(member.clique->mutex);
    if (!abort && member.on_its_way) stand_in::add_breach("destroyed before a call has ended");
    member.aborted = true;
    std::erase(member.clique->members, &member);
    member.clique->changed.notify_all();
    member.clique->changed.wait(lock, [&] { return !member.running; });
  }
  delete comm;
  stand_in::count(-1);
}

}  // namespace

namespace stand_in {

std::vector<ncclComm_t> communicators(int ranks, bool blocking) {
  const auto clique = std::make_shared<Clique>(ranks);
  std::vector<ncclComm_t> all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(new ncclComm{std::make_shared<Member>(clique, r, blocking)});
    clique->members.push_back(all.back()->member.get());
    all.back()->member->in_progress = !blocking;
    count(1);
  }
  return all;
}

void fail(ncclComm_t comm, ncclResult_t error) {
  const std::lock_guard lock(comm->member->clique->mutex);
  comm->member->error = error;
}

}  // namespace stand_in

extern "C" {

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return *rank = comm->member->rank, ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return *count = comm->member->clique->size, ncclSuccess;
}

/// An asynchronous call ends at the second query at the earliest.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  Member& member = *comm->member;
  const std::lock_guard lock(member.clique->mutex);
  if (member.in_progress && std::exchange(member.asked, true)) {
    connect(comm->member);
    member.in_progress = member.on_its_way.has_value();
  }
  *state = member.error == ncclSuccess && member.in_progress ? ncclInProgress : member.error;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  Member& member = *comm->member;
  const std::lock_guard lock(member.clique->mutex);
  return go_on(member);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return leave(comm, false), ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return leave(comm, true), ncclSuccess; }

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "invalid usage";
}

ncclResult_t ncclGroupStart() { return ++group.depth, ncclSuccess; }

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) {
    stand_in::add_breach("ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  if (ended.comm == nullptr) return ncclSuccess;
  const std::shared_ptr<Member> member = ended.comm->member;
  const std::lock_guard lock(member->clique->mutex);
  member->clique->met[static_cast<std::size_t>(member->rank)] = true;
  member->on_its_way = ended;
  if (member->blocking) connect(member);
  return go_on(*member);
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const auto* const begin = static_cast<const std::byte*>(from);
  return add({Kind::kSend, begin, nullptr, count, peer}, type, comm, stream);
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const auto begin = static_cast<std::byte*>(to);
  return add({Kind::kReceive, nullptr, begin, count, peer}, type, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kAllGather, static_cast<const std::byte*>(from), static_cast<std::byte*>(to),
              count, -1},
             type, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kBroadcast, static_cast<const std::byte*>(from), static_cast<std::byte*>(to),
              count, root},
             type, comm, stream);
}
}
