#include "lockstep/parallel/data_parallel/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>

namespace lockstep::data_parallel {
namespace {

// The one key that is meant to be switched on for a thread, above everything else, and that nothing
// in libtorch uses. Operations without a generator pass it by.
constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local ReplicaRandom* current = nullptr;

bool is_generator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>())
    return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  return type->kind() == c10::TypeKind::GeneratorType;
}

void with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; current != nullptr && i < arguments.size(); ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    if (is_generator(arguments[i]) && value.isNone()) value = c10::IValue(current->generator());
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode), stack);
}

}  // namespace

uint64_t ForwardSeeds::of(size_t replica) {
  std::call_once(once_, [this] {
    auto* const generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
        std::nullopt, at::detail::getDefaultCPUGenerator());
    const std::lock_guard lock(generator->mutex_);
    base_ = generator->random64();
  });
  // The CPU generator looks at 32 bits of its seed; an odd factor keeps the replicas' apart.
  return (base_ + replica * 0x9e3779b9U) & 0xffffffffU;
}

class ReplicaRandom::Mode {
 public:
  Mode() : guard_(kMode) {}

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

ReplicaRandom::ReplicaRandom(ForwardSeeds& seeds, size_t replica)
    : seeds_(seeds), replica_(replica), mode_(std::make_unique<Mode>()) {
  current = this;
}

ReplicaRandom::~ReplicaRandom() {
  current = nullptr;
}

const at::Generator& ReplicaRandom::generator() {
  if (!generator_) generator_ = at::detail::createCPUGenerator(seeds_.of(replica_));
  return *generator_;
}

void register_replica_random() {
  // Never taken back: libtorch's own objects may go first at the end of the process.
  static const bool registered = [] {
    static auto* const every =
        new torch::Library(torch::Library::IMPL, "_", kMode, __FILE__, __LINE__);
    every->fallback(torch::CppFunction::makeFallthrough());
    static auto* const random =
        new torch::Library(torch::Library::IMPL, "aten", kMode, __FILE__, __LINE__);
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
      random->impl((name.name + overload).c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&with_generator>());
    }
    return true;
  }();
  (void)registered;
}

}  // namespace lockstep::data_parallel
