// Pipeline: calls on a device's memory on their way, part by part: what the device is given, and
// the calls of the host's engine in between. Not a public header.
//
// Collectives go in the order of their calls; messages go beside them. The engine moves only when
// it is called, and waits in it are the engine's own, with all that it knows of late and lost
// ranks: meanwhile what is ready is handed to it from inside of its wait.
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

#include "lockstep/comm/backend.h"
#include "lockstep/comm/piped/part.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/set_once.h"
#include "lockstep/device/event.h"

namespace lockstep::piped {

// A call on its way.
class Transfer {
 public:
  Transfer(const Call& call, Way& way);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Whether the device has all of it, or it failed; of any thread. What follows is there then.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // Its end on the device; never null. Throws what it failed with.
  const std::shared_ptr<const device::Event>& done() const;
  std::string text() const;  // "#3 all_reduce sum float32 x 5 at train.cpp:12"

 private:
  friend class Pipeline;
  struct Step {
    std::unique_ptr<Part> part;
    bool begun = false;
    std::unique_ptr<Request> request = nullptr;  // the engine's
  };

  Call call_;
  trace::CallRecord record_;
  std::string note_;
  std::deque<Step> steps_;  // those that are not over
  std::shared_ptr<const device::Event> done_;
  std::exception_ptr error_;
  std::atomic<bool> settled_{false};
};

// One thread at a time.
class Pipeline {
 public:
  // Whoever drives throws soon after `interruption`, which outlives this, is set.
  Pipeline(std::unique_ptr<Backend> host, std::unique_ptr<Way> way, c10::Device device,
           const SetOnce<Breakage>& interruption);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  void add(std::shared_ptr<Transfer> transfer);
  // Does what can be done without blocking; whether anything is left to do.
  bool turn() noexcept;
  // How much has been added, handed to the engine or settled: whether anything goes on.
  uint64_t steps() const { return steps_; }
  // Until the transfer is settled. What it failed with, it says; throws Timeout for a device that
  // is late, PeerLost once interrupted.
  void drive(Transfer& transfer, Deadline deadline);
  void set_elsewhere(Elsewhere* elsewhere) { elsewhere_ = elsewhere; }
  // Way::check(), where the device is late.
  void check() const { way_->check(*host_); }
  // Ends what is under way with the error: the device is given nothing any more, and what this
  // thread's current stream is given from now on comes after what the device has.
  void give_up(const std::exception_ptr& error) noexcept;
  // Backend::close()
  bool close() noexcept;

 private:
  using Transfers = std::deque<std::shared_ptr<Transfer>>;
  // What the engine's waits do besides.
  class Inside final : public Elsewhere {
   public:
    explicit Inside(Pipeline& pipeline) : pipeline_(pipeline) {}
    bool pending() const noexcept override;
    void move() noexcept override;
    std::string stand(const Call& call, const std::vector<int>& awaited,
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
  std::unique_ptr<Way> way_;
  c10::Device device_;
  const SetOnce<Breakage>& interruption_;
  Inside inside_{*this};
  Elsewhere* elsewhere_ = nullptr;
  Transfers collectives_;
  Transfers messages_;
  Transfers failed_;     // the engine may still touch their memory
  int64_t waiting_ = 0;  // parts that the engine does not have
  bool waits_for_message_ = false;
  uint64_t steps_ = 0;
  std::optional<bool> closed_;
};

}  // namespace lockstep::piped
