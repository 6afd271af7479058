// InboundCall: a call of another process while it is served here. Not a public header.
#pragma once

#include <c10/util/SmallVector.h>

#include <atomic>
#include <exception>
#include <memory>
#include <string>

#include "lockstep/rpc/internal/core.h"

namespace lockstep::rpc::internal {

class InboundCall final : public Function::Result,
                          public std::enable_shared_from_this<InboundCall> {
 public:
  // Keeps copies of the message's bytes, from `head` on.
  InboundCall(std::shared_ptr<Core> core, std::shared_ptr<Link> link, const Function& function,
              RequestHead head, Incoming& message, std::string_view arguments);
  ~InboundCall() override;

  void run();
  // run() on another thread, once. The task is part of this object and lives as long.
  Task task();
  // Marks the call as cancelled; returns the flag that its nested calls have as `within`.
  const std::atomic<bool>* cancel() noexcept {
    cancelled_.store(true, std::memory_order_release);  // behind Core::stopped()
    return &cancelled_;
  }

  void value(const std::function<void(Writer&)>& write,
             const std::function<std::shared_ptr<Object>()>& object) override;
  void error(std::exception_ptr error) override;

  const Function& function() const { return function_; }
  const std::shared_ptr<Link>& link() const { return link_; }
  uint64_t order() const { return order_; }
  uint64_t number() const { return number_; }
  // Whether its tensors have yet to be fetched, or copied to devices.
  bool pending() const { return message_.pending != 0 || !message_.devices.empty(); }
  Deadline::Clock::time_point begun() const { return begun_; }

  // Shown on the call board; guarded by the mutex of Core.
  bool shown = false;
  uint64_t board_call = 0;

 private:
  class Run final : public Work {
   public:
    void run() override { of->run(); }
    void drop() noexcept override { const std::shared_ptr<InboundCall> last = std::move(of); }
    std::shared_ptr<InboundCall> of;
  };

  bool nobody_waits() const {
    return cancelled_.load(std::memory_order_acquire) || deadline_.expired();
  }
  bool end() noexcept { return !ended_.exchange(true, std::memory_order_acq_rel); }
  void answer(MessageKind kind, Writer& writer);
  bool unwanted() const;  // whether its answer is no longer needed
  void send_copied(const std::string& body, const Tensors* copies,
                   const std::exception_ptr& failure, const Devices& devices,
                   const std::vector<uint64_t>& holds) noexcept;
  void ended();

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Link> link_;
  const Function& function_;
  const uint64_t number_;
  const uint64_t order_;
  const Deadline deadline_;
  const std::optional<ObjectId> keep_;
  std::optional<Recording> record_;
  const DeviceWay way_;
  std::shared_ptr<ContextState> context_;
  Incoming message_;   // without its body
  bool read_ = false;  // the message or its error was read
  c10::SmallVector<char, 256> arguments_;
  std::atomic<bool> cancelled_{false}, ended_{false};
  Run run_;
  const Deadline::Clock::time_point begun_ = Deadline::Clock::now();
};

// Writes an exception as an error's body: type, text, place.
void write_error(Writer& writer, std::exception_ptr error, const Function& function);

}  // namespace lockstep::rpc::internal
