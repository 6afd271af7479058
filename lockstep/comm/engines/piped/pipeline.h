// Pipeline: progresses calls on a device's memory, part by part: the device's work, and the calls
// of the host's engine in between. Not a public header.
//
// Collectives run in the order of their calls; messages run beside them. The engine progresses only
// when it is called, and a wait in it uses all that it knows of late and lost ranks. During such a
// wait, calls that become ready are handed to the engine from inside.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/piped/part.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/set_once.h"
#include "lockstep/device/event.h"

namespace lockstep::inline v0::piped {

// One call in the pipeline.
class Transfer {
 public:
  Transfer(const Call& call, DataPath& path);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Whether the device has been given all of it, or it failed; what follows is valid then. From any
  // thread.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // Its completion on the device; never null. Throws the error with which it failed.
  const std::shared_ptr<const device::Event>& done() const;
  std::string text() const;  // "#3 all_reduce sum float32 x 5 at train.cpp:12"

 private:
  friend class Pipeline;
  struct Step {
    std::unique_ptr<Part> part;
    bool begun = false;
    std::unique_ptr<Request> request = nullptr;  // the engine's request
  };

  Call call_;
  trace::CallRecord record_;
  std::string note_;
  std::deque<Step> steps_;  // steps that are not complete
  std::shared_ptr<const device::Event> done_;
  std::exception_ptr error_;
  std::atomic<bool> settled_{false};
};

// One thread at a time.
class Pipeline {
 public:
  // The thread that drives the pipeline throws soon after `interruption`, which outlives this, is
  // set.
  Pipeline(std::unique_ptr<Backend> host, std::unique_ptr<DataPath> path, c10::Device device,
           const SetOnce<Breakage>& interruption);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  void add(std::shared_ptr<Transfer> transfer);
  // Does what is possible without blocking. Returns whether anything is left to do.
  bool turn() noexcept;
  // Counts calls added, handed to the engine and settled, to show whether there is progress.
  uint64_t steps() const { return steps_; }
  // Drives until the transfer is settled; the transfer holds its error. Throws Timeout for a late
  // device, and PeerLost once interrupted.
  void drive(Transfer& transfer, Deadline deadline);
  void set_siblings(SiblingProgress* siblings) { siblings_ = siblings; }
  // DataPath::check(), for a late device.
  void check() const { path_->check(*host_); }
  // Ends pending calls with the error. The device is given no more work, and later work of this
  // thread's current stream comes after the device's.
  void give_up(const std::exception_ptr& error) noexcept;
  // Backend::close()
  bool close() noexcept;

 private:
  using Transfers = std::deque<std::shared_ptr<Transfer>>;
  // Called by the engine's waits.
  class Inside final : public SiblingProgress {
   public:
    explicit Inside(Pipeline& pipeline) : pipeline_(pipeline) {}
    bool pending() const noexcept override;
    void move() noexcept override;
    std::string report_wait(const Call& call, const std::vector<int>& awaited,
                            bool moved) noexcept override;

   private:
    Pipeline& pipeline_;
  };

  void begin_all();
  bool begin(Transfer::Step& step);
  void hand_over_all();
  bool hand_over(const std::shared_ptr<Transfer>& transfer, Transfer::Step& step);
  void take_all();
  void take_collectives();
  bool take(const std::shared_ptr<Transfer>& transfer);
  void advance(const std::shared_ptr<Transfer>& transfer);
  void fail(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error) noexcept;
  std::exception_ptr why_not() const noexcept;
  void fail_all(const std::exception_ptr& error) noexcept;
  std::shared_ptr<Transfer> in_the_way(const Transfer& transfer) const;

  std::unique_ptr<Backend> host_;
  std::unique_ptr<DataPath> path_;
  c10::Device device_;
  const SetOnce<Breakage>& interruption_;
  Inside inside_{*this};
  SiblingProgress* siblings_ = nullptr;
  Transfers collectives_;
  Transfers messages_;
  Transfers failed_;     // kept because the engine may still touch their memory
  int64_t waiting_ = 0;  // parts that the engine has not been given
  bool waits_for_message_ = false;
  uint64_t steps_ = 0;
  std::optional<bool> closed_;
};

}  // namespace lockstep::inline v0::piped
