// A call of this process that waits for its answer, and how calls are started. Not for programs.
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

// What the core knows of a call, whatever its result.
class Pending {
 public:
  virtual ~Pending() = default;
  // Reads the result; then the future is to be finished. Between claim() and finish().
  virtual void take(Reader& result) = 0;
  virtual FutureState& state() = 0;

  std::weak_ptr<Core> core;
  std::shared_ptr<Link> link;  // set before the call is seen by others
  uint64_t number = 0;         // in the core's table; 0: not in it
  std::optional<Deadline> ends;
  ShortText peer, function;
  const std::string* types = nullptr;  // of the call, in words that live for ever
  Deadline::Clock::time_point begun = {};
  bool shown = false;  // on the call board, as `board_call`, or finished; guarded by the core
  uint64_t board_call = 0;
  std::shared_ptr<SentTensors> sent;  // what of it autograd has to know; null: nothing
  // Of the call that is served by whoever waits for this one, which is not wanted any more when that is not; null: it stands
  // for itself.
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

// This thread's writer, empty, for one message of the core's.
Writer& scratch_writer(const std::shared_ptr<Core>& core);
// A message that will not be sent: lets go of the references that are in it.
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
