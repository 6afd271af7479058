#include "lockstep/launch/poll_set.h"

#include <algorithm>
#include <utility>

namespace lockstep::inline v0::launch {
namespace {

constexpr int64_t kLongestPollMs = 60000;

}  // namespace

void PollSet::add(int fd, short events, std::function<void()> ready) {
  if (fd >= 0) entries_.push_back({[fd] { return fd; }, events, std::move(ready)});
}

void PollSet::add(std::function<int()> fd, short events, std::function<void()> ready) {
  entries_.push_back({std::move(fd), events, std::move(ready)});
}

void PollSet::wake_at(std::optional<Time> time) {
  if (time) wake_ = wake_ ? std::min(*wake_, *time) : *time;
}

void PollSet::wait() {
  std::vector<pollfd> polls;  // poll(2) ignores negative descriptors
  for (const Entry& entry : entries_) polls.push_back({entry.fd(), entry.events, 0});
  int timeout = -1;
  if (wake_) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*wake_ - std::chrono::steady_clock::now());
    timeout = static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLongestPollMs));
  }
  if (::poll(polls.data(), polls.size(), timeout) <= 0) return;
  for (size_t i = 0; i < polls.size(); ++i) {
    if (polls[i].revents != 0 && entries_[i].ready) entries_[i].ready();
  }
}

}  // namespace lockstep::inline v0::launch
