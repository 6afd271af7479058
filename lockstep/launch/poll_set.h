// PollSet: one poll(2), with the descriptors to wait for and their callbacks.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::inline v0::launch {

class PollSet {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Calls `ready` when `events`, an error or the end occurs; does nothing for fd < 0.
  void add(int fd, short events, std::function<void()> ready = {});
  // The same, but `fd` is called when the wait begins, since it may change until then whether to
  // wait. (A rank's stream waits for a full console. Once that is written, the stream may be the
  // only thing left to wait for.)
  void add(std::function<int()> fd, short events, std::function<void()> ready = {});
  // The wait ends at this time at the latest.
  void wake_at(std::optional<Time> time);
  // Waits, at most until the earliest wake_at(), and then runs the ready callbacks in the order of
  // add().
  void wait();

 private:
  struct Entry {
    std::function<int()> fd;
    short events;
    std::function<void()> ready;
  };

  std::vector<Entry> entries_;
  std::optional<Time> wake_;
};

}  // namespace lockstep::inline v0::launch
