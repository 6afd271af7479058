#include "lockstep/hooks/thread_generator.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <utility>

#include "lockstep/hooks/internal/dispatch_key.h"

namespace lockstep::inline v0::hooks {
namespace {

using internal::kKey;

thread_local const std::function<const at::Generator&()>* innermost = nullptr;

bool is_generator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>())
    return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  return type->kind() == c10::TypeKind::GeneratorType;
}

// Whether an operation works on the CPU: its first tensor or the device that it was given says so.
bool is_on_cpu(torch::jit::Stack& stack, size_t arguments) {
  for (const c10::IValue& value : torch::jit::last(stack, arguments)) {
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor().is_cpu();
    if (value.isDevice()) return value.toDevice().is_cpu();
  }
  return true;
}

void with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  if (innermost != nullptr && is_on_cpu(*stack, arguments.size())) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
      if (is_generator(arguments[i]) && value.isNone()) value = c10::IValue((*innermost)());
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

}  // namespace

ThreadGenerator::ThreadGenerator(std::function<const at::Generator&()> generator)
    : generator_(std::move(generator)), outer_(innermost) {
  prepare();
  innermost = &generator_;
  key_ = std::make_unique<internal::KeyOnThread>();
}

ThreadGenerator::~ThreadGenerator() {
  innermost = outer_;
}

at::Generator ThreadGenerator::current() {
  return innermost == nullptr ? at::Generator() : (*innermost)();
}

void ThreadGenerator::prepare() {
  static const bool registered = [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace() != "aten") continue;
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      bool takes_one = false;
      for (const c10::Argument& argument : op->schema().arguments())
        takes_one = takes_one || is_generator(argument);
      if (!takes_one) continue;
      const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
      internal::kernels().impl((name.name + overload).c_str(),
                               torch::CppFunction::makeFromBoxedFunction<&with_generator>());
    }
    return true;
  }();
  (void)registered;
}

}  // namespace lockstep::inline v0::hooks
