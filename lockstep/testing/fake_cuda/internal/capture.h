// Capture: what streams are given while they are captured, kept to be replayed as a graph. Not a
// public header.
//
// A device does nothing during a capture. Here operations run, for their results' shapes, and
// whatever memory they wrote is as before when the capture ends; memory that was made meanwhile is
// the graph's and holds nothing. A replay runs them again, on the same memory, as one operation of
// its stream.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/internal/clock.h"
#include "lockstep/testing/fake_cuda/internal/history.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"

namespace lockstep::inline v0::testing::fake {

// Which calls that might disturb a capture end it: cudaStreamCaptureMode.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };

// One operation's use of memory, which a replay finds again by its address.
struct CapturedUse {
  const std::byte* block = nullptr;
  PlacePtr made;  // of the block
  std::vector<ByteRange> bytes;
  bool write = false;
};

// Given the stream of the replay.
using CapturedWork = std::function<void(StreamSlot)>;

// Any thread may call, while it is under way.
class Capture {
 public:
  Capture(StreamSlot origin, CaptureMode mode);
  // Gives back the memory that is no longer in use.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  StreamSlot origin() const { return origin_; }
  uint64_t id() const { return id_; }
  CaptureMode mode() const { return mode_; }
  std::thread::id thread() const { return thread_; }

  // The operation that `uses` belong to is recorded. `runs`: it runs now too, so that what it
  // writes is kept aside first. Throws where the capture is invalid already.
  void use(const std::vector<CapturedUse>& uses, bool runs);
  // What a replay does for it.
  void add(CapturedWork work);
  // The same for work that is late, which `end` waits for. Of several such in a row that do not
  // come one after another all are begun first, for they may meet others in any order.
  void add_late(CapturedWork begin, CapturedWork end, Moment moment);
  // Memory made while it is under way.
  void own(Block& block);
  // Its tensor is gone.
  void drop(const void* data);

  // A call that CUDA does not allow meanwhile: nothing that follows counts. Always throws.
  [[noreturn]] void forbid(const std::string& what, const char* error);
  void throw_if_invalid() const;
  bool valid() const;

  // Puts back what was written.
  void end();

  // The graph runs on the stream.
  void replay(StreamSlot stream);

 private:
  struct Saved {
    const std::byte* block;
    PlacePtr made;
    std::vector<std::byte> contents;
  };
  struct Work {
    CapturedWork begin, end;  // the latter of what is late
    Moment moment;
  };
  bool owns(const void* data) const LOCKSTEP_REQUIRES(mutex_);

  const StreamSlot origin_;
  const CaptureMode mode_;
  const uint64_t id_;
  const std::thread::id thread_ = std::this_thread::get_id();
  at::Generator generator_;
  at::Tensor generator_state_;
  mutable Mutex mutex_;
  std::string wrong_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<CapturedUse> uses_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Saved> saved_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Work> work_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::pair<const std::byte*, bool>> pool_ LOCKSTEP_GUARDED_BY(mutex_);  // still held?
};

using CapturePtr = std::shared_ptr<Capture>;

// Which streams are captured. Any thread may call.
class Captures {
 public:
  // Throws where the stream is the default one, or captured already.
  CapturePtr begin(StreamSlot origin, int64_t id, CaptureMode mode);
  // Its streams are captured no more. Throws where one of them was not waited for by the origin, or
  // the capture is invalid.
  void end(const CapturePtr& capture);

  // That the stream belongs to, or null.
  CapturePtr of(StreamSlot stream) const;
  bool under_way(const CapturePtr& capture) const;
  // One on the device, or null.
  CapturePtr on(int device) const;
  // What comes next on the stream comes after an event of `of` (null: of no capture).
  void wait(StreamSlot stream, const CapturePtr& of);
  // A call that asks a device: throws where a capture does not allow it to this thread.
  void check_unsafe(const char* call) const;

 private:
  struct Member {
    StreamSlot stream;
    CapturePtr capture;
  };
  mutable Mutex mutex_;
  std::vector<Member> members_ LOCKSTEP_GUARDED_BY(mutex_);
};

Captures& captures();
// Of the calling thread's current stream, or null.
CapturePtr current_capture();

// Whether this thread is in a replay: what it counts is the graph's.
bool replaying();

// Graphs for at::accelerator::Graph; nothing where this libtorch has none.
void register_graphs();

}  // namespace lockstep::inline v0::testing::fake
