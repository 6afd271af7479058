// Pipeline: calls on a device's memory on their way through host memory and an engine of the host:
// down on one stream, across by the engine, up on another. Not a public header.
//
// Collectives go in the order of their calls, each piece once it is down; while one is exchanged,
// others are copied. Messages go beside them. The engine moves only when it is called, and waits in
// it are the engine's own, with all that it knows of late and lost ranks: meanwhile what comes down
// is handed to it from inside of its wait.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/staged/pieces.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/set_once.h"
#include "lockstep/device/event.h"

namespace lockstep::staged {

// A call on its way.
class Transfer {
 public:
  Transfer(const Call& call, std::vector<Piece> pieces);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Whether the device has the way up, or it failed; of any thread. What follows is there then.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // The end of the way up; never null. Throws what it failed with.
  const std::shared_ptr<const device::Event>& done() const;
  std::string text() const;  // "#3 all_reduce sum float32 x 5 at train.cpp:12"

 private:
  friend class Pipeline;
  struct Part {
    Piece piece;
    at::Tensor memory = {};
    std::optional<device::Event> down = {};  // the end of the way down; nullopt: not on its way yet
    std::unique_ptr<Request> request = {};   // the engine's
  };

  Call call_;
  trace::CallRecord record_;
  std::string note_;
  bool in_pieces_;
  std::deque<Part> parts_;  // those that are not over
  std::shared_ptr<const device::Event> done_;
  std::exception_ptr error_;
  std::atomic<bool> settled_{false};
};

// One thread at a time.
class Pipeline {
 public:
  // Collectives have `at_most` bytes of pinned memory at once; one that is longer goes by itself.
  // Whoever drives throws soon after `interruption`, which outlives this, is set.
  Pipeline(std::unique_ptr<Backend> host, c10::Device device, int64_t at_most,
           const SetOnce<Breakage>& interruption);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  void add(std::shared_ptr<Transfer> transfer);
  // Does what can be done without blocking; whether anything is left to do.
  bool turn() noexcept;
  // How many have been added, handed to the engine or settled: whether anything goes on.
  uint64_t steps() const { return steps_; }
  // Until the transfer is settled. What it failed with, it says; throws Timeout for a device that is
  // late, PeerLost once interrupted.
  void drive(Transfer& transfer, Deadline deadline);
  void set_elsewhere(Elsewhere* elsewhere) { elsewhere_ = elsewhere; }
  // Ends what is under way with the error: nothing is copied any more, and what this thread's current
  // stream is given from now on comes after the copies that the device has.
  void give_up(const std::exception_ptr& error) noexcept;
  // Backend::close()
  bool close() noexcept;

 private:
  using Transfers = std::deque<std::shared_ptr<Transfer>>;
  struct Leaving {
    at::Tensor memory;
    std::shared_ptr<const device::Event> up;
    int64_t counted = 0;
  };
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

  void copy_down_all();
  void copy_down(Transfer& transfer, Transfer::Part& part);
  void hand_over_all();
  bool hand_over(const std::shared_ptr<Transfer>& transfer, Transfer::Part& part);
  void take_all();
  void take_collectives();
  bool take(const std::shared_ptr<Transfer>& transfer);
  void copy_up(const std::shared_ptr<Transfer>& transfer);
  void fail(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error) noexcept;
  void fail_all(const std::exception_ptr& error) noexcept;
  void give_back();
  std::shared_ptr<Transfer> in_the_way(const Transfer& transfer) const;
  at::Tensor on_device(const Span& span) const;

  std::unique_ptr<Backend> host_;
  c10::Device device_;
  int64_t at_most_;
  const SetOnce<Breakage>& interruption_;
  c10::Stream down_;
  c10::Stream up_;
  Inside inside_{*this};
  Elsewhere* elsewhere_ = nullptr;
  Transfers collectives_;
  Transfers messages_;
  std::deque<Leaving> leaving_;  // on their way up
  Transfers failed_;             // the engine may still touch their memory
  int64_t staged_ = 0;           // bytes that collectives have
  int64_t waiting_ = 0;          // parts that the engine does not have yet
  bool waits_for_message_ = false;
  uint64_t steps_ = 0;
  std::optional<bool> closed_;
};

}  // namespace lockstep::staged
