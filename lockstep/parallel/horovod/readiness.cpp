#include "lockstep/parallel/horovod/readiness.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::inline v0::horovod {

Readiness::Readiness(std::vector<int64_t> bytes, int64_t passes, int rounds)
    : bytes_(std::move(bytes)), passes_(passes) {
  const auto most = static_cast<int64_t>(std::max<size_t>(bytes_.size(), 1));
  rounds_ = static_cast<size_t>(std::clamp<int64_t>(rounds, 1, most));
  total_ = std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
  reset();
}

bool Readiness::arrived(size_t parameter) {
  if (times_[parameter] == passes_) return false;
  backwards_ = std::max(backwards_, ++times_[parameter]);
  if (times_[parameter] < passes_) return true;
  set_bit(ready_.data(), parameter);
  ready_bytes_ += bytes_[parameter];
  const auto share = [this](size_t round) {  // not total * round, which might overflow
    return total_ / static_cast<int64_t>(rounds_) * static_cast<int64_t>(round);
  };
  while (said_.size() + 1 < rounds_ && ready_bytes_ >= share(said_.size() + 1))
    said_.push_back(ready_);
  return true;
}

void Readiness::close() {
  while (said_.size() + 1 < rounds_) said_.push_back(ready_);
}

void Readiness::reset() {
  times_.assign(bytes_.size(), 0);
  backwards_ = 0;
  ready_bytes_ = 0;
  ready_.assign(byte_count(), 0);
  said_.clear();
}

Bits Readiness::used() const {
  Bits bits(byte_count(), 0);
  for (size_t i = 0; i < times_.size(); ++i) {
    if (times_[i] > 0) set_bit(bits.data(), i);
  }
  return bits;
}

}  // namespace lockstep::inline v0::horovod
