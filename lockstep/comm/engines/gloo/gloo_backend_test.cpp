#include "lockstep/comm/engines/gloo/gloo_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::gloo_backend_test {
namespace {

int64_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

// Two ranks as threads, each with its end of a group, which it may return.
void run_pair(const std::function<void(std::unique_ptr<Backend>)>& first,
              const std::function<void(std::unique_ptr<Backend>)>& second) {
  const auto store = std::make_shared<HashStore>();
  const auto make = [&](int rank) { return make_gloo_backend(store, {.rank = rank, .size = 2}); };
  std::thread other([&] { second(make(1)); });
  first(make(0));
  other.join();
}

Call message(Op op, int peer, std::vector<float>& memory) {
  Call call;
  call.op = op;
  call.dtype = at::kFloat;
  call.peer = peer;
  call.sequence = 1;
  call.count = static_cast<int64_t>(memory.size());
  auto* const data = reinterpret_cast<std::byte*>(memory.data());
  if (op == Op::kSend)
    call.input = data;
  else
    call.output = data;
  return call;
}

// The caller may reuse a receive's memory when request and backend are gone, even if the message
// arrives only then.
TEST(GlooBackend, AMessageToARequestThatIsGoneTouchesNobodysMemory) {
  std::vector<float> sent(1000, 2.0f);
  std::vector<float> memory(1000, 1.0f);
  const auto exchange = [&](bool gives_up) {
    std::atomic<bool> gone{false};
    run_pair(
        [&](std::unique_ptr<Backend> backend) {
          std::unique_ptr<Request> request = backend->start(message(Op::kRecv, 1, memory));
          EXPECT_FALSE(request->poll());  // from here on a thread waits
          if (gives_up) {
            request.reset();
            backend.reset();
          }
          gone = true;
          if (!gives_up) request->wait(Deadline::seconds(30));
        },
        [&](std::unique_ptr<Backend> backend) {
          while (!gone) std::this_thread::yield();
          backend->start(message(Op::kSend, 0, sent))->wait(Deadline::seconds(30));
        });
  };
  exchange(false);
  EXPECT_EQ(memory, sent);
  const auto settled = [](int64_t threads) {
    const Deadline deadline = Deadline::seconds(30);
    while (threads_of_this_process() > threads && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return threads_of_this_process();
  };
  const int64_t threads = threads_of_this_process();
  std::fill(memory.begin(), memory.end(), 3.0f);
  exchange(true);
  // The waiting thread ends when the message has arrived.
  EXPECT_LE(settled(threads), threads);
  EXPECT_EQ(memory, std::vector<float>(1000, 3.0f));
}

}  // namespace
}  // namespace lockstep::inline v0::gloo_backend_test
