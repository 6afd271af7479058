// Timeline: what each rank of a job did and when, as one file for ui.perfetto.dev.
//
//   lockstep::Timeline timeline;
//   timeline.start(comm);
//   for (...) {
//     const auto step = timeline.span("step", number);
//     { const auto span = timeline.span("forward"); loss = ...; }
//     { const auto span = timeline.span("backward"); loss.backward(); }
//     timeline.collect();
//   }
//   timeline.stop();
//   timeline.write(comm, "trace.json");
//
// Collectives, messages and the waits for them come from the flight recorder (trace/call_board.h),
// which is always on. What else is to be seen is marked by spans: TrainLoop, Trainer and
// Accelerator mark their parts in a Timeline that they are given. While it is off, a span costs one
// relaxed load and two branches.
//
// With TimelineOptions::nvtx the spans and the communicators' calls are NVTX ranges, too, for NVIDIA
// Nsight Systems, also while the timeline is off.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/export.h"
#include "lockstep/device/nvtx.h"
#include "lockstep/timeline/clock_offset.h"
#include "lockstep/timeline/span_log.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {
class Timeline;
namespace timeline {
class CallCollector;
class OperatorSpans;
class DeviceSpans;
struct RankEvents;
}  // namespace timeline

// A trace that could not be made or written. All ranks throw it, and the communicator is as it was.
class LOCKSTEP_API TimelineError final : public Error {
 public:
  using Error::Error;
};

// How much a Timeline takes.
struct TimelineOptions {
  // Marked spans of a rank, and calls; further ones are counted and dropped.
  size_t capacity = size_t{1} << 16;
  // libtorch's operators are spans too: those of the thread that calls start(), and of the threads
  // of autograd that work for it.
  bool operators = false;
  size_t operator_capacity = size_t{1} << 17;  // with `operators`: their number
  // Spans are NVTX ranges of their threads, named "forward" or "step 12", whether the timeline is on
  // or not; so are calls, after mark_calls(). It needs a libtorch with CUDA, and no device.
  bool nvtx = false;
};

// A part of the program, from its construction to the end of its scope. The destructor only writes
// into memory.
class [[nodiscard]] LOCKSTEP_API TimelineSpan {
 public:
  // `timeline`: outlives the span; null: marks nothing. `name` is copied, and cut after 47 bytes.
  // `number`: of the step, or what else the program counts; -1: none.
  inline TimelineSpan(Timeline* timeline, std::string_view name, int64_t number = -1) noexcept;
  ~TimelineSpan() {
    if (device_ != nullptr) end_on_device();
  }
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

 private:
  void begin_range(std::string_view name, int64_t number) noexcept;
  void begin_on_device(std::string_view name, int64_t number) noexcept;
  void end_on_device() noexcept;

  device::NvtxRange range_;
  std::shared_ptr<timeline::DeviceSpans> device_;  // where the device measures the span, too
  size_t place_ = 0;                               // there
  timeline::ScopedSpan span_;
};

// Not copyable. It belongs to the loop that trains: there is none of the process.
// Thread-safety: span() any thread; all else the communicator's thread. With `operators`, start(),
// stop(), write() and the destructor are on one thread, where libtorch keeps something meanwhile.
class LOCKSTEP_API Timeline {
 public:
  // Throws: as check().
  explicit Timeline(const TimelineOptions& options = {});
  ~Timeline();  // stops, and does not communicate
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Throws: InvalidArgument, which begins with the option, for what this libtorch cannot do.
  static void check(const TimelineOptions& options);

  // Begins, and forgets what was recorded before. `comm`: any communicator of the job; the calls of
  // all communicators of the same init() are recorded, also those that are under way. Does not
  // communicate, so ranks may begin one after another. Where the ranks train on a device, it waits
  // until the device has done what it was given.
  // Throws: std::bad_alloc without memory for the spans.
  void start(const Communicator& comm);
  // Ends. Spans that have not ended by then are left out. Does nothing while it is off.
  void stop() noexcept;
  bool on() const noexcept { return log_->on(); }  // between start() and stop()

  // With TimelineOptions::nvtx, the host's parts of the calls of all communicators of the same
  // init() are NVTX ranges from now on: a blocking call, the start of another one, and the wait for
  // it. start() does the same. The last communicator counts, until the timeline is gone; ranks that
  // are threads of one process mark together. Does nothing without nvtx, and does not communicate.
  void mark_calls(const Communicator& comm);

  // Marks a part of the program; the result marks it as long as it lives. The names that others
  // look for: "step", "data", "forward", "backward", "optimizer", "evaluation", "checkpoint".
  TimelineSpan span(std::string_view name, int64_t number = -1) { return {this, name, number}; }

  // Takes over the calls that have been made since the last collect(). The flight recorder keeps
  // the last 1,024 of a rank, so a loop calls it after every step; calls that were overwritten are
  // counted in the file. Does nothing while it is off, and does not communicate.
  void collect();

  // Stops, and writes the events of all ranks, on rank 0, as the file `path`, whole or not at all.
  // The ranks' parts come to rank 0 one after another, so that it holds one at a time.
  // Between hosts the offset of the clocks is measured by messages, and written into the file. A
  // rank that was never started has no events. `steps`: what the file says about its steps. After
  // it, nothing is kept.
  // Collective: all ranks of `comm`, which is the whole job.
  // Throws: TimelineError on all ranks if one cannot make its part, or rank 0 cannot write;
  // InvalidArgument if no rank has started it; as the communicator.
  void write(Communicator& comm, const std::filesystem::path& path, const std::string& steps = "");

 private:
  friend class TimelineSpan;
  void forget() noexcept;
  // The events of this rank for the file, in its own clock.
  timeline::RankEvents recorded(int rank) const;

  const TimelineOptions options_;
  // Shared, because libtorch may keep it on other threads.
  const std::shared_ptr<timeline::SpanLog> log_;
  std::unique_ptr<timeline::OperatorSpans> operators_;  // while it is on
  std::shared_ptr<timeline::DeviceSpans> device_;       // null: the ranks train on the host
  // The thread that may use device_; none: it is null.
  std::atomic<std::thread::id> device_thread_{};
  std::shared_ptr<trace::CallBoard> board_;
  int place_ = 0;                                   // on the board
  std::unique_ptr<timeline::CallCollector> calls_;  // null: none are recorded
  std::vector<trace::KeptCall> remote_;
  std::shared_ptr<trace::CallBoard> marked_board_;  // whose communicators mark their calls
  timeline::ClockReading begun_, ended_;            // begun_.ticks 0: nothing is kept
};

inline TimelineSpan::TimelineSpan(Timeline* timeline, std::string_view name,
                                  int64_t number) noexcept
    : span_(timeline == nullptr ? nullptr : timeline->log_.get(), name, number) {
  if (timeline == nullptr) return;
  if (timeline->options_.nvtx) begin_range(name, number);
  if (!timeline->on()) return;
  if (timeline->device_thread_.load(std::memory_order_relaxed) != std::this_thread::get_id())
    return;
  device_ = timeline->device_;
  begin_on_device(name, number);
}

}  // namespace lockstep::inline v0
