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
#include "lockstep/core/export.h"
#include "lockstep/rpc/call_options.h"
#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/future_state.h"
#include "lockstep/rpc/rref.h"
#include "lockstep/rpc/short_text.h"

namespace lockstep::inline v0::rpc {

namespace internal {

class Calls;
class Core;
class Link;
class SentTensors;

enum class How : uint8_t { kSync, kAsync };

// A call to make.
struct Request {
  std::string_view function;
  uint64_t types_hash = 0;             // 0: not compared
  const std::string* types = nullptr;  // as text, which is never freed
  CallOptions options = {};
  How how = How::kSync;
};

// A call's place on the call board.
struct BoardPlace {
  enum : uint8_t { kNone, kShown, kOver } state = kNone;
  uint64_t number = 0;
};

// A call independent of its result type.
class LOCKSTEP_API Pending {
 public:
  virtual ~Pending() = default;
  // Reads the result; the future must then be finished. Called between claim() and finish().
  virtual void take(Reader& result) = 0;
  virtual FutureState& state() = 0;

  std::weak_ptr<Calls> calls;  // that it is one of
  std::shared_ptr<Link> link;  // set before the call is seen by others
  uint64_t number = 0;         // its number in the table of calls; 0: not in it
  std::optional<Deadline> ends;
  ShortText peer, function;
  const std::string* types = nullptr;  // Request's
  Deadline::Clock::time_point begun = {};
  BoardPlace board;                   // used by BoardPage alone
  std::shared_ptr<SentTensors> sent;  // the record for autograd; null: none
  // Cancellation flag of the enclosing call, whose cancellation cancels this one. Null: no
  // enclosing call.
  std::shared_ptr<const std::atomic<bool>> within = {};
};
using PendingPtr = std::shared_ptr<Pending>;

LOCKSTEP_API bool receive_for(Pending& call, Deadline deadline);  // FutureState::help_until
LOCKSTEP_API void cancel_call(Pending& call);
LOCKSTEP_API void run_after(Pending& call, Task task);

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

// This thread's empty writer, for one message of the agent.
LOCKSTEP_API Writer& scratch_writer(const std::shared_ptr<Core>& core);

// `owned`: a reference; its owner alone is called. Null: the process that has the name.
LOCKSTEP_API void start_call(const std::shared_ptr<Core>& core, const std::string& to,
                             const Request& request, Writer& arguments, const PendingPtr& call,
                             const ReferencePtr& owned);
LOCKSTEP_API ReferencePtr start_remote(const std::shared_ptr<Core>& core, const std::string& to,
                                       const Request& request, Writer& arguments,
                                       const ReferencePtr& owned);
// Calls one of the owner agent's own functions for the object: "rpc.fetch" or "rpc.wait".
LOCKSTEP_API void start_at_owner(const ReferencePtr& reference, std::string_view function,
                                 const CallOptions& options, const PendingPtr& call);
LOCKSTEP_API ReferencePtr own_object(const std::shared_ptr<Core>& core,
                                     std::shared_ptr<Object> object);
// The agent of the reference. Throws Cancelled where it was shut down, PeerLost where the owner is
// known to be gone.
LOCKSTEP_API std::shared_ptr<Core> agent_of(const ReferencePtr& reference);

}  // namespace internal
}  // namespace lockstep::inline v0::rpc
