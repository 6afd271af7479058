#include "lockstep/rpc/internal/background_connector.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/errors.h"

namespace lockstep::inline v0::rpc::internal {
namespace background_connector_test {

using namespace std::chrono_literals;

Deadline soon() {
  return Deadline::seconds(60);
}
Peer peer(uint64_t incarnation) {
  return {"p" + std::to_string(incarnation), incarnation, 1, "h"};
}

// The results of the requests, as text.
class Answers {
 public:
  BackgroundConnector::Then of(const std::string& name) {
    return [this, name](std::exception_ptr error) {
      std::string what = "reached";
      try {
        if (error) std::rethrow_exception(error);
      } catch (const Timeout&) {
        what = "late";
      } catch (const PeerLost&) {
        what = "gone";
      } catch (const Cancelled&) {
        what = "stopped";
      }
      const std::lock_guard lock(mutex_);
      all_[name] = what;
      changed_.notify_all();
    };
  }
  std::string now(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return all_.contains(name) ? all_[name] : "nothing";
  }
  std::string wait(const std::string& name) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 60s, [&] { return all_.contains(name); })) return "nothing";
    return all_[name];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> all_;
};

TEST(BackgroundConnector, SaysWhoIsReachedAndWhoIsGone) {
  Answers answers;
  std::atomic<int> turns{0};
  BackgroundConnector reaching([&](const Peer& whom, Deadline) {
    ++turns;
    if (whom.incarnation == 2) throw PeerLost("it is gone", -1);
  });
  reaching.reach(peer(1), soon(), answers.of("one"));
  reaching.reach(peer(2), soon(), answers.of("two"));
  EXPECT_EQ(answers.wait("one"), "reached");
  EXPECT_EQ(answers.wait("two"), "gone");
  EXPECT_EQ(turns, 2);
}

// A process that does not answer has a turn after the others, as long as a request for it exists.
TEST(BackgroundConnector, ASilentOneHoldsUpNobodyElse) {
  Answers answers;
  std::atomic<int> turns{0};
  std::atomic<bool> wakes{false};
  BackgroundConnector reaching([&](const Peer& whom, Deadline deadline) {
    EXPECT_LE(deadline.remaining(), BackgroundConnector::kTurn);
    if (whom.incarnation != 1) return;
    ++turns;
    if (!wakes) throw Timeout("it is silent");
  });
  reaching.reach(peer(1), Deadline::seconds(0.2), answers.of("impatient"));
  reaching.reach(peer(1), soon(), answers.of("patient"));
  reaching.reach(peer(2), soon(), answers.of("other"));
  EXPECT_EQ(answers.wait("other"), "reached");
  EXPECT_EQ(answers.wait("impatient"), "late");
  for (const Deadline deadline = soon(); turns < 2 && !deadline.expired();)
    std::this_thread::yield();
  EXPECT_GE(turns, 2);
  wakes = true;
  EXPECT_EQ(answers.wait("patient"), "reached");
}

// A waiting callback owns an object that is released once it is called.
TEST(BackgroundConnector, ItsEndIsToldToAllAndItMayEndItself) {
  Answers answers;
  std::atomic<bool> inside{false};
  auto reaching = std::make_unique<BackgroundConnector>([&](const Peer&, Deadline deadline) {
    inside = true;
    while (!deadline.expired()) std::this_thread::sleep_for(1ms);
    throw Timeout("it is silent");
  });
  reaching->reach(peer(1), soon(), answers.of("in its turn"));
  while (!inside) std::this_thread::yield();
  reaching->reach(peer(2), soon(), answers.of("in the queue"));
  reaching->stop(soon().time());
  reaching->reach(peer(3), soon(), answers.of("afterwards"));
  for (const char* name : {"in its turn", "in the queue", "afterwards"})
    EXPECT_EQ(answers.now(name), "stopped") << name;
  reaching.reset();
  // It is ended by its own thread, which is left behind.
  auto ends = std::make_shared<std::unique_ptr<BackgroundConnector>>(
      std::make_unique<BackgroundConnector>([](const Peer&, Deadline) {}));
  BackgroundConnector& last = **ends;
  last.reach(peer(3), soon(), [ends, say = answers.of("ended")](std::exception_ptr error) {
    ends->reset();
    say(error);
  });
  ends = nullptr;
  EXPECT_EQ(answers.wait("ended"), "reached");
}

}  // namespace background_connector_test
}  // namespace lockstep::inline v0::rpc::internal
