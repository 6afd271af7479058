#include "lockstep/hooks/thread_attention.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/hooks/internal/dispatch_key.h"

namespace lockstep::hooks {
namespace {

using internal::kKey;

thread_local const ThreadAttention::Attend* instead = nullptr;

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

void as_told(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  if (instead == nullptr) {
    op.callBoxed(stack);
    return;
  }
  const AttentionCall call =
      call_of(op.schema(), torch::jit::pop(*stack, op.schema().arguments().size()));
  stack->emplace_back((*instead)(call));
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

ThreadAttention::ThreadAttention(Attend attend)
    : attend_(std::move(attend)), was_included_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  LOCKSTEP_CHECK(instead == nullptr, "a second attention for one thread");
  register_attention();
  instead = &attend_;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

ThreadAttention::~ThreadAttention() {
  c10::impl::tls_set_dispatch_key_included(kKey, was_included_);
  instead = nullptr;
}

}  // namespace lockstep::hooks
