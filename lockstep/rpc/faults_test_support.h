// One process of a fault's test case: one of the three processes a, b and c is hit at a certain
// moment.
#pragma once

#include <ATen/core/Tensor.h>
#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/autograd.h"
#include "lockstep/rpc/optimizer.h"

namespace lockstep::inline v0::rpc::faults_mp_test {

enum Role { kA, kB, kC, kRoles };
inline constexpr const char* kNames[] = {"a", "b", "c"};

// The errors with which a call may end, as bits; several where timing decides.
enum Told : unsigned {
  kLost = 1,        // PeerLost
  kLate = 2,        // Timeout
  kRemote = 4,      // RemoteError
  kStore = 8,       // StoreError
  kCancelled = 16,  // Cancelled
  kWell = 32,       // it does not fail
};
// For a nested call, which ends by the deadline of the call that it is made in: whichever of the
// two is found late first.
inline constexpr unsigned kByDeadline = kLate | kCancelled;

// The deadline of calls to a stopped process, and to a name without a process.
inline constexpr auto kShort = std::chrono::milliseconds(700);
// The deadline of calls to a killed process: long, so that waiting for it would fail the test.
inline constexpr auto kLong = std::chrono::seconds(25);
inline constexpr auto kLease = std::chrono::seconds(1);
// The delay that a busy machine may add.
inline constexpr double kSlack = 6;

class Part;
struct Count {
  int value = 7;
};

struct Fault {
  const char* phase;
  Role victim;
  // The possible errors of the call of a that meets the fault, for a killed and for a stopped
  // victim.
  unsigned killed, stopped;
  const char* names;  // a regular expression for its message, with the process at fault
  void (*script)(Part&);
  bool before = false;    // the victim does not join
  bool all_come = false;  // all processes call shutdown(), the victim too
};

class Part {
 public:
  Part(const Fault& fault, int signal);

  bool is(Role role) const { return role_ == role; }
  Role victim() const { return fault_.victim; }
  const std::string& phase() const { return phase_; }
  bool killed() const { return signal_ == SIGKILL; }
  Agent& agent() { return *agent_; }

  // ---- the fault ----
  // Hits the victim, once, whichever process calls it.
  void hit();
  void send(Role role, int signal) const;

  // ---- expectations ----
  // `body` ends with an error from the table, in time, in one line that names the process at fault.
  void expect_told(const std::function<void()>& body);
  void expect(unsigned told, const std::string& names, const std::function<void()>& body);
  // The same for an error inside a function that this process served, once it has occurred.
  void expect_noted(unsigned told, const std::string& names);
  void note(const std::function<void()>& body);
  // A function that waited was told that its caller has stopped waiting.
  void expect_cancelled();
  static void eventually(const char* what, const std::function<bool()>& holds);
  void expect_nothing_kept();
  void expect_no_context();
  void expect_arrived();  // the references that were sent

  // ---- the others ----
  void say(const std::string& word);
  void await(const std::string& word);
  // Waits until all survivors are here.
  void meet(const std::string& word);

  void join();
  void shut_down();

  void await_left(const char* name);  // waits until that process is in shutdown()

  // Uses the reference that another process has made this one keep.
  int use_kept();

  // Filled with seven; large enough that reading it from its owner's memory takes a while.
  const at::Tensor& sevens();
  static bool are_sevens(const at::Tensor& tensor);
  std::atomic<int> torn{0};

 private:
  struct Noted {
    unsigned told = 0;
    std::string text;
    double seconds = 0;
  };
  Registry functions();
  static Noted run(const std::function<void()>& body);
  void check(const Noted& noted, unsigned told, const std::string& names) const;
  std::chrono::nanoseconds timeout() const { return killed() ? kLong : kShort; }
  at::Tensor forward_b(const at::Tensor& x);
  at::Tensor forward_c(const at::Tensor& x);

  const Fault& fault_;
  const int signal_;
  const Role role_;
  const std::string phase_;
  std::shared_ptr<Store> store_;
  std::optional<Agent> agent_;
  std::vector<pid_t> pids_;
  std::atomic<bool> hit_{false};
  std::atomic<int> cancelled_{-1};  // -1: no function has waited to its end; else whether it was
  Mutex mutex_;
  std::optional<Noted> noted_ LOCKSTEP_GUARDED_BY(mutex_);
  RRef<Count> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  at::Tensor sevens_;
  at::Tensor weight_;
};

}  // namespace lockstep::inline v0::rpc::faults_mp_test
