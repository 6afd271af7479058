// PollSet: one poll(2): what is waited for, and what is done when it comes.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::launch {

class PollSet {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Calls `ready` when `events`, an error or the end is there; nothing for fd < 0.
  void add(int fd, short events, std::function<void()> ready = {});
  // The same, but `fd` is asked when the wait begins: whether something is to be waited for may
  // change until then. (A full console has a rank's stream wait. Once it is written, nothing but
  // that stream may be left to wait for.)
  void add(std::function<int()> fd, short events, std::function<void()> ready = {});
  // The wait ends by then at the latest.
  void wake_at(std::optional<Time> time);
  // Waits, at most until the earliest wake_at(), and then calls what is ready, in the order of
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

}  // namespace lockstep::launch
