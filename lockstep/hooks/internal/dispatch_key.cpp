#include "lockstep/hooks/internal/dispatch_key.h"

namespace lockstep::hooks::internal {
namespace {

struct Registered {
  torch::Library every{torch::Library::IMPL, "_", kKey, __FILE__, __LINE__};
  torch::Library aten{torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__};
};

}  // namespace

torch::Library& kernels() {
  // A reference to an object that is never freed.
  static Registered& registered = *[] {
    auto* const made = new Registered;
    made->every.fallback(torch::CppFunction::makeFallthrough());
    return made;
  }();
  return registered.aten;
}

}  // namespace lockstep::hooks::internal
