// A call of this process that waits for its answer, and the start of calls. Not for programs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/core/deadline.h"
#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/future_state.h"
#include "lockstep/rpc/rref.h"
#include "lockstep/rpc/short_text.h"

namespace lockstep::rpc {

class Destination;

namespace internal {

class Core;
class Link;
class SentTensors;

enum class How : uint8_t { kSync, kAsync };

// The core's view of a call, independent of its result type.
class Pending {
 public:
  virtual ~Pending() = default;
  // Reads the result; the future must then be finished. Called between claim() and finish().
  virtual void take(Reader& result) = 0;
  virtual FutureState& state() = 0;

  std::weak_ptr<Core> core;
  std::shared_ptr<Link> link;  // set before the call is seen by others
  uint64_t number = 0;         // its number in the core's table; 0: not in it
  std::optional<Deadline> ends;
  ShortText peer, function;
  const std::string* types = nullptr;  // the call's types as text, which is never freed
  Deadline::Clock::time_point begun = {};
  // Shown on the call board as `board_call`, or finished; guarded by the mutex of Core.
  bool shown = false;
  uint64_t board_call = 0;
  std::shared_ptr<SentTensors> sent;  // the record for autograd; null: none
  // Cancellation flag of the enclosing call, whose cancellation cancels this one. Null: no
  // enclosing call.
  std::shared_ptr<const std::atomic<bool>> within = {};
};
using PendingPtr = std::shared_ptr<Pending>;

bool receive_for(Pending& call, Deadline deadline);  // FutureState::help_until
void cancel_call(Pending& call);
void run_after(Pending& call, Task task);

template <typename R>
class TypedCall final : public ValueState<R>, public Pending {
 public:
  void take(Reader& result) override {
    if constexpr (std::is_void_v<R>) {
      Codec<Nothing>::read(result);
      result.end();
    } else {
      R value = Codec<R>::read(result);
      result.end();
      this->store(std::move(value));
    }
  }
  FutureState& state() override { return *this; }
  std::optional<Deadline> deadline() const override { return ends; }
  void cancel() override { cancel_call(*this); }

 protected:
  bool help_until(Deadline deadline) override { return receive_for(*this, deadline); }
  void execute(Task task) override { run_after(*this, std::move(task)); }
};

// This thread's empty writer, for one message of the core.
Writer& scratch_writer(const std::shared_ptr<Core>& core);
// The message will not be sent: releases its references.
void drop_written(Core& core, Writer& writer) noexcept;

void start_call(const std::shared_ptr<Core>& core, const std::string& to, std::string_view function,
                uint64_t types_hash, const std::string& types, Writer& arguments,
                const CallOptions& options, How how, const PendingPtr& call,
                const ReferencePtr& owned);
ReferencePtr start_remote(const std::shared_ptr<Core>& core, const std::string& to,
                          std::string_view function, uint64_t types_hash, const std::string& types,
                          Writer& arguments, const CallOptions& options, const ReferencePtr& owned);
void start_fetch(const ReferencePtr& reference, const CallOptions& options, const PendingPtr& call);
void start_wait(const ReferencePtr& reference, const CallOptions& options, const PendingPtr& call);
ReferencePtr own_object(const std::shared_ptr<Core>& core, std::shared_ptr<Object> object);
Destination destination_of(const ReferencePtr& reference, const CallOptions& options);

}  // namespace internal
}  // namespace lockstep::rpc
