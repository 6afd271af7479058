// FailedDevices: which ranks of a host get other devices, since theirs have failed. Pure.
#pragma once

#include <map>
#include <optional>

namespace lockstep::inline v0::launch {

class FailedDevices {
 public:
  // The rank's device has failed once more.
  void add(int local_rank) { spares_[local_rank] = next_++; }
  // The number of the spare device that it takes from then on (LOCKSTEP_SPARE_DEVICE,
  // device/choose.h), which no other rank gets; nullopt: its own.
  std::optional<int> spare_of(int local_rank) const {
    const auto found = spares_.find(local_rank);
    return found == spares_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::map<int, int> spares_;  // by local rank
  int next_ = 0;
};

}  // namespace lockstep::inline v0::launch
