#include "lockstep/launch/poll_set.h"

#include <algorithm>
#include <utility>

namespace lockstep::launch {
namespace {

constexpr int64_t kLongestPollMs = 60000;

}  // namespace

void PollSet::add(int fd, short events, std::function<void()> ready) {
  if (fd < 0) return;
  polls_.push_back({fd, events, 0});
  ready_.push_back(std::move(ready));
}

void PollSet::wake_at(std::optional<Time> time) {
  if (time) wake_ = wake_ ? std::min(*wake_, *time) : *time;
}

void PollSet::wait() {
  int timeout = -1;
  if (wake_) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*wake_ - std::chrono::steady_clock::now());
    timeout = static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLongestPollMs));
  }
  if (::poll(polls_.data(), polls_.size(), timeout) <= 0) return;
  for (size_t i = 0; i < polls_.size(); ++i) {
    if (polls_[i].revents != 0 && ready_[i]) ready_[i]();
  }
}

}  // namespace lockstep::launch
