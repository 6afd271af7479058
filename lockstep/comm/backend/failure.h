// How a group breaks, and how its ranks learn of it: one vocabulary for all engines. The rank that
// meets a failure first reports it; the other ranks throw the same exception. Not a public header.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "lockstep/core/cache_line.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

// Its number travels between ranks.
enum class Failure : uint8_t { kTimeout = 1, kPeerLost, kMismatch, kOther };

// The failure with this number; nullopt for a number that no rank of the same version sends.
std::optional<Failure> failure_of(int64_t number) noexcept;

// Why a rank gives a group up, as it tells the others.
struct Breakage {
  Failure kind = Failure::kOther;
  int rank = -1;  // the lost or late rank; -1: unknown, or the reporter itself
  std::string text = {};
};
// The breakage for an exception that a communicator of the group threw; another exception is
// kOther. `text` describes it.
Breakage breakage_of(const std::exception_ptr& error, std::string text) noexcept;

// A Timeout that knows which rank of the group the wait was for.
class LateRank : public Timeout {
 public:
  LateRank(const std::string& what, int rank) : Timeout(what), rank_(rank) {}
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

// The rank that a report blames: the rank that it names (`lost`; -1: none), or the reporter if it
// gave up for a reason of its own. A rank that reports another as lost or late is not blamed
// itself.
int blamed_rank(Failure kind, int reporter, int lost) noexcept;

// Throws the exception for `kind`, with `rank` (-1: unknown): Timeout (LateRank), Mismatch, or
// PeerLost, which also stands for kOther.
[[noreturn]] void throw_failure(Failure kind, int rank, const std::string& text);

// The first failure of a group, in memory that its ranks share. Zeroed memory holds none. It is
// lock-free: a rank that dies inside loses its own report only.
struct FailureBoard {
  alignas(kLinePair) std::atomic<uint32_t> state;  // 0: none, kWriting, or a Failure
  int32_t reporter;   // valid, like the fields below, once the state is a Failure
  int32_t lost_rank;  // the lost or late rank; -1: none
  char text[1024];

  static constexpr uint32_t kWriting = 1u << 16;

  // Whether a failure is reported or is being written. Ordered with all seq_cst operations.
  bool any() const noexcept { return state.load(std::memory_order_seq_cst) != 0; }

  // True if this is the first report; otherwise nothing changes. A long text is cut.
  bool report(Failure kind, int rank, int lost, const std::string& reason) noexcept;

  struct Report {
    Failure kind;
    int reporter;
    int rank;  // as blamed_rank()
    std::string text;
  };
  // The failure once it is fully reported. Costs one load where there is none.
  std::optional<Report> read() const {
    if (state.load(std::memory_order_acquire) == 0) return std::nullopt;
    return read_report();
  }

 private:
  std::optional<Report> read_report() const;
};

}  // namespace lockstep::inline v0
