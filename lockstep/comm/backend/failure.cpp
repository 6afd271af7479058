#include "lockstep/comm/backend/failure.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::inline v0 {

std::optional<Failure> failure_of(int64_t number) noexcept {
  if (number < static_cast<int64_t>(Failure::kTimeout) ||
      number > static_cast<int64_t>(Failure::kOther)) {
    return std::nullopt;
  }
  return static_cast<Failure>(number);
}

Breakage breakage_of(const std::exception_ptr& error, std::string text) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const LateRank& late) {
    return {Failure::kTimeout, late.rank(), std::move(text)};
  } catch (const Timeout&) {
    return {Failure::kTimeout, -1, std::move(text)};
  } catch (const Mismatch&) {
    return {Failure::kMismatch, -1, std::move(text)};
  } catch (const PeerLost& lost) {
    return {Failure::kPeerLost, lost.rank(), std::move(text)};
  } catch (...) {
    return {Failure::kOther, -1, std::move(text)};
  }
}

int blamed_rank(Failure kind, int reporter, int lost) noexcept {
  return lost < 0 && kind == Failure::kOther ? reporter : lost;
}

void throw_failure(Failure kind, int rank, const std::string& text) {
  switch (kind) {
    case Failure::kTimeout:
      if (rank >= 0) throw LateRank(text, rank);
      throw Timeout(text);
    case Failure::kMismatch:
      throw Mismatch(text);
    case Failure::kPeerLost:
    case Failure::kOther:
      break;
  }
  throw PeerLost(text, rank);
}

bool FailureBoard::report(Failure kind, int rank, int lost, const std::string& reason) noexcept {
  uint32_t expected = 0;
  if (!state.compare_exchange_strong(expected, kWriting, std::memory_order_seq_cst)) return false;
  reporter = rank;
  lost_rank = lost;
  const size_t n = std::min(reason.size(), sizeof text - 1);
  std::memcpy(text, reason.data(), n);
  text[n] = '\0';
  state.store(static_cast<uint32_t>(kind), std::memory_order_seq_cst);
  return true;
}

std::optional<FailureBoard::Report> FailureBoard::read_report() const {
  const std::optional<Failure> kind = failure_of(state.load(std::memory_order_acquire));
  if (!kind) return std::nullopt;  // the text is still being written
  return Report{*kind, reporter, blamed_rank(*kind, reporter, lost_rank), text};
}

}  // namespace lockstep::inline v0
