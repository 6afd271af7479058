// FakeCuda: CUDA devices that the host plays, inside a CPU build of libtorch. A training loop runs
// on torch::kCUDA without a GPU, with the numbers of the CPU's kernels, and its mistakes are found:
// missing waits between streams, memory freed while a stream may still use it, host code that reads
// device memory, and places where the host stops for the device.
//
//   FakeCuda& cuda = FakeCuda::install({.devices = 2});
//   Counting counted;
//   train_one_step(model, batch);   // on torch::kCUDA
//   EXPECT_EQ(counted.stops(), 0);
//   EXPECT_TRUE(cuda.take_races().empty());
//
// An operation runs at once, on the thread that calls it, by the CPU's kernel. What a device would
// do later shows in order alone: each stream has a vector clock, events carry clocks, and each
// operation is compared with those that read and wrote its memory last. So a missing wait is found
// whenever the program comes by, without luck. It shows nothing of speed, nor of the rounding of a
// GPU's kernels. docs/fake-cuda.md says more.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::testing {

// What follows when host code, outside of an operation, touches the memory of a device, or pinned
// memory whose copy it has not waited for.
enum class HostAccess {
  kEnd,   // as on a machine with a GPU: SIGSEGV, after a line on stderr that names the tensor
  kNote,  // it is noted as a race, and the host goes on with what lies there
};

// The options of a FakeCuda.
struct FakeCudaOptions {
  int devices = 2;                            // that the host plays
  int64_t memory_bytes = int64_t{4} << 30;    // of each device; more is out of memory
  HostAccess host_access = HostAccess::kEnd;  // where host code touches a device's memory
  // Look at the stack at every operation, so that reports name the program's functions, and lines
  // where it was compiled with them (-g1): some microseconds each.
  bool callers = true;
  // This device fails at its `fails_at`-th operation of the process, as after an illegal memory
  // access: c10::AcceleratorError of code 700, from then on for all that is asked of it. -1: none.
  int failing_device = -1;
  int64_t fails_at = 0;  // counted from 1, of that device alone
};

// Why the host waited for a device.
enum class HostStop {
  kItem,          // a value was asked for: item(), a comparison that gives a bool
  kResultSize,    // an operation whose result's size depends on values: nonzero, masks as indices
  kCopyToHost,    // that blocks, or to memory that is not pinned
  kCopyToDevice,  // that blocks, or from memory that is not pinned
  kEvent,         // an event was waited for
  kStream,        // a stream was
  kDevice,        // a device was
};
inline constexpr int kHostStops = 7;            // the number of causes
LOCKSTEP_API const char* name(HostStop cause);  // "item", ...

// What the devices were given.
struct LOCKSTEP_API FakeCudaCounts {
  int64_t operations = 0;   // given to streams: kernels, fills, copies; views and empty() are none
  int64_t fallbacks = 0;    // of those, by the CPU's kernel of the same operator
  int64_t copies = 0;       // of those, copies between tensors
  int64_t allocations = 0;  // of device memory
  int64_t captured = 0;     // recorded into graphs; not among the operations
  int64_t replays = 0;      // of graphs; each is one of the operations
  int64_t replayed = 0;     // by those: operations of graphs
  std::array<int64_t, kHostStops> stops_by_cause{};

  // Those with one cause, or all.
  int64_t stops(HostStop cause) const { return stops_by_cause[static_cast<size_t>(cause)]; }
  int64_t stops() const;
  // Those since `earlier`.
  FakeCudaCounts operator-(const FakeCudaCounts& earlier) const;
  // "12 operations, 3 host stops: 2 item, 1 copy to host".
  std::string text() const;
};

// What may go wrong.
enum class RaceKind {
  kReadAfterWrite,   // it may read before what it needs is written
  kWriteAfterRead,   // it may write before another one has read
  kWriteAfterWrite,  // either may be the last
  kFreedInUse,       // memory that a stream may still use was freed and given out again
  kHostAccess,       // host code touched a device's memory, or pinned memory that is being copied
};

// Two operations in an order that nothing ensures.
struct LOCKSTEP_API Race {
  RaceKind kind;
  std::string earlier;  // the operation, its device and stream, and who called it
  std::string later;
  std::string memory;  // which operation made the memory
  // One line: "aten::mul.Tensor on cuda:0, stream 0, called from ... may read before ...".
  std::string text() const;
};

// The devices of this process. Any thread may call; several ranks may be threads.
class LOCKSTEP_API FakeCuda {
 public:
  // Once per process, since libtorch's registries are: later calls give the same object, and throw
  // InvalidArgument where they ask for other options. Before the first backward of the process
  // (autograd counts the devices then). Throws InvalidArgument in a CUDA build of libtorch, and
  // where the options make no sense.
  static FakeCuda& install(const FakeCudaOptions& options = {});
  // Whether this program's libtorch has no CUDA of its own.
  static bool possible();

  const FakeCudaOptions& options() const;  // as given

  // Of the whole process, since the start.
  FakeCudaCounts counts() const;

  // The races found since the start or the last call, each pair of places once; at most 100. An
  // operation that raced has run all the same.
  std::vector<Race> take_races();

  // Whether the devices reach each other's memory (cudaDeviceCanAccessPeer); at first they do.
  void set_peer_access(bool possible);

  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

 private:
  FakeCuda() = default;
};

// Counts what this thread gives to the devices, and what backward does for it on autograd's
// threads, from its construction on. To be used by the thread that made it.
class LOCKSTEP_API Counting {
 public:
  Counting();
  ~Counting();
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

  FakeCudaCounts counts() const;                              // since the construction
  int64_t operations() const { return counts().operations; }  // since the construction
  int64_t stops() const { return counts().stops(); }          // since the construction
  int64_t stops(HostStop cause) const { return counts().stops(cause); }
  // Where the host stopped, in order: "item in aten::_local_scalar_dense on cuda:0, ...".
  std::vector<std::string> stop_places() const;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

}  // namespace lockstep::inline v0::testing
