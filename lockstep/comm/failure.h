// How a group breaks, and how its ranks hear of it: one vocabulary for all engines.
//
// Whoever meets a failure first reports it; the other ranks throw the same exception. Not a public
// header.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep {

// Travels between ranks as its number.
enum class Failure : uint8_t { kTimeout = 1, kPeerLost, kMismatch, kOther };

// The failure of this number; nullopt for a number that no rank of the same version sends.
std::optional<Failure> failure_of(int64_t number) noexcept;

// Why a rank gives a group up, as it tells the others.
struct Breakage {
  Failure kind = Failure::kOther;
  int rank = -1;  // who is gone, or late; -1: nobody that is known, or the teller itself
  std::string text = {};
};
// Of an exception that a communicator of the group threw: what else was thrown is kOther. `text` tells it.
Breakage breakage_of(const std::exception_ptr& error, std::string text) noexcept;

// A Timeout that knows for which rank of the group the wait was.
class LateRank : public Timeout {
 public:
  LateRank(const std::string& what, int rank) : Timeout(what), rank_(rank) {}
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

// Whom a report blames: the rank that it names (`lost`; -1: none), or who gave the group up for a
// reason of its own. Who reports that somebody is gone, or late, is neither.
int blamed_rank(Failure kind, int reporter, int lost) noexcept;

// As the exception for `kind`, with `rank` (-1: unknown): Timeout (LateRank), Mismatch, or
// PeerLost, which also stands for kOther.
[[noreturn]] void throw_failure(Failure kind, int rank, const std::string& text);

// The first failure of a group, in memory that its ranks share. Zeroed memory holds none.
// Lock-free: a rank that dies inside takes its own report with it, no more.
struct FailureBoard {
  alignas(128) std::atomic<uint32_t> state;  // 0: none, kWriting, or a Failure
  int32_t reporter;                          // valid, as what follows, once the state is a Failure
  int32_t lost_rank;                         // or the late one; -1: none
  char text[1024];

  static constexpr uint32_t kWriting = 1u << 16;

  // Something is reported, or about to be. In one order with all seq_cst operations.
  bool any() const noexcept { return state.load(std::memory_order_seq_cst) != 0; }

  // True if this is the first report; otherwise nothing changes. A long text is cut.
  bool report(Failure kind, int rank, int lost, const std::string& reason) noexcept;

  struct Report {
    Failure kind;
    int reporter;
    int rank;  // as blamed_rank()
    std::string text;
  };
  // What is reported in full. Costs one load where there is nothing.
  std::optional<Report> read() const {
    if (state.load(std::memory_order_acquire) == 0) return std::nullopt;
    return read_report();
  }

 private:
  std::optional<Report> read_report() const;
};

}  // namespace lockstep
