#include "lockstep/testing/fake_cuda/internal/host.h"

#include <c10/util/ThreadLocalDebugInfo.h>

namespace lockstep::inline v0::testing::fake {
namespace {

// ThreadLocalDebugInfo gives a bare pointer; the owner is found through it.
class HostInfo final : public c10::DebugInfoBase {
 public:
  explicit HostInfo(std::shared_ptr<Host> of) : host(std::move(of)) {}
  std::shared_ptr<Host> host;
};

}  // namespace

void Tally::add(const FakeCudaCounts& counts) {
  const MutexLock lock(mutex_);
  counts_.operations += counts.operations;
  counts_.fallbacks += counts.fallbacks;
  counts_.copies += counts.copies;
  counts_.allocations += counts.allocations;
  counts_.captured += counts.captured;
  counts_.replays += counts.replays;
  counts_.replayed += counts.replayed;
  for (size_t i = 0; i < counts_.stops_by_cause.size(); ++i)
    counts_.stops_by_cause[i] += counts.stops_by_cause[i];
}

FakeCudaCounts Tally::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::shared_ptr<Host> Host::current() {
  const auto kind = c10::DebugInfoKind::TEST_INFO;
  if (auto* info = dynamic_cast<HostInfo*>(c10::ThreadLocalDebugInfo::get(kind))) return info->host;
  // A guard of another kind may take it away with its own, so the thread remembers who it is.
  thread_local const auto own = std::make_shared<Host>();
  if (c10::ThreadLocalDebugInfo::get(kind) == nullptr)
    c10::ThreadLocalDebugInfo::_push(kind, std::make_shared<HostInfo>(own));
  return own;
}

void Host::note(StopPlace stop) {
  const MutexLock lock(mutex_);
  if (watched_ > 0) stops_.push_back(std::move(stop));
}

bool Host::watched() const {
  const MutexLock lock(mutex_);
  return watched_ > 0;
}

void Host::watch(bool on) {
  const MutexLock lock(mutex_);
  watched_ += on ? 1 : -1;
  if (watched_ == 0) stops_.clear();
}

std::vector<StopPlace> Host::stops() const {
  const MutexLock lock(mutex_);
  return stops_;
}

}  // namespace lockstep::inline v0::testing::fake
