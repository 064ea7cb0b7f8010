#pragma once

/// \file
/// Transfers of rows between processes of MPI.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <new>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/distributed/communicator.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {
namespace detail {

/// Largest number of bytes of a message. MPI counts bytes in an int, and does not report parts of a
/// message: the timeout is for this many bytes.
inline constexpr std::size_t kMpiMessageBytes = std::size_t{16} << 20;

/// A renewable time limit for an answer.
class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) { renew(); }
  void renew() { begin_ = Clock::now(); }
  bool passed() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count() > seconds_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds_;
  Clock::time_point begin_{};
};

/// State that the transfers of a rank share.
struct MpiLink {
  MPI_Comm comm = MPI_COMM_NULL;
  Index rank = 0;
  Index size = 1;
  double timeout = 0;     // seconds
  std::string failure{};  // the first; empty if there is none

  [[noreturn]] void fail(const std::string& why) {
    if (failure.empty()) failure = why;
    throw communication_error("mhla::distributed: " + failure);
  }
  void refuse_after_failure() {
    if (!failure.empty()) fail(failure);
  }
  /// Fails unless a function of MPI succeeded.
  void expect(int code, const std::string& call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail(call + ": " + text);
  }
};

/// The memory of one message, in pieces.
struct MpiPieces {
  std::vector<MPI_Aint> at{};
  std::vector<int> lengths{};  // bytes
  std::size_t bytes = 0;
};

struct MpiMessage {
  Index peer;
  std::size_t bytes;
  bool received;  // else sent
};

/// Messages in flight. They progress while a function of this class, or another of MPI, runs.
class MpiTransfer {
 public:
  explicit MpiTransfer(MpiLink& link) : link_(&link) {}
  MpiTransfer(MpiTransfer&&) = default;
  MpiTransfer& operator=(MpiTransfer&& other) noexcept {
    std::swap(link_, other.link_);
    requests_.swap(other.requests_);
    messages_.swap(other.messages_);
    return *this;
  }
  ~MpiTransfer();

  bool done();
  void wait();

  /// Begins messages of these rows, at least one per peer that they name. Both ranks of a pair name
  /// the same rows in the same order, so both cut them in the same places. Messages of a pair match
  /// in the order in which they begin.
  void begin(std::span<const SharedRows> arrays, std::span<const PeerRows> rows, bool received);

 private:
  void begin(const MpiPieces& pieces, Index peer, bool received);
  void finish(std::size_t i, int code, const MPI_Status& status);
  std::string late() const;

  MpiLink* link_;
  std::vector<MPI_Request> requests_;  // of messages that have not ended
  std::vector<MpiMessage> messages_;   // in their order
};
static_assert(Transfer<MpiTransfer>);

// ------------------------------------------------------------------------------------------------

inline void MpiTransfer::begin(std::span<const SharedRows> arrays, std::span<const PeerRows> rows,
                               bool received) {
  // By distance, so that not all ranks begin with rank 0.
  std::vector<PeerRows> sorted(rows.begin(), rows.end());
  const auto distance = [&](const PeerRows& r) {
    return (r.peer - link_->rank + link_->size) % link_->size;
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const PeerRows& a, const PeerRows& b) { return distance(a) < distance(b); });
  for (auto r = sorted.begin(); r != sorted.end();) {
    const Index peer = r->peer;
    MpiPieces pieces;
    bool begun = false;
    const auto add = [&](std::byte* at, std::size_t left) {
      while (left > 0) {
        const std::size_t length = std::min(left, kMpiMessageBytes - pieces.bytes);
        MPI_Aint address = 0;
        link_->expect(MPI_Get_address(at, &address), "MPI_Get_address");
        pieces.at.push_back(address);
        pieces.lengths.push_back(static_cast<int>(length));
        pieces.bytes += length;
        at += length;
        left -= length;
        if (pieces.bytes == kMpiMessageBytes) {
          begin(std::exchange(pieces, {}), peer, received);
          begun = true;
        }
      }
    };
    for (; r != sorted.end() && r->peer == peer; ++r) {
      for (const SharedRows& array : arrays) {
        if (array.padding == 0) {
          add(array.row(r->begin), static_cast<std::size_t>(r->end - r->begin) * array.row_bytes);
          continue;
        }
        for (Index row = r->begin; row < r->end; ++row) add(array.row(row), array.row_bytes);
      }
    }
    if (pieces.bytes > 0 || !begun) begin(pieces, peer, received);
  }
}

inline void MpiTransfer::begin(const MpiPieces& pieces, Index peer, bool received) {
  // Memory comes first: a message in flight must not be lost.
  const auto grow = [](auto& list) {
    if (list.size() == list.capacity()) list.reserve(2 * list.size() + 8);
  };
  grow(requests_);
  grow(messages_);
  MPI_Datatype type = MPI_DATATYPE_NULL;
  const int count = static_cast<int>(pieces.at.size());
  link_->expect(
      MPI_Type_create_hindexed(count, pieces.lengths.data(), pieces.at.data(), MPI_BYTE, &type),
      "MPI_Type_create_hindexed");
  link_->expect(MPI_Type_commit(&type), "MPI_Type_commit");
  const int to = static_cast<int>(peer);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = received ? MPI_Irecv(MPI_BOTTOM, 1, type, to, 0, link_->comm, &request)
                            : MPI_Isend(MPI_BOTTOM, 1, type, to, 0, link_->comm, &request);
  MPI_Type_free(&type);  // once the message has ended
  link_->expect(code, received ? "MPI_Irecv" : "MPI_Isend");
  requests_.push_back(request);
  messages_.push_back({peer, pieces.bytes, received});
}

inline bool MpiTransfer::done() {
  while (!requests_.empty()) {
    link_->refuse_after_failure();
    int i = MPI_UNDEFINED;
    int ended = 0;
    MPI_Status status;
    const int code =
        MPI_Testany(static_cast<int>(requests_.size()), requests_.data(), &i, &ended, &status);
    if (i == MPI_UNDEFINED) {
      link_->expect(code, "MPI_Testany");
      return false;
    }
    finish(static_cast<std::size_t>(i), code, status);
  }
  return true;
}

/// Message i has ended.
inline void MpiTransfer::finish(std::size_t i, int code, const MPI_Status& status) {
  const MpiMessage message = messages_[i];
  requests_[i] = requests_.back();
  requests_.pop_back();
  messages_[i] = messages_.back();
  messages_.pop_back();
  const std::string peer = " rank " + std::to_string(message.peer);  // short: takes no memory
  if (code != MPI_SUCCESS) {
    link_->expect(code, (message.received ? "a message from" : "a message to") + peer);
  }
  if (!message.received) return;
  int bytes = 0;
  link_->expect(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  if (static_cast<std::size_t>(bytes) != message.bytes) {
    link_->fail("rank " + std::to_string(link_->rank) + " receives " +
                std::to_string(message.bytes) + " bytes of" + peer + ", which sent " +
                std::to_string(bytes));
  }
}

inline void MpiTransfer::wait() {
  Deadline deadline(link_->timeout);
  while (true) {
    const std::size_t left = requests_.size();
    const bool passed = deadline.passed();
    if (done()) return;
    if (requests_.size() < left) {
      deadline.renew();
    } else if (passed) {
      link_->fail("no answer within " + std::to_string(link_->timeout) + " s from rank " + late());
    }
    std::this_thread::yield();  // to ranks on the same core
  }
}

/// Names the ranks that have not sent or, if all have sent, not received.
inline std::string MpiTransfer::late() const {
  std::set<Index> late[2];
  for (const MpiMessage& message : messages_) late[message.received].insert(message.peer);
  std::string text;
  for (const Index peer : late[!late[true].empty()]) {
    text += (text.empty() ? "" : ", ") + std::to_string(peer);
  }
  return text;
}

inline MpiTransfer::~MpiTransfer() {
  try {
    wait();
  } catch (const communication_error&) {  // the next call of the rank throws it
  } catch (const std::bad_alloc&) {
    if (link_->failure.empty()) link_->failure = "out of memory";  // short: takes no memory
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (messages_[i].received) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

}  // namespace detail
}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
