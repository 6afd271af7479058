#include "lockstep/testing/fault_suite.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/process_state.h"
#include "lockstep/testing/long_tests.h"

namespace lockstep::inline v0::testing {
namespace {

constexpr auto kShortTimeout = std::chrono::seconds(2);
constexpr auto kLongTimeout = std::chrono::seconds(30);

at::Tensor vector_of(int64_t n, at::ScalarType dtype = at::kFloat) {
  return at::zeros({n}, at::TensorOptions(dtype));
}

// Until it throws: what has no reason to wait for the faulty rank yet will have one soon.
std::function<void(Communicator&)> again_and_again(std::function<void(Communicator&)> call) {
  return [call = std::move(call)](Communicator& comm) {
    const Deadline deadline = Deadline::after(kLongTimeout);
    while (!deadline.expired()) call(comm);
  };
}

void all_reduce(Communicator& comm) {
  comm.all_reduce(vector_of(1000));
}

void die(Communicator&) {
  ::kill(::getpid(), SIGKILL);
}

constexpr int64_t kLarge = 4'000'000;  // elements; the transfer takes many turns

void reduce_large(Communicator& comm) {
  comm.all_reduce(vector_of(kLarge));
}

// On shm each rank copies from and to the others' memory.
void gather_large(Communicator& comm) {
  comm.all_gather(vector_of(kLarge));
}

// The process is gone while the call is under way.
std::function<void(Communicator&)> dies_inside(std::function<void(Communicator&)> call) {
  return [call = std::move(call)](Communicator& comm) {
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ::kill(::getpid(), SIGKILL);
    }).detach();
    while (true) call(comm);
  };
}

void stop(Communicator&) {
  ::raise(SIGSTOP);
}

// The same on all ranks: the faulty one's process.
int pid_of_faulty(Communicator& comm) {
  const at::Tensor pid = at::full({1}, static_cast<int64_t>(::getpid()), at::kLong);
  comm.broadcast(pid, kFaultyRank);
  return static_cast<int>(pid.item<int64_t>());
}

// Runs call(), and stops the process once this thread sleeps in it for good: no other thread calls it
// before the process is stopped.
void stop_while_it_waits(Communicator& comm) {
  pid_of_faulty(comm);
  const int thread = static_cast<int>(::gettid());
  std::atomic<bool> calls = false;
  std::thread([thread, &calls] {
    constexpr int kLooks = 50;  // that find it asleep, one after another
    for (int asleep = 0; asleep < kLooks;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      asleep = calls && process_state(thread) == 'S' ? asleep + 1 : 0;
    }
    ::kill(::getpid(), SIGSTOP);
  }).detach();
  calls = true;
  comm.all_reduce(vector_of(1000));
}

// Comes once the faulty rank is stopped.
void come_then(Communicator& comm) {
  const int pid = pid_of_faulty(comm);
  const Deadline deadline = Deadline::after(kLongTimeout);
  while (process_state(pid) != 'T' && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  again_and_again(all_reduce)(comm);
}

using StartTransfer = std::function<Work(Communicator&)>;

Work start_reduce_large(Communicator& comm) {
  return comm.iall_reduce(vector_of(kLarge));
}

Work start_gather_large(Communicator& comm) {
  return comm.iall_gather(vector_of(kLarge * comm.size()), vector_of(kLarge));
}

// Stops with a large transfer under way, which the others have begun: they send a word from inside.
std::function<void(Communicator&)> stops_in(const StartTransfer& start) {
  return [start](Communicator& comm) {
    const at::Tensor word = vector_of(1);
    while (true) {
      Work work = start(comm);
      for (const int r : {0, 2}) comm.recv(word, r);
      if (!work.test()) ::raise(SIGSTOP);
      work.wait();
    }
  };
}

std::function<void(Communicator&)> transfers_and_tells(const StartTransfer& start) {
  return [start](Communicator& comm) {
    const at::Tensor word = vector_of(1);
    again_and_again([&](Communicator& c) {
      Work work = start(c);
      c.send(word, kFaultyRank);
      work.wait();
    })(comm);
  };
}

Fault lost(std::string name, std::function<void(Communicator&)> fault, int end,
           std::function<void(Communicator&)> call = all_reduce) {
  Fault result;
  result.name = std::move(name);
  result.fault = std::move(fault);
  result.others = again_and_again(std::move(call));
  result.needs_process = true;
  result.end = end;
  return result;
}

Fault mismatch(std::string name, std::function<void(Communicator&)> fault,
               std::function<void(Communicator&)> others, std::vector<std::string> words) {
  Fault result;
  result.name = std::move(name);
  result.error = FaultError::kMismatch;
  const auto then_barriers = [](std::function<void(Communicator&)> call) {
    return [call = std::move(call)](Communicator& comm) {
      call(comm);
      for (int i = 0; i < 3; ++i) comm.barrier();
    };
  };
  result.fault = then_barriers(std::move(fault));
  result.others = then_barriers(std::move(others));
  result.faulty_sees_it = true;
  result.words = std::move(words);
  return result;
}

std::vector<Fault> make_faults() {
  std::vector<Fault> all;
  all.push_back(lost("Killed", die, SIGKILL));
  all.push_back(lost("KilledInside", dies_inside(reduce_large), SIGKILL, reduce_large));
  all.push_back(lost("KilledInsideACopy", dies_inside(gather_large), SIGKILL, gather_large));
  all.push_back(lost("KilledBeforeBarrier", die, SIGKILL, [](Communicator& c) { c.barrier(); }));
  all.push_back(lost("KilledRoot", die, SIGKILL,
                     [](Communicator& c) { c.broadcast(vector_of(10), kFaultyRank); }));
  all.push_back(lost("KilledReceiver", die, SIGKILL, [](Communicator& c) {
    c.broadcast(vector_of(1000), 0);  // the root learns of it when it gets no further ahead
  }));
  all.push_back(lost("KilledInAllToAll", die, SIGKILL,
                     [](Communicator& c) { c.all_to_all(vector_of(6000)); }));
  all.push_back(lost("KilledSender", die, SIGKILL,
                     [](Communicator& c) { c.recv(vector_of(10), kFaultyRank); }));
  all.push_back(lost("KilledBeforeItReceives", die, SIGKILL,
                     [](Communicator& c) { c.send(vector_of(100'000), kFaultyRank); }));
  all.push_back(lost("Exits", [](Communicator&) { std::exit(3); }, -3));
  all.push_back(lost("ExitsAtOnce", [](Communicator&) { ::_exit(0); }, 0));

  Fault leaves = lost("Leaves", [](Communicator&) {}, 0);
  leaves.needs_process = false;
  all.push_back(leaves);

  Fault stopped = lost("Stopped", stop, SIGSTOP);
  stopped.error = FaultError::kTimeout;
  stopped.at_deadline = true;
  stopped.words = {"rank 1", "all_reduce sum float32 x 1000"};
  all.push_back(stopped);

  // In every phase of a collective.
  const auto stops = [&stopped](std::string name, std::function<void(Communicator&)> fault,
                                std::function<void(Communicator&)> others, bool long_only) {
    Fault result = stopped;
    result.name = std::move(name);
    result.fault = std::move(fault);
    result.others = std::move(others);
    result.words = {"rank 1", "all_reduce sum float32 x "};
    result.long_only = long_only;
    return result;
  };
  all.push_back(stops("StoppedWhileItWaits", stop_while_it_waits, come_then, true));
  all.push_back(stops("StoppedInTransfer", stops_in(start_reduce_large),
                      transfers_and_tells(start_reduce_large), false));
  Fault copying = stops("StoppedInACopy", stops_in(start_gather_large),
                        transfers_and_tells(start_gather_large), false);
  copying.words = {"rank 1", "all_gather float32 x "};
  all.push_back(copying);
  all.push_back(stops(
      "StoppedAfterItsPart",
      [](Communicator& c) {
        const Work work = c.iall_reduce(vector_of(1000));
        ::raise(SIGSTOP);
      },
      again_and_again(all_reduce), true));
  all.push_back(stops(
      "StoppedAtTheEnd",
      [](Communicator& c) {
        c.all_reduce(vector_of(kLarge));
        ::raise(SIGSTOP);
      },
      again_and_again(reduce_large), true));

  Fault late = stopped;
  late.name = "Late";
  late.needs_process = false;
  late.end = 0;
  late.fault = [](Communicator& comm) {
    std::this_thread::sleep_for(kShortTimeout + std::chrono::seconds(1));
    all_reduce(comm);
    all_reduce(comm);
  };
  all.push_back(late);

  // Where a thread cannot be stopped: it holds a transfer up that it has begun.
  Fault holds = late;
  holds.name = "HoldsATransferUp";
  holds.words = {"rank 1", "all_reduce sum float32 x "};
  holds.fault = [late = late.fault](Communicator& comm) {
    const Work work = comm.iall_reduce(vector_of(kLarge));
    late(comm);
  };
  holds.others = again_and_again(reduce_large);
  holds.long_only = true;
  all.push_back(holds);

  const auto reduce_100 = [](Communicator& c) { c.all_reduce(vector_of(100)); };
  all.push_back(mismatch("AnotherOperation", [](Communicator& c) { c.all_gather(vector_of(100)); },
                         reduce_100, {"all_reduce sum float32 x 100", "all_gather float32 x 300"}));
  all.push_back(mismatch("AnotherShape", [](Communicator& c) { c.all_reduce(vector_of(101)); },
                         reduce_100, {"float32 x 100", "float32 x 101"}));
  all.push_back(mismatch("AMuchLargerShape",
                         [](Communicator& c) { c.all_reduce(vector_of(1'000'000)); }, reduce_100,
                         {"float32 x 100", "float32 x 1000000"}));
  all.push_back(mismatch("AnotherDtype",
                         [](Communicator& c) { c.all_reduce(vector_of(100, at::kInt)); },
                         reduce_100, {"float32 x 100", "int32 x 100"}));
  all.push_back(mismatch("AnotherReduction",
                         [](Communicator& c) { c.all_reduce(vector_of(100), ReduceOp::kMax); },
                         reduce_100, {"all_reduce sum", "all_reduce max"}));
  all.push_back(mismatch(
      "AnotherRoot", [](Communicator& c) { c.broadcast(vector_of(100), kFaultyRank); },
      [](Communicator& c) { c.broadcast(vector_of(100), 0); }, {"root 0", "root 1"}));
  all.push_back(mismatch(
      "AnotherOrder",
      [](Communicator& c) {
        c.all_gather(vector_of(100));
        c.all_reduce(vector_of(100));
      },
      [](Communicator& c) {
        c.all_reduce(vector_of(100));
        c.all_gather(vector_of(100));
      },
      {"all_reduce sum float32 x 100", "all_gather float32 x 300"}));
  // One of many that the others have under way long before, more than an engine remembers.
  constexpr int kMany = 300;
  const auto start_many = [](Communicator& c, int another) {
    std::vector<Work> works;
    for (int i = 0; i < kMany; ++i)
      works.push_back(
          c.iall_reduce(vector_of(100), i == another ? ReduceOp::kMax : ReduceOp::kSum));
    return works;
  };
  all.push_back(mismatch(
      "AnotherFarBehind",
      [start_many](Communicator& c) {
        c.recv(vector_of(1), 0);
        for (Work& work : start_many(c, kMany / 2)) work.wait();
      },
      [start_many](Communicator& c) {
        std::vector<Work> works = start_many(c, -1);
        if (c.rank() == 0) c.send(vector_of(1), kFaultyRank);
        for (Work& work : works) work.wait();
      },
      {"all_reduce sum float32 x 100", "all_reduce max float32 x 100"}));
  all.push_back(mismatch("SkipsOne", [](Communicator&) {}, reduce_100,
                         {"all_reduce sum float32 x 100", "barrier"}));
  // The skip shows when the rank is gone: the others have one call more to make than it.
  Fault skips = leaves;
  skips.name = "SkipsOneAndLeaves";
  skips.fault = [](Communicator& c) { c.all_reduce(vector_of(1000)); };
  skips.others = [](Communicator& c) {
    for (int i = 0; i < 2; ++i) c.all_reduce(vector_of(1000));
  };
  all.push_back(skips);
  return all;
}

const char* name_of(FaultError error) {
  static constexpr const char* kNames[] = {"PeerLost", "Timeout", "Mismatch"};
  return kNames[static_cast<int>(error)];
}

}  // namespace

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> all = make_faults();
  return all;
}

const std::vector<Fault>& faults() {
  static const std::vector<Fault> chosen = [] {
    std::vector<Fault> some = all_faults();
    if (!long_tests()) std::erase_if(some, [](const Fault& fault) { return fault.long_only; });
    return some;
  }();
  return chosen;
}

std::chrono::nanoseconds fault_timeout(const Fault& fault) {
  return fault.at_deadline ? kShortTimeout : kLongTimeout;
}

std::string run_fault(Communicator& comm, const Fault& fault, const FaultTraits& traits,
                      std::chrono::nanoseconds limit) {
  const bool faulty = comm.rank() == kFaultyRank;
  all_reduce(comm);
  comm.barrier();
  const auto start = std::chrono::steady_clock::now();
  FaultError error{};
  int lost_rank = -1;  // or the late one
  std::string text;
  try {
    (faulty ? fault.fault : fault.others)(comm);
    if (faulty && !fault.faulty_sees_it) return {};
    return "no error was thrown";
  } catch (const PeerLost& e) {
    error = FaultError::kPeerLost;
    lost_rank = e.rank();
    text = e.what();
  } catch (const Timeout& e) {
    error = FaultError::kTimeout;
    if (const auto* late = dynamic_cast<const LateRank*>(&e)) lost_rank = late->rank();
    text = e.what();
  } catch (const Mismatch& e) {
    error = FaultError::kMismatch;
    text = e.what();
  } catch (const std::exception& e) {
    return std::string("another exception: ") + e.what();
  }
  const auto elapsed = std::chrono::steady_clock::now() - start;
  if (faulty && !fault.faulty_sees_it) return {};  // whatever the late one gets

  std::ostringstream wrong;
  const bool exact = traits.names_calls || fault.error != FaultError::kMismatch;
  if (exact && error != fault.error)
    wrong << name_of(error) << " instead of " << name_of(fault.error) << "\n";
  if (fault.error == FaultError::kPeerLost && lost_rank != kFaultyRank &&
      (traits.names_lost || lost_rank != -1)) {
    wrong << "PeerLost names rank " << lost_rank << "\n";
  }
  if (error == FaultError::kTimeout && fault.error == error && lost_rank != kFaultyRank &&
      traits.names_late)
    wrong << "Timeout blames rank " << lost_rank << "\n";
  if (traits.names_calls && (traits.names_late || fault.error != FaultError::kTimeout)) {
    for (const std::string& word : fault.words) {
      if (text.find(word) == std::string::npos) wrong << "'" << word << "' is not in the message\n";
    }
  }
  const auto seconds = [](auto duration) {
    return std::chrono::duration<double>(duration).count();
  };
  const bool waits = fault.at_deadline || !exact;
  if (elapsed > limit + (waits ? comm.timeout() : std::chrono::nanoseconds(0)))
    wrong << "only after " << seconds(elapsed) << " s\n";
  if (fault.at_deadline && elapsed < comm.timeout() * 9 / 10)
    wrong << "already after " << seconds(elapsed) << " s\n";
  // Broken is broken: at once, and the same kind of error.
  const auto again = std::chrono::steady_clock::now();
  try {
    comm.barrier();
    wrong << "a later call succeeded\n";
  } catch (const Error&) {
    if (std::chrono::steady_clock::now() - again > std::chrono::milliseconds(500))
      wrong << "a later call waited\n";
  }
  if (!wrong.str().empty()) wrong << "the message: " << text << "\n";
  return wrong.str();
}

}  // namespace lockstep::inline v0::testing
