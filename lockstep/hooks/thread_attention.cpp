#include "lockstep/hooks/thread_attention.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/internal/dispatch_key.h"

namespace lockstep::inline v0::hooks {
namespace {

using internal::kKey;

thread_local const ThreadAttention::Attend* instead = nullptr;
std::atomic<int> alive = 0;  // in this process

// By names: later versions of the operation may have more arguments.
AttentionCall call_of(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments) {
  AttentionCall call;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    const c10::IValue& value = arguments[i];
    if (name == "query") call.queries = value.toTensor();
    if (name == "key") call.keys = value.toTensor();
    if (name == "value") call.values = value.toTensor();
    if (name == "attn_mask" && value.isTensor()) call.mask = value.toTensor();
    if (name == "dropout_p") call.dropout = value.toDouble();
    if (name == "is_causal") call.is_causal = value.toBool();
    if (name == "scale" && !value.isNone()) call.scale = value.toDouble();
    if (name == "enable_gqa") call.has_groups = value.toBool();
  }
  return call;
}

// Where no attention stands on this thread, the operation goes on below the key; a generator of the thread's, which the same key
// serves, still hears of what it calls.
void as_told(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const ThreadAttention::Attend* const attend = instead;
  if (attend == nullptr) {
    // A thread of autograd's takes over the key of the thread that called backward, and not its attention.
    if (alive.load() > 0 && !internal::KeyOnThread::is_here())
      throw InvalidArgument(
          "scaled_dot_product_attention: attention to the tokens of other ranks is computed again by "
          "a thread of autograd's, which does not know the other ranks; leave attention out of what "
          "backward computes again");
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
    return;
  }
  const AttentionCall call =
      call_of(op.schema(), torch::jit::pop(*stack, op.schema().arguments().size()));
  // Within, the operation is libtorch's.
  instead = nullptr;
  try {
    stack->emplace_back((*attend)(call));
  } catch (...) {
    instead = attend;
    throw;
  }
  instead = attend;
}

void register_attention() {
  static const bool registered = [] {
    internal::kernels().impl("scaled_dot_product_attention",
                             torch::CppFunction::makeFromBoxedFunction<&as_told>());
    return true;
  }();
  (void)registered;
}

}  // namespace

ThreadAttention::ThreadAttention(Attend attend) : attend_(std::move(attend)) {
  if (instead != nullptr)
    throw InvalidArgument(
        "ThreadAttention: this thread's attention is replaced already; let the other one end first");
  register_attention();
  key_ = std::make_unique<internal::KeyOnThread>();
  instead = &attend_;
  ++alive;
}

ThreadAttention::~ThreadAttention() {
  instead = nullptr;
  --alive;
}

}  // namespace lockstep::inline v0::hooks
